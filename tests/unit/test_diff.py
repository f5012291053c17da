"""The event group for a viewer's position and a snapshot of the rows."""

from collections.abc import Sequence

import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.domain.chat.diff import ChatSnapshot, ViewerPosition, diff, needs_full_read
from chatd.domain.chat.events import (
    ActionPayload,
    ActionRequired,
    ErrorEvent,
    HistoryReset,
    MessageEvent,
    MessagesDeleted,
    PreviewReset,
    PublicMessage,
    PublicQueuedMessage,
    QueueUpdate,
    RequestedCall,
    RetryEvent,
    StatusEvent,
    StatusPayload,
    VersionReached,
)
from chatd.domain.chat.messages import Message, QueuedMessage
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Chat, ChatError, RetryState
from chatd.domain.chat.states import PublicStatus
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import MessageId, ToolCallId
from tests.support.factories import (
    AT,
    CHAT,
    OWNER,
    WORKER,
    chat,
    message,
    pending,
    queued,
    text,
)

RUNNING = chat(
    status="running", worker_id=WORKER, epoch=1, snapshot_version=20, history_version=18, attempt=1
)
HISTORY = (
    message(1, "system", text("Be good."), visibility="model"),
    message(2, "user", text("hi"), revision=1),
    message(3, "assistant", text("hello"), revision=18),
)
FAILURE = ChatError(message="The model is gone.")
WAIT = RetryState(attempt=1, delay_ms=1000, error="busy")


def full(row: Chat, *queue: QueuedMessage, history: tuple[Message, ...] = HISTORY) -> ChatSnapshot:
    return ChatSnapshot(chat=row, since=0, messages=history, queue=queue)


def since(
    version: int, row: Chat, *rows: Message, queue: Sequence[QueuedMessage] | None = None
) -> ChatSnapshot:
    waiting = None if queue is None else tuple(queue)
    return ChatSnapshot(chat=row, since=version, messages=rows, queue=waiting)


def later(**columns: object) -> Chat:
    return replace(RUNNING, snapshot_version=21, **columns)


# Expected events


def status(word: PublicStatus) -> StatusEvent:
    return StatusEvent(chat_id=CHAT, status=StatusPayload(status=word))


def shown(row: Message) -> MessageEvent:
    public = PublicMessage(
        id=row.id,
        chat_id=CHAT,
        role=row.role,
        content=tuple(part for part in row.content if isinstance(part, TextPart)),
        created_at=AT,
    )
    return MessageEvent(chat_id=CHAT, message=public)


def queue_of(*rows: QueuedMessage) -> QueueUpdate:
    return QueueUpdate(
        chat_id=CHAT,
        queued_messages=tuple(
            PublicQueuedMessage(
                id=row.id,
                chat_id=CHAT,
                content=tuple(part for part in row.content if isinstance(part, TextPart)),
                created_at=AT,
                created_by=OWNER,
                steer=row.steer,
            )
            for row in rows
        ),
    )


def preview(history_version: int = 18, attempt: int = 1) -> PreviewReset:
    return PreviewReset(chat_id=CHAT, history_version=history_version, attempt=attempt)


def version(number: int = 21) -> VersionReached:
    return VersionReached(chat_id=CHAT, version=number)


# A new viewer


def test_a_new_viewer_gets_the_status_first_and_then_everything() -> None:
    assert diff(None, full(RUNNING)) == (
        status("running"),
        shown(HISTORY[1]),
        shown(HISTORY[2]),
        queue_of(),
        preview(),
        version(20),
    )


def test_a_viewer_that_resumes_from_nothing_is_a_new_viewer() -> None:
    assert diff(ViewerPosition(version=0), full(RUNNING)) == diff(None, full(RUNNING))


def test_a_new_viewer_gets_no_deleted_messages() -> None:
    gone = message(4, "user", text("oops"), deleted=True)
    events = diff(None, full(RUNNING, history=(*HISTORY, gone)))
    assert events == diff(None, full(RUNNING))


