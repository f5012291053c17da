"""Many people and a few workers on a handful of chats, all through the store.

Each role is a method that does one thing at random. Every acknowledged write goes into the
ledger; every refusal must be one that a caller understands. Doing it all at once is `storm`'s.
"""

import itertools
from collections import Counter
from random import Random
from typing import Final
from uuid import UUID

from chatd.domain.chat.commands import CreateChat
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.chat.states import TRANSITIONS, Transition
from chatd.domain.chat.user_transitions import create
from chatd.domain.errors import Conflict, RequestError, StaleFence, Unavailable
from chatd.domain.ids import ChangeId, ChatId, MessageId, UserId, WorkerId
from chatd.store.chat import chats, workers
from chatd.store.chat.operation import AppliedChange
from chatd.store.pool import Pool
from tests.support.errands import OTHER_USER_MOVES, SENDS, Errand, Plan
from tests.support.factories import prompt
from tests.support.ledger import Ledger, said
from tests.support.operations import archiving, create_chat, deciding_transactor, tree
from tests.support.stored import check_all, paid_micros, stored

_RUNNING: Final = (
    *(Transition.COMMIT_STEP,) * 6,
    *(Transition.FINISH_TURN,) * 3,
    *(Transition.REQUIRE_ACTION,) * 2,
    Transition.FAIL_TURN,
    Transition.RECORD_RETRY,
)
_SAYING: Final = frozenset((*SENDS, Transition.EDIT_MESSAGE, Transition.EDIT_QUEUED))
_OWNER: Final = UserId(UUID(int=7))
_MOST_CHATS: Final = 40


