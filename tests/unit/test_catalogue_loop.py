"""The catalogue of the loop's rules names tests that exist."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.catalogue_loop import CATALOGUE, ELSEWHERE

HERE = Path(__file__).parent


@cache
def names_in(name: str) -> frozenset[str]:
    room, _, file = name.rpartition("/")
    place = HERE.parent / room if room else HERE
    tree = ast.parse((place / f"test_{file}.py").read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions))


@pytest.mark.parametrize("group", CATALOGUE)
def test_every_rule_of_the_loop_names_tests_that_exist(group: str) -> None:
    for rule, tests in CATALOGUE[group].items():
        assert tests, f"nothing holds: {rule}"
        for test in tests:
            name, _, function = test.partition("::")
            assert function in names_in(name), f"{rule}: no such test: {test}"


def test_a_rule_is_held_here_or_elsewhere_but_not_in_both() -> None:
    rules = [rule for group in CATALOGUE.values() for rule in group]
    assert len(rules) == len(set(rules))
    assert not set(rules) & set(ELSEWHERE)
