"""Pages of messages for clients, each with the chat's row and queue of the same version; and the
prompts that a user has sent."""

from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.domain.access.permissions import Actor, UserActor
from chatd.domain.chat.messages import Message, QueuedMessage, decode_parts
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, MessageId
from chatd.store.chat.chats import chat_from_row
from chatd.store.chat.messages import (
    MAX_READ_BYTES,
    MESSAGE_COLUMNS,
    QUEUE_COLUMNS,
    messages_from_json,
    queue_from_json,
    take_within_bytes,
)
from chatd.store.database.conn import Conn, Row
from chatd.store.database.row_access import chat_condition, chat_reach

# Row, messages and queue of one version, without messages that only the model sees. The ids are
# compared together with the chat: with "id < $2" the planner, which takes every chat for a short
# one, may read all of a long chat by the index of revisions and sort it.
_VISIBLE_MESSAGES: Final[LiteralString] = f"""
    SELECT {MESSAGE_COLUMNS} FROM chat_messages
    WHERE chat_id = c.id AND (chat_id, id) < (c.id, $2) AND (chat_id, id) > (c.id, $3)
      AND NOT deleted AND visibility <> 'model'"""
_QUEUE: Final[LiteralString] = f"""
    CASE WHEN c.queue_len > 0 AND $5 THEN (
        SELECT json_agg(q ORDER BY NOT q.steer, q.position) FROM (
            SELECT {QUEUE_COLUMNS} FROM chat_queued_messages WHERE chat_id = c.id) q)
    END AS queue"""
_NEWEST_FIRST: Final[LiteralString] = f"{_VISIBLE_MESSAGES} ORDER BY id DESC LIMIT $4"
_OLDEST_FIRST: Final[LiteralString] = f"{_VISIBLE_MESSAGES} ORDER BY id LIMIT $4"
LOAD_NEWEST_PAGE: Final[LiteralString] = f"""
    SELECT c.*, m.messages, m.found, {_QUEUE}
    FROM chats c, LATERAL {take_within_bytes(_NEWEST_FIRST, order="id DESC", max_bytes="$6")} m
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$7", "$8")}"""
LOAD_OLDEST_PAGE: Final[LiteralString] = f"""
    SELECT c.*, m.messages, m.found, {_QUEUE}
    FROM chats c, LATERAL {take_within_bytes(_OLDEST_FIRST, order="id", max_bytes="$6")} m
    WHERE c.id = $1 AND c.deleted_at IS NULL AND {chat_condition("$7", "$8")}"""

_PAST_THE_END: Final = 2**63 - 1


class MessageRange(Struct, frozen=True, kw_only=True):
    """Messages between two ids: the newest first, or with `after` the oldest first. The page ends
    at `limit` messages or when it has reached `max_bytes`."""

    before: MessageId | None = None
    after: MessageId | None = None
    limit: int = 50
    max_bytes: int = MAX_READ_BYTES

    @property
    def is_first_page(self) -> bool:
        return self.before is None and self.after is None


class StoredMessagePage(Struct, frozen=True, kw_only=True):
    """`queue` is filled on the first page only."""

    chat: Chat
    messages: tuple[Message, ...]
    queue: tuple[QueuedMessage, ...]
    has_more: bool


async def load_page(
    conn: Conn, actor: Actor, chat_id: ChatId, message_range: MessageRange
) -> StoredMessagePage | None:
    """None if there is no such chat, or the actor may not read it."""
    reach = chat_reach(actor, "chats.read")
    statement = LOAD_NEWEST_PAGE if message_range.after is None else LOAD_OLDEST_PAGE
    top = _PAST_THE_END if message_range.before is None else message_range.before
    limits = (message_range.limit + 1, message_range.is_first_page, message_range.max_bytes)
    row = await conn.fetchrow(statement, chat_id, top, message_range.after or 0, *limits, *reach)
    if row is None:
        return None
    messages = messages_from_json(row["messages"])[: message_range.limit]
    return StoredMessagePage(
        chat=chat_from_row(row),
        messages=messages,
        queue=queue_from_json(row["queue"]),
        has_more=len(messages) < row["found"],
    )


# Prompts that a user has sent: of one chat, or of all of the user's chats, newest first.

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

LIST_PROMPTS_OF_CHAT: Final[LiteralString] = f"""
    SELECT p.messages AS prompts, p.found
    FROM {take_within_bytes(_OF_CHAT, order="id DESC", max_bytes="$5")} p"""
LIST_PROMPTS_OF_USER: Final[LiteralString] = f"""
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


async def list_prompts_of_chat(
    conn: Conn, actor: UserActor, chat_id: ChatId, before: MessageId | None, *, limit: int
) -> tuple[list[Prompt], bool]:
    """The prompts, and whether there may be more; none for a chat that the user does not own."""
    args = (actor.user_id, chat_id, before, limit + 1, MAX_BYTES_PER_READ)
    return _read(await conn.fetchrow(LIST_PROMPTS_OF_CHAT, *args), limit)


async def list_prompts_of_user(
    conn: Conn, actor: UserActor, before: PromptPosition | None, *, limit: int
) -> tuple[list[Prompt], bool]:
    args = (actor.user_id, *(before or (None, None, None)), limit + 1, MAX_BYTES_PER_READ)
    return _read(await conn.fetchrow(LIST_PROMPTS_OF_USER, *args), limit)


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
