"""Reactions of a runner to rows that come late, twice, out of order, or from its own commit."""

import pytest
from msgspec.structs import replace

from chatd.domain.chat import user_transitions, worker_transitions
from chatd.domain.chat.commands import (
    EditMessage,
    ReapChat,
    RecordRetry,
    ReleaseChat,
    SendMessage,
    Step,
)
from chatd.domain.chat.row import Chat, Fence, RetryState
from chatd.domain.chat.states import Status
from chatd.domain.decisions import (
    DeferRow,
    IgnoreRow,
    Reaction,
    RestartTask,
    StopChatTask,
    Task,
    TaskView,
    UpdateView,
    decide_reaction,
)
from chatd.domain.ids import MessageId, WorkerId
from tests.support.factories import (
    OTHER_WORKER,
    WORKER,
    chat,
    draft,
    message,
    prompt,
    queued,
    text,
)

RUNNING = chat(
    status="running",
    worker_id=WORKER,
    epoch=3,
    snapshot_version=20,
    history_version=18,
    attempt=1,
    next_message_id=5,
    turn_message_id=4,
)
INTERRUPTING = replace(RUNNING, status="interrupting", snapshot_version=21)
VIEW = TaskView.of(RUNNING)


def restart(task: Task, row: Chat) -> RestartTask:
    return RestartTask(task=task, fence=Fence.of(row), view=TaskView.of(row))


def later(**columns: object) -> Chat:
    return replace(RUNNING, snapshot_version=21, **columns)


def step(row: Chat, words: str = "an answer", *, keep_owner: bool = True) -> Step:
    answer = draft("assistant", text(words))
    return Step(fence=Fence.of(row), messages=(answer,), keep_owner=keep_owner)


# The first row


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param(RUNNING, restart("generate", RUNNING), id="running"),
        pytest.param(INTERRUPTING, restart("interrupt", INTERRUPTING), id="interrupting"),
        pytest.param(replace(RUNNING, worker_id=OTHER_WORKER), StopChatTask(), id="another owner"),
        pytest.param(replace(RUNNING, worker_id=None), StopChatTask(), id="no owner"),
        pytest.param(chat(), StopChatTask(), id="idle"),
    ],
)
def test_the_first_row_starts_the_task_of_its_status(row: Chat, expected: Reaction) -> None:
    assert decide_reaction(None, row, WORKER) == expected


@pytest.mark.parametrize("status", ["waiting", "error", "requires_action"])
@pytest.mark.parametrize("local", [None, VIEW])
def test_a_status_without_work_stops_the_runner(local: TaskView | None, status: Status) -> None:
    assert decide_reaction(local, later(status=status), WORKER) == StopChatTask()


@pytest.mark.parametrize("local", [None, VIEW])
def test_an_archived_chat_stops_the_runner(local: TaskView | None) -> None:
    assert decide_reaction(local, later(archived=True), WORKER) == StopChatTask()


# Newer and older rows


def test_a_repeated_row_is_ignored() -> None:
    assert decide_reaction(VIEW, RUNNING, WORKER) == IgnoreRow()


@pytest.mark.parametrize(
    "columns",
    [
        {"history_version": 17},
        {"status": "interrupting"},
        {"worker_id": OTHER_WORKER, "epoch": 2},
        {"archived": True},
    ],
)
def test_an_older_row_is_ignored(columns: dict[str, object]) -> None:
    row = replace(RUNNING, snapshot_version=19, **columns)
    assert decide_reaction(VIEW, row, WORKER) == IgnoreRow()


@pytest.mark.parametrize(
    ("worker", "epoch"),
    [(OTHER_WORKER, 4), (OTHER_WORKER, 3), (None, 4), (None, 3)],
)
def test_a_chat_with_another_owner_stops_the_runner(worker: WorkerId | None, epoch: int) -> None:
    assert decide_reaction(VIEW, later(worker_id=worker, epoch=epoch), WORKER) == StopChatTask()


