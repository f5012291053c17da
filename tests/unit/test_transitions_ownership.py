"""Ownership: acquire, release, reap, fences, epochs, attempts, crashes, retries."""

from collections.abc import Callable

import msgspec
import pytest

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import (
    ReapChat,
    RecordRetry,
    ReleaseChat,
    SendMessage,
    Step,
    WhenBusy,
)
from chatd.domain.chat.lease import DEATHS_TO_ISOLATE, MAX_LONE_DEATHS, WORKER_CRASHED_ERROR
from chatd.domain.chat.row import (
    MAX_KEPT_ATTEMPTS,
    NO_SETBACKS,
    Chat,
    Episode,
    Fence,
    RetryState,
    Setbacks,
)
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import interrupt, send_message
from chatd.domain.chat.worker_transitions import (
    acquire,
    commit_step,
    fail_turn,
    finish_interrupt,
    finish_turn,
    reap,
    record_retry,
    release,
    require_action,
)
from chatd.domain.errors import StaleFence
from tests.support.domain.history_lines import apply_changes
from tests.support.factories import OTHER_WORKER, WORKER, call, draft, prompt, text
from tests.support.outcomes import present
from tests.support.seeds import CLIENT_TOOL, FAILED, failing, seed_state, step

ANSWER = draft("assistant", text("Two."))
RETRY = RetryState(attempt=1, delay_ms=1000, error="overloaded")


# Acquire and release


@pytest.mark.parametrize(("state", "target"), [("P0", "R0"), ("P1", "R1")])
def test_a_worker_acquires_a_pending_chat(state: str, target: str) -> None:
    seeded = seed_state(State(state))
    rows = apply_changes(seeded, acquire(seeded.chat, OTHER_WORKER))
    assert (rows.chat.state, rows.chat.worker_id) == (target, OTHER_WORKER)
    assert rows.chat.epoch == seeded.chat.epoch + 1
    assert rows.chat.attempt == seeded.chat.attempt + 1
    assert rows.chat.history_version == seeded.chat.history_version


def test_a_worker_takes_over_an_interrupt_with_its_episode() -> None:
    seeded = seed_state(State.I1, owned=False)
    rows = apply_changes(seeded, acquire(seeded.chat, OTHER_WORKER))
    assert (rows.chat.state, rows.chat.worker_id) == (State.I1, OTHER_WORKER)
    assert Episode.of(rows.chat) == Episode.of(seeded.chat)


@pytest.mark.covers("O23")
def test_two_workers_cannot_acquire_one_chat() -> None:
    seeded = seed_state(State.P0)
    written = apply_changes(seeded, acquire(seeded.chat, WORKER)).chat
    for worker in (OTHER_WORKER, WORKER):
        with pytest.raises(StaleFence):
            acquire(written, worker)


@pytest.mark.promise("P5")
@pytest.mark.parametrize(("state", "target"), [("R0", "P0"), ("R1", "P1"), ("I0", "I0")])
def test_a_release_changes_only_the_owner(state: str, target: str) -> None:
    seeded = seed_state(State(state))
    chat = apply_changes(
        seeded, release(seeded.chat, ReleaseChat(worker_id=WORKER, epoch=seeded.chat.epoch))
    ).chat
    assert (chat.state, chat.worker_id, chat.epoch) == (target, None, seeded.chat.epoch + 1)
    unchanged = ("attempt", "history_version", "queue_version", "orphan_count", "turn_message_id")
    assert [getattr(chat, k) for k in unchanged] == [getattr(seeded.chat, k) for k in unchanged]


@pytest.mark.covers("O23")
def test_only_the_owner_of_this_epoch_can_release() -> None:
    chat = seed_state(State.R0).chat
    for worker, epoch in ((OTHER_WORKER, chat.epoch), (WORKER, chat.epoch - 1)):
        with pytest.raises(StaleFence):
            release(chat, ReleaseChat(worker_id=worker, epoch=epoch))


# Fences

WRITES: dict[str, Callable[[Chat, Step], Change]] = {
    "commit_step": commit_step,
    "finish_turn": finish_turn,
    "require_action": require_action,
    "fail_turn": lambda chat, written: fail_turn(chat, failing(written, FAILED)),
    "record_retry": lambda chat, written: record_retry(
        chat, RecordRetry(fence=written.fence, state=RETRY)
    ),
    "finish_interrupt": finish_interrupt,
}


