"""Events that viewers of a chat receive, over SSE and WebSocket, and their encoding.

Durable events come in groups that end with `version`, from which a client may resume. A client
keeps messages by id, drops error and requested calls at every `status` (the group repeats those
that still hold), and drops its preview at every `preview_reset`.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.chat.messages import (
    PendingCall,
    Role,
    decode_parts,
    encode_parts,
)
from chatd.domain.chat.parts import (
    KnownPart,
    UnknownPart,
)
from chatd.domain.chat.public_messages import PublicMessage, PublicQueuedMessage
from chatd.domain.chat.row import Chat, ChatError, Episode, RetryState
from chatd.domain.chat.states import PublicStatus
from chatd.domain.ids import ChatId, MessageId, ToolCallId
from chatd.domain.text import Json


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
    """A live part; text is appended to the preview. `seq` counts from 1 within the episode that
    `history_version` and `attempt` name."""

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
    """Insert the message, or replace the one with its id."""

    message: PublicMessage


class MessagesDeleted(_Event, frozen=True, kw_only=True, tag="messages_deleted"):
    """The client may not know all ids: messages written and deleted while it was disconnected."""

    ids: tuple[MessageId, ...]


class HistoryReset(_Event, frozen=True, kw_only=True, tag="history_reset"):
    """Drop everything; the full state follows. Sent if the client is too far behind, or has
    applied changes that the database has lost."""


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
    """Null: no retry is pending."""

    retry: RetryState | None


class ErrorEvent(_Event, frozen=True, kw_only=True, tag="error"):
    error: ChatError


class ActionRequired(_Event, frozen=True, kw_only=True, tag="action_required"):
    action_required: ActionPayload


class VersionReached(_Event, frozen=True, kw_only=True, omit_defaults=True, tag="version"):
    """Ends a group: the client has the chat's state at this version. It resumes by the `cursor`,
    with which the server recognizes a version that the database has lost. `has_older`: only the
    newest messages were sent; the client reads older ones by page."""

    version: int
    cursor: str = ""
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


def requested_call(call: PendingCall) -> RequestedCall:
    return RequestedCall(tool_call_id=call.id, tool_name=call.name, args=call.args)


def preview_reset(chat: Chat) -> PreviewReset:
    episode = Episode.of(chat)
    return PreviewReset(
        chat_id=chat.id, history_version=episode.history_version, attempt=episode.attempt
    )


_ENCODER: Final = msgspec.json.Encoder()


def encode_value(value: msgspec.Struct) -> bytes:
    """One line: a line break would end an SSE event or a journal entry. Raw tool arguments may
    hold line breaks, which inside JSON equal spaces."""
    line = _ENCODER.encode(value)
    if b"\n" in line or b"\r" in line:
        line = line.replace(b"\n", b" ").replace(b"\r", b" ")
    return line


def encode_event(event: DurableEvent) -> bytes:
    return encode_value(event)


def encode_part(event: MessagePart) -> bytes | None:
    """A live part may end in a lone surrogate, which is replaced. None if it still cannot be
    encoded: the preview then lacks it."""
    try:
        return encode_value(event)
    except UnicodeEncodeError:
        (part,) = decode_parts(encode_parts([event.message_part.part]))
        if isinstance(part, UnknownPart):
            return None
        payload: PartPayload = msgspec.structs.replace(event.message_part, part=part)
        return encode_value(msgspec.structs.replace(event, message_part=payload))