def test_a_new_viewer_gets_a_pending_retry() -> None:
    row = replace(RUNNING, retry_state=WAIT, retry_version=20)
    assert diff(None, full(row))[-3:] == (
        RetryEvent(chat_id=CHAT, retry=WAIT),
        preview(),
        version(20),
    )


def test_messages_come_by_id_and_the_queue_in_its_order() -> None:
    row = replace(RUNNING, queue_len=3, queue_version=20)
    queue = (queued(1), queued(2, position=9), queued(3, steer=True))
    events = diff(None, full(row, *queue, history=HISTORY[::-1]))
    assert events[1:4] == (
        shown(HISTORY[1]),
        shown(HISTORY[2]),
        queue_of(queue[2], queue[0], queue[1]),
    )


def test_a_new_viewer_of_a_long_history_gets_has_older() -> None:
    snapshot = replace(full(RUNNING, history=HISTORY[2:]), has_older=True)
    assert diff(None, snapshot) == (
        status("running"),
        shown(HISTORY[2]),
        queue_of(),
        preview(),
        VersionReached(chat_id=CHAT, version=20, has_older=True),
    )


# A live viewer


def test_a_current_viewer_gets_no_events() -> None:
    assert diff(ViewerPosition.of(RUNNING), since(20, RUNNING)) == ()


def test_a_late_read_sends_a_live_viewer_nothing() -> None:
    assert diff(ViewerPosition.of(later()), since(19, RUNNING)) == ()


def test_an_invisible_change_still_sends_its_version() -> None:
    assert diff(ViewerPosition.of(RUNNING), since(20, later())) == (version(),)


def test_an_answer_replaces_its_preview_in_one_group() -> None:
    answer = message(4, "assistant", text("done"), revision=21)
    row = later(history_version=21, status="waiting", worker_id=None)
    assert diff(ViewerPosition.of(RUNNING), since(20, row, answer)) == (
        shown(answer),
        status("waiting"),
        preview(21),
        version(),
    )


def test_rows_before_the_viewers_version_are_not_sent_again() -> None:
    assert diff(ViewerPosition.of(RUNNING), since(10, later(), *HISTORY)) == (version(),)


def test_an_edit_sends_deletions_before_new_messages() -> None:
    history = [message(number, "user", text(), revision=21, deleted=True) for number in (4, 3)]
    new = message(5, "user", text("better"), revision=21)
    row = later(history_version=21, epoch=2)
    expected = (
        MessagesDeleted(chat_id=CHAT, ids=(MessageId(3), MessageId(4))),
        shown(new),
        preview(21),
        version(),
    )
    assert diff(ViewerPosition.of(RUNNING), since(20, row, *history, new)) == expected
    by_id = replace(since(20, row, new), deleted=(MessageId(4), MessageId(3)))
    assert diff(ViewerPosition.of(RUNNING), by_id) == expected


def test_a_deletion_before_the_viewers_version_is_not_sent_again() -> None:
    gone = message(3, "user", text(), revision=15, deleted=True)
    assert diff(ViewerPosition.of(RUNNING), since(10, later(), gone)) == (version(),)


def test_messages_for_the_model_alone_are_not_sent() -> None:
    summary = message(4, "user", text(), revision=21, visibility="model", compressed=True)
    assert diff(ViewerPosition.of(RUNNING), since(20, later(), summary)) == (version(),)


def test_a_changed_queue_is_sent_whole_even_if_empty() -> None:
    row = later(queue_version=21)
    assert diff(ViewerPosition.of(RUNNING), since(20, row, queue=())) == (queue_of(), version())
    assert diff(ViewerPosition.of(RUNNING), since(20, row, queue=[queued(1)])) == (
        queue_of(queued(1)),
        version(),
    )


def test_an_unchanged_queue_is_not_sent_even_if_it_was_read() -> None:
    assert diff(ViewerPosition.of(RUNNING), since(10, later(), queue=[queued(1)])) == (version(),)


