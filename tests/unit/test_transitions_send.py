"""Sending to an idle or failed chat; model, effort and author of queued messages."""

from uuid import UUID

import pytest

from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.commands import SendMessage, WhenBusy
from chatd.domain.chat.row import MAX_QUEUED_MESSAGES
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import send_message
from chatd.domain.chat.worker_transitions import finish_turn
from chatd.domain.ids import ModelConfigId, RequestId
from tests.support.domain.history_lines import apply_changes, history_lines, queue_lines
from tests.support.factories import OTHER_WORKER, OWNER, WORKER, draft, prompt, text
from tests.support.seeds import seed_state, step

FAST = ModelConfigId(UUID(int=50))

EVERY_WHEN_BUSY: tuple[WhenBusy, ...] = ("queue", "steer", "interrupt", "rollback", "reject")


def send(words: str = "new", when_busy: WhenBusy = "queue", **columns: object) -> SendMessage:
    return SendMessage(prompt=prompt(words, **columns), when_busy=when_busy)


@pytest.mark.covers("O11")
@pytest.mark.parametrize("when_busy", EVERY_WHEN_BUSY)
@pytest.mark.parametrize("state", [State.W, State.E0])
def test_every_when_busy_sends_at_once_to_an_idle_chat(state: State, when_busy: WhenBusy) -> None:
    seeded = seed_state(state)
    rows = apply_changes(seeded, send_message(seeded.chat, send(when_busy=when_busy), OTHER_WORKER))
    assert history_lines(rows.messages)[-1] == "user: new"
    assert rows.chat.turn_message_id == rows.messages[-1].id
    assert (rows.chat.state, rows.chat.worker_id) == (State.R0, OTHER_WORKER)
    assert rows.chat.last_error is None


@pytest.mark.covers("O20", "T31")
def test_sending_answers_the_calls_of_a_failed_turn_first() -> None:
    seeded = seed_state(State.E0, calls="local")
    rows = apply_changes(seeded, send_message(seeded.chat, send(), None))
    assert history_lines(rows.messages)[-4:] == [
        "assistant: Let me see. [c1] [c2]",
        "tool: c1 failed",
        "tool: c2 failed",
        "user: new",
    ]
    assert rows.chat.turn_message_id == rows.messages[-1].id


@pytest.mark.covers("O4")
@pytest.mark.parametrize("when_busy", ["queue", "interrupt", "rollback", "reject"])
def test_a_failed_chat_with_a_queue_sends_the_oldest_message_first(when_busy: WhenBusy) -> None:
    seeded = seed_state(State.E1, plain=2)
    rows = apply_changes(seeded, send_message(seeded.chat, send(when_busy=when_busy), WORKER))
    assert history_lines(rows.messages)[-1] == "user: plain 0"
    assert queue_lines(rows.queue) == ["plain 1", "new"]
    assert rows.chat.state is State.R1


def test_a_failed_chat_with_a_full_queue_still_accepts_a_message() -> None:
    seeded = seed_state(State.E1, plain=MAX_QUEUED_MESSAGES)
    rows = apply_changes(seeded, send_message(seeded.chat, send(), None))
    assert len(rows.queue) == MAX_QUEUED_MESSAGES
    assert queue_lines(rows.queue)[-1] == "new"


def test_steering_a_failed_chat_does_not_wait_for_plain_messages() -> None:
    seeded = seed_state(State.E1, plain=1)
    rows = apply_changes(seeded, send_message(seeded.chat, send(when_busy="steer"), OTHER_WORKER))
    assert history_lines(rows.messages)[-1] == "user: new"
    assert queue_lines(rows.queue) == ["plain 0"]
    assert rows.chat.worker_id == OTHER_WORKER


def test_steering_a_failed_chat_waits_for_older_steering_messages() -> None:
    seeded = seed_state(State.E1, plain=1, steer=2)
    rows = apply_changes(seeded, send_message(seeded.chat, send(when_busy="steer"), None))
    assert history_lines(rows.messages)[-2:] == ["user: steer 0", "user: steer 1"]
    assert queue_lines(rows.queue) == ["! new", "plain 0"]


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
