"""What a viewer must be told so that its state becomes the chat's.

Owns the rule that the stream is a function of the database: from what a viewer has seen and
what the rows say now to one group of events. Does not own reading the rows, nor live parts.

A group reaches over as many versions as the viewer is behind. Its order is fixed, so that a
client that applies it event by event never shows a call without its message or an answer both
as preview and as message.
"""

from collections.abc import Iterator

from msgspec import Struct

from chatd.domain.chat.events import (
    ActionPayload,
    ActionRequired,
    DurableEvent,
    ErrorEvent,
    HistoryReset,
    MessageEvent,
    MessagesDeleted,
    QueueUpdate,
    RetryEvent,
    StatusEvent,
    StatusPayload,
    VersionReached,
    preview_reset,
    public_message,
    public_queued,
    requested_call,
)
from chatd.domain.chat.messages import Message, PendingCall, QueuedMessage
from chatd.domain.chat.queue_transitions import sort_queue
from chatd.domain.chat.row import Chat, ChatError, Episode
from chatd.domain.chat.states import PublicStatus
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import MessageId


class ChatSnapshot(Struct, frozen=True, kw_only=True):
    """A chat at one version, with what has changed after version `since`.

    `messages` are the rows with a later revision, `deleted` the ids of rows that were deleted
    later (a deleted row among the messages counts as such), `queue` is the whole queue or None
    if it has not changed. With `since` 0 the snapshot is full and need not tell what is gone.
    `cut`: there are more rows than these newest ones.
    """

    chat: Chat
    since: int
    messages: tuple[Message, ...]
    queue: tuple[QueuedMessage, ...] | None
    deleted: tuple[MessageId, ...] = ()
    has_older: bool = False


class ShownState(Struct, frozen=True, kw_only=True):
    """What has no version of its own: a live viewer's feed remembers it."""

    status: PublicStatus
    error: ChatError | None
    pending_calls: tuple[PendingCall, ...]
    episode: Episode


class ViewerPosition(Struct, frozen=True, kw_only=True):
    """How far a viewer is. One that resumes knows its version only, so `shown` is None.

    After the database was out of reach a feed must forget `shown` too: only then is an older
    row taken for what it is, a database that has lost changes, and not for a late read.
    """

    version: int
    shown: ShownState | None = None

    @staticmethod
    def of(chat: Chat) -> "ViewerPosition":
        return ViewerPosition(version=chat.snapshot_version, shown=_shown_state(chat))


def needs_full_read(version: int | None, snapshot: ChatSnapshot) -> bool:
    """Whether a viewer at this version cannot be told the changes: read again, since 0.

    The row must have been read after the viewer told its version. An earlier read may just be
    behind, and is no proof that the database has lost what the viewer has seen.
    """
    if snapshot.since == 0:
        return False
    seen = version or 0
    return seen <= 0 or seen > snapshot.chat.snapshot_version or snapshot.has_older


def diff(position: ViewerPosition | None, snapshot: ChatSnapshot) -> tuple[DurableEvent, ...]:
    """One group, or nothing if a live viewer has it all. `seen` is None for a new viewer.

    A full snapshot is told as such, after a reset if the viewer has seen anything. Any other
    must reach back to what the viewer has seen.
    """
    chat = snapshot.chat
    version = position.version if position is not None else 0
    if position is not None and position.shown is not None and version >= chat.snapshot_version:
        return ()
    if snapshot.queue is None and chat.queue_version > (version if snapshot.since else 0):
        raise InvariantBroken(f"The queue has changed since {version} and was not read.")
    if snapshot.since == 0:
        return tuple(_full_group(snapshot, reset=version != 0))
    if position is None or needs_full_read(version, snapshot) or snapshot.since > version:
        # A gap would be a message that the viewer never gets.
        raise InvariantBroken(f"Changes since {snapshot.since} do not reach back to {version}.")
    return tuple(_change_group(snapshot, position))


def _full_group(snapshot: ChatSnapshot, *, reset: bool) -> Iterator[DurableEvent]:
    chat = snapshot.chat
    if reset:
        yield HistoryReset(chat_id=chat.id)
    yield _status(chat)
    yield from _messages(snapshot, 0)
    yield _queue(snapshot)
    yield from _status_details(chat)
    if reset or chat.retry_state is not None:
        yield RetryEvent(chat_id=chat.id, retry=chat.retry_state)
    yield preview_reset(chat)
    yield VersionReached(
        chat_id=chat.id, version=chat.snapshot_version, has_older=snapshot.has_older
    )


def _change_group(snapshot: ChatSnapshot, position: ViewerPosition) -> Iterator[DurableEvent]:
    chat = snapshot.chat
    yield from _deleted(snapshot, position.version)
    yield from _messages(snapshot, position.version)
    if chat.queue_version > position.version:
        yield _queue(snapshot)
    if _has_status_changed(position, chat):
        yield _status(chat)
        yield from _status_details(chat)
    if chat.retry_version > position.version:
        yield RetryEvent(chat_id=chat.id, retry=chat.retry_state)
    if position.shown is None or position.shown.episode != Episode.of(chat):
        yield preview_reset(chat)
    yield VersionReached(chat_id=chat.id, version=chat.snapshot_version)


def _shown_state(chat: Chat) -> ShownState:
    return ShownState(
        status=chat.public_status,
        error=chat.last_error,
        pending_calls=chat.pending_calls if chat.public_status == "requires_action" else (),
        episode=Episode.of(chat),
    )


def _has_status_changed(seen: ViewerPosition, chat: Chat) -> bool:
    """Comparing the status alone would not do: between two reads a chat can leave a status and
    come back to it for another reason."""
    if seen.shown is None:
        return seen.version < chat.snapshot_version
    was, now = seen.shown, _shown_state(chat)
    return (was.status, was.error, was.pending_calls) != (now.status, now.error, now.pending_calls)


def _status(chat: Chat) -> StatusEvent:
    return StatusEvent(chat_id=chat.id, status=StatusPayload(status=chat.public_status))


def _status_details(chat: Chat) -> Iterator[DurableEvent]:
    if chat.public_status == "error" and chat.last_error is not None:
        yield ErrorEvent(chat_id=chat.id, error=chat.last_error)
    if chat.public_status == "requires_action":
        calls = tuple(requested_call(call) for call in chat.pending_calls)
        yield ActionRequired(chat_id=chat.id, action_required=ActionPayload(tool_calls=calls))


def _deleted(snapshot: ChatSnapshot, version: int) -> Iterator[DurableEvent]:
    rows = {row.id for row in snapshot.messages if row.deleted and row.revision > version}
    if ids := sorted(rows.union(snapshot.deleted)):
        yield MessagesDeleted(chat_id=snapshot.chat.id, ids=tuple(ids))


def _messages(snapshot: ChatSnapshot, version: int) -> Iterator[DurableEvent]:
    chat_id = snapshot.chat.id
    for row in sorted(snapshot.messages, key=lambda row: row.id):
        if row.deleted or row.revision <= version:
            continue
        if (message := public_message(chat_id, row)) is not None:
            yield MessageEvent(chat_id=chat_id, message=message)


def _queue(snapshot: ChatSnapshot) -> QueueUpdate:
    chat_id = snapshot.chat.id
    waiting = tuple(public_queued(chat_id, item) for item in sort_queue(snapshot.queue or ()))
    return QueueUpdate(chat_id=chat_id, queued_messages=waiting)
