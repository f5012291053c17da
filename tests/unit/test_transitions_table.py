"""Every command has a transition; every transition from every state does what the table lists."""

from itertools import product
from typing import get_args
from uuid import UUID

import pytest

from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import ChatCommand, InterruptChat, SendMessage
from chatd.domain.chat.states import TRANSITIONS, State, Transition
from chatd.domain.chat.transitions import TRANSITION_BY_COMMAND, LoadedChat, ReservedSlots, decide
from chatd.domain.errors import ChatdError, StaleFence
from chatd.domain.ids import ChatId
from tests.model.invariants import ChangeChecker
from tests.model.reference_store import ReferenceStore, apply_change
from tests.support.domain.transition_cases import (
    TransitionCase,
    expected_refusal,
    list_cases,
    perform_transition,
)
from tests.support.factories import CHAT, OTHER_WORKER, WORKER, chat, prompt
from tests.support.seeds import Seed, Seeded, seed_chat

CELLS = [pytest.param(s, m, id=f"{m}-{s}") for s, m in product(State, Transition)]
LEGAL = [
    pytest.param(s, m, id=f"{m}-{s}") for m in Transition for s, to in TRANSITIONS[m].items() if to
]
IDLE = [
    pytest.param(s, m, id=f"{m}-{s}")
    for m in Transition
    for s, to in TRANSITIONS[m].items()
    if not to
]
ILLEGAL = [
    pytest.param(s, m, id=f"{m}-{s}")
    for s, m in product(State, Transition)
    if s not in TRANSITIONS[m]
]


def test_the_cases_cover_every_cell_of_the_table() -> None:
    assert len(LEGAL) + len(IDLE) + len(ILLEGAL) == len(CELLS) == 15 * 33


@pytest.mark.covers("O13", "V4")
@pytest.mark.parametrize(("state", "transition"), LEGAL)
def test_an_allowed_transition_reaches_exactly_the_listed_states(
    state: State, transition: Transition
) -> None:
    reached: set[State] = set()
    for case in list_cases(state, transition):
        seeded = seed_chat(case.seed)
        change = perform_transition(case, seeded)
        if change is None:
            # A message alone in the queue has no other position.
            assert transition is Transition.MOVE_QUEUED
            reached.add(state)
            continue
        assert change.before is seeded.chat
        assert change.after.snapshot_version == seeded.chat.snapshot_version + 1
        assert change.after.state in TRANSITIONS[transition][state], (
            f"{case} led to {change.after.state}"
        )
        reached.add(change.after.state)
        _check_applied(seeded, change)
    assert reached == TRANSITIONS[transition][state]


def _check_applied(seeded: Seeded, change: Change) -> None:
    """All invariants hold after the change is written."""
    store, checker = ReferenceStore(), ChangeChecker()
    for written in (*seeded.changes, change):
        rows = apply_change(store, written)
        checker.check_change(written, rows.chat, rows.messages, rows.queue)


TOUCHING = frozenset(Transition) - {
    Transition.EDIT_QUEUED,
    Transition.MOVE_QUEUED,
    Transition.DELETE_QUEUED,
    Transition.ACQUIRE,
    Transition.COMMIT_STEP,
    Transition.RECORD_RETRY,
    Transition.RELEASE,
    Transition.REAP,
    Transition.SUSPEND,
    Transition.WAKE,
    Transition.NOTE_WAITS,
}


@pytest.mark.parametrize(("state", "transition"), LEGAL)
def test_a_chat_moves_up_in_the_list_when_a_user_acts_or_a_turn_ends(
    state: State, transition: Transition
) -> None:
    """Steps and changes of owner do not reorder the list."""
    for case in list_cases(state, transition):
        change = perform_transition(case, seed_chat(case.seed))
        fails_turn = transition is Transition.REAP and case.seed.orphans > 0
        assert change is None or change.touch is (transition in TOUCHING or fails_turn)


@pytest.mark.covers("O13", "V4")
@pytest.mark.parametrize(("state", "transition"), IDLE)
def test_a_transition_without_targets_changes_nothing(state: State, transition: Transition) -> None:
    for case in list_cases(state, transition):
        assert perform_transition(case, seed_chat(case.seed)) is None


@pytest.mark.covers("O13", "O22", "O24", "F41")
@pytest.mark.promise("P15")
@pytest.mark.parametrize(("state", "transition"), ILLEGAL)
def test_an_unlisted_transition_is_refused_with_its_code(
    state: State, transition: Transition
) -> None:
    kind, code = expected_refusal(state, transition)
    for case in list_cases(state, transition):
        with pytest.raises(ChatdError) as refused:
            perform_transition(case, seed_chat(case.seed))
        assert (type(refused.value), refused.value.code) == (kind, code)


@pytest.mark.parametrize("state", [State.I0, State.I1])
@pytest.mark.parametrize(
    ("transition", "owned"),
    [
        (Transition.ACQUIRE, True),
        (Transition.RELEASE, False),
        (Transition.REAP, False),
        (Transition.FINISH_INTERRUPT, False),
    ],
)
def test_transitions_of_an_interrupt_check_the_owner(
    state: State, transition: Transition, *, owned: bool
) -> None:
    """The state I does not include the owner, so these transitions check it."""
    case = TransitionCase(move=transition, seed=Seed(state=state, owned=owned))
    with pytest.raises(StaleFence):
        perform_transition(case, seed_chat(case.seed))


def test_every_command_on_a_chat_has_a_transition() -> None:
    assert set(TRANSITION_BY_COMMAND) == set(get_args(ChatCommand))


@pytest.mark.parametrize(("is_root", "owner"), [(True, WORKER), (False, OTHER_WORKER)])
def test_the_worker_with_a_slot_of_the_chats_kind_acquires_it(
    *, is_root: bool, owner: object
) -> None:
    parent = None if is_root else CHAT
    row = chat(id=CHAT if is_root else ChatId(UUID(int=9)), parent_chat_id=parent)
    slots = ReservedSlots(root=WORKER, child=OTHER_WORKER)
    change = decide(LoadedChat(chat=row), SendMessage(prompt=prompt()), slots)
    assert change is not None
    assert change.after.worker_id == owner


def test_a_command_without_effect_needs_no_change() -> None:
    assert decide(LoadedChat(chat=chat()), InterruptChat(), ReservedSlots()) is None
