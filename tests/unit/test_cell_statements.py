"""The table of statements in docs/scaling.md knows a statement with a chat from one without."""

import pytest

from tools.cell_statements import COPIED_TABLES, TABLES_OF_EACH_CELL, Reach, reaches
from tools.cell_statements import _tables as schema_tables  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("statement", "reach"),
    [
        ("chat/apply.APPLY_STEP", Reach.KEY),
        ("chat/chats.GET", Reach.KEY),
        ("chat/workers.ACQUIRE", Reach.EVERY),
        ("chat/workers.HEARTBEAT", Reach.EVERY),
        ("chat/chats.LIST", Reach.EVERY),
        ("search.SEARCH", Reach.EVERY),
        ("chat/chats.LOAD", Reach.SPLIT),
        ("account/users.GET", Reach.OUTSIDE),
    ],
)
def test_a_statement_is_found_with_what_it_needs(statement: str, reach: Reach) -> None:
    assert reaches()[statement] is reach


def test_every_named_table_exists() -> None:
    assert dict(schema_tables()).keys() >= COPIED_TABLES | TABLES_OF_EACH_CELL
