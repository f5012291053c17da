"""What a viewer of a chat is told: one vocabulary for SSE and WebSocket.

Owns the names and shapes on the wire, and how a row becomes what clients may see of it. Does
not own when which event is sent: that is `diff` for what is durable, and the episodes for
live parts.

Durable events come in groups that end with `version`; a client that has applied the group may
resume from that number. A client keeps messages by id, drops the error and the asked-for calls
at every `status` (what still holds follows in the group), and drops its preview at every
`preview_reset`.

Events as bytes: encoded once, on one line, for every viewer and for the journal.

Owns that an event has no line break in it. Arguments of a tool call are kept as the model
wrote them, and a model may well write its JSON on several lines; inside JSON such a break is
no more than a space, but to an event stream and to the journal it would be the end.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.chat.messages import Message, PendingCall, QueuedMessage, Role, TokenUsage
from chatd.domain.chat.parts import KnownPart, Part, UnknownPart, decode_parts, encode_parts, public_parts
from chatd.domain.text import Json
from chatd.domain.chat.row import Chat, ChatError, Episode, RetryState
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import ChatId, MessageId, ModelConfigId, QueueId, ToolCallId, UserId


class PublicMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: MessageId
    chat_id: ChatId
    role: Role
    content: tuple[KnownPart, ...]
    created_at: datetime
    created_by: UserId | None = None
    model_config_id: ModelConfigId | None = None
    usage: TokenUsage | None = None


class PublicQueuedMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: QueueId
    chat_id: ChatId
    content: tuple[KnownPart, ...]
    created_at: datetime
    created_by: UserId
    steer: bool = False
    model_config_id: ModelConfigId | None = None


class RequestedCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`args` is absent when the model's arguments were not valid JSON."""

    tool_call_id: ToolCallId
    tool_name: str
    args: Json = UNSET


class StatusPayload(Struct, frozen=True, kw_only=True):
    status: PublicStatus


class ActionPayload(Struct, frozen=True, kw_only=True):
    tool_calls: tuple[RequestedCall, ...]


class PartPayload(Struct, frozen=True, kw_only=True):
    """A piece of the step under way; text is to be appended. `seq` counts from 1 within the
    episode that `history_version` and `attempt` name."""

    role: Role
    part: KnownPart
    history_version: int
    attempt: int
    seq: int


class _Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    chat_id: ChatId


class StatusEvent(_Event, frozen=True, kw_only=True, tag="status"):
    status: StatusPayload


class MessageEvent(_Event, frozen=True, kw_only=True, tag="message"):
    """Put it in, or in place of the one with that id."""

    message: PublicMessage


class MessagesDeleted(_Event, frozen=True, kw_only=True, tag="messages_deleted"):
    """Some of the ids may be new to the client: written and deleted while it was away."""

    ids: tuple[MessageId, ...]


class HistoryReset(_Event, frozen=True, kw_only=True, tag="history_reset"):
    """Drop everything; all follows. The client is too far behind to be told what changed, or
    it has seen changes that the database has lost."""


class MessagePart(_Event, frozen=True, kw_only=True, tag="message_part"):
    message_part: PartPayload


class PreviewReset(_Event, frozen=True, kw_only=True, tag="preview_reset"):
    """Drop the preview; parts of this episode may follow."""

    history_version: int
    attempt: int


class QueueUpdate(_Event, frozen=True, kw_only=True, tag="queue_update"):
    """The whole queue, in order."""

    queued_messages: tuple[PublicQueuedMessage, ...]


class RetryEvent(_Event, frozen=True, kw_only=True, tag="retry"):
    """Null: not waiting any more."""

    retry: RetryState | None


class ErrorEvent(_Event, frozen=True, kw_only=True, tag="error"):
    error: ChatError


class ActionRequired(_Event, frozen=True, kw_only=True, tag="action_required"):
    action_required: ActionPayload


class VersionReached(_Event, frozen=True, kw_only=True, omit_defaults=True, tag="version"):
    """Ends a group: the client's state is the chat's at this version. `has_older`: the group
    began a history of which only the newest messages were sent; the others are read by page."""

    version: int
    has_older: bool = False


DurableEvent = (
    StatusEvent
    | MessageEvent
    | MessagesDeleted
    | HistoryReset
    | PreviewReset
    | QueueUpdate
    | RetryEvent
    | ErrorEvent
    | ActionRequired
    | VersionReached
)
Event = DurableEvent | MessagePart


def public_message(chat_id: ChatId, row: Message) -> PublicMessage | None:
    """None hides the whole message: system prompts and summaries are for the model alone."""
    if row.visibility == "model":
        return None
    return PublicMessage(
        id=row.id,
        chat_id=chat_id,
        role=row.role,
        content=_known(row.content),
        created_at=row.created_at,
        created_by=row.created_by,
        model_config_id=row.model_config_id,
        usage=None if row.usage == TokenUsage() else row.usage,
    )


def public_queued(chat_id: ChatId, row: QueuedMessage) -> PublicQueuedMessage:
    return PublicQueuedMessage(
        id=row.id,
        chat_id=chat_id,
        content=_known(row.content),
        created_at=row.created_at,
        created_by=row.created_by,
        steer=row.steer,
        model_config_id=row.model_config_id,
    )


def _known(content: Sequence[Part]) -> tuple[KnownPart, ...]:
    return tuple(part for part in public_parts(content) if not isinstance(part, UnknownPart))


def requested_call(call: PendingCall) -> RequestedCall:
    return RequestedCall(tool_call_id=call.id, tool_name=call.name, args=call.args)


def preview_reset(chat: Chat) -> PreviewReset:
    episode = Episode.of(chat)
    return PreviewReset(
        chat_id=chat.id, history_version=episode.history_version, attempt=episode.attempt
    )


_ENCODER: Final = msgspec.json.Encoder()


def encode_value(value: msgspec.Struct) -> bytes:
    line = _ENCODER.encode(value)
    if b"\n" in line or b"\r" in line:
        line = line.replace(b"\n", b" ").replace(b"\r", b" ")
    return line


def encode_event(event: DurableEvent) -> bytes:
    return encode_value(event)


def encode_part(event: MessagePart) -> bytes | None:
    """Live parts come as they were said, perhaps with half a character at the end. None for
    what cannot be mended: a preview may lack it."""
    try:
        return encode_value(event)
    except UnicodeEncodeError:
        (part,) = decode_parts(encode_parts([event.message_part.part]))
        if isinstance(part, UnknownPart):
            return None
        payload: PartPayload = msgspec.structs.replace(event.message_part, part=part)
        return encode_value(msgspec.structs.replace(event, message_part=payload))
