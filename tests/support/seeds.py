"""A chat in every state, reached by transitions.

`seed_state` returns the row, its messages and its queue, and the changes that led there: a test of
the domain starts from the values, a test on a database writes the changes first.
"""

from collections.abc import Callable
from functools import cache
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from chatd.domain.chat.call_waits import QUESTION_TOOL, CallWait, WaitKind
from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import (
    CreateChat,
    FailTurn,
    ReapChat,
    RecordRetry,
    ReleaseChat,
    RequestCompaction,
    SendMessage,
    Step,
    SuspendTurn,
)
from chatd.domain.chat.lease import MAX_LONE_DEATHS
from chatd.domain.chat.messages import Draft, Message, QueuedMessage
from chatd.domain.chat.row import AgentWait, Chat, ChatError, Fence, RetryState
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import (
    archive,
    create,
    interrupt,
    interrupt_and_hold,
    request_compaction,
    send_message,
)
from chatd.domain.chat.worker_transitions import (
    acquire,
    commit_step,
    fail_turn,
    finish_turn,
    reap,
    record_retry,
    release,
    require_action,
    suspend,
)
from chatd.domain.ids import ChatId, ToolCallId, WorkerId
from tests.model.reference_store import ReferenceStore, apply_change
from tests.support.factories import CHAT, OWNER, WORKER, call, draft, prompt, text

CLIENT_TOOL = "ask_person"

OpenCalls = Literal["none", "local", "client", "approval", "question", "mixed"]
"""`mixed`: one call of a client tool, which has the earlier deadline, and one to approve."""

QUESTIONS = (
    '{"questions":[{"header":"Store","question":"Which one?","options":'
    '[{"label":"A","description":""},{"label":"B","description":""}]}]}'
)

WAIT = AgentWait(chat_ids=(ChatId(UUID(int=77)),), delay_ms=300_000)
FAILED = ChatError(message="The model's API refused the request.", kind="auth")


class Seed(Struct, frozen=True, kw_only=True):
    """The chat to build. `plain` and `steer` are lengths of the queue; by default a state with a
    name that ends in 1 has one plain queued message. `begun`: a chat without an owner (P) had
    one that worked on the next step; else no worker has acquired it yet. `held`: an interrupt (I1)
    holds the queue. `suspended`: a chat without an owner (P) waits for a subagent."""

    state: State
    plain: int | None = None
    steer: int = 0
    calls: OpenCalls | None = None
    owned: bool = True
    held: bool = False
    begun: bool = True
    orphans: int = 0
    retry: bool = False
    suspended: bool = False
    compaction: bool = False
    chat_id: ChatId = CHAT
    worker: WorkerId = WORKER

    @property
    def open_calls(self) -> OpenCalls:
        if self.calls is not None:
            return self.calls
        return "client" if self.state in (State.A0, State.A1) else "none"

    @property
    def plain_len(self) -> int:
        if self.plain is not None:
            return self.plain
        return int(self.state.endswith("1") and self.steer == 0)


class Seeded(Struct, frozen=True, kw_only=True):
    seed: Seed
    chat: Chat
    history: tuple[Message, ...]
    queue: tuple[QueuedMessage, ...]
    changes: tuple[Change, ...]


class _SeedBuilder:
    """The chat so far, and the changes that led there."""

    def __init__(self, start: Change) -> None:
        self.world = ReferenceStore()
        self.changes = [start]
        self.chat = apply_change(self.world, start).chat

    def go(self, change: Change | None) -> None:
        assert change is not None
        self.chat = apply_change(self.world, change).chat
        self.changes.append(change)


def seed_state(state: State, **wanted: object) -> Seeded:
    return seed_chat(msgspec.structs.replace(Seed(state=state), **wanted))


@cache  # frozen values, and tests ask for the same seeds thousands of times
def seed_chat(seed: Seed) -> Seeded:
    """One answered message, then the requested state."""
    road = _SeedBuilder(_begin(seed))
    road.go(finish_turn(road.chat, step(road.chat, draft("assistant", text("One.")))))
    free = seed.worker if seed.begun else None
    if seed.compaction:
        road.go(request_compaction(road.chat, RequestCompaction(compactable=True), free))
    elif _needs_turn(seed):
        road.go(send_message(road.chat, SendMessage(prompt=prompt("second")), free))
    if road.chat.status == "running":
        _work(road, seed)
    _LAST[seed.state](road, seed)
    rows = road.world.chats[seed.chat_id]
    assert rows.chat.state is seed.state, f"wanted {seed}, reached {rows.chat.state}"
    return Seeded(
        seed=seed,
        chat=rows.chat,
        history=tuple(rows.messages),
        queue=tuple(rows.queue),
        changes=tuple(road.changes),
    )


_CALLED = {
    "client": (CLIENT_TOOL, CLIENT_TOOL),
    "question": (QUESTION_TOOL, QUESTION_TOOL),
    "mixed": (CLIENT_TOOL, "execute"),
}