@pytest.mark.parametrize("epoch", [2, 4, 7])
def test_another_epoch_of_the_same_worker_stops_the_runner(epoch: int) -> None:
    assert decide_reaction(VIEW, later(epoch=epoch), WORKER) == StopChatTask()


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({}, id="nothing that matters"),
        pytest.param({"queue_len": 1, "queue_version": 21}, id="the queue"),
        pytest.param({"attempt": 2, "retry_version": 21}, id="an attempt"),
        pytest.param({"title": "Another title"}, id="the title"),
    ],
)
def test_the_same_work_continues_with_a_newer_view(columns: dict[str, object]) -> None:
    row = later(**columns)
    assert decide_reaction(VIEW, row, WORKER) == UpdateView(view=TaskView.of(row))


def test_an_interrupt_restarts_the_runner_with_the_interrupt_task() -> None:
    assert decide_reaction(VIEW, INTERRUPTING, WORKER) == restart("interrupt", INTERRUPTING)


def test_a_changed_history_restarts_the_work() -> None:
    row = later(history_version=21)
    assert decide_reaction(VIEW, row, WORKER) == restart("generate", row)


def test_an_older_row_after_an_interrupt_is_ignored() -> None:
    queued_before = later(queue_len=1)
    stopped = replace(queued_before, status="interrupting", snapshot_version=22)
    reaction = decide_reaction(VIEW, stopped, WORKER)
    assert reaction == restart("interrupt", stopped)
    assert isinstance(reaction, RestartTask)
    assert decide_reaction(reaction.view, queued_before, WORKER) == IgnoreRow()


# Rows that transitions produce


def test_reactions_to_transitions_of_a_running_chat() -> None:
    second = message(4, "user", text())
    rows: dict[str, Chat] = {
        "queue": user_transitions.send_message(RUNNING, SendMessage(prompt=prompt()), WORKER).after,
        "steer": user_transitions.send_message(
            RUNNING, SendMessage(prompt=prompt(), when_busy="steer"), WORKER
        ).after,
        "interrupt": user_transitions.send_message(
            RUNNING, SendMessage(prompt=prompt(), when_busy="interrupt"), WORKER
        ).after,
        "rollback": user_transitions.send_message(
            RUNNING, SendMessage(prompt=prompt(), when_busy="rollback"), WORKER
        ).after,
        "edit": user_transitions.edit_message(
            RUNNING, second, EditMessage(message_id=MessageId(1), prompt=prompt()), WORKER
        ).after,
        "archive": user_transitions.archive(RUNNING).after,
        "release": worker_transitions.release(
            RUNNING, ReleaseChat(worker_id=WORKER, epoch=3)
        ).after,
        "reap": worker_transitions.reap(RUNNING, ReapChat(worker_ids=frozenset({WORKER}))).after,
    }
    reactions = {name: type(decide_reaction(VIEW, row, WORKER)) for name, row in rows.items()}
    assert reactions == {
        "queue": UpdateView,
        "steer": UpdateView,
        "interrupt": RestartTask,
        # The same write gives the chat to the same worker again: another runner serves it.
        "rollback": StopChatTask,
        "edit": StopChatTask,
        "archive": StopChatTask,
        "release": StopChatTask,
        "reap": StopChatTask,
    }


def test_a_reacquired_chat_starts_its_new_runner_and_stops_the_old_one() -> None:
    released = worker_transitions.release(RUNNING, ReleaseChat(worker_id=WORKER, epoch=3)).after
    again = worker_transitions.acquire(released, WORKER).after
    assert decide_reaction(VIEW, again, WORKER) == StopChatTask()
    assert decide_reaction(None, again, WORKER) == restart("generate", again)


# Own writes


def test_the_row_of_an_own_commit_after_its_reply_is_ignored() -> None:
    committed = worker_transitions.commit_step(RUNNING, step(RUNNING)).after
    view = VIEW.committing().committed(committed)
    assert view == TaskView.of(committed)
    assert decide_reaction(view, committed, WORKER) == IgnoreRow()


def test_the_row_of_an_own_commit_before_its_reply_is_deferred() -> None:
    committed = worker_transitions.commit_step(RUNNING, step(RUNNING)).after
    view = VIEW.committing()
    assert decide_reaction(view, committed, WORKER) == DeferRow()
    assert decide_reaction(view.committed(committed), committed, WORKER) == IgnoreRow()


