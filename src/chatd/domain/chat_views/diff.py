"""The event group that leads a viewer from its position to the chat's current version.

A group covers all versions that the viewer is behind. Its order is fixed, so that a client that
applies it event by event never shows a call without its message, or an answer twice.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.chat.messages import (
    Message,
    PendingCall,
    QueuedMessage,
    public_message,
    public_queued,
)
from chatd.domain.chat.row import Chat, ChatError, Episode
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat.takeover import takeover_payload
from chatd.domain.chat.user_transitions import sort_queue
from chatd.domain.chat_views.events import (
    ActionPayload,
    ActionRequired,
    Cursor,
    DurableEvent,
    ErrorEvent,
    HistoryReset,
    MessageEvent,
    MessagesDeleted,
    QueueUpdate,
    RetryEvent,
    StatusEvent,
    StatusPayload,
    TakeoverEvent,
    VersionReached,
    WaitingCall,
    preview_reset,
    requested_calls,
    waiting_to_go_on,
)
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import MessageId


class ChatSnapshot(Struct, frozen=True, kw_only=True):
    """A chat at one version, with its changes after version `since`; 0: with all its messages.

    `messages` are the rows with a later revision. `deleted` are ids of rows deleted later, in
    addition to deleted rows in `messages`; a full snapshot needs none. `queue` is the whole queue,
    or None if it has not changed. `has_older`: only the newest rows were read.
    """

    chat: Chat
    since: int
    messages: tuple[Message, ...]
    queue: tuple[QueuedMessage, ...] | None
    deleted: tuple[MessageId, ...] = ()
    has_older: bool = False


class ShownState(Struct, frozen=True, kw_only=True):
    """What a viewer shows that has no version of its own; its feed remembers it."""

    status: PublicStatus
    error: ChatError | None
    pending_calls: tuple[PendingCall, ...]
    waiting_calls: tuple[WaitingCall, ...]
    episode: Episode


class ViewerPosition(Struct, frozen=True, kw_only=True):
    """The version a viewer has reached. A viewer that resumes knows no more: `shown` is None.

    A feed must drop `shown` after losing the database. An older row then means that the database
    has lost changes; with `shown` it counts as a late read.
    """

    version: int
    shown: ShownState | None = None

    @staticmethod
    def of(chat: Chat) -> "ViewerPosition":
        return ViewerPosition(version=chat.snapshot_version, shown=_shown_state(chat))


def needs_full_read(version: int | None, snapshot: ChatSnapshot) -> bool:
    """Whether the changes do not suffice for a viewer at this version: read again since 0.

    The row must have been read after the viewer sent its version. An earlier read may be behind
    and does not prove that the database lost changes.
    """
    if snapshot.since == 0:
        return False
    known = version or 0
    return known <= 0 or known > snapshot.chat.snapshot_version or snapshot.has_older


def diff(position: ViewerPosition | None, snapshot: ChatSnapshot) -> tuple[DurableEvent, ...]:
    """One event group; empty if a live viewer is current. `position` is None for a new viewer.

    A full snapshot becomes a full group, after a reset unless the viewer is new. Any other
    snapshot must start at or before the viewer's version.
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
        # The viewer would never get the messages in the gap.
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
    yield from _takeover(chat, 0)
    yield preview_reset(chat)
    yield _version_reached(snapshot)


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
    yield from _takeover(chat, position.version)
    if position.shown is None or position.shown.episode != Episode.of(chat):
        yield preview_reset(chat)
    yield _version_reached(snapshot)


def _shown_state(chat: Chat) -> ShownState:
    return ShownState(
        status=chat.public_status,
        error=chat.last_error,
        pending_calls=chat.pending_calls if chat.public_status == "requires_action" else (),
        waiting_calls=waiting_to_go_on(chat),
        episode=Episode.of(chat),
    )


def _has_status_changed(position: ViewerPosition, chat: Chat) -> bool:
    """Compares the details too: between two reads a chat can leave a status and return to it with
    another error or other calls."""
    if position.shown is None:
        return position.version < chat.snapshot_version
    was, now = position.shown, _shown_state(chat)
    return replace(was, episode=now.episode) != now


def _version_reached(snapshot: ChatSnapshot) -> VersionReached:
    chat = snapshot.chat
    return VersionReached(
        chat_id=chat.id,
        version=chat.snapshot_version,
        cursor=str(Cursor.of(chat)),
        has_older=snapshot.has_older,
    )


def _status(chat: Chat) -> StatusEvent:
    payload = StatusPayload(status=chat.public_status, waiting_calls=waiting_to_go_on(chat))
    return StatusEvent(chat_id=chat.id, status=payload)


def _status_details(chat: Chat) -> Iterator[DurableEvent]:
    if chat.public_status == "error" and chat.last_error is not None:
        yield ErrorEvent(chat_id=chat.id, error=chat.last_error)
    if chat.public_status == "requires_action":
        payload = ActionPayload(tool_calls=requested_calls(chat))
        yield ActionRequired(chat_id=chat.id, action_required=payload)


def _takeover(chat: Chat, version: int) -> Iterator[DurableEvent]:
    if chat.takeover is not None and chat.takeover.version > version:
        yield TakeoverEvent(chat_id=chat.id, takeover=takeover_payload(chat.takeover))


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
