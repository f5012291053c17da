"""Sending to an idle, failed or busy chat; model, effort and author of queued messages."""

from uuid import UUID

import pytest

from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.commands import SendMessage, WhenBusy
from chatd.domain.chat.row import MAX_QUEUED_MESSAGES
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import send_message
from chatd.domain.chat.worker_transitions import finish_turn
from chatd.domain.errors import QueueFull
from chatd.domain.ids import ModelConfigId, RequestId, WorkerId
from tests.model.reference_store import ChatRows
from tests.support.domain.history_lines import apply_changes, history_lines, queue_lines
from tests.support.factories import OTHER_WORKER, OWNER, WORKER, draft, prompt, text
from tests.support.seeds import Seeded, seed_state, step
from tests.support.tables import table

FAST = ModelConfigId(UUID(int=50))

EVERY_WHEN_BUSY: tuple[WhenBusy, ...] = ("queue", "steer", "interrupt", "rollback", "reject")
BUSY_STATES = ["P0", "P1", "R0", "R1", "I0", "I1", "A0", "A1"]
FAILED_CALLS = ["tool: c1 failed", "tool: c2 failed"]


def send(words: str = "new", when_busy: WhenBusy = "queue", **columns: object) -> SendMessage:
    return SendMessage(prompt=prompt(words, **columns), when_busy=when_busy)


def rows_after(
    seeded: Seeded, when_busy: WhenBusy = "queue", worker: WorkerId | None = OTHER_WORKER
) -> ChatRows:
    """The rows of the chat after a new message."""
    return apply_changes(seeded, send_message(seeded.chat, send(when_busy=when_busy), worker))


@pytest.mark.covers("O11")
@pytest.mark.parametrize("when_busy", EVERY_WHEN_BUSY)
@pytest.mark.parametrize("state", [State.W, State.E0])
def test_every_when_busy_sends_at_once_to_an_idle_chat(state: State, when_busy: WhenBusy) -> None:
    rows = rows_after(seed_state(state), when_busy)
    assert history_lines(rows.messages)[-1] == "user: new"
    assert rows.chat.turn_message_id == rows.messages[-1].id
    assert (rows.chat.state, rows.chat.worker_id) == (State.R0, OTHER_WORKER)
    assert rows.chat.last_error is None


@pytest.mark.covers("O20", "T31")
def test_sending_answers_the_calls_of_a_failed_turn_first() -> None:
    rows = rows_after(seed_state(State.E0, calls="local"))
    asked = "assistant: Let me see. [c1] [c2]"
    assert history_lines(rows.messages)[-4:] == [asked, *FAILED_CALLS, "user: new"]
    assert rows.chat.turn_message_id == rows.messages[-1].id


@pytest.mark.covers("O4")
@pytest.mark.parametrize("when_busy", ["queue", "interrupt", "rollback", "reject"])
def test_a_failed_chat_with_a_queue_sends_the_oldest_message_first(when_busy: WhenBusy) -> None:
    rows = rows_after(seed_state(State.E1, plain=2), when_busy)
    assert history_lines(rows.messages)[-1] == "user: plain 0"
    assert queue_lines(rows.queue) == ["plain 1", "new"]
    assert rows.chat.state is State.R1


def test_a_failed_chat_with_a_full_queue_still_accepts_a_message() -> None:
    rows = rows_after(seed_state(State.E1, plain=MAX_QUEUED_MESSAGES))
    assert len(rows.queue) == MAX_QUEUED_MESSAGES
    assert queue_lines(rows.queue)[-1] == "new"


# A busy chat


@pytest.mark.covers("O3")
@pytest.mark.promise("P1")
@pytest.mark.parametrize("state", BUSY_STATES)
def test_a_message_to_a_busy_chat_is_queued_and_changes_nothing_else(state: str) -> None:
    seeded = seed_state(State(state))
    rows = rows_after(seeded)
    assert queue_lines(rows.queue)[-1] == "new"
    assert rows.messages == list(seeded.history)
    unchanged = ("status", "worker_id", "epoch", "attempt", "history_version", "pending_calls")
    assert [getattr(rows.chat, k) for k in unchanged] == [
        getattr(seeded.chat, k) for k in unchanged
    ]
    assert rows.chat.queue_version == rows.chat.snapshot_version