def wait_for(call_id: str, kind: WaitKind, timeout_s: float = 86400.0) -> CallWait:
    """Of a call that its chat can stop asking for."""
    args = Raw(QUESTIONS.encode() if kind == "question" else b"{}")
    return CallWait(
        call_id=ToolCallId(call_id), kind=kind, timeout_s=timeout_s, args=args, always=True
    )


def _needs_turn(seed: Seed) -> bool:
    return seed.state not in (State.W, State.XW0) or seed.calls is not None


def _begin(seed: Seed) -> Change:
    command = CreateChat(
        id=seed.chat_id,
        owner_id=OWNER,
        title="A chat",
        before=(draft("system", text("Be kind."), visibility="model"),),
        prompt=prompt("first"),
    )
    return create(command, seed.worker)


def _work(road: _SeedBuilder, seed: Seed) -> None:
    if seed.open_calls != "none":
        first, second = _CALLED.get(seed.open_calls, ("execute", "execute"))
        if not seed.begun:
            road.go(acquire(road.chat, seed.worker))
        calls = draft("assistant", text("Let me see."), call("c1", first), call("c2", second))
        road.go(commit_step(road.chat, step(road.chat, calls, keep_owner=seed.begun)))
    for deaths in range(seed.orphans):
        # One more crash of the runner would be an error.
        is_task_crash = deaths < MAX_LONE_DEATHS - 1
        dead = frozenset({seed.worker})
        road.go(reap(road.chat, ReapChat(worker_ids=dead, is_task_crash=is_task_crash)))
        road.go(acquire(road.chat, seed.worker))
    for index in range(seed.plain_len):
        road.go(send_message(road.chat, SendMessage(prompt=prompt(f"plain {index}")), None))
    for index in range(seed.steer):
        command = SendMessage(prompt=prompt(f"steer {index}"), when_busy="steer")
        road.go(send_message(road.chat, command, None))
    if seed.retry:
        # A retry with a delay releases the chat.
        delay_ms = 1 if seed.state in (State.P0, State.P1) else 0
        state = RetryState(attempt=1, delay_ms=delay_ms, error="overloaded")
        road.go(record_retry(road.chat, RecordRetry(fence=Fence.of(road.chat), state=state)))


def _stay(road: _SeedBuilder, seed: Seed) -> None:
    """The chat is in the requested state already."""


def _release(road: _SeedBuilder, seed: Seed) -> None:
    if seed.suspended:
        command = SuspendTurn(fence=Fence.of(road.chat), wait=WAIT)
        road.go(suspend(road.chat, command))
        return
    if road.chat.worker_id is not None:
        road.go(release(road.chat, ReleaseChat(worker_id=seed.worker, epoch=road.chat.epoch)))


def _stop(road: _SeedBuilder, seed: Seed) -> None:
    stop = interrupt_and_hold if seed.held else interrupt
    road.go(stop(road.chat, None))
    if not seed.owned:
        _release(road, seed)


def _ask_person(road: _SeedBuilder, seed: Seed) -> None:
    kinds: dict[OpenCalls, tuple[WaitKind, WaitKind]] = {
        "approval": ("approval", "approval"),
        "question": ("question", "question"),
        "mixed": ("client", "approval"),
    }
    waits = tuple(
        wait_for(name, kind, 60.0 if kind == "client" else 86400.0)
        for name, kind in zip(("c1", "c2"), kinds.get(seed.open_calls, ()), strict=False)
    )
    road.go(require_action(road.chat, step(road.chat, waits=waits)))


def _fail(road: _SeedBuilder, seed: Seed) -> None:
    road.go(fail_turn(road.chat, failing(step(road.chat), FAILED)))


def _archive(road: _SeedBuilder, seed: Seed) -> None:
    road.go(archive(road.chat))


def _fail_and_archive(road: _SeedBuilder, seed: Seed) -> None:
    _fail(road, seed)
    _archive(road, seed)


_LAST: dict[State, Callable[[_SeedBuilder, Seed], None]] = {
    State.W: _stay,
    State.E0: _fail,
    State.E1: _fail,
    State.P0: _release,
    State.P1: _release,
    State.R0: _stay,
    State.R1: _stay,
    State.I0: _stop,
    State.I1: _stop,
    State.A0: _ask_person,
    State.A1: _ask_person,
    State.XW0: _archive,
    State.XW1: _archive,
    State.XE0: _fail_and_archive,
    State.XE1: _fail_and_archive,
}


def step(chat: Chat, *messages: Draft, **columns: object) -> Step:
    """A step under the fence of the chat's owner."""
    taken = Step(fence=Fence.of(chat), messages=messages, client_tools=frozenset({CLIENT_TOOL}))
    return msgspec.structs.replace(taken, **columns)


def failing(taken: Step, error: ChatError = FAILED) -> FailTurn:
    """The command that fails the turn with the messages of the step."""
    return FailTurn(**msgspec.structs.asdict(taken), error=error)
