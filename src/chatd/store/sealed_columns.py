"""The columns that hold sealed secrets: how many values each key has sealed, and sealing them again
with the current key.

A table with a sealed column has a uuid `id`, and for the column `x` a generated column `x_key_id`
that references `secret_keys`. The value's context is `seal_context(table, x, id)`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.sealed_secrets import seal_context
from chatd.store.conn import Conn

RESEAL_BATCH: Final = 100
_FIRST_ID: Final = UUID(int=0)


class SealedColumn(Struct, frozen=True, kw_only=True):
    table: LiteralString
    column: LiteralString

    def context(self, row_id: UUID) -> str:
        return seal_context(self.table, self.column, row_id)


PROVIDER_CONFIG: Final = SealedColumn(table="provider_details", column="sealed_config")
PROVIDER_KEY: Final = SealedColumn(table="provider_keys", column="sealed_key")
SEALED_COLUMNS: Final[tuple[SealedColumn, ...]] = (
    SealedColumn(table="git_credentials", column="sealed_token"),
    SealedColumn(table="mcp_registrations", column="sealed_secret"),
    SealedColumn(table="mcp_servers", column="sealed_secrets"),
    SealedColumn(table="mcp_tokens", column="sealed_tokens"),
    PROVIDER_CONFIG,
    PROVIDER_KEY,
    SealedColumn(table="push_keys", column="private_key"),
    SealedColumn(table="webhooks", column="secret"),
)
"""A test compares this list with the schema."""


class ResealedBatch(Struct, frozen=True, kw_only=True):
    """`last_id`: where the next batch begins; None after the last one."""

    resealed: int
    unreadable: int
    last_id: UUID | None


async def count_by_key(conn: Conn, columns: Sequence[SealedColumn]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for at in columns:
        query: LiteralString = (
            f"SELECT {at.column}_key_id AS key_id, count(*) AS count FROM {at.table}"
            f" WHERE {at.column} IS NOT NULL GROUP BY 1"
        )
        for row in await conn.fetch(query):
            counts[row["key_id"]] = counts.get(row["key_id"], 0) + row["count"]
    return counts


async def reseal_batch(
    conn: Conn,
    at: SealedColumn,
    current: str,
    reseal: Callable[[str, str], str | None],
    after: UUID | None = None,
) -> ResealedBatch:
    """Seal the next values that another key has sealed. `reseal(sealed, context)` returns None for
    a value that cannot be opened. A value that changed meanwhile stays as it is."""
    select: LiteralString = (
        f"SELECT id, {at.column} AS sealed FROM {at.table}"
        f" WHERE {at.column}_key_id <> $1 AND id > $2 ORDER BY id LIMIT $3"
    )
    update: LiteralString = (
        f"UPDATE {at.table} SET {at.column} = n.sealed"
        " FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n (id, old, sealed)"
        f" WHERE {at.table}.id = n.id AND {at.table}.{at.column} = n.old"
    )
    rows = await conn.fetch(select, current, after or _FIRST_ID, RESEAL_BATCH)
    opened = [(row, reseal(row["sealed"], at.context(row["id"]))) for row in rows]
    changed = [(row["id"], row["sealed"], sealed) for row, sealed in opened if sealed is not None]
    if changed:
        ids, old, new = (list(values) for values in zip(*changed, strict=True))
        await conn.execute(update, ids, old, new)
    return ResealedBatch(
        resealed=len(changed),
        unreadable=len(rows) - len(changed),
        last_id=rows[-1]["id"] if len(rows) == RESEAL_BATCH else None,
    )