def test_a_retry_is_sent_when_it_starts_and_when_it_ends() -> None:
    waiting = later(retry_state=WAIT, retry_version=21, attempt=2)
    assert diff(ViewerPosition.of(RUNNING), since(20, waiting)) == (
        RetryEvent(chat_id=CHAT, retry=WAIT),
        preview(attempt=2),
        version(),
    )
    over = replace(waiting, snapshot_version=22, retry_state=None, retry_version=22)
    assert diff(ViewerPosition.of(waiting), since(21, over)) == (
        RetryEvent(chat_id=CHAT, retry=None),
        version(22),
    )


def test_a_retry_before_the_viewers_version_is_not_sent_again() -> None:
    row = replace(RUNNING, retry_state=WAIT, retry_version=20)
    behind = replace(row, snapshot_version=21, queue_version=21)
    assert diff(ViewerPosition.of(row), since(20, behind, queue=())) == (queue_of(), version())


def test_a_chat_that_loses_its_worker_is_shown_as_pending() -> None:
    released = later(worker_id=None, epoch=2)
    assert diff(ViewerPosition.of(RUNNING), since(20, released)) == (status("pending"), version())


def test_an_error_comes_with_its_status() -> None:
    row = later(status="error", worker_id=None, last_error=FAILURE)
    assert diff(ViewerPosition.of(RUNNING), since(20, row)) == (
        status("error"),
        ErrorEvent(chat_id=CHAT, error=FAILURE),
        version(),
    )


def test_the_error_of_an_archived_chat_is_not_shown() -> None:
    row = later(status="error", worker_id=None, last_error=FAILURE, archived=True)
    assert diff(ViewerPosition.of(RUNNING), since(20, row)) == (status("archived"), version())


def test_another_error_is_sent_although_the_status_is_the_same() -> None:
    row = later(status="error", worker_id=None, last_error=FAILURE)
    again = replace(row, snapshot_version=25, last_error=ChatError(message="And again."))
    assert diff(ViewerPosition.of(row), since(21, again)) == (
        status("error"),
        ErrorEvent(chat_id=CHAT, error=ChatError(message="And again.")),
        version(25),
    )


def test_other_requested_calls_are_sent_although_the_status_is_the_same() -> None:
    first = pending("a", "ask_client", client=True, args=Raw(b'{"q":1}'))
    row = later(status="requires_action", worker_id=None, pending_calls=(first,))
    requested = RequestedCall(
        tool_call_id=ToolCallId("a"), tool_name="ask_client", args=Raw(b'{"q":1}')
    )
    assert diff(ViewerPosition.of(RUNNING), since(20, row)) == (
        status("requires_action"),
        ActionRequired(chat_id=CHAT, action_required=ActionPayload(tool_calls=(requested,))),
        version(),
    )
    second = pending("b", "ask_client", client=True)
    again = replace(row, snapshot_version=25, pending_calls=(second,))
    requested = RequestedCall(tool_call_id=ToolCallId("b"), tool_name="ask_client")
    assert diff(ViewerPosition.of(row), since(21, again)) == (
        status("requires_action"),
        ActionRequired(chat_id=CHAT, action_required=ActionPayload(tool_calls=(requested,))),
        version(25),
    )


def test_calls_that_workers_answer_are_not_sent_as_requested() -> None:
    row = later(pending_calls=(pending("a"),))
    assert diff(ViewerPosition.of(RUNNING), since(20, row)) == (version(),)


def test_one_group_has_a_fixed_order() -> None:
    answer = message(4, "assistant", text(), revision=21)
    gone = message(3, "user", text(), revision=21, deleted=True)
    row = later(
        status="error",
        worker_id=None,
        last_error=FAILURE,
        history_version=21,
        queue_version=21,
        retry_version=21,
    )
    events = diff(ViewerPosition.of(RUNNING), since(20, row, gone, answer, queue=[queued(1)]))
    assert [type(event) for event in events] == [
        MessagesDeleted,
        MessageEvent,
        QueueUpdate,
        StatusEvent,
        ErrorEvent,
        RetryEvent,
        PreviewReset,
        VersionReached,
    ]


# A viewer that resumes