def _case(write_name: str) -> tuple[Chat, Step]:
    chat = seed_state(State.I0 if write_name == "finish_interrupt" else State.R0).chat
    asks = draft("assistant", call("ask", CLIENT_TOOL))
    return chat, step(chat, asks if write_name == "require_action" else ANSWER)


@pytest.mark.promise("P3")
@pytest.mark.parametrize("name", sorted(WRITES))
@pytest.mark.parametrize(
    "off",
    [
        {"worker_id": OTHER_WORKER},
        {"epoch": 0},
        {"history_version": 1},
        {"status": "interrupting"},
    ],
    ids=lambda off: next(iter(off)),
)
def test_a_write_is_refused_unless_the_whole_fence_holds(name: str, off: dict[str, object]) -> None:
    chat, written = _case(name)
    assert WRITES[name](chat, written).after.snapshot_version == chat.snapshot_version + 1
    if name == "finish_interrupt" and "status" in off:
        off = {"status": "running"}
    stale = msgspec.structs.replace(written, fence=msgspec.structs.replace(written.fence, **off))
    with pytest.raises(StaleFence):
        WRITES[name](chat, stale)


@pytest.mark.promise("P1", "P3")
def test_a_commit_sent_twice_is_applied_once() -> None:
    chat = seed_state(State.R0).chat
    written = step(chat, ANSWER)
    after = commit_step(chat, written).after
    assert after.epoch == chat.epoch
    with pytest.raises(StaleFence):
        commit_step(after, written)


@pytest.mark.promise("P3")
def test_an_old_task_is_fenced_after_its_worker_acquired_the_chat_again() -> None:
    chat = seed_state(State.R0).chat
    old = step(chat, ANSWER)
    again = acquire(
        release(chat, ReleaseChat(worker_id=WORKER, epoch=chat.epoch)).after, WORKER
    ).after
    assert (again.worker_id, again.history_version) == (chat.worker_id, chat.history_version)
    with pytest.raises(StaleFence):
        commit_step(again, old)


def test_the_fence_is_checked_before_the_step() -> None:
    chat = seed_state(State.R0).chat
    with pytest.raises(StaleFence):
        commit_step(
            release(chat, ReleaseChat(worker_id=WORKER, epoch=chat.epoch)).after, step(chat)
        )


@pytest.mark.parametrize("state", ["W", "P0", "A0", "E0", "XW0"])
def test_a_chat_without_an_owner_has_no_fence(state: str) -> None:
    with pytest.raises(StaleFence):
        Fence.of(seed_state(State(state)).chat)


def test_a_queued_message_does_not_fence_the_worker() -> None:
    chat = seed_state(State.R0).chat
    written = step(chat, ANSWER)
    busier = send_message(chat, SendMessage(prompt=prompt()), OTHER_WORKER).after
    assert commit_step(busier, written).after.snapshot_version == chat.snapshot_version + 2


# Epochs and attempts


def test_the_epoch_stays_if_there_was_no_owner() -> None:
    seeded = seed_state(State.P0)
    command = SendMessage(prompt=prompt(), when_busy="rollback")
    assert send_message(seeded.chat, command, None).after.epoch == seeded.chat.epoch


def test_every_attempt_at_a_step_has_its_own_episode() -> None:
    chat = seed_state(State.R0).chat
    retry = RecordRetry(fence=Fence.of(chat), state=RETRY)
    retried = record_retry(chat, retry).after
    begun = acquire(retried, WORKER).after
    taken_over = acquire(
        reap(begun, ReapChat(worker_ids=frozenset({WORKER}))).after, OTHER_WORKER
    ).after
    committed = commit_step(taken_over, step(taken_over, ANSWER)).after
    episodes = [Episode.of(row) for row in (chat, retried, taken_over, committed)]
    assert [episode.attempt for episode in episodes] == [1, 2, 3, 1]
    assert len(set(episodes)) == 4
    assert sorted(episodes) == episodes


# Crashes


@pytest.mark.promise("P2", "P10")
@pytest.mark.parametrize(("state", "target"), [("R0", "P0"), ("R1", "P1"), ("I0", "I0")])
def test_a_chat_of_a_dead_worker_becomes_runnable(state: str, target: str) -> None:
    seeded = seed_state(State(state), calls="local", retry=True)
    chat = apply_changes(seeded, reap(seeded.chat, ReapChat(worker_ids=frozenset({WORKER})))).chat
    assert (chat.state, chat.worker_id, chat.epoch) == (target, None, seeded.chat.epoch + 1)
    assert chat.orphan_count == 1
    assert chat.pending_calls == seeded.chat.pending_calls
    assert chat.runnable_at is not None


