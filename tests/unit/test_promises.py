"""Every promise has a test or a reason why not; every marked test names a promise there is."""

import ast
from collections.abc import Callable, Iterator
from functools import cache
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


@pytest.fixture(scope="module")
def held() -> dict[str, list[str]]:
    """The tests of each promise. Only files that speak of one are worth the reading."""
    tests: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text()
        for promise, name in marked(source) if "mark.promise" in source else ():
            tests.setdefault(promise, []).append(f"{path.relative_to(TESTS)}::{name}")
    return tests


@pytest.fixture(scope="module")
def defined() -> Callable[[str], set[str]]:
    """The tests in a file, which is read once however many lines name it."""

    @cache
    def functions(path: str) -> set[str]:
        body = ast.parse((TESTS / path).read_text()).body
        return {
            item.name for item in body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
        }

    return functions


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.id)
def test_a_promise_has_a_test_or_says_why_not(promise: Promise, held: dict[str, list[str]]) -> None:
    tests = held.get(promise.id, [])
    if promise.not_yet:
        assert not tests, f"{promise.id} has tests: it is no longer true that {promise.not_yet}"
        assert promise.so_far is None
    else:
        assert tests, f"no test holds {promise.id}"


def test_no_test_holds_a_promise_that_was_never_made(held: dict[str, list[str]]) -> None:
    assert set(held) <= {promise.id for promise in PROMISES}


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
def test_a_line_of_the_catalogue_names_tests_that_exist(
    line: Line, defined: Callable[[str], set[str]]
) -> None:
    assert line.tests or line.missing
    for node in line.tests:
        path, _, name = node.partition("::")
        assert name in defined(path), f"{line.id}: there is no {node}"


def test_the_lines_of_the_catalogue_have_names_of_their_own() -> None:
    assert len({line.id for line in CATALOGUE}) == len(CATALOGUE)
