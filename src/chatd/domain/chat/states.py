"""States, transitions, and the table of which transition is legal in which state.

A state is status x queue x archived x owner: W waiting, E error, P runnable without an owner
(shown as pending), R running under a worker, I interrupting (owned or not), A waits for an
answer, an approval or client tool results, X archived. The digit says whether the queue is empty
(0) or not (1).
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final, Literal

Status = Literal["waiting", "running", "interrupting", "requires_action", "error"]
PublicStatus = Literal[
    "waiting", "pending", "running", "interrupting", "requires_action", "error", "archived"
]


class State(StrEnum):
    W = "W"
    E0 = "E0"
    E1 = "E1"
    P0 = "P0"
    P1 = "P1"
    R0 = "R0"
    R1 = "R1"
    I0 = "I0"
    I1 = "I1"
    A0 = "A0"
    A1 = "A1"
    XW0 = "XW0"
    XW1 = "XW1"
    XE0 = "XE0"
    XE1 = "XE1"


ARCHIVED_STATES: Final = frozenset({State.XW0, State.XW1, State.XE0, State.XE1})
BUSY_STATES: Final = frozenset(
    {State.P0, State.P1, State.R0, State.R1, State.I0, State.I1, State.A0, State.A1}
)


class TransitionSide(Enum):
    """Which side asks for a transition: a refusal is an error to users, StaleFence to workers."""

    USER = "user"
    WORKER = "worker"


class Transition(StrEnum):
    SEND_QUEUE = "send_queue"
    SEND_STEER = "send_steer"
    SEND_INTERRUPT = "send_interrupt"
    SEND_ROLLBACK = "send_rollback"
    SEND_REJECT = "send_reject"
    EDIT_MESSAGE = "edit_message"
    CHOOSE_VERSION = "choose_version"
    INTERRUPT = "interrupt"
    INTERRUPT_AND_HOLD = "interrupt_and_hold"
    RESUME_QUEUE = "resume_queue"
    SUBMIT_TOOL_RESULTS = "submit_tool_results"
    ANSWER_CALLS = "answer_calls"
    REQUEST_COMPACTION = "request_compaction"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"
    EDIT_QUEUED = "edit_queued"
    MOVE_QUEUED = "move_queued"
    PROMOTE_QUEUED = "promote_queued"
    DELETE_QUEUED = "delete_queued"
    ACQUIRE = "acquire"
    COMMIT_STEP = "commit_step"
    FINISH_TURN = "finish_turn"
    REQUIRE_ACTION = "require_action"
    FAIL_TURN = "fail_turn"
    RECORD_RETRY = "record_retry"
    FINISH_INTERRUPT = "finish_interrupt"
    RELEASE = "release"
    REAP = "reap"
    EXPIRE_INTERRUPT = "expire_interrupt"
    EXPIRE_ACTION = "expire_action"
    SUSPEND = "suspend"
    WAKE = "wake"
    NOTE_WAITS = "note_waits"

    @property
    def side(self) -> TransitionSide:
        return TransitionSide.WORKER if self in _WORKER_TRANSITIONS else TransitionSide.USER


_WORKER_TRANSITIONS: Final = frozenset(
    {
        Transition.ACQUIRE,
        Transition.COMMIT_STEP,
        Transition.FINISH_TURN,
        Transition.REQUIRE_ACTION,
        Transition.FAIL_TURN,
        Transition.RECORD_RETRY,
        Transition.FINISH_INTERRUPT,
        Transition.RELEASE,
        Transition.REAP,
        Transition.EXPIRE_INTERRUPT,
        Transition.EXPIRE_ACTION,
        Transition.SUSPEND,
        Transition.WAKE,
        Transition.NOTE_WAITS,
    }
)

# "from>to,to" per state; "from=" is allowed and changes nothing.
_TABLE: Final[Mapping[Transition, str]] = {
    Transition.SEND_QUEUE: (
        "W>R0,P0 E0>R0,P0 E1>R1,P1 P0>P1 P1>P1 R0>R1 R1>R1 I0>I1 I1>I1 A0>A1 A1>A1"
    ),
    Transition.SEND_STEER: (
        "W>R0,P0 E0>R0,P0 E1>R1,P1 P0>R0,R1,P0,P1 P1>R1,P1 R0>R1 R1>R1 I0>I1 I1>I1 A0>A1 A1>A1"
    ),
    Transition.SEND_INTERRUPT: (
        "W>R0,P0 E0>R0,P0 E1>R1,P1 P0>R0,P0,I1 P1>R1,P1,I1 R0>I1 R1>I1 I0>I1 I1>I1"
        " A0>R0,P0 A1>R1,P1"
    ),
    Transition.SEND_ROLLBACK: (
        "W>R0,P0 E0>R0,P0 E1>R1,P1 P0>R0,P0 P1>R1,P1 R0>R0,P0 R1>R1,P1"
        " I0>R0,P0 I1>R1,P1 A0>R0,P0 A1>R1,P1"
    ),
    Transition.SEND_REJECT: "W>R0,P0 E0>R0,P0 E1>R1,P1",
    Transition.EDIT_MESSAGE: (
        "W>R0,P0 E0>R0,P0 E1>R0,P0 P0>R0,P0 P1>R0,P0 R0>R0,P0 R1>R0,P0"
        " I0>R0,P0 I1>R0,P0 A0>R0,P0 A1>R0,P0"
    ),
    Transition.CHOOSE_VERSION: "W>W,E0 E0>W,E0 E1>E1",
    Transition.INTERRUPT: (
        "W= E0>W E1= P0>W,I0 P1>R0,R1,P0,P1,I1 R0>I0 R1>I1 I0= I1= A0>W A1>R0,R1,P0,P1"
    ),
    Transition.INTERRUPT_AND_HOLD: (
        "W= E0>W E1= P0>W,I0 P1>E1,I1 R0>I0 R1>I1 I0= I1>I1 A0>W A1>E1"
    ),
    Transition.RESUME_QUEUE: "W= E0= E1>R0,R1,P0,P1 P0= P1= R0= R1= I0= A0= A1=",
    Transition.SUBMIT_TOOL_RESULTS: "A0>A0,R0,P0 A1>A1,R0,R1,P0,P1",
    Transition.ANSWER_CALLS: "A0>A0,R0,P0 A1>A1,R0,R1,P0,P1",
    Transition.REQUEST_COMPACTION: "W>R0,P0 E0>R0,P0 E1>R1,P1",
    Transition.ARCHIVE: (
        "W>XW0 E0>XE0 E1>XE1 P0>XW0 P1>XW1 R0>XW0 R1>XW1 I0>XW0 I1>XW1 A0>XW0 A1>XW1"
    ),
    Transition.UNARCHIVE: "XW0>W XW1>E1 XE0>E0 XE1>E1",
    Transition.EDIT_QUEUED: "E1>E1 P1>P1 R1>R1 I1>I1 A1>A1",
    Transition.MOVE_QUEUED: "E1>E1 P1>P1 R1>R1 I1>I1 A1>A1",
    Transition.PROMOTE_QUEUED: "E1>R0,R1,P0,P1 P1>R0,R1,P0,P1,I1 R1>I1 I1>I1 A1>R0,R1,P0,P1",
    Transition.DELETE_QUEUED: (
        "W= E0= P0= R0= I0= A0= E1>E0,E1 P1>P0,P1 R1>R0,R1 I1>I0,I1 A1>A0,A1"
    ),
    Transition.ACQUIRE: "P0>R0 P1>R1 I0>I0 I1>I1",
    Transition.COMMIT_STEP: "R0>R0,P0 R1>R0,R1,P0,P1",
    Transition.FINISH_TURN: "R0>W R1>R0,R1,P0,P1",
    Transition.REQUIRE_ACTION: "R0>A0 R1>A1",
    Transition.FAIL_TURN: "R0>E0 R1>E1",
    Transition.RECORD_RETRY: "R0>R0,P0 R1>R1,P1",
    Transition.FINISH_INTERRUPT: "I0>W I1>R0,R1,P0,P1,E1",
    Transition.RELEASE: "R0>P0 R1>P1 I0>I0 I1>I1",
    Transition.REAP: "R0>P0,E0 R1>P1,E1 I0>I0,W I1>I1,P0,P1,E1",
    Transition.EXPIRE_INTERRUPT: "I0>W I1>P0,P1,E1",
    Transition.EXPIRE_ACTION: "A0>A0,P0 A1>A1,P0,P1",
    Transition.SUSPEND: "R0>P0 R1>R1,P1",
    Transition.WAKE: "P0>R0,P0 P1>R1,P1",
    Transition.NOTE_WAITS: "R0>R0 R1>R1",
}


def _parse(row: str) -> dict[State, frozenset[State]]:
    cells: dict[State, frozenset[State]] = {}
    for cell in row.split():
        source, _, targets = cell.partition(">")
        if targets:
            cells[State(source)] = frozenset(State(target) for target in targets.split(","))
        else:
            state = State(source.removesuffix("="))
            cells[state] = frozenset()
    return cells


TRANSITIONS: Final[Mapping[Transition, Mapping[State, frozenset[State]]]] = {
    transition: _parse(row) for transition, row in _TABLE.items()
}
"""Legal transitions by state, with their targets. No targets: allowed, and nothing changes."""
