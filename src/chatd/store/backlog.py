"""How much is under way on all replicas, and for how long the oldest chat has waited for one."""

from typing import Final, LiteralString

from msgspec import Struct

from chatd.store.conn import Conn

# One arm for each index: of all chats, only those that are under way are read. A clock that went
# back must not make a wait of less than nothing.
READ: Final[LiteralString] = """
    WITH under_way AS (
        SELECT status, runnable_at FROM chats WHERE worker_id IS NOT NULL
        UNION ALL
        SELECT status, runnable_at FROM chats
        WHERE runnable_at IS NOT NULL AND parent_chat_id IS NULL
        UNION ALL
        SELECT status, runnable_at FROM chats
        WHERE runnable_at IS NOT NULL AND parent_chat_id IS NOT NULL)
    SELECT
        count(*) FILTER (WHERE runnable_at IS NOT NULL) AS pending,
        count(*) FILTER (WHERE runnable_at IS NULL AND status <> 'interrupting') AS running,
        count(*) FILTER (WHERE runnable_at IS NULL AND status = 'interrupting') AS interrupting,
        greatest(coalesce(extract(epoch FROM now() - min(runnable_at)), 0), 0)::float8
            AS oldest_pending_s
    FROM under_way"""


class Backlog(Struct, frozen=True, kw_only=True):
    """`pending` chats wait for a worker; the others have one."""

    pending: int
    running: int
    interrupting: int
    oldest_pending_s: float


async def read(conn: Conn) -> Backlog:
    row = await conn.fetchrow(READ)
    assert row is not None
    return Backlog(**dict(row))
