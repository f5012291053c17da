"""Tests as tables: one row per case, under a phrase that says what it shows."""

from collections.abc import Mapping

import pytest


def table(columns: str, rows: Mapping[str, tuple[object, ...]]) -> pytest.MarkDecorator:
    """Run the test once per row; the key of a row is the id of its case."""
    return pytest.mark.parametrize(
        columns.split(), [pytest.param(*row, id=name) for name, row in rows.items()]
    )
