"""Rows of the timeline: what one chat shows, from top to bottom. Plain data, made by `row_model`.

`key` stays the same when a live row becomes durable, and when older pages are put in front.
`message_id` is the message that the row belongs to; None while it has none. `is_tight`: no empty
line above, so that lines of finished calls stand close together.
"""

from typing import Literal

from msgspec import Struct

from chatd.domain.chat.parts import FilePart, FileReferencePart, SourcePart
from chatd.domain.chat.row import ChatError, RetryState
from chatd.domain.chat.takeover import TakeoverPayload
from chatd.terminal.timeline.tool_call import ToolCall


class _Row(Struct, frozen=True, kw_only=True):
    key: str
    message_id: int | None = None
    is_tight: bool = False


class PendingNote(Struct, frozen=True, kw_only=True):
    """The state of a message that was sent and is not in the chat yet. `refusal`: why the server
    refused it; empty while it is on its way. `is_kept`: the server cannot be reached."""

    id: str
    is_kept: bool = False
    refusal: str = ""


class UserRow(_Row, frozen=True, kw_only=True):
    text: str
    files: tuple[FilePart, ...] = ()
    references: tuple[FileReferencePart, ...] = ()
    is_steering: bool = False
    pending: PendingNote | None = None


class ProseRow(_Row, frozen=True, kw_only=True):
    text: str
    is_live: bool = False


class ReasoningRow(_Row, frozen=True, kw_only=True):
    text: str
    title: str = ""
    started_at: float | None = None
    duration_s: float | None = None
    is_live: bool = False


class ToolRow(_Row, frozen=True, kw_only=True):
    """`is_last`: a plan that the user may still answer."""

    call: ToolCall
    is_last: bool = False


class ReadsRow(_Row, frozen=True, kw_only=True):
    """Files that were read one after the other."""

    calls: tuple[ToolCall, ...]


class SourcesRow(_Row, frozen=True, kw_only=True):
    sources: tuple[SourcePart, ...]


class FilesRow(_Row, frozen=True, kw_only=True):
    files: tuple[FilePart, ...]


class CompactedMark(Struct, frozen=True, kw_only=True):
    summary: str = ""
    tokens: int | None = None
    kept: int = 0
    is_live: bool = False


class CompactionFailedMark(Struct, frozen=True, kw_only=True):
    reason: str


class TakeoverMark(Struct, frozen=True, kw_only=True):
    takeover: TakeoverPayload


class StoppedMark(Struct, frozen=True, kw_only=True):
    pass


class ContextMark(Struct, frozen=True, kw_only=True):
    """Files and skills of the workspace that the model was told about."""

    files: tuple[str, ...]
    skills: tuple[str, ...]


class NoticeMark(Struct, frozen=True, kw_only=True):
    """A notice of the server. `can_continue`: it tells why the turn ended early."""

    text: str
    can_continue: bool = False


Mark = CompactedMark | CompactionFailedMark | TakeoverMark | StoppedMark | ContextMark | NoticeMark


class MarkRow(_Row, frozen=True, kw_only=True):
    """A fact about the chat itself."""

    mark: Mark


Note = Literal["length", "content-filter", "refusal", "error"]


class NoteRow(_Row, frozen=True, kw_only=True):
    """How an answer ended, if not by itself."""

    note: Note
    can_continue: bool = False


class RetryRow(_Row, frozen=True, kw_only=True):
    retry: RetryState


class WaitsRow(_Row, frozen=True, kw_only=True):
    """Calls cannot go on now; `text` says why."""

    text: str


class FailedRow(_Row, frozen=True, kw_only=True):
    error: ChatError


class HeldRow(_Row, frozen=True, kw_only=True):
    """The user stopped the chat and held its queue."""

    queued: int


Activity = Literal["working", "pending", "interrupting"]


class ActivityRow(_Row, frozen=True, kw_only=True):
    """One quiet line at the end: what the chat does, when no other row says it."""

    activity: Activity


class OlderRow(_Row, frozen=True, kw_only=True):
    """The first row while older messages exist. `problem`: why they could not be loaded."""

    problem: str = ""


Row = (
    UserRow
    | ProseRow
    | ReasoningRow
    | ToolRow
    | ReadsRow
    | SourcesRow
    | FilesRow
    | MarkRow
    | NoteRow
    | RetryRow
    | WaitsRow
    | FailedRow
    | HeldRow
    | ActivityRow
    | OlderRow
)
