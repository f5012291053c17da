"""Users and workers that act at random on a few chats, through the store.

Each role is a method that does one random action. Acknowledged writes go into the change log; every
refusal must have a documented code. `ConcurrentRun` runs the roles in many tasks, with or
without an outage.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, TypeAlias
from uuid import UUID

from chatd.domain.chat.commands import CreateChat
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat.states import TRANSITIONS, Transition
from chatd.domain.chat.user_transitions import create
from chatd.domain.errors import Conflict, RequestError, StaleFence, Unavailable
from chatd.domain.ids import ChangeId, ChatId, MessageId, UserId, WorkerId
from chatd.store.chat import chats, workers
from chatd.store.chat.operation import AppliedChange
from chatd.store.database.pool import Pool
from tests.support.change_log import ChangeLog, prompt_texts
from tests.support.eventually import eventually
from tests.support.factories import HARNESS, prompt
from tests.support.operations import archiving, create_chat, deciding_transactor, tree
from tests.support.random_operations import (
    NAME_A_MESSAGE,
    OTHER_USER_TRANSITIONS,
    SENDS,
    OperationPlan,
    RetriedOperation,
)
from tests.support.stored import check_all, paid_micros, stored

_RUNNING: Final = (
    *(Transition.COMMIT_STEP,) * 6,
    *(Transition.FINISH_TURN,) * 3,
    *(Transition.REQUIRE_ACTION,) * 2,
    Transition.FAIL_TURN,
    Transition.RECORD_RETRY,
    Transition.SUSPEND,
    Transition.NOTE_WAITS,
)
_WITH_TEXT: Final = frozenset((*SENDS, Transition.EDIT_MESSAGE, Transition.EDIT_QUEUED))
_OWNER: Final = UserId(UUID(int=7))
_MAX_CHATS: Final = 40


ANY_ISOLATED = workers.IsolatedVacancy(chats=1000)


class RandomActors:
    def __init__(self, pool: Pool, rng: Random) -> None:
        self.pool = pool
        self.rng = rng
        self.change_log = ChangeLog()
        self.transactor = deciding_transactor(pool, self._on_applied)
        self.workers = [WorkerId(UUID(int=100 + index)) for index in range(2)]
        self.seen: dict[ChatId, Chat] = {}
        self.said: set[str] = set()
        self.refused: set[str] = set()
        self.outcomes: Counter[str] = Counter()
        self.unknown: list[RetriedOperation] = []
        self._numbers = itertools.count(1)

    def _on_applied(self, applied: AppliedChange) -> None:
        self._remember(applied.chat)

    def _remember(self, row: Chat) -> None:
        last = self.seen.get(row.id)
        if last is None or last.snapshot_version < row.snapshot_version:
            self.seen[row.id] = row

    async def create_chats(self, *, single: int, trees: int = 0, children: int = 0) -> None:
        for _ in range(single):
            await self.create(None, free=self._free())
        for _ in range(trees):
            root = await self.create(None, free=self._free())
            for _ in range(children):
                await self.create(root, free=self._free())

    async def check(self) -> None:
        """Assert that every acknowledged write is stored exactly once, and nothing else."""
        everything = await stored(self.pool)
        check_all(everything, self.change_log.marked)
        replay = self.change_log.check(everything)
        paid = sum(entry.cost_micros or 0 for entry in replay.store.usage)
        assert await paid_micros(self.pool) == paid
        there = Counter(word for found in everything.values() for word in prompt_texts(found))
        for word in self.said:
            assert there[word] == 1 or (there[word] == 0 and word in replay.dropped), word
        assert not self.refused & there.keys()

    # Roles

    async def act_as_any(self) -> None:
        await self.rng.choice((self.act_as_user, self.act_as_worker, self.reap_or_expire))()

    async def act_as_user(self) -> None:
        row = self._any_chat()
        move = self._choose_transition(row)
        target = MessageId(self.rng.randint(1, row.next_message_id))
        await self._do(
            OperationPlan(
                move=move,
                chat_id=row.id,
                number=next(self._numbers),
                free=self._free(),
                target=target if move in NAME_A_MESSAGE else None,
                known=row if self.rng.random() < 0.3 else None,
            )
        )

    def _choose_transition(self, row: Chat) -> Transition:
        moves = SENDS if self.rng.random() < 0.4 else OTHER_USER_TRANSITIONS
        sensible = [move for move in moves if row.state in TRANSITIONS[move]]
        return self.rng.choice(sensible if sensible and self.rng.random() < 0.8 else moves)

    async def act_as_worker(self) -> None:
        me = self.rng.choice(self.workers)
        chance = self.rng.random()
        mine = [row for row in self.seen.values() if row.worker_id == me]
        if not mine or chance < 0.2:
            await self._acquire(me)
        elif chance < 0.23:
            await self._release(me, self.rng.choice((None, [self.rng.choice(mine).id])))
        else:
            await self.run_step()

    async def _acquire(self, me: WorkerId) -> None:
        roots, children = self.rng.randint(0, 3), self.rng.randint(0, 3)
        taken = await workers.acquire(
            self.pool, me, roots=roots, children=children, isolated=ANY_ISOLATED
        )
        self.change_log.add_acquired(taken)
        self.outcomes["acquired"] += len(taken)
        for row in taken:
            self._remember(row)

    async def _release(self, me: WorkerId, only: list[ChatId] | None) -> None:
        rows = await workers.release(self.pool, me, only)
        self.change_log.add_released(rows, me)
        self.outcomes["released"] += len(rows)
        for row in rows:
            self._remember(row)

    async def run_step(self) -> None:
        """Commit the next step of a chat that has an owner as far as this object knows."""
        owned = [row for row in self.seen.values() if row.worker_id is not None]
        if not owned:
            await self.act_as_user()
            return
        row = self.rng.choice(owned)
        stopping = row.status == "interrupting"
        move = Transition.FINISH_INTERRUPT if stopping else self.rng.choice(_RUNNING)
        number, fence = next(self._numbers), Fence.of(row)
        await self._do(
            OperationPlan(move=move, chat_id=row.id, number=number, fence=fence, known=row)
        )

    async def reap_or_expire(self) -> None:
        """Reap workers that are not dead, and expire deadlines that have not passed."""
        row = self._any_chat()
        move = self.rng.choice(
            (
                Transition.REAP,
                Transition.EXPIRE_ACTION,
                Transition.EXPIRE_INTERRUPT,
                Transition.WAKE,
            )
        )
        dead = self.rng.choice(self.workers)
        await self._do(
            OperationPlan(move=move, chat_id=row.id, number=next(self._numbers), dead=dead)
        )

    async def change_tree(self) -> None:
        """Start subagents; sometimes archive a chat tree, and unarchive it soon after."""
        root = self.rng.choice([row for row in self.seen.values() if row.is_root])
        chance = self.rng.random()
        if root.archived or chance < 0.1:
            await self._toggle_archived(root)
        elif chance < 0.15 and len(self.seen) < _MAX_CHATS:
            await self.create(root.id, free=self._free())
        else:
            await self.act_as_worker()

    async def _toggle_archived(self, root: Chat) -> None:
        change_id = ChangeId(next(self._numbers))
        archived = not root.archived
        try:
            outcome = await self.transactor.run(archiving(root.id, change_id, archived=archived))
        except RequestError as error:
            self.outcomes[f"tree {error.code}"] += 1
            return
        for applied in tree(outcome) if isinstance(outcome, AppliedChange) else []:
            assert applied.change is not None
            self.change_log.add(applied.change, change_id)
            self.outcomes["archived" if archived else "unarchived"] += 1

    async def create(self, root: ChatId | None, *, free: WorkerId | None = None) -> ChatId | None:
        """None if the chat tree was archived meanwhile."""
        number = next(self._numbers)
        command = self.new_chat(root, number)
        try:
            await create_chat(self.transactor, command, ChangeId(number), free=free)
        except Conflict as error:
            assert error.code == "parent_archived"
            self.outcomes["create refused"] += 1
            return None
        self.change_log.add(create(command, free), ChangeId(number))
        self.said.add(f"words {number}")
        return command.id

    def new_chat(self, root: ChatId | None, number: int) -> CreateChat:
        return CreateChat(
            id=ChatId(UUID(int=10**9 + number)),
            owner_id=_OWNER,
            title="A chat",
            prompt=prompt(f"words {number}"),
            parent_chat_id=root,
            root_chat_id=root,
        )

    # Operations

    async def _do(self, plan: OperationPlan) -> None:
        operation = RetriedOperation(plan, self.change_log)
        try:
            await self.run(operation)
        except Unavailable:
            self.unknown.append(operation)
            raise

    async def run(self, operation: RetriedOperation) -> None:
        plan = operation.plan
        try:
            outcome = await operation.run(self.transactor)
        except RequestError as error:
            self.outcomes[f"{plan.move} {error.code}"] += 1
            self.refused.add(plan.text)
            return
        except StaleFence:
            self.outcomes[f"{plan.move} stale"] += 1
            if (row := await chats.get(self.pool, HARNESS, plan.chat_id)) is not None:
                self._remember(row)
            return
        replayed = isinstance(outcome, AppliedChange) and outcome.replayed
        self.outcomes[f"{plan.move} {'replayed' if replayed else type(outcome).__name__}"] += 1
        if plan.move in _WITH_TEXT:
            self.said.add(plan.text)

    def _any_chat(self) -> Chat:
        """The first five chats are chosen more often."""
        rows = list(self.seen.values())
        return self.rng.choice(rows[:5] if self.rng.random() < 0.4 else rows)

    def _free(self) -> WorkerId | None:
        return self.rng.choice((*self.workers, None))


Role: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class ConcurrentRun:
    """The database and the event loop decide the order.

    With `outage`, a task ends when the database is unavailable, and its operation is retried later.
    Without it, an unavailable database fails the test.
    """

    def __init__(self, actors: RandomActors, *, outage: bool = False) -> None:
        self._actors = actors
        self._outage = outage
        self._left = 0
        self._done = 0
        self._progress = asyncio.Condition()
        self.retried = 0

    async def run(self, roles: dict[Role, int], *, max_actions: int, timeout_s: float) -> None:
        """Run each role in that many tasks, until `max_actions` actions are done or the time is
        up."""
        self._left = max_actions
        until = asyncio.get_running_loop().time() + timeout_s
        async with asyncio.TaskGroup() as group:
            for role, count in roles.items():
                for _ in range(count):
                    group.create_task(self._repeat(role, until))

    async def _repeat(self, role: Role, until: float) -> None:
        clock = asyncio.get_running_loop().time
        while self._left > 0 and clock() < until:
            self._left -= 1
            try:
                await role()
            except Unavailable:
                if self._outage:
                    return
                raise
            self._done += 1
            async with self._progress:
                self._progress.notify_all()

    async def wait_done(self, deeds: int) -> None:
        """Wait until that many more actions are done."""
        goal = self._done + deeds
        async with asyncio.timeout(30), self._progress:
            await self._progress.wait_for(lambda: self._done >= goal)

    def stop(self) -> None:
        self._left = 0

    async def finish_unknown(self) -> None:
        """Retry all operations with an unknown outcome concurrently, until each is known."""
        unknown, self._actors.unknown = self._actors.unknown, []
        self.retried += len(unknown)
        async with asyncio.TaskGroup() as group:
            for operation in unknown:
                group.create_task(self._until_known(operation))

    async def _until_known(self, operation: RetriedOperation) -> None:
        async def attempt() -> bool:
            try:
                await self._actors.run(operation)
            except Unavailable:
                return False
            return True

        await eventually(attempt, within_s=30)
