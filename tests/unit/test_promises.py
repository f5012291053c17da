"""Every promise has a test or a reason why not; every marked test names a promise there is."""

import pytest

from tests.promises import PROMISES, Promise
from tools.behaviour_index import find_marked_tests


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
