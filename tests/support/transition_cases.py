"""Every transition from every state, in as many variants as `TRANSITIONS` has outcomes.

`list_cases(state, move)` yields the variants; `expected_refusal` tells how an unlisted transition
must be refused. Tests of the pure functions and of the database use the same cases.
"""

from collections.abc import Iterator
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.chat.states import ARCHIVED_STATES, BUSY_STATES, Actor, State, Transition
from chatd.domain.errors import ChatBusy, ChatdError, NotFound, StaleFence, TransitionNotAllowed
from chatd.domain.ids import WorkerId
from tests.support.factories import OTHER_WORKER
from tests.support.seeds import OpenCalls, Seed

_NEED_OWNER = frozenset({Transition.RELEASE, Transition.REAP, Transition.FINISH_INTERRUPT})
_INTERRUPTING = frozenset(
    {Transition.INTERRUPT, Transition.SEND_INTERRUPT, Transition.PROMOTE_QUEUED}
)
_NAME_AN_ITEM = frozenset(
    {Transition.EDIT_QUEUED, Transition.MOVE_QUEUED, Transition.PROMOTE_QUEUED}
)


class TransitionCase(Struct, frozen=True, kw_only=True):
    """`free`: this replica has a slot. `keep_owner`: the worker continues with the next step."""

    move: Transition
    seed: Seed
    free: bool = True
    keep_owner: bool = True

    @property
    def slot(self) -> WorkerId | None:
        return OTHER_WORKER if self.free else None


def list_cases(state: State, move: Transition) -> Iterator[TransitionCase]:
    for seed, flag in product(_seeds(state, move), (True, False)):
        yield TransitionCase(move=move, seed=seed, free=flag, keep_owner=flag)


def _seeds(state: State, move: Transition) -> Iterator[Seed]:
    queues = ((1, 0), (2, 0), (0, 1), (1, 1)) if state.endswith("1") else ((0, 0),)
    for (plain, steer), calls, owned, orphans in product(
        queues, _calls(state, move), _owned(state, move), _orphans(state, move)
    ):
        seed = Seed(
            state=state, plain=plain, steer=steer, calls=calls, owned=owned, orphans=orphans
        )
        yield seed
        # Before a worker has acquired the chat, a steering message waits for tool results only.
        if move in _INTERRUPTING and state[0] == "P" and (calls == "local" or not steer):
            yield replace(seed, begun=False)


def _calls(state: State, move: Transition) -> tuple[OpenCalls | None, ...]:
    if move is Transition.REQUIRE_ACTION and state in (State.R0, State.R1):
        return ("none", "client")
    return ("none", "local") if state[0] in "EPRI" else (None,)


def _owned(state: State, move: Transition) -> tuple[bool, ...]:
    if state[0] != "I" or move in _NEED_OWNER:
        return (True,)
    return (False,) if move is Transition.ACQUIRE else (True, False)


def _orphans(state: State, move: Transition) -> tuple[int, ...]:
    return (0, 3) if move is Transition.REAP and state[0] in "RI" else (0,)


def expected_refusal(state: State, move: Transition) -> tuple[type[ChatdError], str]:
    """The type and code with which an unlisted move is refused."""
    if move.actor is Actor.WORKER:
        return StaleFence, "stale_fence"
    if state in ARCHIVED_STATES:
        return TransitionNotAllowed, "chat_archived"
    if move is Transition.SEND_REJECT and state in BUSY_STATES:
        return ChatBusy, "chat_busy"
    if move in _NAME_AN_ITEM:
        return NotFound, "not_found"
    return TransitionNotAllowed, "invalid_state"
