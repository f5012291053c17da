"""A chat as its people see it: in lists, in answers, and to those who watch all their chats.

Owns which columns of the row clients may see and under which names, and the events of a watch.
Who may see a chat at all is decided elsewhere.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct

from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import ChatId, MessageId, ModelConfigId, UserId, WorkspaceId

ChatListChange = Literal["created", "changed", "archived", "title"]


class PublicChat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`version` is what a stream of this chat may be resumed from; of two copies of a chat the
    one with the lower version is the older. Fields without a default are always there."""

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
    mode: str | None = None
    last_message_id: MessageId | None = None
    last_read_message_id: MessageId | None = None


class ChatListReady(Struct, frozen=True, kw_only=True, tag_field="type", tag="ready"):
    """From here on changes are told: list the chats now. Said at the start, and again whenever
    changes may have been missed."""


class ChatListEvent(Struct, frozen=True, kw_only=True, tag_field="type", tag="chat"):
    """Put the chat in, or in place of the one with that id. `kind` says what seems to have
    happened; several things may have."""

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
        mode=chat.mode,
        last_message_id=last if last > 0 else None,
        last_read_message_id=chat.last_read_message_id,
    )


def chat_list_change(chat: Chat, hint_kind: str | None) -> ChatListChange:
    """From the row and the hint's word for it. A hint's words are an open set."""
    if hint_kind == "title":
        return "title"
    if chat.archived:
        return "archived"
    # A chat that is still as it began may have been given labels or a pin.
    return "created" if chat.snapshot_version == 1 and hint_kind is None else "changed"
