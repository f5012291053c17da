"""Every fault and every failure of the catalogue has a test that shows it, or a reason."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.catalogue_faults import CATALOGUE, FAILURES, FAULTS, Row

TESTS = Path(__file__).parent.parent


@cache
def shown_in(path: str) -> frozenset[str]:
    """Tests, and functions that some other function of the file makes use of."""
    tree = ast.parse((TESTS / path).read_text())
    defined = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return frozenset(name for name in defined if name.startswith("test_") or name in used)


def numbered(letter: str, count: int, digits: int = 1) -> list[str]:
    return [f"{letter}{number:0{digits}}" for number in range(1, count + 1)]


def test_no_row_of_the_catalogue_is_left_out() -> None:
    ids = sorted(row_id for row in CATALOGUE for row_id in row.ids)
    assert ids == sorted([*numbered("F", FAULTS), *numbered("T", FAILURES, 2)])


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: " ".join(row.ids))
def test_a_row_of_the_catalogue_has_a_test_or_a_reason(row: Row) -> None:
    assert row.tests or row.missing
    for node in row.tests:
        path, _, name = node.partition("::")
        assert name in shown_in(path), f"{row.ids}: there is no {node}"
