"""Generic query plans, as a session uses them after several executions."""

import json
from collections.abc import Iterator
from typing import Any, LiteralString, cast

from chatd.store.conn import DatabaseSession


async def plan_of(
    session: DatabaseSession, statement: str, *args: object, option: str = ""
) -> list[dict[str, Any]]:
    """All nodes of the plan. Arguments default to NULL."""
    await session.execute("SET plan_cache_mode = force_generic_plan")
    await session.script(f"PREPARE it AS {statement}", timeout_s=30)
    expected = await session.fetchval(
        "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'it'"
    )
    values = ", ".join("NULL" if arg is None else f"'{arg}'" for arg in args or [None] * expected)
    explain = f"EXPLAIN ({option} FORMAT JSON) EXECUTE it" + (f" ({values})" if values else "")
    found = json.loads(await session.fetchval(cast("LiteralString", explain)))
    await session.execute("DEALLOCATE it")
    return list(_nodes(found[0]["Plan"]))


async def rows_read(session: DatabaseSession, statement: str, *args: object) -> int:
    """The number of table rows that an execution of the statement reads."""
    return sum(map(_rows_scanned, await plan_of(session, statement, *args, option="ANALYZE,")))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def _rows_scanned(node: dict[str, Any]) -> int:
    if "Relation Name" not in node or node["Node Type"] == "ModifyTable":
        return 0
    seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return int(seen * node["Actual Loops"])
