"""Update a chat's unversioned columns, and apply retention: list idle chats, delete archived ones.

Every replica runs retention. Of two that reach the same chat, the second finds nothing to do.
"""

from datetime import datetime, timedelta
from typing import Final, LiteralString

from msgspec import UnsetType

from chatd.domain.chat.commands import UpdateChat
from chatd.domain.chat.row import Chat
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.store.chat.chats import chat_from_row
from chatd.store.conn import Conn, DatabaseSession, json_text, strip_unstorable
from chatd.store.workspace import bindings

UPDATE_CHAT: Final[LiteralString] = """
    UPDATE chats SET title = coalesce($2, title), labels = coalesce($3, labels),
        pin_order = coalesce($4, pin_order)
    WHERE id = $1 RETURNING *"""


async def update_chat(session: DatabaseSession, chat: Chat, command: UpdateChat) -> Chat:
    """Write the columns that have no version. The caller holds the lock of `chat`'s row."""
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
    """The chat's lock keeps other transactions from binding it."""
    if workspace_id is not None:
        await bindings.require_usable_workspace(session, workspace_id, chat.owner_id)
    if workspace_id != chat.workspace_id:
        await bindings.bind(session, chat.id, expected=chat.workspace_id, workspace_id=workspace_id)


# Skips pinned chats and trees with a running chat. It counts, because the planner turns EXISTS into
# a join that reads all chats.
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
    """Root chats idle for longer than `after`, each with the time that it compared with."""
    rows = await conn.fetch(LIST_IDLE, after, limit)
    return [(ChatId(row["id"]), row["since"]) for row in rows]


async def delete_archived_chats(conn: Conn, after: timedelta, *, limit: int) -> int:
    """Delete one batch; call again while it returns `limit`."""
    status = await conn.execute(DELETE_ARCHIVED, after, limit)
    return int(status.rpartition(" ")[2])
