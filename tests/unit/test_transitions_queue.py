"""Transitions of queued messages: edit, move, promote, delete, and races with promotion."""

from collections.abc import Callable
from uuid import UUID

import pytest

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import EditQueued, MoveQueued
from chatd.domain.chat.messages import QueuedMessage
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import (
    delete_queued,
    edit_queued,
    move_queued,
    promote_queued,
)
from chatd.domain.chat.worker_transitions import finish_interrupt
from chatd.domain.errors import (
    ChatdError,
    InvalidInput,
    NotFound,
    QueuedMessageGone,
    TransitionNotAllowed,
)
from chatd.domain.ids import ModelConfigId, QueueId, UserId, WorkerId
from tests.support.domain.history_lines import apply_changes, history_lines, queue_lines
from tests.support.factories import (
    OTHER_WORKER,
    WORKER,
    chat,
    draft,
    prompt,
    queued,
    text,
)
from tests.support.seeds import seed_state, step

FAST, SLOW = ModelConfigId(UUID(int=50)), ModelConfigId(UUID(int=51))
AUTHOR = UserId(UUID(int=60))
QUEUED = ["E1", "P1", "R1", "I1", "A1"]


def edit(number: int, words: str = "rewritten", **columns: object) -> EditQueued:
    return EditQueued(id=QueueId(number), prompt=prompt(words, **columns))


def move(number: int, before: int | None) -> MoveQueued:
    return MoveQueued(id=QueueId(number), before=None if before is None else QueueId(before))


# Editing


@pytest.mark.covers("V2")
@pytest.mark.parametrize("state", QUEUED)
def test_a_queued_message_is_edited_in_place(state: str) -> None:
    seeded = seed_state(State(state), plain=3)
    rows = apply_changes(seeded, edit_queued(seeded.chat, seeded.queue, edit(2)))
    assert queue_lines(rows.queue) == ["plain 0", "rewritten", "plain 2"]
    assert rows.chat.state is seeded.chat.state
    assert rows.chat.queue_version == rows.chat.snapshot_version
    assert rows.chat.history_version == seeded.chat.history_version


@pytest.mark.covers("O25")
def test_an_edit_in_the_queue_keeps_author_model_and_effort() -> None:
    row = chat(status="error", queue_len=1, next_queue_id=2)
    item = queued(1, model_config_id=FAST, reasoning_effort="low", created_by=AUTHOR)
    (kept,) = edit_queued(row, [item], edit(1)).rewrite
    assert (kept.prompt.model_config_id, kept.prompt.reasoning_effort) == (FAST, "low")
    assert kept.prompt.created_by == AUTHOR
    other = edit(1, model_config_id=SLOW, reasoning_effort="high")
    (changed,) = edit_queued(row, [item], other).rewrite
    assert (changed.prompt.model_config_id, changed.prompt.reasoning_effort) == (SLOW, "high")


# Moving


@pytest.mark.covers("V2")
@pytest.mark.parametrize(
    ("number", "before", "order"),
    [
        (3, 1, ["plain 2", "plain 0", "plain 1"]),
        (3, 2, ["plain 0", "plain 2", "plain 1"]),
        (1, None, ["plain 1", "plain 2", "plain 0"]),
        (1, 3, ["plain 1", "plain 0", "plain 2"]),
        (2, None, ["plain 0", "plain 2", "plain 1"]),
    ],
)
def test_a_queued_message_is_moved(number: int, before: int | None, order: list[str]) -> None:
    seeded = seed_state(State.R1, plain=3)
    rows = apply_changes(seeded, move_queued(seeded.chat, seeded.queue, move(number, before)))
    assert queue_lines(rows.queue) == order
    assert rows.chat.queue_version == rows.chat.snapshot_version


@pytest.mark.parametrize(("number", "before"), [(1, 2), (3, None)])
def test_moving_a_message_to_its_own_place_changes_nothing(number: int, before: int | None) -> None:
    seeded = seed_state(State.R1, plain=3)
    assert move_queued(seeded.chat, seeded.queue, move(number, before)) is None


