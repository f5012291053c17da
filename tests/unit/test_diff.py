"""The event group for a viewer's position and a snapshot of the rows."""

import re
from collections.abc import Sequence
from typing import cast

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.api.schemas.messages import StreamEnded
from chatd.domain.chat.messages import Message, PublicMessage, PublicQueuedMessage, QueuedMessage
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Chat, ChatError, RetryState
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat_views.diff import ChatSnapshot, ViewerPosition, diff, needs_full_read
from chatd.domain.chat_views.events import (
    ActionPayload,
    ActionRequired,
    DurableEvent,
    ErrorEvent,
    HistoryReset,
    MessageEvent,
    MessagesDeleted,
    PreviewReset,
    QueueUpdate,
    RequestedCall,
    RetryEvent,
    StatusEvent,
    StatusPayload,
    VersionReached,
    encode_value,
)
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
from tests.support.tables import table

RUNNING = chat(
    status="running", worker_id=WORKER, epoch=1, snapshot_version=20, history_version=18, attempt=1
)
HISTORY = (
    message(1, "system", text("Be good."), visibility="model"),
    message(2, "user", text("hi"), revision=1),
    message(3, "assistant", text("hello"), revision=18),
)
FAILURE, AGAIN = ChatError(message="The model is gone."), ChatError(message="And again.")
QUEUE = "queue v21"
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


def expected(line: str, snapshot: ChatSnapshot) -> tuple[DurableEvent, ...]:
    """Events as words: `waiting` is a status, `#4` message 4 of the snapshot, `-3,4` deletions,
    `queue:1` a queue of one message, `preview@21.2` a history version and an attempt, `v21` the
    version."""
    return tuple(_event(word, snapshot) for word in line.split())


def _event(word: str, snapshot: ChatSnapshot) -> DurableEvent:
    kind, _, value = re.sub(r"^([#v-])(?=\d)", r"\1:", word).replace("@", ":").partition(":")
    numbers = [int(number) for number in re.findall(r"\d+", value)]
    match kind:
        case "#":
            return shown(next(row for row in snapshot.messages if row.id == numbers[0]))
        case "-":
            return MessagesDeleted(chat_id=CHAT, ids=tuple(MessageId(n) for n in numbers))
        case "v":
            older = value.endswith("+older")
            return VersionReached(
                chat_id=CHAT, version=numbers[0], cursor=str(numbers[0]), has_older=older
            )
        case "queue":
            return queue_of(*(queued(number) for number in numbers))
        case "preview":
            version, attempt = numbers
            return PreviewReset(chat_id=CHAT, history_version=version, attempt=attempt)
        case "retry" | "retried":
            return RetryEvent(chat_id=CHAT, retry=WAIT if kind == "retry" else None)
        case "failure" | "again":
            return ErrorEvent(chat_id=CHAT, error=FAILURE if kind == "failure" else AGAIN)
        case "reset":
            return HistoryReset(chat_id=CHAT)
        case _:
            payload = StatusPayload(status=cast("PublicStatus", kind))
            return StatusEvent(chat_id=CHAT, status=payload)


LIVE = ViewerPosition.of(RUNNING)
ANSWER = message(4, "assistant", text("done"), revision=21)
NEW = message(5, "user", text("better"), revision=21)
DELETED = [message(number, "user", text(), revision=21, deleted=True) for number in (4, 3)]
EDITED = later(history_version=21, epoch=2)
WAITING = later(retry_state=WAIT, retry_version=21, attempt=2)
FAILED = later(status="error", worker_id=None, last_error=FAILURE)
RETRIED = replace(RUNNING, retry_state=WAIT, retry_version=20)
TOO_FAR = replace(since(2, RUNNING, HISTORY[2]), has_older=True)
OLDER = replace(full(RUNNING, history=HISTORY[2:]), has_older=True)


