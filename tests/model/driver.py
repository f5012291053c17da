"""Random users and workers on the pure model.

A `Driver` has a root chat with two subagents, another root chat and two workers. Each step makes
one transition, on time or late, applies its change and checks the invariants. The given generator
is the only source of chance, so a seed replays and hypothesis can shrink.
"""

from collections import Counter
from random import Random
from uuid import UUID

import msgspec

from chatd.domain.chat.change import Change, IdempotencyKey
from chatd.domain.chat.commands import CreateChat
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat.states import TRANSITIONS, State, Transition, TransitionSide
from chatd.domain.chat.user_transitions import archive_tree, create, unarchive_tree
from chatd.domain.errors import RequestError, StaleFence, TransitionNotAllowed
from chatd.domain.ids import ChatId, RequestId, WorkerId
from tests.model.drafts import Drafts, check_prompts_unique
from tests.model.invariants import ChangeChecker, at_rest, check_alive, check_spend, check_trees
from tests.model.random_transitions import TransitionInput, make_transition
from tests.model.reference_store import (
    ChatRows,
    ReferenceStore,
    RepeatedRequest,
    VersionConflict,
    apply_change,
    apply_changes,
)
from tests.support.factories import OWNER

_MOVES = list(Transition)
_OFTEN = {
    Transition.REQUIRE_ACTION: 4,
    Transition.ANSWER_CALLS: 3,
    Transition.SUBMIT_TOOL_RESULTS: 3,
}
"""Many chances lead away from A: without these weights a walk is there too rarely."""
_LISTED = {
    state: [
        move
        for move in Transition
        for _ in range(_OFTEN.get(move, 1))
        if state in TRANSITIONS[move]
    ]
    for state in State
}
_FENCED = frozenset(
    {
        Transition.COMMIT_STEP,
        Transition.FINISH_TURN,
        Transition.REQUIRE_ACTION,
        Transition.FAIL_TURN,
        Transition.RECORD_RETRY,
        Transition.SUSPEND,
        Transition.NOTE_WAITS,
        Transition.FINISH_INTERRUPT,
    }
)


