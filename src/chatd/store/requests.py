"""Idempotency keys: what an earlier request of the same key did."""

from datetime import timedelta
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.change import Request
from chatd.domain.ids import ChatId, MessageId, QueueId
from chatd.store.conn import Conn

GET: Final[LiteralString] = """
    SELECT chat_id, op, fingerprint, version, message_id, queue_id
    FROM chat_requests WHERE scope = $1 AND request_id = $2"""

FORGET: Final[LiteralString] = """
    WITH old AS MATERIALIZED (
        SELECT scope, request_id FROM chat_requests
        WHERE created_at < now() - $1::interval ORDER BY created_at LIMIT $2
        FOR UPDATE SKIP LOCKED)
    DELETE FROM chat_requests r USING old
    WHERE r.scope = old.scope AND r.request_id = old.request_id"""

KEPT: Final = timedelta(hours=24)


class Recorded(Struct, frozen=True, kw_only=True):
    """Either a message in history or one in the queue, at the version it was written."""

    chat_id: ChatId
    op: str
    fingerprint: str
    version: int
    message_id: MessageId | None
    queue_id: QueueId | None


async def get(conn: Conn, request: Request) -> Recorded | None:
    row = await conn.fetchrow(GET, request.scope, request.id)
    return None if row is None else Recorded(**dict(row))


async def forget_old(conn: Conn, *, most: int = 1000) -> int:
    """A batch; call again while it returns `most`."""
    status = await conn.execute(FORGET, KEPT, most)
    return int(status.rpartition(" ")[2])