def test_only_chats_of_the_dead_worker_are_reaped() -> None:
    with pytest.raises(StaleFence):
        reap(seed_state(State.R0).chat, ReapChat(worker_ids=frozenset({OTHER_WORKER})))


DEAD = frozenset({WORKER})
DIED = ReapChat(worker_ids=DEAD)
"""The death says nothing about its chats."""
CONCLUSIVE = ReapChat(worker_ids=DEAD, blamed=frozenset({seed_state(State.R0).chat.id}))
"""The worker ran one isolated chat, and had run for a while before."""


def _reaped_again(chat: Chat, *deaths: ReapChat) -> Chat:
    for death in deaths:
        chat = reap(chat, death).after
        if chat.state in (State.P0, State.P1, State.I0, State.I1):
            chat = acquire(chat, WORKER).after
    return chat


@pytest.mark.covers("F6")
@pytest.mark.promise("P2")
def test_three_deaths_with_the_chat_as_the_only_suspect_are_an_error() -> None:
    chat = _reaped_again(seed_state(State.R1).chat, *[DIED] * DEATHS_TO_ISOLATE)
    chat = _reaped_again(chat, *[CONCLUSIVE] * (MAX_LONE_DEATHS - 1))
    assert chat.state is State.R1
    chat = _reaped_again(chat, CONCLUSIVE)
    assert (chat.state, chat.last_error) == (State.E1, WORKER_CRASHED_ERROR)
    assert chat.queue_len == 1


@pytest.mark.promise("P2")
def test_no_number_of_other_deaths_is_an_error() -> None:
    """Also if the chat is isolated: the worker may have died of something else."""
    chat = _reaped_again(seed_state(State.R0).chat, *[DIED] * 50)
    assert (chat.state, chat.orphan_count) == (State.R0, 50)


@pytest.mark.promise("P2")
def test_a_chat_that_is_not_isolated_yet_is_not_blamed() -> None:
    chat = _reaped_again(seed_state(State.R0).chat, *[CONCLUSIVE] * DEATHS_TO_ISOLATE)
    assert (chat.setbacks or NO_SETBACKS).lone_deaths == 0


def test_three_crashes_of_its_own_runner_are_an_error() -> None:
    crash = ReapChat(worker_ids=DEAD, is_task_crash=True)
    chat = _reaped_again(seed_state(State.R0).chat, *[crash] * (MAX_LONE_DEATHS - 1))
    assert chat.state is State.R0
    assert _reaped_again(chat, crash).state is State.E0


@pytest.mark.promise("P6")
def test_a_suspect_is_retaken_at_once_the_first_time_and_then_after_a_growing_delay() -> None:
    chat, delays = seed_state(State.R0).chat, list[float | None]()
    for _ in range(9):
        change = reap(chat, DIED)
        delays.append(change.delay_s)
        chat = acquire(change.after, WORKER).after
    assert delays == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_an_interrupt_of_a_dead_worker_does_not_wait() -> None:
    chat = seed_state(State.I0, orphans=5).chat
    assert reap(chat, DIED).delay_s == 0


@pytest.mark.parametrize(("state", "target"), [("I0", "W"), ("I1", "P0")])
def test_an_interrupt_that_crashes_its_runner_ends_without_the_partial_answer(
    state: str, target: str
) -> None:
    seeded = seed_state(State(state), calls="local")
    crash = ReapChat(worker_ids=DEAD, is_task_crash=True)
    chat = _reaped_again(seeded.chat, *[crash] * (MAX_LONE_DEATHS - 1))
    change = reap(chat, crash)
    assert change.after.state == target
    assert [added.draft.role for added in change.messages[:2]] == ["tool", "tool"]


def test_a_committed_step_clears_the_suspicion() -> None:
    chat = _reaped_again(seed_state(State.R0).chat, DIED, DIED, CONCLUSIVE)
    assert (chat.orphan_count, chat.setbacks) != (0, None)
    after = commit_step(chat, step(chat, ANSWER)).after
    assert (after.orphan_count, after.setbacks) == (0, None)


def test_a_message_clears_the_suspicion() -> None:
    deaths = [*[DIED] * DEATHS_TO_ISOLATE, *[CONCLUSIVE] * MAX_LONE_DEATHS]
    crashed = _reaped_again(seed_state(State.R0).chat, *deaths)
    assert crashed.state is State.E0
    chat = send_message(crashed, SendMessage(prompt=prompt()), WORKER).after
    assert (chat.state, chat.orphan_count, chat.last_error) == (State.R0, 0, None)
    assert chat.setbacks is None