def test_steering_messages_are_moved_among_themselves() -> None:
    seeded = seed_state(State.R1, plain=2, steer=2)
    rows = apply_changes(seeded, move_queued(seeded.chat, seeded.queue, move(4, 3)))
    assert queue_lines(rows.queue) == ["! steer 1", "! steer 0", "plain 0", "plain 1"]
    assert rows.chat.steer_len == 2


@pytest.mark.parametrize(("number", "before"), [(1, 3), (3, 1)])
def test_steering_messages_stay_ahead_of_plain_ones(number: int, before: int) -> None:
    seeded = seed_state(State.R1, plain=2, steer=1)
    with pytest.raises(InvalidInput, match="stand ahead"):
        move_queued(seeded.chat, seeded.queue, move(number, before))


def test_a_message_cannot_be_moved_ahead_of_itself() -> None:
    seeded = seed_state(State.R1, plain=2)
    with pytest.raises(InvalidInput, match="ahead of itself"):
        move_queued(seeded.chat, seeded.queue, move(1, 1))


def test_moving_ahead_of_a_message_that_has_left_is_refused() -> None:
    seeded = seed_state(State.R1, plain=2)
    left = [item for item in seeded.queue if item.id != 1]
    with pytest.raises(QueuedMessageGone):
        move_queued(seeded.chat, left, move(2, 1))


# Promoting


@pytest.mark.parametrize("state", ["E1", "P1", "A1"])
def test_a_promoted_message_is_sent_at_once_if_no_step_runs(state: str) -> None:
    seeded = seed_state(State(state), plain=3, begun=state != "P1")
    rows = apply_changes(
        seeded, promote_queued(seeded.chat, seeded.queue, QueueId(2), OTHER_WORKER)
    )
    assert history_lines(rows.messages)[-1] == "user: plain 1"
    assert queue_lines(rows.queue) == ["plain 0", "plain 2"]
    assert (rows.chat.state, rows.chat.worker_id) == (State.R1, OTHER_WORKER)
    assert rows.chat.turn_message_id == rows.messages[-1].id
    assert rows.chat.last_error is None


@pytest.mark.covers("O20")
@pytest.mark.parametrize("calls", ["local", "client"])
def test_promoting_answers_pending_calls_first(calls: str) -> None:
    state = State.A1 if calls == "client" else State.E1
    seeded = seed_state(state, plain=1, calls=calls)
    rows = apply_changes(seeded, promote_queued(seeded.chat, seeded.queue, QueueId(1), None))
    assert history_lines(rows.messages)[-3:] == [
        "tool: c1 failed",
        "tool: c2 failed",
        "user: plain 0",
    ]
    assert rows.chat.state is State.P0


def test_steering_messages_join_with_a_promoted_message() -> None:
    seeded = seed_state(State.E1, plain=2, steer=2)
    rows = apply_changes(seeded, promote_queued(seeded.chat, seeded.queue, QueueId(2), None))
    assert history_lines(rows.messages)[-3:] == ["user: plain 1", "user: steer 0", "user: steer 1"]
    assert queue_lines(rows.queue) == ["plain 0"]


@pytest.mark.promise("P4", "P9")
@pytest.mark.parametrize(("state", "saver"), [("R1", WORKER), ("I1", WORKER), ("P1", OTHER_WORKER)])
def test_promoting_during_a_step_interrupts_it_and_moves_the_message_to_the_head(
    state: str, saver: WorkerId
) -> None:
    seeded = seed_state(State(state), plain=3, steer=1)
    promoted = promote_queued(seeded.chat, seeded.queue, QueueId(3), OTHER_WORKER)
    rows = apply_changes(seeded, promoted)
    assert queue_lines(rows.queue) == ["! plain 2", "! steer 0", "plain 0", "plain 1"]
    assert rows.chat.state is State.I1
    assert rows.chat.worker_id == saver
    saved = step(rows.chat, draft("assistant", text("Once upon")))
    after = apply_changes(seeded, promoted, finish_interrupt(rows.chat, saved))
    assert history_lines(after.messages)[-3:] == [
        "assistant: Once upon",
        "user: plain 2",
        "user: steer 0",
    ]
    assert queue_lines(after.queue) == ["plain 0", "plain 1"]


