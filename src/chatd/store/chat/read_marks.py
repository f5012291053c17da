"""What users see of chats beside their rows: how far they have read, and whose chat it is.

Read marks only move forward."""

from collections.abc import Collection
from typing import Final, LiteralString

from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.public_chat import ReaderView
from chatd.domain.ids import ChatId, MessageId, UserId
from chatd.store.chat.chats import chat_from_row
from chatd.store.conn import Conn
from chatd.store.row_access import SHARING_ENABLED, chat_condition, chat_reach

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

LIST_VIEWS: Final[LiteralString] = f"""
    SELECT w.user_id, c.id AS chat_id, c.owner_id = w.user_id AS is_owner,
        u.username AS owner_username, coalesce(m.message_id, 0) AS read_up_to,
        EXISTS (SELECT FROM chat_shares s WHERE s.chat_id = c.root_chat_id)
            AND {SHARING_ENABLED} AS shared
    FROM unnest($1::uuid[], $2::uuid[]) AS w (user_id, chat_id)
    JOIN chats c ON c.id = w.chat_id
    JOIN users u ON u.id = c.owner_id
    LEFT JOIN chat_read_marks m ON m.user_id = w.user_id AND m.chat_id = c.id"""


async def move(
    conn: Conn, actor: UserActor, chat_id: ChatId, message_id: MessageId
) -> tuple[Chat, bool] | None:
    """The chat, and whether its mark has moved. None if the user may not read the chat."""
    reach = chat_reach(actor, "chats.read")
    row = await conn.fetchrow(MOVE, actor.user_id, chat_id, message_id, *reach)
    return None if row is None else (chat_from_row(row), row["has_moved"])


async def list_views(
    conn: Conn, wanted: Collection[tuple[UserId, ChatId]]
) -> dict[tuple[UserId, ChatId], ReaderView]:
    """One statement for all; deleted chats too, but none whose row is gone."""
    if not wanted:
        return {}
    users, chat_ids = zip(*wanted, strict=True)
    return {
        (row["user_id"], row["chat_id"]): ReaderView(
            is_owner=row["is_owner"],
            owner_username=row["owner_username"],
            shared=row["shared"],
            read_up_to=row["read_up_to"],
        )
        for row in await conn.fetch(LIST_VIEWS, users, chat_ids)
    }


async def list_views_of(
    conn: Conn, actor: UserActor, chat_ids: Collection[ChatId]
) -> dict[ChatId, ReaderView]:
    """How the user sees chats that were read for this user."""
    found = await list_views(conn, [(actor.user_id, chat_id) for chat_id in chat_ids])
    return {chat_id: view for (_, chat_id), view in found.items()}
