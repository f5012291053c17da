"""What a viewer must be told so that its state becomes the chat's.

Owns the rule that the stream is a function of the database: from what a viewer has seen and
what the rows say now to one group of events. Does not own reading the rows, nor live parts.

A group reaches over as many versions as the viewer is behind. Its order is fixed, so that a
client that applies it event by event never shows a call without its message or an answer both
as preview and as message.
"""

from collections.abc import Iterator

from msgspec import Struct

from chatd.domain.chat import Chat, ChatError, Episode
from chatd.domain.errors import InvariantBroken
from chatd.domain.events import (
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
    asked_call,
    preview_reset,
    public_message,
    public_queued,
)
from chatd.domain.messages import Message, PendingCall, QueuedMessage
from chatd.domain.queue_moves import in_order
from chatd.domain.states import PublicStatus


class Snapshot(Struct, frozen=True, kw_only=True):
    """A chat at one version, with what has changed after version `since`.

    `messages` are all rows with a later revision, deleted ones included; `queue` is the whole
    queue, or None if it has not changed. Full is `since` 0 with the queue.
    """

    chat: Chat
    since: int
    messages: tuple[Message, ...]
    queue: tuple[QueuedMessage, ...] | None


class Shown(Struct, frozen=True, kw_only=True):
    """What has no version of its own: a live viewer's feed remembers it."""

    status: PublicStatus
    error: ChatError | None
    asked: tuple[PendingCall, ...]
    episode: Episode


class Seen(Struct, frozen=True, kw_only=True):
    """How far a viewer is. One that resumes knows its version only, so `shown` is None.

    After the database was out of reach a feed must forget `shown` too: only then is an older
    row taken for what it is, a database that has lost changes, and not for a late read.
    """

    version: int
    shown: Shown | None = None

    @staticmethod
    def of(chat: Chat) -> "Seen":
        return Seen(version=chat.snapshot_version, shown=_shown(chat))


def needs_full(version: int | None, chat: Chat) -> bool:
    """Whether changes since `version` would not do. `chat` must have been read after the
    viewer told its version; an earlier read may just be behind."""
    return version is None or version > chat.snapshot_version


def diff(seen: Seen | None, snapshot: Snapshot) -> tuple[DurableEvent, ...]:
    """One group, or nothing if the viewer has it all. `seen` is None for a new viewer.

    The snapshot must reach back to what the viewer has seen, or be full if `needs_full`.
    """
    chat = snapshot.chat
    if seen is not None and seen.shown is not None and seen.version >= chat.snapshot_version:
        return ()
    if seen is None or needs_full(seen.version, chat):
        _require_reach(snapshot, 0)
        return tuple(_whole(snapshot, reset=seen is not None))
    _require_reach(snapshot, seen.version)
    return tuple(_changes(snapshot, seen))


def _require_reach(snapshot: Snapshot, version: int) -> None:
    """A gap here would be a message that a viewer never gets."""
    if snapshot.since > version:
        raise InvariantBroken(f"Changes since {snapshot.since} do not reach back to {version}.")
    if snapshot.queue is None and snapshot.chat.queue_version > version:
        raise InvariantBroken(f"The queue has changed since {version} and was not read.")


def _whole(snapshot: Snapshot, *, reset: bool) -> Iterator[DurableEvent]:
    chat = snapshot.chat
    if reset:
        yield HistoryReset(chat_id=chat.id)
    yield _status(chat)
    yield from _messages(snapshot, 0)
    yield _queue(snapshot)
    yield from _reason(chat)
    if reset or chat.retry_state is not None:
        yield RetryEvent(chat_id=chat.id, retry=chat.retry_state)
    yield preview_reset(chat)
    yield VersionReached(chat_id=chat.id, version=chat.snapshot_version)


def _changes(snapshot: Snapshot, seen: Seen) -> Iterator[DurableEvent]:
    chat = snapshot.chat
    yield from _deleted(snapshot, seen.version)
    yield from _messages(snapshot, seen.version)
    if chat.queue_version > seen.version:
        yield _queue(snapshot)
    if _stands_differently(seen, chat):
        yield _status(chat)
        yield from _reason(chat)
    if chat.retry_version > seen.version:
        yield RetryEvent(chat_id=chat.id, retry=chat.retry_state)
    if seen.shown is None or seen.shown.episode != Episode.of(chat):
        yield preview_reset(chat)
    yield VersionReached(chat_id=chat.id, version=chat.snapshot_version)


def _shown(chat: Chat) -> Shown:
    return Shown(
        status=chat.public_status,
        error=chat.last_error,
        asked=chat.pending_calls if chat.public_status == "requires_action" else (),
        episode=Episode.of(chat),
    )


def _stands_differently(seen: Seen, chat: Chat) -> bool:
    """Comparing the status alone would not do: between two reads a chat can leave a status and
    come back to it for another reason."""
    if seen.shown is None:
        return seen.version < chat.snapshot_version
    was, now = seen.shown, _shown(chat)
    return (was.status, was.error, was.asked) != (now.status, now.error, now.asked)


def _status(chat: Chat) -> StatusEvent:
    return StatusEvent(chat_id=chat.id, status=StatusPayload(status=chat.public_status))


def _reason(chat: Chat) -> Iterator[DurableEvent]:
    if chat.public_status == "error" and chat.last_error is not None:
        yield ErrorEvent(chat_id=chat.id, error=chat.last_error)
    if chat.public_status == "requires_action":
        calls = tuple(asked_call(call) for call in chat.pending_calls)
        yield ActionRequired(chat_id=chat.id, action_required=ActionPayload(tool_calls=calls))


def _deleted(snapshot: Snapshot, version: int) -> Iterator[DurableEvent]:
    ids = sorted(
        row.id
        for row in snapshot.messages
        if row.deleted and row.revision > version and row.visibility != "model"
    )
    if ids:
        yield MessagesDeleted(chat_id=snapshot.chat.id, ids=tuple(ids))


def _messages(snapshot: Snapshot, version: int) -> Iterator[DurableEvent]:
    chat_id = snapshot.chat.id
    for row in sorted(snapshot.messages, key=lambda row: row.id):
        if row.deleted or row.revision <= version:
            continue
        if (message := public_message(chat_id, row)) is not None:
            yield MessageEvent(chat_id=chat_id, message=message)


def _queue(snapshot: Snapshot) -> QueueUpdate:
    chat_id = snapshot.chat.id
    waiting = tuple(public_queued(chat_id, item) for item in in_order(snapshot.queue or ()))
    return QueueUpdate(chat_id=chat_id, queued_messages=waiting)
