"""Every promise has a test or a reason why not; every marked test names a promise there is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.catalogue import CATALOGUE, Line
from tests.promises import PROMISES, Promise

TESTS = Path(__file__).parent.parent


def marked(source: str) -> Iterator[tuple[str, str]]:
    """(promise, test) for each `pytest.mark.promise("...")` on a test, a class or a module."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                yield from ((promise, node.name) for promise in _named(decorator))
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from ((promise, "the whole file") for promise in _named(node.value))


def _named(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), "name the promise in plain words"
                yield str(argument.value)


def _all_marked() -> dict[str, list[str]]:
    tests: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for promise, name in marked(path.read_text()):
            tests.setdefault(promise, []).append(f"{path.relative_to(TESTS)}::{name}")
    return tests


HELD = _all_marked()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.id)
def test_a_promise_has_a_test_or_says_why_not(promise: Promise) -> None:
    tests = HELD.get(promise.id, [])
    if promise.not_yet:
        assert not tests, f"{promise.id} has tests: it is no longer true that {promise.not_yet}"
        assert promise.so_far is None
    else:
        assert tests, f"no test holds {promise.id}"


def test_no_test_holds_a_promise_that_was_never_made() -> None:
    assert set(HELD) <= {promise.id for promise in PROMISES}


def test_the_promises_are_numbered() -> None:
    assert [promise.id for promise in PROMISES] == [f"P{n}" for n in range(1, 17)]


def test_marks_are_found_wherever_they_stand() -> None:
    source = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.promise("P1")]
@pytest.mark.promise("P2", "P3")
def test_one(): ...
@pytest.mark.promise("P4")
class TestMany:
    @pytest.mark.parametrize("a", [1])
    @pytest.mark.promise("P5")
    async def test_two(self): ...
def test_three(): ...
"""
    assert sorted(marked(source)) == [
        ("P1", "the whole file"),
        ("P2", "test_one"),
        ("P3", "test_one"),
        ("P4", "TestMany"),
        ("P5", "test_two"),
    ]


# The catalogue


@pytest.mark.parametrize("line", CATALOGUE, ids=lambda line: line.id)
def test_a_line_of_the_catalogue_names_tests_that_exist(line: Line) -> None:
    assert line.tests or line.missing
    for node in line.tests:
        path, _, name = node.partition("::")
        tree = ast.parse((TESTS / path).read_text())
        defined = {
            item.name
            for item in tree.body
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in defined, f"{line.id}: there is no {node}"


def test_the_lines_of_the_catalogue_have_names_of_their_own() -> None:
    assert len({line.id for line in CATALOGUE}) == len(CATALOGUE)
