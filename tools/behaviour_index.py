"""Writes tests/INDEX.md: the behaviours of tests/behaviours.toml and the tests marked with them."""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
INDEX = TESTS / "INDEX.md"
_BEHAVIOURS = TESTS / "behaviours.toml"
_NOT_TESTED = "not_tested"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def load_behaviours() -> dict[str, dict[str, str]]:
    return tomllib.loads(_BEHAVIOURS.read_text())


def find_marks(source: str, mark: str) -> Iterator[tuple[str, str]]:
    """(id, test) for each `pytest.mark.<mark>("id")` on a function, a class or a module."""
    pending: list[ast.stmt] = ast.parse(source).body
    while pending:
        node = pending.pop(0)
        if isinstance(node, _Function | ast.ClassDef):
            pending += node.body if isinstance(node, ast.ClassDef) else ()
            for decorator in node.decorator_list:
                yield from ((found, node.name) for found in _ids_in(decorator, mark))
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "pytestmark":
            yield from ((found, "the whole file") for found in _ids_in(node.value, mark))


def _ids_in(expression: ast.expr, mark: str) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{mark}":
            for argument in node.args:
                if not isinstance(argument, ast.Constant):
                    raise TypeError(f"pytest.mark.{mark} takes literal ids only")
                yield str(argument.value)


@cache
def find_marked_tests(mark: str) -> dict[str, list[str]]:
    """`path::test` of each id. Files without the mark are not parsed."""
    tests: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text()
        for found, name in find_marks(source, mark) if f"mark.{mark}(" in source else ():
            tests.setdefault(found, []).append(f"{path.relative_to(TESTS)}::{name}")
    return tests


def write_index() -> Iterator[str]:
    yield "# Behaviours and their tests"
    yield ""
    yield "Written by `make docs` from `behaviours.toml` and `@pytest.mark.covers`. Do not edit."
    behaviours = load_behaviours()
    not_tested = behaviours.pop(_NOT_TESTED)
    tests = find_marked_tests("covers")
    for group in behaviours.values():
        yield ""
        yield f"## {group['title']}"
        yield ""
        for ids, meaning in group.items():
            if ids == "title":
                continue
            first = ids.split()[0]
            shown = ", ".join(f"`{test}`" for test in tests.get(first, ())) or "no test"
            reason = not_tested.get(first, "").replace("Part: ", "Not tested: ")
            yield f"- **{ids}** {meaning}: {shown}. {reason}".rstrip()
