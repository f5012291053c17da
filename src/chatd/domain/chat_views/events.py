"""Events that viewers of a chat receive, over SSE and WebSocket, their encoding, and a viewer's
cursor.

Durable events come in groups that end with `version`, from which a client may resume. A client
keeps messages by id, drops error and requested calls at every `status` (the group repeats those
that still hold), and drops its preview at every `preview_reset`.
"""

from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Struct, field

from chatd.domain.chat.call_waits import WaitKind, call_deadlines, wait_of, waiting_calls
from chatd.domain.chat.messages import (
    PublicMessage,
    PublicQueuedMessage,
    Role,
    decode_parts,
    encode_parts,
)
from chatd.domain.chat.parts import KnownPart, UnknownPart
from chatd.domain.chat.row import UNKNOWN_CHANGE, Chat, ChatError, Episode, RetryState
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat.takeover import TakeoverPayload
from chatd.domain.description import CHAT_ID, STREAM_CURSOR, WAITS_FOR, describe
from chatd.domain.ids import ChangeId, ChatId, MessageId, ToolCallId
from chatd.domain.text import Json


class RequestedCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits: for the client's result, for answers of a person, or for approval."""

    tool_call_id: Annotated[
        ToolCallId, describe("The id that the model gave to the call.", "toolu_01A9")
    ]
    tool_name: Annotated[str, describe("The name of the tool.", "open_page")]
    kind: Annotated[
        WaitKind,
        describe(
            "`client`: submit the result of a client tool. `question`: a person answers the"
            " questions in `args`. `approval`: a person approves or denies the call.",
            "approval",
        ),
    ] = field(default_factory=lambda: "client")  # With a plain default it would not be sent.
    deadline: Annotated[
        datetime | None, describe("When the call is given up.", "2026-11-19T21:34:12Z")
    ] = None
    can_always: Annotated[
        bool,
        describe("Of an approval: whether the chat can be told not to ask for such calls again."),
    ] = False
    reason: Annotated[
        str,
        describe("Of an approval: why the policy asks, if it says so.", "Pushes need a review."),
    ] = ""
    args: Annotated[
        Json,
        describe(
            "The arguments, any JSON. Absent if the model's text was not valid JSON, and if they"
            " are longer than 64 KiB: then the message has them.",
            {"url": "https://example.com"},
        ),
    ] = UNSET


class WaitingCall(Struct, frozen=True, kw_only=True):
    """A call that runs and cannot go on now. It goes on by itself."""

    tool_call_id: Annotated[
        ToolCallId, describe("The id that the model gave to the call.", "toolu_01A9")
    ]
    waits_for: Annotated[str, describe("What it waits for, for people.", WAITS_FOR)]