@table(
    "position snapshot events",
    {
        # A new viewer
        "a new viewer gets the status first and then everything": (
            None,
            full(RUNNING),
            "running #2 #3 queue preview@18.1 v20",
        ),
        "a viewer that resumes from nothing is a new viewer": (
            ViewerPosition(version=0),
            full(RUNNING),
            "running #2 #3 queue preview@18.1 v20",
        ),
        "a new viewer gets no deleted messages": (
            None,
            full(RUNNING, history=(*HISTORY, message(4, "user", text("oops"), deleted=True))),
            "running #2 #3 queue preview@18.1 v20",
        ),
        "a new viewer gets a pending retry": (
            None,
            full(RETRIED),
            "running #2 #3 queue retry preview@18.1 v20",
        ),
        "a new viewer of a long history gets has_older": (
            None,
            OLDER,
            "running #3 queue preview@18.1 v20+older",
        ),
        # A live viewer
        "a current viewer gets no events": (LIVE, since(20, RUNNING), ""),
        "a late read sends a live viewer nothing": (
            ViewerPosition.of(later()),
            since(19, RUNNING),
            "",
        ),
        "an invisible change still sends its version": (LIVE, since(20, later()), "v21"),
        "an answer replaces its preview in one group": (
            LIVE,
            since(20, later(history_version=21, status="waiting", worker_id=None), ANSWER),
            "#4 waiting preview@21.1 v21",
        ),
        "rows before the viewer's version are not sent again": (
            LIVE,
            since(10, later(), *HISTORY),
            "v21",
        ),
        "an edit sends deletions before new messages": (
            LIVE,
            since(20, EDITED, *DELETED, NEW),
            "-3,4 #5 preview@21.1 v21",
        ),
        "an edit sends deletions that are known by id alone": (
            LIVE,
            replace(since(20, EDITED, NEW), deleted=(MessageId(4), MessageId(3))),
            "-3,4 #5 preview@21.1 v21",
        ),
        "a deletion before the viewer's version is not sent again": (
            LIVE,
            since(10, later(), message(3, "user", text(), revision=15, deleted=True)),
            "v21",
        ),
        "messages for the model alone are not sent": (
            LIVE,
            since(20, later(), replace(NEW, visibility="model", compressed=True)),
            "v21",
        ),
        "an emptied queue is sent": (LIVE, since(20, later(queue_version=21), queue=()), QUEUE),
        "a changed queue is sent whole": (
            LIVE,
            since(20, later(queue_version=21), queue=[queued(1)]),
            "queue:1 v21",
        ),
        "an unchanged queue is not sent even if it was read": (
            LIVE,
            since(10, later(), queue=[queued(1)]),
            "v21",
        ),
        "a retry is sent when it starts": (LIVE, since(20, WAITING), "retry preview@18.2 v21"),
        "a retry is sent when it ends": (
            ViewerPosition.of(WAITING),
            since(21, replace(WAITING, snapshot_version=22, retry_state=None, retry_version=22)),
            "retried v22",
        ),
        "a retry before the viewer's version is not sent again": (
            ViewerPosition.of(RETRIED),
            since(20, replace(RETRIED, snapshot_version=21, queue_version=21), queue=()),
            QUEUE,
        ),
        "a chat that loses its worker is shown as pending": (
            LIVE,
            since(20, later(worker_id=None, epoch=2)),
            "pending v21",
        ),
        "an error comes with its status": (LIVE, since(20, FAILED), "error failure v21"),
        "the error of an archived chat is not shown": (
            LIVE,
            since(20, replace(FAILED, archived=True)),
            "archived v21",
        ),
        "another error is sent although the status is the same": (
            ViewerPosition.of(FAILED),
            since(21, replace(FAILED, snapshot_version=25, last_error=AGAIN)),
            "error again v25",
        ),
        "calls that workers answer are not sent as requested": (
            LIVE,
            since(20, later(pending_calls=(pending("a"),))),
            "v21",
        ),
        "one group has a fixed order": (
            LIVE,
            since(
                20,
                replace(FAILED, history_version=21, queue_version=21, retry_version=21),
                message(3, "user", text(), revision=21, deleted=True),
                ANSWER,
                queue=[queued(1)],
            ),
            "-3 #4 queue:1 error failure retried preview@21.1 v21",
        ),
        # A viewer that resumes
        "a resuming viewer gets the changes since": (
            ViewerPosition(version=18),
            since(18, later(history_version=21, queue_version=15), ANSWER),
            "#4 running preview@21.1 v21",
        ),
        "a resuming viewer without changes gets only a preview reset": (
            ViewerPosition(version=20),
            since(20, RUNNING),
            "preview@18.1 v20",
        ),
        "a resuming viewer gets the end of a retry": (
            ViewerPosition(version=18),
            since(18, later(retry_version=19)),
            "running retried preview@18.1 v21",
        ),
        "a viewer ahead of the database gets a full reset": (
            ViewerPosition(version=25),
            full(RUNNING),
            "reset running #2 #3 queue retried preview@18.1 v20",
        ),
        "a viewer too far behind gets a reset with the newest messages": (
            ViewerPosition(version=2),
            OLDER,
            "reset running #3 queue retried preview@18.1 v20+older",
        ),
    },
)
def test_a_viewer_gets_the_difference(
    position: ViewerPosition | None, snapshot: ChatSnapshot, events: str
) -> None:
    assert diff(position, snapshot) == expected(events, snapshot)


