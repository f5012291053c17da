"""Every line of the catalogue of hands has a test that shows it, or a reason."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.catalogue_hands import CATALOGUE, SIZES, Line

TESTS = Path(__file__).parent.parent
LINES = [line for lines in CATALOGUE.values() for line in lines]


@cache
def named_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


def test_no_line_of_the_catalogue_is_left_out() -> None:
    assert {group: len(lines) for group, lines in CATALOGUE.items()} == SIZES


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.text)
def test_a_line_of_the_catalogue_has_a_test_or_a_reason(line: Line) -> None:
    assert line.tests or line.apart
    for node in line.tests:
        path, _, name = node.partition("::")
        assert f"test_{name}" in named_in(path), f"there is no {node}"
