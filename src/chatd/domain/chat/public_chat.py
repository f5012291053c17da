"""A chat as clients see it, in replies and in the chat list, and the events of the chat list."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, Literal

from msgspec import UNSET, Struct, UnsetType

from chatd.domain.chat.change import QUEUE_HELD_ERROR
from chatd.domain.chat.row import Chat, ChatError
from chatd.domain.chat.states import PublicStatus
from chatd.domain.description import (
    CHAT_ID,
    CHILD_CHAT_ID,
    CREATED_AT,
    MODEL_ID,
    UPDATED_AT,
    USER_ID,
    WORKSPACE_ID,
    describe,
)
from chatd.domain.ids import ChatId, MessageId, ModelConfigId, UserId, WorkspaceId

ChatListChange = Literal["created", "changed", "archived", "deleted", "title"]


class ForkOrigin(Struct, frozen=True, kw_only=True):
    """Where a chat was forked from. The chat may be deleted since."""

    chat_id: Annotated[ChatId, describe("The chat.", CHILD_CHAT_ID)]
    message_id: Annotated[MessageId, describe("The last message that was copied.", 7)]


class PublicChat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat. Fields without a default are always present."""

    id: Annotated[ChatId, describe("The chat's id.", CHAT_ID)]
    owner_id: Annotated[UserId, describe("The user it belongs to.", USER_ID)]
    root_chat_id: Annotated[
        ChatId,
        describe("The chat at the root of its tree; its own id unless it is a subagent.", CHAT_ID),
    ]
    parent_chat_id: Annotated[
        ChatId | None, describe("Of a subagent: the chat that started it.", CHAT_ID)
    ] = None
    title: Annotated[str, describe("Its title.", "Fix the failing test")]
    status: Annotated[PublicStatus, describe("What it does or waits for.", "waiting")]
    archived: Annotated[bool, describe("Whether it is archived.")]
    last_error: Annotated[
        ChatError | None, describe("Why it stopped, if its status is `error`; else null.")
    ]
    pin_order: Annotated[
        int, describe("Its place among the pinned chats; 0 if it is not pinned.", 0)
    ]
    labels: Annotated[Mapping[str, str], describe("Its labels.", {"team": "blue"})]
    queue_len: Annotated[int, describe("How many messages wait in its queue.", 0)]
    queue_held: Annotated[
        bool,
        describe("Whether its queue waits until it is resumed, because an interrupt held it."),
    ] = False
    version: Annotated[
        int,
        describe(
            "Counts its changes. A copy with a lower version is older; a stream resumes from it.",
            12,
        ),
    ]
    created_at: Annotated[datetime, describe("When it was created.", CREATED_AT)]
    updated_at: Annotated[datetime, describe("When it last changed.", UPDATED_AT)]
    last_model_config_id: Annotated[
        ModelConfigId | None, describe("The model of the last message.", MODEL_ID)
    ] = None
    reasoning_effort: Annotated[
        str | None, describe("The reasoning effort of the last message.", "medium")
    ] = None
    workspace_id: Annotated[
        WorkspaceId | None, describe("The workspace in which its tools act.", WORKSPACE_ID)
    ] = None
    max_cost_micros: Annotated[
        int | None,
        describe("The budget of the chat and its subagents, in micros of a dollar.", 500_000),
    ] = None
    last_message_id: Annotated[MessageId | None, describe("The id of its newest message.", 7)] = (
        None
    )
    last_read_message_id: Annotated[
        MessageId | None,
        describe("The newest message that you have read; absent where `has_unread` is.", 5),
    ] = None
    has_unread: Annotated[
        bool | UnsetType,
        describe(
            "Whether an answer follows the last message that you have read and your last prompt."
            " Absent in replies to an action on the chat."
        ),
    ] = UNSET
    forked_from: Annotated[ForkOrigin | None, describe("Of a fork: where it comes from.")] = None


class ChatListReady(Struct, frozen=True, kw_only=True, tag_field="type", tag="ready"):
    """Changes are sent from now on: list the chats. Sent at the start, and again after changes
    may have been lost."""


class ChatListEvent(Struct, frozen=True, kw_only=True, tag_field="type", tag="chat"):
    """Insert the chat, or replace the one with its id. `kind` is the likely change; there may be
    several. Remove a chat that is "deleted"."""

    kind: Annotated[ChatListChange, describe("The likely change; there may be several.", "changed")]
    chat: Annotated[PublicChat, describe("The chat after the change.")]


NOTHING_READ: Final = MessageId(0)


def has_unread(chat: Chat, read_up_to: MessageId) -> bool:
    """Whether an answer follows both the last message that the user has read and the message that
    started the last turn."""
    return chat.next_message_id - 1 > max(read_up_to, chat.turn_message_id or 0)


def public_chat(chat: Chat, read_up_to: MessageId | None = None) -> PublicChat:
    """`read_up_to` is the last message that the user has read, NOTHING_READ, or None if it is not
    known."""
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
        queue_held=chat.queue_held or _is_held(chat.last_error),
        version=chat.snapshot_version,
        created_at=chat.created_at,
        updated_at=chat.updated_at,
        last_model_config_id=chat.model_config_id,
        reasoning_effort=chat.reasoning_effort,
        workspace_id=chat.workspace_id,
        max_cost_micros=chat.max_cost_micros,
        last_message_id=last if last > 0 else None,
        last_read_message_id=read_up_to or None,
        has_unread=UNSET if read_up_to is None else has_unread(chat, read_up_to),
        forked_from=_origin(chat),
    )


def _is_held(error: ChatError | None) -> bool:
    return error is not None and error.kind == QUEUE_HELD_ERROR.kind


def _origin(chat: Chat) -> ForkOrigin | None:
    source, message = chat.forked_from_chat_id, chat.forked_from_message_id
    if source is None or message is None:
        return None
    return ForkOrigin(chat_id=source, message_id=message)


def chat_list_change(chat: Chat, hint_kind: str | None) -> ChatListChange:
    """Unknown kinds of hints count as "changed"."""
    if chat.deleted_at is not None:
        return "deleted"
    if hint_kind == "title":
        return "title"
    if chat.archived:
        return "archived"
    # A chat at its first version may still have got labels or a pin, which a kind announces.
    is_new = chat.snapshot_version == 1 and hint_kind in (None, "created")
    return "created" if is_new else "changed"
