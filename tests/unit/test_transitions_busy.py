"""Sending to a busy chat: queue, steer, interrupt, rollback, reject."""

import pytest

from chatd.domain.chat.commands import SendMessage, WhenBusy
from chatd.domain.chat.row import MAX_QUEUED_MESSAGES
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import send_message
from chatd.domain.errors import ChatBusy, QueueFull
from chatd.domain.ids import WorkerId
from tests.support.domain.history_lines import apply_changes, history_lines, queue_lines
from tests.support.factories import OTHER_WORKER, WORKER, prompt
from tests.support.seeds import seed_state

CALLS = {"P1": "local", "A1": "client"}
BUSY_STATES = ["P0", "P1", "R0", "R1", "I0", "I1", "A0", "A1"]


def send(words: str = "new", when_busy: WhenBusy = "queue") -> SendMessage:
    return SendMessage(prompt=prompt(words), when_busy=when_busy)


@pytest.mark.covers("O3")
@pytest.mark.promise("P1")
@pytest.mark.parametrize("state", BUSY_STATES)
def test_a_message_to_a_busy_chat_is_queued_and_changes_nothing_else(state: str) -> None:
    seeded = seed_state(State(state))
    rows = apply_changes(seeded, send_message(seeded.chat, send(), OTHER_WORKER))
    assert queue_lines(rows.queue)[-1] == "new"
    assert rows.messages == list(seeded.history)
    unchanged = ("status", "worker_id", "epoch", "attempt", "history_version", "pending_calls")
    assert [getattr(rows.chat, k) for k in unchanged] == [
        getattr(seeded.chat, k) for k in unchanged
    ]
    assert rows.chat.queue_version == rows.chat.snapshot_version


@pytest.mark.parametrize("state", BUSY_STATES)
def test_reject_raises_chat_busy(state: str) -> None:
    seeded = seed_state(State(state))
    with pytest.raises(ChatBusy) as refused:
        send_message(seeded.chat, send(when_busy="reject"), OTHER_WORKER)
    assert refused.value.code == "chat_busy"


@pytest.mark.covers("O17")
@pytest.mark.parametrize("when_busy", ["queue", "steer", "interrupt"])
@pytest.mark.parametrize("state", ["R1", "I1"])
def test_a_full_queue_refuses_messages(state: str, when_busy: WhenBusy) -> None:
    seeded = seed_state(State(state), plain=MAX_QUEUED_MESSAGES - 1)
    last = send_message(seeded.chat, send("last"), None)
    full = apply_changes(seeded, last).chat
    with pytest.raises(QueueFull) as refused:
        send_message(full, send(when_busy=when_busy), None)
    assert (refused.value.code, refused.value.limit) == ("queue_full", MAX_QUEUED_MESSAGES)


def test_a_full_queue_of_a_waiting_chat_refuses_messages() -> None:
    seeded = seed_state(State.A1, plain=MAX_QUEUED_MESSAGES)
    with pytest.raises(QueueFull):
        send_message(seeded.chat, send(), None)


# Interrupt


@pytest.mark.covers("O5")
@pytest.mark.parametrize(
    ("state", "saver"),
    [("R0", WORKER), ("R1", WORKER), ("P0", OTHER_WORKER), ("P1", OTHER_WORKER)],
)
def test_an_interrupting_message_waits_for_the_partial_answer(state: str, saver: WorkerId) -> None:
    """If the owner is gone, the worker that acquires the chat saves its live parts."""
    seeded = seed_state(State(state))
    rows = apply_changes(
        seeded, send_message(seeded.chat, send(when_busy="interrupt"), OTHER_WORKER)
    )
    assert rows.chat.state is State.I1
    assert queue_lines(rows.queue)[-1] == "new"
    assert rows.messages == list(seeded.history)
    assert (rows.chat.worker_id, rows.chat.attempt) == (saver, seeded.chat.attempt)


@pytest.mark.parametrize("state", ["I0", "I1"])
def test_an_interrupting_message_is_queued_during_an_interrupt(state: str) -> None:
    seeded = seed_state(State(state))
    rows = apply_changes(
        seeded, send_message(seeded.chat, send(when_busy="interrupt"), OTHER_WORKER)
    )
    assert (rows.chat.state, queue_lines(rows.queue)[-1]) == (State.I1, "new")


@pytest.mark.parametrize("state", ["P0", "A0"])
def test_an_interrupting_message_is_sent_at_once_if_no_step_runs(state: str) -> None:
    seeded = seed_state(State(state), begun=state != "P0")
    rows = apply_changes(
        seeded, send_message(seeded.chat, send(when_busy="interrupt"), OTHER_WORKER)
    )
    assert history_lines(rows.messages)[-1] == "user: new"
    assert rows.chat.state is State.R0
    assert rows.chat.pending_calls == ()


@pytest.mark.parametrize("state", ["P1", "A1"])
def test_an_interrupting_message_waits_behind_the_queue(state: str) -> None:
    seeded = seed_state(State(state), plain=1, steer=1, begun=state != "P1", calls=CALLS[state])
    rows = apply_changes(seeded, send_message(seeded.chat, send(when_busy="interrupt"), None))
    assert history_lines(rows.messages)[-1] == "user: steer 0"
    assert queue_lines(rows.queue) == ["plain 0", "new"]
    assert rows.chat.state is State.P1