@pytest.mark.covers("O17")
@pytest.mark.parametrize("when_busy", ["queue", "steer", "interrupt"])
@pytest.mark.parametrize("state", ["R1", "I1"])
def test_a_full_queue_refuses_messages(state: str, when_busy: WhenBusy) -> None:
    seeded = seed_state(State(state), plain=MAX_QUEUED_MESSAGES - 1)
    full = rows_after(seeded).chat
    with pytest.raises(QueueFull) as refused:
        send_message(full, send(when_busy=when_busy), None)
    assert (refused.value.code, refused.value.limit) == ("queue_full", MAX_QUEUED_MESSAGES)


def test_a_full_queue_of_a_waiting_chat_refuses_messages() -> None:
    with pytest.raises(QueueFull):
        rows_after(seed_state(State.A1, plain=MAX_QUEUED_MESSAGES))


# Interrupt


@pytest.mark.covers("O5")
@pytest.mark.parametrize(
    ("state", "saver"),
    [("R0", WORKER), ("R1", WORKER), ("P0", OTHER_WORKER), ("P1", OTHER_WORKER)],
)
def test_an_interrupting_message_waits_for_the_partial_answer(state: str, saver: WorkerId) -> None:
    """And comes before queued ones. If the owner is gone, the worker that acquires the chat saves
    its live parts."""
    seeded = seed_state(State(state))
    rows = rows_after(seeded, "interrupt")
    assert rows.chat.state is State.I1
    steering = [line for line in queue_lines(seeded.queue) if line.startswith("!")]
    plain = [line for line in queue_lines(seeded.queue) if not line.startswith("!")]
    assert queue_lines(rows.queue) == [*steering, "! new", *plain]
    assert rows.messages == list(seeded.history)
    assert (rows.chat.worker_id, rows.chat.attempt) == (saver, seeded.chat.attempt)


@pytest.mark.parametrize("state", ["I0", "I1"])
def test_an_interrupting_message_is_queued_during_an_interrupt(state: str) -> None:
    rows = rows_after(seed_state(State(state)), "interrupt")
    assert rows.chat.state is State.I1
    assert [line for line in queue_lines(rows.queue) if line.startswith("!")][-1] == "! new"


@pytest.mark.covers("O18")
@table(
    "seeded said",
    {
        "the message was not answered yet": (seed_state(State.P0, begun=False), ["user: new"]),
        "the client's calls get error results": (
            seed_state(State.A0),
            [*FAILED_CALLS, "user: new"],
        ),
    },
)
def test_an_interrupting_message_is_sent_at_once_if_no_step_runs(
    seeded: Seeded, said: list[str]
) -> None:
    rows = rows_after(seeded, "interrupt")
    assert history_lines(rows.messages)[-len(said) :] == said
    assert rows.chat.state is State.R0
    assert rows.chat.pending_calls == ()


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


@pytest.mark.parametrize("worker", [WORKER, OTHER_WORKER, None])
def test_rollback_fences_the_worker_of_the_deleted_turn(worker: WorkerId | None) -> None:
    seeded = seed_state(State.R0)
    chat = rows_after(seeded, "rollback", worker).chat
    assert (chat.worker_id, chat.epoch) == (worker, seeded.chat.epoch + 1)


@pytest.mark.parametrize("compaction", [False, True])
def test_rollback_deletes_steering_messages_of_the_turn(*, compaction: bool) -> None:
    """A steering message starts the turn of a compaction."""
    seeded = seed_state(State.P0, compaction=compaction)
    steer = send_message(seeded.chat, send("left", "steer"), None)
    rows = apply_changes(seeded, steer)
    assert rows.chat.compaction_requested is compaction
    assert (rows.chat.turn_message_id == rows.messages[-1].id) is compaction
    again = apply_changes(seeded, steer, send_message(rows.chat, send("again", "rollback"), None))
    assert history_lines(again.messages) == ["user: first", "assistant: One.", "user: again"]


def test_rollback_of_a_compaction_keeps_history() -> None:
    rows = rows_after(seed_state(State.R0, compaction=True), "rollback", None)
    assert history_lines(rows.messages) == ["user: first", "assistant: One.", "user: new"]
    assert not rows.chat.compaction_requested


# Steer and wait


@pytest.mark.parametrize("state", ["R0", "R1", "I0", "I1", "A0", "A1"])
def test_a_steering_message_is_queued_ahead_of_plain_ones(state: str) -> None:
    seeded = seed_state(State(state))
    rows = rows_after(seeded, "steer")
    assert queue_lines(rows.queue)[0] == "! new"
    assert rows.chat.steer_len == 1
    assert rows.messages == list(seeded.history)


