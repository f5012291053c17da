"""Chats as stored, read in one statement and checked against the invariants.

Owns the comparison with the reference store: times, which only the database's clock knows, become
flags; all else must be equal.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.chat.messages import Message, QueuedMessage
from chatd.domain.chat.row import Chat
from chatd.domain.chat.user_transitions import sort_queue
from chatd.domain.ids import ChatId
from chatd.store.chat.chats import chat_from_row
from chatd.store.chat.messages import (
    MESSAGE_COLUMNS,
    QUEUE_COLUMNS,
    messages_from_json,
    queue_from_json,
)
from chatd.store.database.conn import Conn, Row
from tests.model.invariants import check_messages, check_queue, check_row, check_trees
from tests.support.factories import AT

EVERYTHING: Final[LiteralString] = f"""
    SELECT c.*,
        (SELECT json_agg(m ORDER BY m.id) FROM (
            SELECT {MESSAGE_COLUMNS} FROM chat_messages WHERE chat_id = c.id) m) AS messages,
        (SELECT json_agg(q ORDER BY NOT q.steer, q.position) FROM (
            SELECT {QUEUE_COLUMNS} FROM chat_queued_messages WHERE chat_id = c.id) q) AS queue
    FROM chats c WHERE ($1::uuid[] IS NULL OR c.id = ANY ($1))"""

PAID: Final[LiteralString] = "SELECT coalesce(sum(cost_micros), 0)::bigint FROM usage_events"


class Stored(Struct, frozen=True, kw_only=True):
    """One chat with its deleted messages, the queue in order."""

    chat: Chat
    messages: tuple[Message, ...]
    queue: tuple[QueuedMessage, ...]

    def timeless(self) -> "Stored":
        """With every time replaced by whether it is set, as the reference store has it."""
        return timeless(self.chat, self.messages, self.queue)


async def stored(conn: Conn, only: Iterable[ChatId] | None = None) -> dict[ChatId, Stored]:
    return stored_of(await conn.fetch(EVERYTHING, None if only is None else list(only)))


def stored_of(rows: Iterable[Row]) -> dict[ChatId, Stored]:
    return {
        row["id"]: Stored(
            chat=chat_from_row(row),
            messages=messages_from_json(row["messages"]),
            queue=queue_from_json(row["queue"]),
        )
        for row in rows
    }


async def paid_micros(conn: Conn) -> int:
    return int(await conn.fetchval(PAID))


def timeless(chat: Chat, messages: Sequence[Message], queue: Sequence[QueuedMessage]) -> Stored:
    return Stored(
        chat=replace(
            chat,
            created_at=AT,
            updated_at=AT,
            runnable_at=_flag(chat.runnable_at),
            action_deadline=_flag(chat.action_deadline),
            interrupt_deadline=_flag(chat.interrupt_deadline),
            recent_changes=(),
            takeover=chat.takeover and replace(chat.takeover, after_ms=None),
        ),
        messages=tuple(replace(message, created_at=AT) for message in messages),
        queue=tuple(replace(item, created_at=AT) for item in sort_queue(queue)),
    )


def _flag(time: datetime | None) -> datetime | None:
    return None if time is None else AT


def check_all(everything: Mapping[ChatId, Stored], marked: Mapping[ChatId, int]) -> None:
    """Check what must hold at any moment. `marked`: the version of the last requested
    compaction."""
    for chat_id, found in everything.items():
        check_row(found.chat)
        check_queue(found.chat, found.queue)
        check_messages(found.chat, found.messages, marked=marked.get(chat_id, 0))
    check_trees({chat_id: found.chat for chat_id, found in everything.items()})