@pytest.mark.covers("O18")
def test_an_interrupting_message_answers_pending_client_calls() -> None:
    seeded = seed_state(State.A0)
    rows = apply_changes(seeded, send_message(seeded.chat, send(when_busy="interrupt"), None))
    assert history_lines(rows.messages)[-3:] == ["tool: c1 failed", "tool: c2 failed", "user: new"]


# Rollback


@pytest.mark.parametrize("state", BUSY_STATES)
def test_rollback_deletes_the_running_turn_and_keeps_the_queue(state: str) -> None:
    seeded = seed_state(State(state))
    change = send_message(seeded.chat, send(when_busy="rollback"), OTHER_WORKER)
    rows = apply_changes(seeded, change)
    assert history_lines(rows.messages) == ["user: first", "assistant: One.", "user: new"]
    assert change.delete_from == seeded.chat.turn_message_id
    assert rows.queue == list(seeded.queue)
    assert rows.chat.queue_version == seeded.chat.queue_version
    assert rows.chat.pending_calls == ()
    assert (rows.chat.status, rows.chat.worker_id) == ("running", OTHER_WORKER)
    assert rows.chat.turn_message_id == rows.messages[-1].id


def test_rollback_fences_the_worker_of_the_deleted_turn() -> None:
    for worker in (WORKER, OTHER_WORKER, None):
        seeded = seed_state(State.R0)
        chat = send_message(seeded.chat, send(when_busy="rollback"), worker).after
        assert chat.epoch == seeded.chat.epoch + 1


def test_rollback_deletes_steering_messages_of_the_turn() -> None:
    seeded = seed_state(State.P0)
    steer = send_message(seeded.chat, send("left", "steer"), None)
    steered = apply_changes(seeded, steer).chat
    rows = apply_changes(seeded, steer, send_message(steered, send("again", "rollback"), None))
    assert history_lines(rows.messages) == ["user: first", "assistant: One.", "user: again"]


def test_rollback_of_a_compaction_keeps_history() -> None:
    seeded = seed_state(State.R0, compaction=True)
    rows = apply_changes(seeded, send_message(seeded.chat, send(when_busy="rollback"), None))
    assert history_lines(rows.messages) == ["user: first", "assistant: One.", "user: new"]
    assert not rows.chat.compaction_requested


# Steer


@pytest.mark.parametrize("state", ["R0", "R1", "I0", "I1", "A0", "A1"])
def test_a_steering_message_is_queued_ahead_of_plain_ones(state: str) -> None:
    seeded = seed_state(State(state))
    rows = apply_changes(seeded, send_message(seeded.chat, send(when_busy="steer"), OTHER_WORKER))
    assert queue_lines(rows.queue)[0] == "! new"
    assert rows.chat.steer_len == 1
    assert rows.messages == list(seeded.history)


def test_steering_messages_keep_their_order() -> None:
    seeded = seed_state(State.R1, plain=1, steer=2)
    rows = apply_changes(seeded, send_message(seeded.chat, send(when_busy="steer"), None))
    assert queue_lines(rows.queue) == ["! steer 0", "! steer 1", "! new", "plain 0"]


@pytest.mark.parametrize("state", ["P0", "P1"])
def test_a_steering_message_joins_at_once_if_no_model_call_runs(state: str) -> None:
    seeded = seed_state(State(state))
    rows = apply_changes(seeded, send_message(seeded.chat, send(when_busy="steer"), WORKER))
    assert history_lines(rows.messages)[-2:] == ["user: second", "user: new"]
    assert rows.chat.worker_id == WORKER
    assert rows.chat.turn_message_id == seeded.chat.turn_message_id
    assert rows.queue == list(seeded.queue)


def test_a_steering_message_waits_for_pending_calls() -> None:
    seeded = seed_state(State.P0, calls="local")
    rows = apply_changes(seeded, send_message(seeded.chat, send(when_busy="steer"), WORKER))
    assert queue_lines(rows.queue) == ["! new"]
    assert rows.chat.state is State.P1


def test_a_steering_message_waits_behind_an_older_one() -> None:
    seeded = seed_state(State.P1, steer=1)
    rows = apply_changes(seeded, send_message(seeded.chat, send(when_busy="steer"), WORKER))
    assert queue_lines(rows.queue) == ["! steer 0", "! new"]


def test_a_steering_message_starts_the_turn_of_a_compaction() -> None:
    seeded = seed_state(State.P0, compaction=True)
    steer = send_message(seeded.chat, send("left", "steer"), None)
    rows = apply_changes(seeded, steer)
    assert rows.chat.turn_message_id == rows.messages[-1].id
    assert rows.chat.compaction_requested
    again = apply_changes(seeded, steer, send_message(rows.chat, send("again", "rollback"), None))
    assert history_lines(again.messages) == ["user: first", "assistant: One.", "user: again"]