class Crowd:
    def __init__(self, pool: Pool, rng: Random) -> None:
        self.pool = pool
        self.rng = rng
        self.ledger = Ledger()
        self.transactor = deciding_transactor(pool, self._tell)
        self.workers = [WorkerId(UUID(int=100 + index)) for index in range(2)]
        self.seen: dict[ChatId, Chat] = {}
        self.said: set[str] = set()
        self.refused: set[str] = set()
        self.happened: Counter[str] = Counter()
        self.unknown: list[Errand] = []
        self._numbers = itertools.count(1)

    def _tell(self, applied: AppliedChange) -> None:
        self._hear(applied.chat)

    def _hear(self, row: Chat) -> None:
        last = self.seen.get(row.id)
        if last is None or last.snapshot_version < row.snapshot_version:
            self.seen[row.id] = row

    async def settle_in(self, *, alone: int, families: int = 0, children: int = 0) -> None:
        for _ in range(alone):
            await self.create(None, free=self._free())
        for _ in range(families):
            root = await self.create(None, free=self._free())
            for _ in range(children):
                await self.create(root, free=self._free())

    async def check(self) -> None:
        """Everything that was acknowledged is there once, and nothing else."""
        everything = await stored(self.pool)
        check_all(everything, self.ledger.marked)
        replay = self.ledger.check(everything)
        paid = sum(entry.cost_micros or 0 for entry in replay.world.usage)
        assert await paid_micros(self.pool) == paid
        there = Counter(word for found in everything.values() for word in said(found))
        for word in self.said:
            assert there[word] == 1 or (there[word] == 0 and word in replay.unsaid), word
        assert not self.refused & there.keys()

    # Roles

    async def someone(self) -> None:
        await self.rng.choice((self.person, self.worker, self.gravedigger))()

    async def person(self) -> None:
        row = self._any_chat()
        move = self._wish(row)
        target = MessageId(self.rng.randint(1, row.next_message_id))
        await self._do(
            Plan(
                move=move,
                chat_id=row.id,
                number=next(self._numbers),
                free=self._free(),
                target=target if move is Transition.EDIT_MESSAGE else None,
                known=row if self.rng.random() < 0.3 else None,
            )
        )

    def _wish(self, row: Chat) -> Transition:
        moves = SENDS if self.rng.random() < 0.4 else OTHER_USER_MOVES
        sensible = [move for move in moves if row.state in TRANSITIONS[move]]
        return self.rng.choice(sensible if sensible and self.rng.random() < 0.8 else moves)

    async def worker(self) -> None:
        me = self.rng.choice(self.workers)
        chance = self.rng.random()
        mine = [row for row in self.seen.values() if row.worker_id == me]
        if not mine or chance < 0.2:
            await self._acquire(me)
        elif chance < 0.23:
            await self._release(me, self.rng.choice((None, [self.rng.choice(mine).id])))
        else:
            await self.labourer()

    async def _acquire(self, me: WorkerId) -> None:
        roots, children = self.rng.randint(0, 3), self.rng.randint(0, 3)
        taken = await workers.acquire(self.pool, me, roots=roots, children=children)
        self.ledger.acquired(taken)
        self.happened["acquired"] += len(taken)
        for row in taken:
            self._hear(row)

    async def _release(self, me: WorkerId, only: list[ChatId] | None) -> None:
        rows = await workers.release(self.pool, me, only)
        self.ledger.released(rows, me)
        self.happened["released"] += len(rows)
        for row in rows:
            self._hear(row)

    async def labourer(self) -> None:
        """Takes the next step of a chat that somebody is believed to own."""
        owned = [row for row in self.seen.values() if row.worker_id is not None]
        if not owned:
            await self.person()
            return
        row = self.rng.choice(owned)
        stopping = row.status == "interrupting"
        move = Transition.FINISH_INTERRUPT if stopping else self.rng.choice(_RUNNING)
        number, fence = next(self._numbers), Fence.of(row)
        await self._do(Plan(move=move, chat_id=row.id, number=number, fence=fence, known=row))

    async def gravedigger(self) -> None:
        """Takes workers for dead that are not, and ends what has not waited long enough."""
        row = self._any_chat()
        move = self.rng.choice(
            (Transition.REAP, Transition.EXPIRE_ACTION, Transition.EXPIRE_INTERRUPT)
        )
        dead = self.rng.choice(self.workers)
        await self._do(Plan(move=move, chat_id=row.id, number=next(self._numbers), dead=dead))

    async def parent(self) -> None:
        """Starts subagents; sometimes archives a family, and soon brings it back."""
        root = self.rng.choice([row for row in self.seen.values() if row.is_root])
        chance = self.rng.random()
        if root.archived or chance < 0.1:
            await self._shelve(root)
        elif chance < 0.15 and len(self.seen) < _MOST_CHATS:
            await self.create(root.id, free=self._free())
        else:
            await self.worker()

    async def _shelve(self, root: Chat) -> None:
        change_id = ChangeId(next(self._numbers))
        archived = not root.archived
        try:
            outcome = await self.transactor.run(archiving(root.id, change_id, archived=archived))
        except RequestError as error:
            self.happened[f"tree {error.code}"] += 1
            return
        for applied in tree(outcome) if isinstance(outcome, AppliedChange) else []:
            assert applied.change is not None
            self.ledger.wrote(applied.change, change_id)
            self.happened["archived" if archived else "unarchived"] += 1

    async def create(self, root: ChatId | None, *, free: WorkerId | None = None) -> ChatId | None:
        """None if the family was archived meanwhile."""
        number = next(self._numbers)
        command = self.new_chat(root, number)
        try:
            await create_chat(self.transactor, command, ChangeId(number), free=free)
        except Conflict as error:
            assert error.code == "parent_archived"
            self.happened["create refused"] += 1
            return None
        self.ledger.wrote(create(command, free), ChangeId(number))
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

    # How a thing is done

    async def _do(self, plan: Plan) -> None:
        errand = Errand(plan, self.ledger)
        try:
            await self.run(errand)
        except Unavailable:
            self.unknown.append(errand)
            raise

    async def run(self, errand: Errand) -> None:
        plan = errand.plan
        try:
            outcome = await errand.run(self.transactor)
        except RequestError as error:
            self.happened[f"{plan.move} {error.code}"] += 1
            self.refused.add(plan.saying)
            return
        except StaleFence:
            self.happened[f"{plan.move} stale"] += 1
            if (row := await chats.get(self.pool, plan.chat_id)) is not None:
                self._hear(row)
            return
        replayed = isinstance(outcome, AppliedChange) and outcome.replayed
        self.happened[f"{plan.move} {'replayed' if replayed else type(outcome).__name__}"] += 1
        if plan.move in _SAYING:
            self.said.add(plan.saying)

    def _any_chat(self) -> Chat:
        """Some are more popular than others."""
        rows = list(self.seen.values())
        return self.rng.choice(rows[:5] if self.rng.random() < 0.4 else rows)

    def _free(self) -> WorkerId | None:
        return self.rng.choice((*self.workers, None))
