"""The table of transitions and the names of states."""

from itertools import product
from typing import get_args

import pytest

from chatd.domain.chat.row import Chat, public_status, state_of
from chatd.domain.chat.states import (
    ARCHIVED_STATES,
    BUSY_STATES,
    TRANSITIONS,
    State,
    Status,
    Transition,
    TransitionSide,
)
from chatd.domain.errors import InvariantBroken
from tests.support.factories import WORKER, chat
from tests.support.seeds import seed_state

# By status, queued, archived, owned: all valid rows.
NAMES = {
    ("waiting", False, False, False): "W",
    ("error", False, False, False): "E0",
    ("error", True, False, False): "E1",
    ("running", False, False, False): "P0",
    ("running", True, False, False): "P1",
    ("running", False, False, True): "R0",
    ("running", True, False, True): "R1",
    ("interrupting", False, False, False): "I0",
    ("interrupting", True, False, False): "I1",
    ("interrupting", False, False, True): "I0",
    ("interrupting", True, False, True): "I1",
    ("requires_action", False, False, False): "A0",
    ("requires_action", True, False, False): "A1",
    ("waiting", False, True, False): "XW0",
    ("waiting", True, True, False): "XW1",
    ("error", False, True, False): "XE0",
    ("error", True, True, False): "XE1",
}

STATUSES: tuple[Status, ...] = get_args(Status)
ROWS = list(product(STATUSES, (False, True), (False, True), (False, True)))


@pytest.mark.covers("O4", "O14")
@pytest.mark.parametrize(("status", "queued", "archived", "owned"), ROWS)
def test_a_row_has_one_state_or_is_a_bug(
    status: Status, *, queued: bool, archived: bool, owned: bool
) -> None:
    name = NAMES.get((status, queued, archived, owned))
    if name is None:
        with pytest.raises(InvariantBroken, match=status):
            state_of(status, queued=queued, archived=archived, owned=owned)
    else:
        assert state_of(status, queued=queued, archived=archived, owned=owned) == name


def test_every_state_describes_some_row() -> None:
    assert set(NAMES.values()) == set(State)


def test_the_state_of_a_chat_follows_from_its_columns() -> None:
    row = chat(status="running", queue_len=2, worker_id=WORKER)
    assert row.state is State.R1


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("W", "waiting"),
        ("E1", "error"),
        ("P0", "pending"),
        ("R1", "running"),
        ("I0", "interrupting"),
        ("A1", "requires_action"),
        ("XW0", "archived"),
        ("XE1", "archived"),
    ],
)
def test_a_state_has_one_public_status(state: str, shown: str) -> None:
    assert seed_state(State(state)).chat.public_status == shown


def test_an_unowned_interrupt_is_not_shown_as_pending() -> None:
    assert public_status("interrupting", archived=False, owned=False) == "interrupting"


def test_the_table_has_a_row_for_every_transition() -> None:
    assert set(TRANSITIONS) == set(Transition)


def test_archived_chats_can_only_be_unarchived() -> None:
    listed = {
        transition
        for transition in Transition
        for state in TRANSITIONS[transition]
        if state in ARCHIVED_STATES
    }
    assert listed == {Transition.UNARCHIVE}


def test_only_archiving_leads_to_an_archived_state() -> None:
    leading = {
        transition
        for transition in Transition
        for targets in TRANSITIONS[transition].values()
        if targets & ARCHIVED_STATES
    }
    assert leading == {Transition.ARCHIVE}


def test_every_state_is_busy_archived_or_idle() -> None:
    assert frozenset({State.W, State.E0, State.E1}) | BUSY_STATES | ARCHIVED_STATES == frozenset(
        State
    )
    assert not BUSY_STATES & ARCHIVED_STATES


@pytest.mark.promise("P2")
def test_every_busy_state_can_be_left_without_a_user() -> None:
    """From every busy state, transitions of workers alone lead to an idle state."""
    idle = frozenset(State) - BUSY_STATES
    of_workers = [move for move in Transition if move.side is TransitionSide.WORKER]
    reaching_idle = set(idle)
    while True:
        new = {
            state
            for transition in of_workers
            for state, targets in TRANSITIONS[transition].items()
            if state not in reaching_idle and targets & reaching_idle
        }
        if not new:
            break
        reaching_idle |= new
    assert reaching_idle == set(State)


def test_every_state_is_reached_by_a_transition() -> None:
    reached = {
        target for row in TRANSITIONS.values() for targets in row.values() for target in targets
    }
    assert reached == set(State)


def test_the_transitions_of_workers() -> None:
    workers = {transition for transition in Transition if transition.side is TransitionSide.WORKER}
    assert workers == {
        "acquire",
        "commit_step",
        "finish_turn",
        "require_action",
        "fail_turn",
        "record_retry",
        "finish_interrupt",
        "release",
        "reap",
        "expire_interrupt",
        "expire_action",
        "suspend",
        "wake",
        "note_waits",
    }


def test_a_root_has_no_parent() -> None:
    assert chat().is_root
    assert not chat(parent_chat_id=chat().id).is_root


def test_a_seeded_chat_is_in_the_requested_state() -> None:
    seeded: dict[State, Chat] = {state: seed_state(state).chat for state in State}
    assert {state: row.state for state, row in seeded.items()} == {s: s for s in State}
