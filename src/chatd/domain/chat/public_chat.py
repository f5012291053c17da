"""A chat as clients see it, in replies and in the chat list, and the events of the chat list."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct

from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import ChatId, MessageId, ModelConfigId, UserId, WorkspaceId

ChatListChange = Literal["created", "changed", "archived", "deleted", "title"]


class PublicChat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stream of this chat may resume from `version`; the copy with the lower version is older.
    Fields without a default are always present."""

    id: ChatId
    owner_id: UserId
    root_chat_id: ChatId
    parent_chat_id: ChatId | None = None
    title: str
    status: PublicStatus
    archived: bool
    last_error: ChatError | None
    pin_order: int
    labels: Mapping[str, str]
    queue_len: int
    version: int
    created_at: datetime
    updated_at: datetime
    last_model_config_id: ModelConfigId | None = None
    reasoning_effort: str | None = None
    workspace_id: WorkspaceId | None = None
    last_message_id: MessageId | None = None
    last_read_message_id: MessageId | None = None


class ChatListReady(Struct, frozen=True, kw_only=True, tag_field="type", tag="ready"):
    """Changes are sent from now on: list the chats. Sent at the start, and again after changes
    may have been lost."""


class ChatListEvent(Struct, frozen=True, kw_only=True, tag_field="type", tag="chat"):
    """Insert the chat, or replace the one with its id. `kind` is the likely change; there may be
    several. Remove a chat that is "deleted"."""

    kind: ChatListChange
    chat: PublicChat


def public_chat(chat: Chat) -> PublicChat:
    last = MessageId(chat.next_message_id - 1)
    return PublicChat(
        id=chat.id,
        owner_id=chat.owner_id,
        root_chat_id=chat.root_chat_id,
        parent_chat_id=chat.parent_chat_id,
        title=chat.title,
        status=chat.public_status,
        archived=chat.archived,
        last_error=chat.last_error if chat.status == "error" else None,
        pin_order=chat.pin_order,
        labels=chat.labels,
        queue_len=chat.queue_len,
        version=chat.snapshot_version,
        created_at=chat.created_at,
        updated_at=chat.updated_at,
        last_model_config_id=chat.model_config_id,
        reasoning_effort=chat.reasoning_effort,
        workspace_id=chat.workspace_id,
        last_message_id=last if last > 0 else None,
        last_read_message_id=chat.last_read_message_id,
    )


def chat_list_change(chat: Chat, hint_kind: str | None) -> ChatListChange:
    """Unknown kinds of hints count as "changed"."""
    if chat.deleted_at is not None:
        return "deleted"
    if hint_kind == "title":
        return "title"
    if chat.archived:
        return "archived"
    # A chat at its first version may still have got labels or a pin, which a kind announces.
    return "created" if chat.snapshot_version == 1 and hint_kind is None else "changed"