# Retries


@pytest.mark.covers("V3")
def test_a_retry_is_stored_in_the_row() -> None:
    seeded = seed_state(State.R0)
    fence = Fence.of(seeded.chat)
    change = record_retry(seeded.chat, RecordRetry(fence=fence, state=RETRY))
    chat = apply_changes(seeded, change).chat
    assert chat.retry_state == RETRY
    assert (chat.state, change.delay_s) == (State.P0, 1.0)
    discarded = seeded.chat.attempt
    assert chat.setbacks == Setbacks(failed_calls=1, waited_ms=1000, discarded_attempt=discarded)
    assert not chat.has_step_in_progress
    assert [episode.attempt for episode in Episode.kept_of(chat)] == [discarded + 1]
    assert chat.retry_version == chat.snapshot_version
    assert chat.attempt == seeded.chat.attempt + 1
    assert chat.history_version == seeded.chat.history_version


@pytest.mark.covers("V3")
def test_a_retry_without_a_delay_keeps_its_worker() -> None:
    seeded = seed_state(State.R0)
    state = msgspec.structs.replace(RETRY, delay_ms=0)
    change = record_retry(seeded.chat, RecordRetry(fence=Fence.of(seeded.chat), state=state))
    assert (change.after.state, change.after.epoch) == (State.R0, seeded.chat.epoch)
    assert change.after.attempt == seeded.chat.attempt + 1


def test_the_next_owner_continues_the_count_of_failures() -> None:
    chat = seed_state(State.R0).chat
    for failures in (1, 2, 3):
        waiting = record_retry(chat, RecordRetry(fence=Fence.of(chat), state=RETRY)).after
        chat = acquire(waiting, OTHER_WORKER).after
        assert (chat.setbacks or NO_SETBACKS).failed_calls == failures
        assert (chat.retry_state, chat.attempt) == (None, waiting.attempt)


def test_a_call_that_was_not_made_is_no_failure() -> None:
    chat = seed_state(State.R0).chat
    refused = RecordRetry(fence=Fence.of(chat), state=RETRY, counted=False)
    expected = Setbacks(waited_ms=1000, discarded_attempt=chat.attempt)
    assert record_retry(chat, refused).after.setbacks == expected


@pytest.mark.promise("P4")
def test_a_takeover_that_said_nothing_keeps_the_answer_of_the_attempt_before() -> None:
    first = seed_state(State.R0).chat
    released = release(first, ReleaseChat(worker_id=WORKER, epoch=first.epoch)).after
    second = acquire(released, OTHER_WORKER).after
    command = RecordRetry(fence=Fence.of(second), state=RETRY, keeps_previous=True)
    waiting = record_retry(second, command).after
    assert waiting.has_step_in_progress, "an interrupt saves it first"
    attempts = [episode.attempt for episode in Episode.kept_of(waiting)]
    assert attempts == [first.attempt, second.attempt, waiting.attempt]
    assert interrupt(waiting, None) is not None


@pytest.mark.promise("P4")
@pytest.mark.parametrize(
    ("setbacks", "attempt", "is_waiting", "first_kept"),
    [
        (None, 3, False, 1),
        ({"lone_deaths": 1}, 3, False, 1),
        ({"failed_calls": 2, "discarded_attempt": 0}, 3, False, 1),
        ({"failed_calls": 2, "discarded_attempt": 2}, 4, False, 3),
        ({"failed_calls": 2}, 4, False, 3),
        ({"failed_calls": 2, "waited_ms": 3000}, 4, True, 4),
        ({"waited_ms": 3000}, 4, True, 4),
        ({"failed_calls": 9}, 4, False, 4),
    ],
    ids=[
        *("no_setback", "deaths_only", "nothing_discarded", "discarded"),
        *("previous_release", "previous_release_waits", "previous_release_was_refused"),
        "previous_release_without_its_attempts",
    ],
)
def test_of_which_attempts_the_answers_are_kept(
    setbacks: dict[str, int] | None, attempt: int, *, is_waiting: bool, first_kept: int
) -> None:
    """The previous release discarded the answer of each failed call, and wrote nothing of it: of
    what may be the answer of a dead worker nothing is discarded."""
    chat = msgspec.structs.replace(
        seed_state(State.P0, retry=True).chat if is_waiting else seed_state(State.R0).chat,
        attempt=attempt,
        setbacks=msgspec.convert(setbacks, Setbacks | None),
    )
    kept = [episode.attempt for episode in Episode.kept_of(chat)]
    assert kept == list(range(first_kept, attempt + 1))
    assert [
        n for n in range(1, attempt + 1) if Episode.of(at_attempt(chat, n)).is_kept(chat)
    ] == kept
    assert chat.discarded_attempt == first_kept - 1


