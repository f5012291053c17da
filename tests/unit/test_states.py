"""The table of moves and the names of states."""

from itertools import product
from typing import get_args

import pytest

from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import (
    ARCHIVED_STATES,
    BUSY_STATES,
    TRANSITIONS,
    Actor,
    State,
    Status,
    Transition,
    public_status,
    state_of,
)
from chatd.domain.errors import InvariantBroken
from tests.support.factories import WORKER, chat
from tests.support.seeds import seed_state

# status, queued, archived, owned: the only rows there can be.
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
def test_a_row_has_one_state_or_cannot_be(
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


def test_the_chat_knows_its_state() -> None:
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
def test_people_see_one_word_for_a_state(state: str, shown: str) -> None:
    assert seed_state(State(state)).chat.public_status == shown


def test_an_unowned_interrupt_is_not_shown_as_pending() -> None:
    assert public_status("interrupting", archived=False, owned=False) == "interrupting"


def test_the_table_has_a_row_for_every_move() -> None:
    assert set(TRANSITIONS) == set(Transition)


def test_archived_chats_can_only_be_unarchived() -> None:
    listed = {
        move for move in Transition for state in TRANSITIONS[move] if state in ARCHIVED_STATES
    }
    assert listed == {Transition.UNARCHIVE}


def test_only_archiving_leads_to_an_archived_state() -> None:
    leading = {
        move
        for move in Transition
        for targets in TRANSITIONS[move].values()
        if targets & ARCHIVED_STATES
    }
    assert leading == {Transition.ARCHIVE}


def test_busy_archived_and_at_rest_are_all_there_is() -> None:
    assert frozenset({State.W, State.E0, State.E1}) | BUSY_STATES | ARCHIVED_STATES == frozenset(
        State
    )
    assert not BUSY_STATES & ARCHIVED_STATES


@pytest.mark.promise("P2")
def test_every_busy_state_can_be_left_without_a_person() -> None:
    """Nothing is stuck: from any busy state moves of workers alone lead to rest."""
    at_rest = frozenset(State) - BUSY_STATES
    worker_moves = [move for move in Transition if move.actor is Actor.WORKER]
    saved = set(at_rest)
    while True:
        more = {
            state
            for move in worker_moves
            for state, targets in TRANSITIONS[move].items()
            if state not in saved and targets & saved
        }
        if not more:
            break
        saved |= more
    assert saved == set(State)


def test_every_state_is_reached_by_some_move() -> None:
    reached = {
        target for row in TRANSITIONS.values() for targets in row.values() for target in targets
    }
    assert reached == set(State)


def test_moves_of_workers_and_of_people_are_told_apart() -> None:
    workers = {move for move in Transition if move.actor is Actor.WORKER}
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
    }


def test_a_root_has_no_parent() -> None:
    assert chat().is_root
    assert not chat(parent_chat_id=chat().id).is_root


def test_a_seeded_chat_is_in_the_state_it_was_asked_for() -> None:
    seeded: dict[State, Chat] = {state: seed_state(state).chat for state in State}
    assert {state: row.state for state, row in seeded.items()} == {s: s for s in State}
