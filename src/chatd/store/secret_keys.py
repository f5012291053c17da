"""The keys of sealed secrets that the database knows, and the running processes that hold them."""

from collections.abc import Sequence
from typing import Final, Literal, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.store.conn import Conn, DatabaseSession

KeyState = Literal["staged", "current", "retired"]

LOCK_KEY: Final = 0x6368_6174_6B65_7973  # "chatkeys": an arbitrary key for the advisory lock
LOCK: Final[LiteralString] = "SELECT pg_advisory_xact_lock($1)"
LIST: Final[LiteralString] = """
    SELECT id, check_value, state FROM secret_keys ORDER BY created_at, id"""
INSERT: Final[LiteralString] = """
    INSERT INTO secret_keys (id, check_value, state) VALUES ($1, $2, $3)
    ON CONFLICT (id) DO NOTHING"""
# Two statements: a unique index refuses two current keys even for a moment. Only a staged key: a
# late repetition must not make a retired key current again.
RETIRE: Final[LiteralString] = """
    UPDATE secret_keys SET state = 'retired'
    WHERE state = 'current' AND EXISTS (
        SELECT FROM secret_keys WHERE id = $1 AND state = 'staged')"""
MAKE_CURRENT: Final[LiteralString] = """
    UPDATE secret_keys SET state = 'current' WHERE id = $1 AND state = 'staged'"""
DELETE_RETIRED: Final[LiteralString] = """
    DELETE FROM secret_keys WHERE id = $1 AND state = 'retired'"""

# Processes that died are removed after a while; `LIST_WITHOUT` ignores them earlier.
RENEW_HOLDER: Final[LiteralString] = """
    WITH dead AS (
        DELETE FROM secret_key_holders WHERE renewed_at < now() - interval '1 hour')
    INSERT INTO secret_key_holders (process_id, name, key_ids) VALUES ($1, $2, $3)
    ON CONFLICT (process_id) DO UPDATE SET key_ids = excluded.key_ids, renewed_at = now()"""
REMOVE_HOLDER: Final[LiteralString] = "DELETE FROM secret_key_holders WHERE process_id = $1"
LIST_WITHOUT: Final[LiteralString] = """
    SELECT name FROM secret_key_holders
    WHERE $1 <> ALL (key_ids) AND renewed_at > now() - $2::float8 * interval '1 s' ORDER BY name"""


class KeyRecord(Struct, frozen=True, kw_only=True):
    id: str
    check_value: str
    state: KeyState


async def lock(session: DatabaseSession) -> None:
    """Until the end of the transaction: one process registers or rotates keys at a time."""
    await session.execute(LOCK, LOCK_KEY)


async def list_keys(conn: Conn) -> Sequence[KeyRecord]:
    """The oldest first."""
    return [KeyRecord(**dict(row)) for row in await conn.fetch(LIST)]


async def insert_key(conn: Conn, record: KeyRecord) -> None:
    await conn.execute(INSERT, record.id, record.check_value, record.state)


async def make_current(session: DatabaseSession, key_id: str) -> None:
    await session.execute(RETIRE, key_id)
    await session.execute(MAKE_CURRENT, key_id)


async def delete_retired(conn: Conn, key_id: str) -> None:
    """Raises InvariantBroken while a sealed value uses the key: a foreign key refuses it."""
    await conn.execute(DELETE_RETIRED, key_id)


async def renew_holder(conn: Conn, process_id: UUID, name: str, key_ids: Sequence[str]) -> None:
    await conn.execute(RENEW_HOLDER, process_id, name, list(key_ids))


async def remove_holder(conn: Conn, process_id: UUID) -> None:
    await conn.execute(REMOVE_HOLDER, process_id)


async def list_without(conn: Conn, key_id: str, lease_s: float) -> Sequence[str]:
    """The names of the running processes that do not hold the key. One that has not renewed its
    keys for `lease_s` is dead."""
    return [row["name"] for row in await conn.fetch(LIST_WITHOUT, key_id, lease_s)]
