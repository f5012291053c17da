"""Update a chat's unversioned columns."""

from typing import Final, LiteralString

from msgspec import UnsetType

from chatd.domain.chat.commands import UpdateChat
from chatd.domain.chat.row import Chat
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.store.chat.chats import chat_from_row
from chatd.store.conn import DatabaseSession, json_text, strip_unstorable
from chatd.store.workspace import bindings

# Also the time of the list: its poll finds the chat if the hint was lost.
MARK_DELETED: Final[LiteralString] = """
    UPDATE chats SET deleted_at = now(), updated_at = now()
    WHERE root_chat_id = $1 AND deleted_at IS NULL RETURNING *"""

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


async def mark_deleted(session: DatabaseSession, root: ChatId) -> list[Chat]:
    """The chats of the tree that were not marked before. The caller holds the tree's locks."""
    return [chat_from_row(row) for row in await session.fetch(MARK_DELETED, root)]


async def _bind(session: DatabaseSession, chat: Chat, workspace_id: WorkspaceId | None) -> None:
    """The chat's lock keeps other transactions from binding it."""
    if workspace_id is not None:
        await bindings.require_usable_workspace(session, workspace_id, chat.owner_id)
    if workspace_id != chat.workspace_id:
        await bindings.bind(session, chat.id, expected=chat.workspace_id, workspace_id=workspace_id)
