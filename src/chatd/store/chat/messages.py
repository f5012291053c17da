"""Read messages: the history that a prompt is built from, and pages for clients."""

from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.chat.messages import Message, QueuedMessage
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, MessageId
from chatd.store.conn import Conn
from chatd.store.rows import (
    MAX_READ_BYTES,
    MESSAGE_COLUMNS,
    QUEUE_COLUMNS,
    chat_from_row,
    message_from_row,
    messages_from_json,
    queue_from_json,
    take_within_bytes,
)

# The boundary is the newest summary: of the messages before it only system messages are read.
# Ordered by id, because rows of one commit share their time.
HISTORY: Final[LiteralString] = f"""
    WITH boundary AS MATERIALIZED (
        SELECT coalesce((SELECT id FROM chat_messages
            WHERE chat_id = $1 AND compressed AND visibility = 'model' AND NOT deleted
            ORDER BY id DESC LIMIT 1), 0) AS id)
    SELECT {MESSAGE_COLUMNS} FROM chat_messages
    WHERE chat_id = $1 AND id >= (SELECT id FROM boundary) AND NOT deleted
    UNION ALL
    SELECT {MESSAGE_COLUMNS} FROM chat_messages
    WHERE chat_id = $1 AND id < (SELECT id FROM boundary) AND NOT deleted
      AND NOT compressed AND role = 'system'
    ORDER BY id"""

# Row, messages and queue of one version, without messages that only the model sees.
_VISIBLE_MESSAGES: Final[LiteralString] = f"""
    SELECT {MESSAGE_COLUMNS} FROM chat_messages
    WHERE chat_id = c.id AND id < $2 AND id > $3 AND NOT deleted AND visibility <> 'model'"""
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
    WHERE c.id = $1"""
LOAD_OLDEST_PAGE: Final[LiteralString] = f"""
    SELECT c.*, m.messages, m.found, {_QUEUE}
    FROM chats c, LATERAL {take_within_bytes(_OLDEST_FIRST, order="id", max_bytes="$6")} m
    WHERE c.id = $1"""

HAS_ANSWER_SINCE_BOUNDARY: Final[LiteralString] = """
    SELECT EXISTS (SELECT FROM chat_messages
        WHERE chat_id = $1 AND role = 'assistant' AND visibility <> 'user'
          AND NOT deleted AND NOT compressed
          AND id > coalesce((SELECT max(id) FROM chat_messages
              WHERE chat_id = $1 AND compressed AND visibility = 'model' AND NOT deleted), 0))"""

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


async def load_history(conn: Conn, chat_id: ChatId) -> list[Message]:
    """The messages from which the next action is chosen and the prompt is built. Includes messages
    that only users see: the decision reads them, the prompt leaves them out."""
    return [message_from_row(row) for row in await conn.fetch(HISTORY, chat_id)]


async def load_page(
    conn: Conn, chat_id: ChatId, message_range: MessageRange
) -> StoredMessagePage | None:
    statement = LOAD_NEWEST_PAGE if message_range.after is None else LOAD_OLDEST_PAGE
    top = _PAST_THE_END if message_range.before is None else message_range.before
    limits = (message_range.limit + 1, message_range.is_first_page, message_range.max_bytes)
    row = await conn.fetchrow(statement, chat_id, top, message_range.after or 0, *limits)
    if row is None:
        return None
    messages = messages_from_json(row["messages"])[: message_range.limit]
    return StoredMessagePage(
        chat=chat_from_row(row),
        messages=messages,
        queue=queue_from_json(row["queue"]),
        has_more=len(messages) < row["found"],
    )


async def has_answer_since_boundary(conn: Conn, chat_id: ChatId) -> bool:
    """The same rule as in `domain.prompt.compaction`."""
    return await conn.fetchval(HAS_ANSWER_SINCE_BOUNDARY, chat_id)
