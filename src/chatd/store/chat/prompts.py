"""Prompts that a user has sent: of one chat, or of all of the user's chats, newest first."""

from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.messages import decode_parts
from chatd.domain.chat.parts import TextPart
from chatd.domain.ids import ChatId, MessageId
from chatd.store.chat.messages import take_within_bytes
from chatd.store.conn import Conn, Row

MAX_BYTES_PER_READ: Final = 4 * 1024 * 1024

# The conditions are those of the index chat_messages_prompts.
_PROMPT: Final[LiteralString] = (
    "m.role = 'user' AND NOT m.deleted AND m.visibility <> 'model' AND NOT m.compressed"
)
_OF_CHAT: Final[LiteralString] = f"""
    SELECT m.chat_id, m.id, m.content, m.created_at FROM chat_messages m
    WHERE m.chat_id = (SELECT id FROM chats WHERE id = $2 AND owner_id = $1 AND deleted_at IS NULL)
      AND m.id < coalesce($3, 9223372036854775807) AND {_PROMPT}
    ORDER BY m.id DESC LIMIT $4"""
_OF_USER: Final[LiteralString] = f"""
    SELECT m.chat_id, m.id, m.content, m.created_at
    FROM chat_messages m CROSS JOIN LATERAL (
        SELECT FROM chats
        WHERE id = m.chat_id AND owner_id = $1 AND deleted_at IS NULL OFFSET 0) c
    WHERE m.created_by = $1 AND {_PROMPT}
      AND (m.created_at, m.chat_id, m.id)
          < (coalesce($2, 'infinity'::timestamptz), coalesce($3, $1), coalesce($4::bigint, 0))
    ORDER BY m.created_at DESC, m.chat_id DESC, m.id DESC LIMIT $5"""

LIST_OF_CHAT: Final[LiteralString] = f"""
    SELECT p.messages AS prompts, p.found
    FROM {take_within_bytes(_OF_CHAT, order="id DESC", max_bytes="$5")} p"""
LIST_OF_USER: Final[LiteralString] = f"""
    SELECT p.messages AS prompts, p.found FROM {
    take_within_bytes(_OF_USER, order="created_at DESC, chat_id DESC, id DESC", max_bytes="$6")
} p"""


class _StoredPrompt(Struct, frozen=True, kw_only=True):
    chat_id: UUID
    id: int
    content: Raw
    created_at: datetime


_ROWS: Final = msgspec.json.Decoder(tuple[_StoredPrompt, ...])


class Prompt(Struct, frozen=True, kw_only=True):
    chat_id: ChatId
    message_id: MessageId
    at: datetime
    text: str


PromptPosition = tuple[datetime, ChatId, MessageId]


async def list_of_chat(
    conn: Conn, actor: UserActor, chat_id: ChatId, before: MessageId | None, *, limit: int
) -> tuple[list[Prompt], bool]:
    """The prompts, and whether there may be more; none of a chat that the user does not own."""
    args = (actor.user_id, chat_id, before, limit + 1, MAX_BYTES_PER_READ)
    return _read(await conn.fetchrow(LIST_OF_CHAT, *args), limit)


async def list_of_user(
    conn: Conn, actor: UserActor, before: PromptPosition | None, *, limit: int
) -> tuple[list[Prompt], bool]:
    args = (actor.user_id, *(before or (None, None, None)), limit + 1, MAX_BYTES_PER_READ)
    return _read(await conn.fetchrow(LIST_OF_USER, *args), limit)


def _read(row: Row | None, limit: int) -> tuple[list[Prompt], bool]:
    assert row is not None  # an aggregate has one row
    rows = _ROWS.decode(row["prompts"] or "[]")
    found = [
        Prompt(
            chat_id=ChatId(stored.chat_id),
            message_id=MessageId(stored.id),
            at=stored.created_at,
            text=_text(stored.content),
        )
        for stored in rows[:limit]
    ]
    return found, len(found) < row["found"]


def _text(content: Raw) -> str:
    parts = decode_parts(bytes(content))
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))
