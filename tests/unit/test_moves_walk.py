"""The table walk: every move from every state does what the table lists, and nothing else."""

from itertools import product

import pytest

from chatd.domain.chat.change import Change
from chatd.domain.chat.states import TRANSITIONS, State, Transition
from chatd.domain.errors import ChatdError, StaleFence
from tests.model.invariants import ChangeChecker
from tests.model.reference_store import ReferenceStore, apply_change
from tests.support.cells import Case, cases, refusal
from tests.support.perform import perform
from tests.support.seeds import Seed, Seeded, plant

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


def test_the_walk_covers_every_cell() -> None:
    assert len(LEGAL) + len(IDLE) + len(ILLEGAL) == len(CELLS) == 15 * 26


@pytest.mark.covers("O13", "V4")
@pytest.mark.parametrize(("state", "move"), LEGAL)
def test_a_listed_move_reaches_exactly_the_listed_states(state: State, move: Transition) -> None:
    reached: set[State] = set()
    for case in cases(state, move):
        seeded = plant(case.seed)
        change = perform(case, seeded)
        if change is None:
            # A message that stands alone has no other place to move to.
            assert move is Transition.MOVE_QUEUED
            reached.add(state)
            continue
        assert change.before is seeded.chat
        assert change.after.snapshot_version == seeded.chat.snapshot_version + 1
        assert change.after.state in TRANSITIONS[move][state], f"{case} led to {change.after.state}"
        reached.add(change.after.state)
        _applies(seeded, change)
    assert reached == TRANSITIONS[move][state]


def _applies(seeded: Seeded, change: Change) -> None:
    """Once written, everything that must hold holds."""
    world, watch = ReferenceStore(), ChangeChecker()
    for written in (*seeded.changes, change):
        rows = apply_change(world, written)
        watch.check_change(written, rows.chat, rows.messages, rows.queue)


TOUCHING = frozenset(Transition) - {
    Transition.EDIT_QUEUED,
    Transition.MOVE_QUEUED,
    Transition.DELETE_QUEUED,
    Transition.ACQUIRE,
    Transition.COMMIT_STEP,
    Transition.RECORD_RETRY,
    Transition.RELEASE,
    Transition.REAP,
}


@pytest.mark.parametrize(("state", "move"), LEGAL)
def test_a_chat_moves_up_in_the_list_when_a_person_acts_or_a_turn_ends(
    state: State, move: Transition
) -> None:
    """Not with every step, nor with every hand-over: the list would never stand still."""
    for case in cases(state, move):
        change = perform(case, plant(case.seed))
        gave_up = move is Transition.REAP and case.seed.orphans > 0
        assert change is None or change.touch is (move in TOUCHING or gave_up)


@pytest.mark.covers("O13", "V4")
@pytest.mark.parametrize(("state", "move"), IDLE)
def test_a_move_with_nothing_to_do_changes_nothing(state: State, move: Transition) -> None:
    for case in cases(state, move):
        assert perform(case, plant(case.seed)) is None


@pytest.mark.covers("O13")
@pytest.mark.promise("P15")
@pytest.mark.parametrize(("state", "move"), ILLEGAL)
def test_an_unlisted_move_is_refused_with_a_reason(state: State, move: Transition) -> None:
    kind, code = refusal(state, move)
    for case in cases(state, move):
        with pytest.raises(ChatdError) as refused:
            perform(case, plant(case.seed))
        assert (type(refused.value), refused.value.code) == (kind, code)


@pytest.mark.parametrize("state", [State.I0, State.I1])
@pytest.mark.parametrize(
    ("move", "owned"),
    [
        (Transition.ACQUIRE, True),
        (Transition.RELEASE, False),
        (Transition.REAP, False),
        (Transition.FINISH_INTERRUPT, False),
    ],
)
def test_an_interrupt_is_only_for_its_owner(state: State, move: Transition, *, owned: bool) -> None:
    """The state's name does not say whether there is an owner, so the moves ask."""
    case = Case(move=move, seed=Seed(state=state, owned=owned))
    with pytest.raises(StaleFence):
        perform(case, plant(case.seed))