def test_the_message_promoted_last_is_first_in_the_queue() -> None:
    seeded = seed_state(State.R1, plain=3)
    first = promote_queued(seeded.chat, seeded.queue, QueueId(2), None)
    rows = apply_changes(seeded, first)
    second = promote_queued(rows.chat, rows.queue, QueueId(3), None)
    assert queue_lines(apply_changes(seeded, first, second).queue) == [
        "! plain 2",
        "! plain 1",
        "plain 0",
    ]


@pytest.mark.parametrize("state", ["W", "E0", "R0", "R1", "P1"])
def test_promoting_an_unknown_message_is_not_found(state: str) -> None:
    seeded = seed_state(State(state))
    with pytest.raises(NotFound):
        promote_queued(seeded.chat, seeded.queue, QueueId(99), None)


# Deleting


@pytest.mark.parametrize("state", QUEUED)
def test_a_queued_message_is_deleted(state: str) -> None:
    seeded = seed_state(State(state), plain=1, steer=1)
    rows = apply_changes(seeded, delete_queued(seeded.chat, seeded.queue, QueueId(1)))
    assert queue_lines(rows.queue) == ["! steer 0"]
    rows = apply_changes(seeded, delete_queued(seeded.chat, seeded.queue, QueueId(2)))
    assert queue_lines(rows.queue) == ["plain 0"]
    assert rows.chat.steer_len == 0
    assert rows.chat.history_version == seeded.chat.history_version


@pytest.mark.parametrize("state", ["W", "R0", "R1", "E1"])
def test_deleting_an_unknown_message_changes_nothing(state: str) -> None:
    seeded = seed_state(State(state))
    assert delete_queued(seeded.chat, seeded.queue, QueueId(99)) is None


# Races with promotion

TRANSITIONS: dict[str, Callable[[Chat, list[QueuedMessage], int], Change | None]] = {
    "edit": lambda row, queue, number: edit_queued(row, queue, edit(number)),
    "move": lambda row, queue, number: move_queued(row, queue, move(number, None)),
    "promote": lambda row, queue, number: promote_queued(row, queue, QueueId(number), None),
    "delete": lambda row, queue, number: delete_queued(row, queue, QueueId(number)),
}


@pytest.mark.promise("P1")
@pytest.mark.parametrize("state", ["W", "R0", "R1", "E0"])
@pytest.mark.parametrize("what", ["edit", "move"])
def test_editing_or_moving_a_promoted_message_is_a_conflict(state: str, what: str) -> None:
    row = chat(
        status={"W": "waiting", "E": "error", "R": "running"}[state[0]],
        worker_id=WORKER if state[0] == "R" else None,
        queue_len=int(state.endswith("1")),
        next_queue_id=3,
    )
    left = [queued(2)] if row.queue_len else []
    with pytest.raises(QueuedMessageGone) as refused:
        TRANSITIONS[what](row, left, 1)
    assert refused.value.code == "queued_message_gone"


@pytest.mark.parametrize("number", [0, -1, 3, 99])
def test_an_id_that_was_never_queued_is_not_found(number: int) -> None:
    row = chat(status="error", queue_len=1, next_queue_id=3)
    with pytest.raises(NotFound):
        edit_queued(row, [queued(2)], edit(number))


@pytest.mark.parametrize("what", sorted(TRANSITIONS))
def test_queue_transitions_of_an_archived_chat_are_refused_before_the_queue_is_checked(
    what: str,
) -> None:
    seeded = seed_state(State.XW1)
    with pytest.raises(ChatdError) as refused:
        TRANSITIONS[what](seeded.chat, list(seeded.queue), 99)
    assert type(refused.value) is TransitionNotAllowed
    assert refused.value.code == "chat_archived"
