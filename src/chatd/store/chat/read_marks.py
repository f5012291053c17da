"""Read marks: the last message that a user has read of a chat. They only move forward."""

from collections.abc import Collection
from typing import Final, LiteralString

from chatd.domain.access import UserActor
from chatd.domain.chat.public_chat import NOTHING_READ
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, MessageId, UserId
from chatd.store.chat.chats import chat_from_row
from chatd.store.conn import Conn
from chatd.store.row_access import chat_condition, chat_reach

# At most to the last message: the user cannot have read a later one.
MOVE: Final[LiteralString] = f"""
    WITH chat AS MATERIALIZED (
        SELECT c.* FROM chats c
        WHERE c.id = $2 AND c.deleted_at IS NULL AND {chat_condition("$4", "$5")}),
    moved AS (
        INSERT INTO chat_read_marks AS m (user_id, chat_id, message_id)
        SELECT $1, id, least($3, next_message_id - 1) FROM chat
        WHERE least($3, next_message_id - 1) > 0
        ON CONFLICT (user_id, chat_id) DO UPDATE
            SET message_id = excluded.message_id, read_at = now()
            WHERE m.message_id < excluded.message_id
        RETURNING true)
    SELECT chat.*, EXISTS (SELECT FROM moved) AS has_moved FROM chat"""

LIST: Final[LiteralString] = """
    SELECT m.user_id, m.chat_id, m.message_id
    FROM unnest($1::uuid[], $2::uuid[]) AS wanted (user_id, chat_id)
    JOIN chat_read_marks m USING (user_id, chat_id)"""


async def move(
    conn: Conn, actor: UserActor, chat_id: ChatId, message_id: MessageId
) -> tuple[Chat, bool] | None:
    """The chat, and whether its mark has moved. None if the user may not read the chat."""
    reach = chat_reach(actor, "chats.read")
    row = await conn.fetchrow(MOVE, actor.user_id, chat_id, message_id, *reach)
    return None if row is None else (chat_from_row(row), row["has_moved"])


async def list_marks(
    conn: Conn, wanted: Collection[tuple[UserId, ChatId]]
) -> dict[tuple[UserId, ChatId], MessageId]:
    """One statement for all; NOTHING_READ for a chat without a mark."""
    marks = dict.fromkeys(wanted, NOTHING_READ)
    if marks:
        users, chat_ids = zip(*marks, strict=True)
        for row in await conn.fetch(LIST, users, chat_ids):
            marks[row["user_id"], row["chat_id"]] = row["message_id"]
    return marks


async def list_marks_of(
    conn: Conn, actor: UserActor, chat_ids: Collection[ChatId]
) -> dict[ChatId, MessageId]:
    """The user's own marks."""
    found = await list_marks(conn, [(actor.user_id, chat_id) for chat_id in chat_ids])
    return {chat_id: mark for (_, chat_id), mark in found.items()}