def test_messages_come_by_id_and_the_queue_in_its_order() -> None:
    row = replace(RUNNING, queue_len=3, queue_version=20)
    queue = (queued(1), queued(2, position=9), queued(3, steer=True))
    events = diff(None, full(row, *queue, history=HISTORY[::-1]))
    in_order = queue_of(queue[2], queue[0], queue[1])
    assert events[1:4] == (shown(HISTORY[1]), shown(HISTORY[2]), in_order)


def test_other_requested_calls_are_sent_although_the_status_is_the_same() -> None:
    def asking(*calls: RequestedCall) -> ActionRequired:
        return ActionRequired(chat_id=CHAT, action_required=ActionPayload(tool_calls=calls))

    first = pending("a", "ask_client", client=True, args=Raw(b'{"q":1}'))
    row = later(status="requires_action", worker_id=None, pending_calls=(first,))
    requested = RequestedCall(
        tool_call_id=ToolCallId("a"), tool_name="ask_client", args=Raw(b'{"q":1}')
    )
    status, *rest = diff(LIVE, since(20, row))
    assert (status, *expected("v21", full(row))) == expected("requires_action v21", full(row))
    assert rest == [asking(requested), *expected("v21", full(row))]
    second = pending("b", "ask_client", client=True)
    again = replace(row, snapshot_version=25, pending_calls=(second,))
    requested = RequestedCall(tool_call_id=ToolCallId("b"), tool_name="ask_client")
    assert diff(ViewerPosition.of(row), since(21, again)) == (
        status,
        asking(requested),
        *expected("v25", full(row)),
    )


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
        pytest.param(2, TOO_FAR, True, id="too far behind"),
        pytest.param(2, OLDER, False, id="too far behind, and it is full"),
        pytest.param(25, since(25, RUNNING), True, id="ahead of what was read"),
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


def test_a_call_of_a_client_tool_says_its_kind() -> None:
    requested = RequestedCall(tool_call_id=ToolCallId("b"), tool_name="ask_client")
    assert b'"kind":"client"' in encode_value(requested)


def test_the_end_of_a_stream_says_its_type() -> None:
    ended = StreamEnded(code="going_away", message="Connect again.")
    assert msgspec.json.decode(encode_value(ended)) == {
        "type": "end",
        "code": "going_away",
        "message": "Connect again.",
    }
