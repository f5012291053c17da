"""Pages of messages for clients, each with the chat's row and queue of the same version."""

from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.access.permissions import Actor
from chatd.domain.chat.messages import Message, QueuedMessage
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
from chatd.store.conn import Conn
from chatd.store.row_access import chat_condition, chat_reach

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