def test_an_interrupt_right_after_an_own_commit_restarts_the_task() -> None:
    committed = worker_transitions.commit_step(RUNNING, step(RUNNING)).after
    stop = user_transitions.interrupt(committed, None)
    assert stop is not None
    view = VIEW.committing()
    assert decide_reaction(view, stop.after, WORKER) == DeferRow()
    assert decide_reaction(view.committed(committed), stop.after, WORKER) == restart(
        "interrupt", stop.after
    )


def test_a_queued_message_right_after_an_own_commit_updates_the_view() -> None:
    committed = worker_transitions.commit_step(RUNNING, step(RUNNING)).after
    behind = user_transitions.send_message(committed, SendMessage(prompt=prompt()), None).after
    view = VIEW.committing()
    assert decide_reaction(view, behind, WORKER) == DeferRow()
    assert decide_reaction(view.committed(committed), behind, WORKER) == UpdateView(
        view=TaskView.of(behind)
    )


def test_an_interrupt_before_an_own_commit_restarts_the_task_after_the_refusal() -> None:
    view = VIEW.committing()
    assert decide_reaction(view, INTERRUPTING, WORKER) == DeferRow()
    assert decide_reaction(view.not_committed(), INTERRUPTING, WORKER) == restart(
        "interrupt", INTERRUPTING
    )


def test_an_old_row_is_ignored_during_an_own_commit() -> None:
    assert decide_reaction(VIEW.committing(), RUNNING, WORKER) == IgnoreRow()


def test_an_applied_commit_of_unknown_outcome_restarts_the_task() -> None:
    committed = worker_transitions.commit_step(RUNNING, step(RUNNING)).after
    view = VIEW.committing().not_committed()
    assert view == VIEW
    assert decide_reaction(view, committed, WORKER) == restart("generate", committed)


def test_the_next_turn_after_an_interrupt_stays_with_the_same_runner() -> None:
    stopped = user_transitions.interrupt(replace(RUNNING, queue_len=1), None)
    assert stopped is not None
    view = TaskView.of(stopped.after)
    committed = worker_transitions.finish_interrupt(stopped.after, step(stopped.after)).after
    assert committed.status == "running"
    assert decide_reaction(view.committing(), committed, WORKER) == DeferRow()
    assert decide_reaction(view.committing().committed(committed), committed, WORKER) == IgnoreRow()


def test_a_runner_stops_when_its_chat_waits_for_a_retry() -> None:
    wait = RecordRetry(
        fence=Fence.of(RUNNING), state=RetryState(attempt=1, delay_ms=1000, error="busy")
    )
    committed = worker_transitions.record_retry(RUNNING, wait).after
    assert decide_reaction(VIEW, committed, WORKER) == StopChatTask()
    assert decide_reaction(VIEW.committing().committed(committed), committed, WORKER) == IgnoreRow()


def test_a_retry_without_a_delay_is_the_same_work() -> None:
    wait = RecordRetry(
        fence=Fence.of(RUNNING), state=RetryState(attempt=1, delay_ms=0, error="too long")
    )
    committed = worker_transitions.record_retry(RUNNING, wait).after
    assert decide_reaction(VIEW, committed, WORKER) == UpdateView(view=TaskView.of(committed))
    assert decide_reaction(VIEW.committing().committed(committed), committed, WORKER) == IgnoreRow()


def test_a_runner_that_released_its_chat_does_not_run_the_next_epoch() -> None:
    released = worker_transitions.commit_step(RUNNING, step(RUNNING, keep_owner=False)).after
    view = VIEW.committing().committed(released)
    assert view.epoch == RUNNING.epoch
    again = worker_transitions.acquire(released, WORKER).after
    assert decide_reaction(view, again, WORKER) == StopChatTask()


def test_a_late_reply_does_not_lower_the_version_of_the_view() -> None:
    ahead = TaskView.of(replace(RUNNING, snapshot_version=30)).committing()
    assert ahead.committed(later(history_version=21)) == ahead.not_committed()


def test_promoting_a_queued_message_interrupts_the_step_in_progress() -> None:
    waiting = replace(RUNNING, queue_len=1, next_queue_id=2)
    row = user_transitions.promote_queued(waiting, [queued(1)], queued(1).id, WORKER).after
    assert decide_reaction(VIEW, row, WORKER) == restart("interrupt", row)