@pytest.mark.parametrize("state", ["P0", "P1"])
def test_a_steering_message_joins_at_once_if_no_model_call_runs(state: str) -> None:
    seeded = seed_state(State(state))
    rows = rows_after(seeded, "steer", WORKER)
    assert history_lines(rows.messages)[-2:] == ["user: second", "user: new"]
    assert rows.chat.worker_id == WORKER
    assert rows.chat.turn_message_id == seeded.chat.turn_message_id
    assert rows.queue == list(seeded.queue)


ASKED = "assistant: Let me see. [c1] [c2]"


@table(
    "seeded when_busy said queue state",
    {
        "steering messages keep their order": (
            seed_state(State.R1, plain=1, steer=2),
            *("steer", [], ["! steer 0", "! steer 1", "! new", "plain 0"], State.R1),
        ),
        "steering waits for pending calls": (
            seed_state(State.P0, calls="local"),
            *("steer", [ASKED], ["! new"], State.P1),
        ),
        "steering waits behind an older steering message": (
            seed_state(State.P1, steer=1),
            *("steer", [], ["! steer 0", "! new"], State.P1),
        ),
        "steering a failed chat does not wait for plain messages": (
            seed_state(State.E1, plain=1),
            *("steer", ["user: new"], ["plain 0"], State.R1),
        ),
        "steering a failed chat waits for older steering messages": (
            seed_state(State.E1, plain=1, steer=2),
            *("steer", ["user: steer 0", "user: steer 1"], ["! new", "plain 0"], State.R1),
        ),
        "an interrupting message waits behind those that steer, of a pending chat": (
            seed_state(State.P1, plain=1, steer=1, begun=False, calls="local"),
            *("interrupt", ["user: steer 0"], ["! new", "plain 0"], State.R1),
        ),
        "an interrupting message waits behind those that steer, of a waiting chat": (
            seed_state(State.A1, plain=1, steer=1, calls="client"),
            *("interrupt", ["user: steer 0"], ["! new", "plain 0"], State.R1),
        ),
        "an interrupting message comes before queued ones of a pending chat": (
            seed_state(State.P1, plain=2, begun=False, calls="local"),
            *("interrupt", ["user: new"], ["plain 0", "plain 1"], State.R1),
        ),
        "an interrupting message comes before queued ones of a waiting chat": (
            seed_state(State.A1, plain=2, calls="client"),
            *("interrupt", ["user: new"], ["plain 0", "plain 1"], State.R1),
        ),
    },
)
def test_a_message_waits_for_what_comes_before_it(
    seeded: Seeded, when_busy: WhenBusy, said: list[str], queue: list[str], state: State
) -> None:
    rows = rows_after(seeded, when_busy)
    assert history_lines(rows.messages)[len(history_lines(rows.messages)) - len(said) :] == said
    assert queue_lines(rows.queue) == queue
    assert rows.chat.state is state


# Model, effort and author


@pytest.mark.covers("O25")
def test_a_queued_message_keeps_model_effort_and_author_until_it_is_promoted() -> None:
    seeded = seed_state(State.R0)
    command = send(model_config_id=FAST, reasoning_effort="max", created_by=UUID(int=77))
    queued = send_message(seeded.chat, command, None)
    chat = apply_changes(seeded, queued).chat
    assert chat.model_config_id is None
    rows = apply_changes(
        seeded, queued, finish_turn(chat, step(chat, draft("assistant", text("Two."))))
    )
    last = rows.messages[-1]
    assert (last.model_config_id, last.reasoning_effort) == (FAST, "max")
    assert last.created_by == UUID(int=77)
    assert (rows.chat.model_config_id, rows.chat.reasoning_effort) == (FAST, "max")


def test_a_message_without_a_model_keeps_the_chats_model() -> None:
    seeded = seed_state(State.W)
    chosen = send_message(seeded.chat, send(model_config_id=FAST, reasoning_effort="low"), WORKER)
    chat = apply_changes(seeded, chosen).chat
    answered = finish_turn(chat, step(chat, draft("assistant", text("Two."))))
    chat = apply_changes(seeded, chosen, answered).chat
    chat = send_message(chat, send(), None).after
    assert (chat.model_config_id, chat.reasoning_effort) == (FAST, "low")


def test_an_idempotency_key_is_part_of_the_change() -> None:
    request = IdempotencyKey(scope=OWNER, id=RequestId(UUID(int=5)), op="send", fingerprint="f")
    change = send_message(seed_state(State.W).chat, send(), None)
    assert change.with_idempotency_key(request).request == request
    assert change.with_idempotency_key(None).request is None
