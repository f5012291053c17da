"""Statements that only the API needs: pages of messages, updates of a chat, a ping.

Retention: find idle chats, which are then archived, and delete archived ones, by batches.

Every replica does this. Of two that come to the same chat the second finds it done.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString

from msgspec import Struct, UnsetType

from chatd.domain.chat.commands import UpdateChat
from chatd.domain.chat.messages import Message, QueuedMessage
from chatd.domain.chat.row import Chat
from chatd.domain.errors import InvalidInput, InvariantBroken
from chatd.domain.ids import ChatId, MessageId, UserId, WorkspaceId
from chatd.store.conn import Conn, DatabaseSession
from chatd.store.rows import (
    MAX_READ_BYTES,
    MESSAGE_COLUMNS,
    QUEUE_COLUMNS,
    chat_from_row,
    json_text,
    messages_from_json,
    queue_from_json,
    strip_unstorable,
    take_within_bytes,
)
from chatd.store.workspace import bindings, workspaces

ALIVE: Final[LiteralString] = "SELECT 1"

# What clients may see, all of one version.
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

UPDATE_CHAT: Final[LiteralString] = """
    UPDATE chats SET title = coalesce($2, title), labels = coalesce($3, labels),
        pin_order = coalesce($4, pin_order)
    WHERE id = $1 RETURNING *"""

LATEST_CHAT_PER_WORKSPACE: Final[LiteralString] = """
    SELECT DISTINCT ON (workspace_id) workspace_id, id FROM chats
    WHERE owner_id = $1 AND NOT archived AND workspace_id = ANY ($2::uuid[])
    ORDER BY workspace_id, updated_at DESC, id DESC"""

_PAST_THE_END: Final = 2**63 - 1


class MessageRange(Struct, frozen=True, kw_only=True):
    """Messages between two ids; the oldest of them first if a lower one is given. No more are read
    once they are so many or so large."""

    before: MessageId | None = None
    after: MessageId | None = None
    limit: int = 50
    max_bytes: int = MAX_READ_BYTES

    @property
    def is_first_page(self) -> bool:
        return self.before is None and self.after is None


class StoredMessagePage(Struct, frozen=True, kw_only=True):
    """`queue` is there on the first page only."""

    chat: Chat
    messages: tuple[Message, ...]
    queue: tuple[QueuedMessage, ...]
    has_more: bool


async def alive(conn: Conn) -> None:
    await conn.fetchval(ALIVE)


async def load_page(conn: Conn, chat_id: ChatId, which: MessageRange) -> StoredMessagePage | None:
    statement = LOAD_NEWEST_PAGE if which.after is None else LOAD_OLDEST_PAGE
    top = _PAST_THE_END if which.before is None else which.before
    limits = (which.limit + 1, which.is_first_page, which.max_bytes)
    row = await conn.fetchrow(statement, chat_id, top, which.after or 0, *limits)
    if row is None:
        return None
    messages = messages_from_json(row["messages"])[: which.limit]
    return StoredMessagePage(
        chat=chat_from_row(row),
        messages=messages,
        queue=queue_from_json(row["queue"]),
        has_more=len(messages) < row["found"],
    )


async def has_answer_since_boundary(conn: Conn, chat_id: ChatId) -> bool:
    """Something was answered since the last summary, as `domain.compaction` sees it."""
    return await conn.fetchval(HAS_ANSWER_SINCE_BOUNDARY, chat_id)


async def update_chat(session: DatabaseSession, chat: Chat, command: UpdateChat) -> Chat:
    """Write the columns that have no version, under the lock of `chat`'s row."""
    if not isinstance(command.workspace_id, UnsetType):
        await _bind(session, chat, command.workspace_id)
    elif command.title is None and command.labels is None and command.pin_order is None:
        return chat
    labels = None if command.labels is None else json_text(command.labels)
    title = None if command.title is None else strip_unstorable(command.title)
    row = await session.fetchrow(UPDATE_CHAT, chat.id, title, labels, command.pin_order)
    if row is None:
        raise InvariantBroken(f"Chat {chat.id} was deleted under its lock.")
    return chat_from_row(row)


async def _bind(session: DatabaseSession, chat: Chat, workspace_id: WorkspaceId | None) -> None:
    """Under the chat's lock, so that no other transaction binds it meanwhile."""
    if workspace_id is not None:
        await require_usable_workspace(session, workspace_id, chat.owner_id)
    if workspace_id != chat.workspace_id:
        await bindings.bind(session, chat.id, expected=chat.workspace_id, workspace_id=workspace_id)


async def require_usable_workspace(conn: Conn, workspace_id: WorkspaceId, owner: UserId) -> None:
    """Raises InvalidInput, in the same words for one of somebody else and one that never was."""
    found = await workspaces.get(conn, workspace_id)
    if found is None or found.owner_id != owner:
        raise InvalidInput("workspace_id", "there is no such workspace")
    if found.deleted:
        raise InvalidInput("workspace_id", "the workspace is deleted")


async def latest_chat_per_workspace(
    conn: Conn, owner: UserId, which: Sequence[WorkspaceId]
) -> dict[WorkspaceId, ChatId]:
    """By workspace, the chat of this owner that moved last there; archived ones do not count."""
    rows = await conn.fetch(LATEST_CHAT_PER_WORKSPACE, owner, list(which))
    return {row["workspace_id"]: row["id"] for row in rows}


# No pinned chat, and no chat tree with a chat at work. Counted, because the planner would make a
# join of EXISTS and read all chats for it.
LIST_IDLE: Final[LiteralString] = """
    SELECT c.id, now() - $1::interval AS since FROM chats c
    WHERE c.parent_chat_id IS NULL AND NOT c.archived AND c.pin_order = 0
      AND c.status IN ('waiting', 'error') AND c.updated_at < now() - $1::interval
      AND (SELECT count(*) FROM chats k WHERE k.root_chat_id = c.id
           AND (k.status NOT IN ('waiting', 'error')
                OR k.updated_at >= now() - $1::interval)) = 0
    ORDER BY c.updated_at LIMIT $2"""

# Deleting the root chat deletes its chat tree and all their rows, except for usage.
DELETE_ARCHIVED: Final[LiteralString] = """
    WITH old AS MATERIALIZED (
        SELECT id FROM chats
        WHERE parent_chat_id IS NULL AND archived AND updated_at < now() - $1::interval
        ORDER BY updated_at LIMIT $2 FOR UPDATE SKIP LOCKED)
    DELETE FROM chats c USING old WHERE c.id = old.id"""


async def list_idle_chats(
    conn: Conn, after: timedelta, *, limit: int
) -> list[tuple[ChatId, datetime]]:
    """Root chats that were not touched for so long, each with the time before which that was."""
    rows = await conn.fetch(LIST_IDLE, after, limit)
    return [(ChatId(row["id"]), row["since"]) for row in rows]


async def delete_archived_chats(conn: Conn, after: timedelta, *, limit: int) -> int:
    """A batch; call again while it returns `most`."""
    status = await conn.execute(DELETE_ARCHIVED, after, limit)
    return int(status.rpartition(" ")[2])
