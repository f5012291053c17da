"""Leases of title generations that users asked for: one for each chat, over all replicas."""

from typing import Final, LiteralString
from uuid import UUID

from chatd.domain.access.permissions import Actor
from chatd.domain.ids import ChatId
from chatd.store.conn import Conn
from chatd.store.row_access import chat_condition, chat_reach

# The same lease again is a repeated attempt after a lost reply.
ACQUIRE: Final[LiteralString] = f"""
    INSERT INTO chat_title_leases (chat_id, id, until)
    SELECT c.id, $2, now() + $3::float8 * interval '1 s' FROM chats c
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$4", "$5")}
    ON CONFLICT (chat_id) DO UPDATE SET id = excluded.id, until = excluded.until
        WHERE chat_title_leases.until < now() OR chat_title_leases.id = excluded.id
    RETURNING true"""
RELEASE: Final[LiteralString] = "DELETE FROM chat_title_leases WHERE chat_id = $1 AND id = $2"


async def acquire(
    conn: Conn, actor: Actor, chat_id: ChatId, lease_id: UUID, *, seconds: float
) -> bool:
    """False if another lease is valid, or the actor may not change the chat."""
    reach = chat_reach(actor, "chats.write")
    return await conn.fetchval(ACQUIRE, chat_id, lease_id, seconds, *reach) is True


async def release(conn: Conn, chat_id: ChatId, lease_id: UUID) -> None:
    await conn.execute(RELEASE, chat_id, lease_id)
