"""Every behaviour and every promise has a test or a reason; every mark names one of them."""

import ast
from collections import Counter

import pytest

from tests.promises import PROMISES, Promise
from tools.behaviour_index import (
    INDEX,
    TESTS,
    find_marked_tests,
    find_marks,
    load_behaviours,
    write_index,
)

BEHAVIOURS = load_behaviours()
NOT_TESTED = BEHAVIOURS.pop("not_tested")
IDS = [ids.split() for group in BEHAVIOURS.values() for ids in group if ids != "title"]


@pytest.fixture(scope="module")
def covered() -> dict[str, list[str]]:
    return find_marked_tests("covers")


def test_the_index_is_current() -> None:
    assert "".join(f"{line}\n" for line in write_index()) == INDEX.read_text(), "run make docs"


def test_a_behaviour_has_a_test_or_says_why_not(covered: dict[str, list[str]]) -> None:
    without = {ids[0] for ids in IDS} - set(covered)
    assert without <= set(NOT_TESTED)


def test_a_reason_for_a_missing_test_is_not_given_beside_tests(
    covered: dict[str, list[str]],
) -> None:
    for name, reason in NOT_TESTED.items():
        assert (name in covered) == reason.startswith("Part: "), name


def test_marks_and_reasons_name_the_first_id_of_a_behaviour(covered: dict[str, list[str]]) -> None:
    assert set(covered) | set(NOT_TESTED) <= {ids[0] for ids in IDS}


def test_ids_are_unique_and_without_gaps() -> None:
    ids = Counter(name for names in IDS for name in names)
    assert max(ids.values()) == 1
    for prefix, group in BEHAVIOURS.items():
        numbers = [
            int(name.removeprefix(prefix).removeprefix("-"))
            for names in group
            if names != "title"
            for name in names.split()
        ]
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), prefix


def test_a_marked_function_is_run(covered: dict[str, list[str]]) -> None:
    """A mark may also stand on a function that a test of the same file runs."""
    for path, name in {tuple(test.split("::")) for tests in covered.values() for test in tests}:
        if not name.startswith("test_"):
            tree = ast.parse((TESTS / path).read_text())
            assert name in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def test_marks_are_found_on_functions_classes_and_modules() -> None:
    source = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.promise("P1")]
@pytest.mark.promise("P2", "P3")
def test_one(): ...
@pytest.mark.promise("P4")
class TestMany:
    @pytest.mark.parametrize("a", [1])
    @pytest.mark.promise("P5")
    @pytest.mark.covers("F1")
    async def test_two(self): ...
def test_three(): ...
"""
    assert sorted(find_marks(source, "promise")) == [
        ("P1", "the whole file"),
        ("P2", "test_one"),
        ("P3", "test_one"),
        ("P4", "TestMany"),
        ("P5", "test_two"),
    ]
    assert list(find_marks(source, "covers")) == [("F1", "test_two")]


@pytest.fixture(scope="module")
def tested() -> dict[str, list[str]]:
    return find_marked_tests("promise")


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.id)
def test_a_promise_has_a_test_or_says_why_not(
    promise: Promise, tested: dict[str, list[str]]
) -> None:
    tests = tested.get(promise.id, [])
    if promise.not_yet:
        assert not tests, f"{promise.id} has tests: it is no longer true that {promise.not_yet}"
        assert promise.so_far is None
    else:
        assert tests, f"no test holds {promise.id}"


def test_every_mark_names_a_promise(tested: dict[str, list[str]]) -> None:
    assert set(tested) <= {promise.id for promise in PROMISES}


def test_the_promises_are_numbered() -> None:
    assert [promise.id for promise in PROMISES] == [f"P{n}" for n in range(1, 17)]