def at_attempt(chat: Chat, attempt: int) -> Chat:
    return msgspec.structs.replace(chat, attempt=attempt)


def test_a_retry_says_which_answers_were_discarded_even_if_none_was() -> None:
    """So that no later release mistakes it for setbacks of the previous one."""
    chat = seed_state(State.R0).chat
    command = RecordRetry(fence=Fence.of(chat), state=RETRY, keeps_previous=True)
    setbacks = record_retry(chat, command).after.setbacks
    assert b'"discarded_attempt":0' in msgspec.json.encode(setbacks)


@pytest.mark.promise("P4")
def test_the_answer_of_the_first_attempt_is_kept_after_a_thousand_that_said_nothing() -> None:
    chat = at_attempt(seed_state(State.R0).chat, 1000)
    assert Episode.of(at_attempt(chat, 1)).is_kept(chat)
    assert len(Episode.kept_of(chat)) == MAX_KEPT_ATTEMPTS, "read from the journal at once"


@pytest.mark.promise("P4")
def test_a_chat_that_waits_for_its_retry_is_interrupted_without_a_worker() -> None:
    waiting = seed_state(State.P0, retry=True).chat
    assert present(interrupt(waiting, None)).after.state is State.W
    queued = seed_state(State.P1, retry=True).chat
    change = present(interrupt(queued, None))
    assert (change.after.state, change.delay_s) == (State.P0, 0)


@pytest.mark.parametrize("when_busy", ["steer", "interrupt", "rollback"])
def test_a_message_to_a_chat_that_waits_for_its_retry_runs_at_once(when_busy: WhenBusy) -> None:
    waiting = seed_state(State.P0, retry=True).chat
    command = SendMessage(prompt=prompt(), when_busy=when_busy)
    change = send_message(waiting, command, None)
    assert (change.after.state, change.delay_s) == (State.P0, 0)
    assert (change.after.retry_state, change.after.setbacks) == (None, None)
    assert send_message(waiting, command, WORKER).after.state is State.R0


def test_a_queued_message_leaves_the_time_of_the_retry() -> None:
    waiting = seed_state(State.P0, retry=True).chat
    change = send_message(waiting, SendMessage(prompt=prompt()), None)
    assert (change.after.state, change.delay_s) == (State.P1, None)
    assert change.after.retry_state == waiting.retry_state


def _retrying(state: State = State.R0) -> Chat:
    chat = seed_state(state, retry=True).chat
    assert chat.retry_state is not None
    return chat


@pytest.mark.covers("V3")
def test_a_committed_step_clears_the_retry() -> None:
    chat = _retrying()
    after = commit_step(chat, step(chat, ANSWER)).after
    assert (after.retry_state, after.retry_version) == (None, after.snapshot_version)


def test_the_end_of_a_turn_clears_the_retry() -> None:
    chat = _retrying()
    for change in (
        finish_turn(chat, step(chat)),
        fail_turn(chat, failing(step(chat), FAILED)),
    ):
        assert change.after.retry_state is None
        assert change.after.retry_version == change.after.snapshot_version


@pytest.mark.covers("V3")
def test_a_retry_is_shown_until_a_worker_takes_the_chat() -> None:
    waiting = _retrying(State.P0)
    taken = acquire(waiting, OTHER_WORKER).after
    assert (taken.retry_state, taken.retry_version) == (None, taken.snapshot_version)


@pytest.mark.covers("V3")
def test_a_retry_without_a_delay_is_not_shown_after_a_release() -> None:
    """The next owner begins an attempt of its own."""
    chat = _retrying()
    released = release(chat, ReleaseChat(worker_id=WORKER, epoch=chat.epoch)).after
    assert (released.retry_state, released.retry_version) == (None, released.snapshot_version)
    assert acquire(released, OTHER_WORKER).after.attempt == chat.attempt + 1


@pytest.mark.covers("V3")
def test_a_chat_without_a_retry_keeps_its_retry_version() -> None:
    chat = seed_state(State.R0).chat
    assert commit_step(chat, step(chat, ANSWER)).after.retry_version == 0