def test_a_resuming_viewer_gets_the_changes_since() -> None:
    answer = message(4, "assistant", text(), revision=21)
    row = later(history_version=21, queue_version=15)
    assert diff(ViewerPosition(version=18), since(18, row, answer)) == (
        shown(answer),
        status("running"),
        preview(21),
        version(),
    )


def test_a_resuming_viewer_without_changes_gets_only_a_preview_reset() -> None:
    assert diff(ViewerPosition(version=20), since(20, RUNNING)) == (preview(), version(20))


def test_a_resuming_viewer_gets_the_end_of_a_retry() -> None:
    row = later(retry_version=19)
    assert diff(ViewerPosition(version=18), since(18, row)) == (
        status("running"),
        RetryEvent(chat_id=CHAT, retry=None),
        preview(),
        version(),
    )


def test_a_viewer_ahead_of_the_database_gets_a_full_reset() -> None:
    position = ViewerPosition(version=25)
    assert needs_full_read(25, since(25, RUNNING))
    assert diff(position, full(RUNNING)) == (
        HistoryReset(chat_id=CHAT),
        status("running"),
        shown(HISTORY[1]),
        shown(HISTORY[2]),
        queue_of(),
        RetryEvent(chat_id=CHAT, retry=None),
        preview(),
        version(20),
    )


def test_a_viewer_too_far_behind_gets_a_reset_with_the_newest_messages() -> None:
    partial = replace(since(2, RUNNING, HISTORY[2]), has_older=True)
    assert needs_full_read(2, partial)
    again = replace(full(RUNNING, history=HISTORY[2:]), has_older=True)
    assert not needs_full_read(2, again)
    events = diff(ViewerPosition(version=2), again)
    assert events[0] == HistoryReset(chat_id=CHAT)
    assert events[2] == shown(HISTORY[2])
    assert events[-1] == VersionReached(chat_id=CHAT, version=20, has_older=True)


@pytest.mark.parametrize(
    ("position", "snapshot", "expected"),
    [
        pytest.param(None, since(5, RUNNING), True, id="new"),
        pytest.param(0, since(5, RUNNING), True, id="from nothing"),
        pytest.param(-3, since(5, RUNNING), True, id="from nonsense"),
        pytest.param(5, since(5, RUNNING), False, id="behind"),
        pytest.param(20, since(5, RUNNING), False, id="up to date"),
        pytest.param(21, since(5, RUNNING), True, id="ahead"),
        pytest.param(21, full(RUNNING), False, id="ahead, and it is full"),
        pytest.param(None, full(RUNNING), False, id="new, and it is full"),
    ],
)
def test_viewers_that_need_a_full_read(
    position: int | None, snapshot: ChatSnapshot, *, expected: bool
) -> None:
    assert needs_full_read(position, snapshot) is expected


@pytest.mark.parametrize(
    ("position", "snapshot"),
    [
        pytest.param(None, since(5, RUNNING), id="a new viewer and a few changes"),
        pytest.param(
            ViewerPosition(version=25), since(5, RUNNING), id="lost changes and a few changes"
        ),
        pytest.param(ViewerPosition(version=4), since(5, RUNNING), id="a gap"),
        pytest.param(
            ViewerPosition.of(RUNNING), since(21, replace(RUNNING, snapshot_version=22)), id="one"
        ),
        pytest.param(
            ViewerPosition(version=5), replace(since(5, RUNNING), has_older=True), id="older"
        ),
        pytest.param(
            ViewerPosition(version=5),
            since(5, replace(RUNNING, queue_version=6)),
            id="no queue read",
        ),
        pytest.param(
            None,
            replace(full(replace(RUNNING, queue_version=6)), queue=None),
            id="full but for the queue",
        ),
        pytest.param(
            ViewerPosition(version=25),
            replace(full(replace(RUNNING, queue_version=6)), queue=None),
            id="lost changes, and full but for the queue",
        ),
    ],
)
def test_a_snapshot_that_would_leave_a_gap_is_refused(
    position: ViewerPosition | None, snapshot: ChatSnapshot
) -> None:
    with pytest.raises(InvariantBroken):
        diff(position, snapshot)