class Driver:
    """`seen` counts (transition, from, to); `to` is None for a refusal or no change."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.world = ReferenceStore()
        self.seen: Counter[tuple[Transition, State, State | None]] = Counter()
        self._drafts = Drafts(rng)
        self._workers = [WorkerId(UUID(int=100)), WorkerId(UUID(int=101))]
        self._dead: list[WorkerId] = []
        self._fences: list[Fence] = []
        self._late: list[Change] = []
        self._requests = 0
        self._paid_micros = 0
        self._checkers: dict[ChatId, ChangeChecker] = {}
        family = ChatId(UUID(int=1))
        for number, parent in ((1, None), (2, family), (3, family), (4, None)):
            self._open(ChatId(UUID(int=number)), parent)

    def _open(self, chat_id: ChatId, parent: ChatId | None) -> None:
        command = CreateChat(
            id=chat_id,
            owner_id=OWNER,
            title="A chat",
            prompt=self._drafts.prompt(),
            parent_chat_id=parent,
            root_chat_id=parent,
        )
        self._checkers[chat_id] = ChangeChecker()
        self._write(create(command, self._free()))

    def step(self) -> None:
        chance = self.rng.random()
        if chance < 0.02:
            self.crash()
        elif chance < 0.05:
            self.write_late()
        elif chance < 0.06:
            self._kill_workers(self.rng.choice(list(self.world.chats.values())))
        else:
            rows = self.rng.choice(list(self.world.chats.values()))
            self.move(rows, self.rng.choice(_LISTED[rows.chat.state] if chance < 0.8 else _MOVES))
        self.check()

    def check(self) -> None:
        chats = {chat_id: rows.chat for chat_id, rows in self.world.chats.items()}
        check_trees(chats)
        for chat in chats.values():
            check_alive(chat, (*self._workers, *self._dead))

    def move(self, rows: ChatRows, move: Transition) -> None:
        before = rows.chat
        if move in (Transition.ARCHIVE, Transition.UNARCHIVE):
            self._family(before, move)
            return
        at = self._moment(rows)
        try:
            change = make_transition(move, at)
        except (RequestError, StaleFence) as refused:
            _check_refusal(before, move, refused)
            change = None
        else:
            assert before.state in TRANSITIONS[move], f"{move} from {before.state} is not listed"
        self.seen[move, before.state, change and change.after.state] += 1
        if change is not None:
            assert change.after.state in TRANSITIONS[move][before.state], (
                "reached a state that is not listed"
            )
            assert move not in _FENCED or _holds(at.fence, before), "8: a stale fence wrote"
            self._write_maybe_late(change)

    # Circumstances

    def _moment(self, rows: ChatRows) -> TransitionInput:
        return TransitionInput(
            rng=self.rng,
            drafts=self._drafts,
            rows=rows,
            fence=self._fence(rows.chat),
            worker=self.rng.choice(self._workers),
            dead=rows.chat.worker_id or self._workers[0],
            free=self._free(),
        )

    def _free(self) -> WorkerId | None:
        return self.rng.choice((*self._workers, None))

    def _fence(self, chat: Chat) -> Fence:
        """Usually the current fence, sometimes an old one."""
        if chat.worker_id is not None:
            current = Fence.of(chat)
            self._fences = [*self._fences[-30:], current]
            if self.rng.random() < 0.85:
                return current
        if not self._fences:
            status = "running"
            return Fence(worker_id=self._workers[0], epoch=0, status=status, history_version=1)
        return self.rng.choice(self._fences)

    def crash(self) -> None:
        """Replace a worker; the chats of the old one wait to be reaped."""
        index = self.rng.randrange(len(self._workers))
        self._dead.append(self._workers[index])
        self._workers[index] = WorkerId(UUID(int=200 + len(self._dead)))

    def _kill_workers(self, rows: ChatRows) -> None:
        """A chat that kills every worker that acquires it."""
        for _ in range(4):
            self.move(rows, Transition.ACQUIRE)
            self.move(rows, Transition.REAP)

    # Writing

    def _write_maybe_late(self, change: Change) -> None:
        """Some changes are written late, some requests are repeated."""
        if self.rng.random() < 0.03:
            self._late = [*self._late[-5:], change]
        elif change.touch and self.rng.random() < 0.2:
            self._write(change.with_idempotency_key(self._request()))
        else:
            self._write(change)

    def _request(self) -> IdempotencyKey:
        if self._requests == 0 or self.rng.random() < 0.8:
            self._requests += 1
            number = self._requests
        else:
            number = self.rng.randint(1, self._requests)
        return IdempotencyKey(
            scope=OWNER, id=RequestId(UUID(int=number)), op="send", fingerprint=""
        )

    def write_late(self) -> None:
        """Write a delayed change; the row usually has a newer version."""
        if self._late:
            self._write(self._late.pop(self.rng.randrange(len(self._late))))

    def _write(self, change: Change) -> None:
        rows = self.world.chats.get(change.after.id)
        was = rows and (rows.chat, len(rows.messages), rows.queue)
        try:
            written = apply_change(self.world, change)
        except (VersionConflict, RepeatedRequest):
            assert rows is not None, "a new chat has no concurrent writer"
            assert was == (rows.chat, len(rows.messages), rows.queue), "a lost race wrote"
            return
        self._check_written(change, written)

    def _check_written(self, change: Change, rows: ChatRows) -> None:
        self._paid_micros += sum(entry.cost_micros or 0 for entry in change.usage)
        self._checkers[rows.chat.id].check_change(change, rows.chat, rows.messages, rows.queue)

    def _family(self, before: Chat, move: Transition) -> None:
        decide = archive_tree if move is Transition.ARCHIVE else unarchive_tree
        try:
            changes = decide(self.world.tree(before.root_chat_id), before.id)
        except RequestError:
            self.seen[move, before.state, None] += 1
            return
        apply_changes(self.world, changes)
        for change in changes:
            assert change.before is not None
            self.seen[move, change.before.state, change.after.state] += 1
            self._check_written(change, self.world.chats[change.after.id])

    # The end

    def finish(self) -> None:
        """Check the totals; then let workers alone finish all chats."""
        check_spend(self.world.usage, self._paid_micros)
        for rows in self.world.chats.values():
            self._settle(rows)
            check_prompts_unique(rows)

    def _settle(self, rows: ChatRows) -> None:
        """Without users, turn and queue end, even after crashes."""
        steps_left = 8 + 8 * rows.chat.queue_len
        while not at_rest(rows.chat):
            steps_left -= 1
            assert steps_left > 0, f"{rows.chat.state} does not settle"
            at = self._moment(rows)
            if rows.chat.worker_id is not None:
                at = msgspec.structs.replace(at, fence=Fence.of(rows.chat))
            change = make_transition(_next_worker_transition(rows.chat, self._workers), at)
            assert change is not None, "a worker made no change"
            self._write(change)


def _check_refusal(chat: Chat, move: Transition, refused: RequestError | StaleFence) -> None:
    who = TransitionSide.USER if isinstance(refused, RequestError) else TransitionSide.WORKER
    assert move.side is who, f"{move} was refused with {refused!r}"
    if isinstance(refused, TransitionNotAllowed):
        assert chat.state not in TRANSITIONS[move], f"{move} from {chat.state} is listed"


def _next_worker_transition(chat: Chat, workers: list[WorkerId]) -> Transition:
    """The next transition of a worker."""
    if chat.status == "requires_action":
        return Transition.EXPIRE_ACTION
    if chat.worker_id is None:
        return Transition.ACQUIRE
    if chat.worker_id not in workers:
        return Transition.REAP
    if chat.status == "interrupting":
        return Transition.FINISH_INTERRUPT
    return Transition.FINISH_TURN


def _holds(fence: Fence, chat: Chat) -> bool:
    now = Fence.of(chat)
    return now == msgspec.structs.replace(
        fence, snapshot_version=now.snapshot_version, change_id=now.change_id
    )