class StatusPayload(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status of a chat."""

    status: Annotated[PublicStatus, describe("What the chat does or waits for.", "running")]
    waiting_calls: Annotated[
        tuple[WaitingCall, ...],
        describe(
            "Calls that run and wait, such as for a machine that is not connected. Absent: none."
        ),
    ] = ()


class ActionPayload(Struct, frozen=True, kw_only=True):
    """Calls that wait."""

    tool_calls: Annotated[
        tuple[RequestedCall, ...], describe("All calls that wait for somebody outside.")
    ]


class PartPayload(Struct, frozen=True, kw_only=True):
    """A live part; text is appended to the preview. `seq` counts from 1 within the episode that
    `history_version` and `attempt` name."""

    role: Annotated[Role, describe("Who says it.", "assistant")]
    part: Annotated[
        KnownPart, describe("The part; text continues the preview's last part of the same kind.")
    ]
    history_version: Annotated[
        int,
        describe("The version at which the answer began; with `attempt` it names the episode.", 11),
    ]
    attempt: Annotated[int, describe("The number of the try at this answer.", 1)]
    seq: Annotated[int, describe("Counts the parts of the episode from 1.", 4)]


class _Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    chat_id: Annotated[ChatId, describe("The chat.", CHAT_ID)]


class StatusEvent(_Event, frozen=True, kw_only=True, tag="status"):
    """Show the status and the calls that wait; drop the last error and the requested calls."""

    status: Annotated[StatusPayload, describe("The new status.")]


class MessageEvent(_Event, frozen=True, kw_only=True, tag="message"):
    """Insert the message, or replace the one with its id."""

    message: Annotated[PublicMessage, describe("The message.")]


class MessagesDeleted(_Event, frozen=True, kw_only=True, tag="messages_deleted"):
    """Remove these messages. The client may not know all ids: messages written and deleted while
    it was disconnected."""

    ids: Annotated[tuple[MessageId, ...], describe("The ids of the deleted messages.", [5, 6])]


class HistoryReset(_Event, frozen=True, kw_only=True, tag="history_reset"):
    """Drop everything; the full state follows. Sent if the client is too far behind, or has
    applied changes that the database has lost."""


class MessagePart(_Event, frozen=True, kw_only=True, tag="message_part"):
    """A live part of the running answer: append it to the preview. Not durable."""

    message_part: Annotated[PartPayload, describe("The part and its place in the answer.")]


class PreviewReset(_Event, frozen=True, kw_only=True, tag="preview_reset"):
    """Drop the preview; parts of this episode may follow."""

    history_version: Annotated[int, describe("The version at which the answer began.", 11)]
    attempt: Annotated[int, describe("The number of the try at this answer.", 1)]


class QueueUpdate(_Event, frozen=True, kw_only=True, tag="queue_update"):
    """Replace the queue by this one."""

    queued_messages: Annotated[
        tuple[PublicQueuedMessage, ...], describe("The whole queue, in order.")
    ]


class RetryEvent(_Event, frozen=True, kw_only=True, tag="retry"):
    """Show that the model is called again after a delay. Null: no retry is pending."""

    retry: Annotated[RetryState | None, describe("The retry that is pending, or null.")]


class ErrorEvent(_Event, frozen=True, kw_only=True, tag="error"):
    """Show why the chat stopped."""

    error: Annotated[ChatError, describe("The error.")]


class ActionRequired(_Event, frozen=True, kw_only=True, tag="action_required"):
    """Run these client tools and submit all their results at once; show the questions and the
    calls to approve to a person, and send the answers."""

    action_required: Annotated[ActionPayload, describe("The calls.")]


class TakeoverEvent(_Event, frozen=True, kw_only=True, tag="takeover"):
    """Show that another worker took the chat over. Keep the last one: it stays true."""

    takeover: Annotated[TakeoverPayload, describe("The takeover.")]


class VersionReached(_Event, frozen=True, kw_only=True, omit_defaults=True, tag="version"):
    """Ends a group: the client has the chat's state at this version. It resumes by the `cursor`,
    with which the server recognizes a version that the database has lost. `has_older`: only the
    newest messages were sent; the client reads older ones by page."""

    version: Annotated[int, describe("The chat's version.", 12)]
    cursor: Annotated[
        str, describe("The version and the change that wrote it: resume with it.", STREAM_CURSOR)
    ] = ""
    has_older: Annotated[
        bool, describe("Only the newest messages were sent; read older ones by page.")
    ] = False


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
    | TakeoverEvent
    | VersionReached
)
Event = DurableEvent | MessagePart


def waiting_to_go_on(chat: Chat) -> tuple[WaitingCall, ...]:
    """Of a turn that a worker runs."""
    if chat.public_status != "running":
        return ()
    return tuple(
        WaitingCall(tool_call_id=call.id, waits_for=call.waits_for)
        for call in chat.pending_calls
        if call.waits_for
    )


def requested_calls(chat: Chat) -> tuple[RequestedCall, ...]:
    deadlines = call_deadlines(chat)
    return tuple(
        RequestedCall(
            tool_call_id=call.id,
            tool_name=call.name,
            kind=wait_of(call) or "approval",
            deadline=deadlines.get(call.id),
            can_always=call.always,
            reason=call.reason,
            args=call.args,
        )
        for call in waiting_calls(chat)
    )


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


# The cursor of a viewer: a version of a chat and the change that wrote it.
#
# Clients get it as text and send it back to resume. A version alone is accepted too, but it cannot
# show that the database has lost the change that the client has seen under that number.

CURSOR_PATTERN: Final = r"^[0-9]{1,19}(-[0-9a-f]{1,16})?$"
"""The version, and the change in hexadecimal digits."""


class Cursor(Struct, frozen=True):
    version: int
    change_id: ChangeId = UNKNOWN_CHANGE

    @staticmethod
    def of(chat: Chat) -> "Cursor":
        return Cursor(chat.snapshot_version, chat.change_id)

    @staticmethod
    def parse(text: str) -> "Cursor":
        """The text must match `CURSOR_PATTERN`."""
        version, _, change = text.partition("-")
        return Cursor(int(version), ChangeId(int(change or "0", 16)))

    def is_past_of(self, chat: Chat) -> bool:
        """Whether the chat is at this cursor or follows it, and its last change ids show it."""
        return chat.contains(self.version, self.change_id)

    def __str__(self) -> str:
        if self.change_id == UNKNOWN_CHANGE:
            return str(self.version)
        return f"{self.version}-{self.change_id:x}"


START: Final = Cursor(0)
"""The cursor of a viewer that has nothing."""
