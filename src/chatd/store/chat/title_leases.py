"""Leases of title generations that users asked for: one for each chat, over all replicas."""

from typing import Final, LiteralString
from uuid import UUID

from chatd.domain.ids import ChatId, UserId
from chatd.store.conn import Conn

# The same lease again is a repeated attempt after a lost reply.
ACQUIRE: Final[LiteralString] = """
    INSERT INTO chat_title_leases (chat_id, id, until)
    SELECT c.id, $3, now() + $4::float8 * interval '1 s' FROM chats c
    WHERE c.id = $1 AND c.owner_id = $2 AND c.deleted_at IS NULL
    ON CONFLICT (chat_id) DO UPDATE SET id = excluded.id, until = excluded.until
        WHERE chat_title_leases.until < now() OR chat_title_leases.id = excluded.id
    RETURNING true"""
RELEASE: Final[LiteralString] = "DELETE FROM chat_title_leases WHERE chat_id = $1 AND id = $2"


async def acquire(
    conn: Conn, chat_id: ChatId, owner: UserId, lease_id: UUID, *, seconds: float
) -> bool:
    """False if another lease is valid, or `owner` has no such chat."""
    return await conn.fetchval(ACQUIRE, chat_id, owner, lease_id, seconds) is True


async def release(conn: Conn, chat_id: ChatId, lease_id: UUID) -> None:
    await conn.execute(RELEASE, chat_id, lease_id)
