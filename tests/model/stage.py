"""What everybody in the database's model shares: chats, replicas, time, news and a log.

All chance comes from one generator, so a seed replays. Time is the model's own: when it passes,
the rows that bear times are made older and the replicas' clock goes on by as much.
"""

from collections import Counter, deque
from random import Random
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.chat import Chat, Fence
from chatd.domain.commands import CreateChat
from chatd.domain.hint import Hint
from chatd.domain.ids import ChangeId, ChatId, UserId
from chatd.domain.user_moves import create
from chatd.store.conn import Session
from chatd.store.listen import HOLD
from chatd.store.pool import Pool
from chatd.store.transact import Applied
from chatd.store.workers import lock_key
from tests.model.invariants import check_alive
from tests.model.mirror import Mirror
from tests.model.replica import Replica
from tests.support.client_state import ClientState
from tests.support.errands import Errand, Plan
from tests.support.factories import prompt

LET_GO: Final[LiteralString] = "SELECT pg_advisory_unlock_shared($1)"
AGE_WORKERS: Final[LiteralString] = """
    UPDATE chat_workers SET renewed_at = renewed_at - $1::float8 * interval '1 s',
        lease_until = lease_until - $1::float8 * interval '1 s'"""
AGE_CHATS: Final[LiteralString] = """
    UPDATE chats SET action_deadline = action_deadline - $1::float8 * interval '1 s',
        interrupt_deadline = interrupt_deadline - $1::float8 * interval '1 s'
    WHERE action_deadline IS NOT NULL OR interrupt_deadline IS NOT NULL"""

PEOPLE: Final = (UserId(UUID(int=7)), UserId(UUID(int=8)))


class Written(Struct, frozen=True, kw_only=True):
    """An errand that was carried out, whether or not anybody has heard so."""

    errand: Errand
    version: int


class Stage:
    """`locks` is the session that holds the replicas' locks. One session can hold them all and
    let go of each at once; that a dead process lets go of its lock is tested elsewhere."""

    def __init__(self, pool: Pool, locks: Session, rng: Random) -> None:
        self.rng = rng
        self.now = 1000.0
        self.mirror = Mirror(pool, self._tell)
        self.replicas = [Replica(self.mirror, rng) for _ in range(2)]
        self.serving: Replica | None = None
        self.hints_get_lost = 0.3
        self.nobody_hears = False
        self.written: deque[Written] = deque(maxlen=8)
        self.ghosts: deque[tuple[Fence, Chat]] = deque(maxlen=8)
        self.views: dict[ChatId, deque[ClientState]] = {}
        self.log: list[str] = []
        self.happened: Counter[str] = Counter()
        self._locks = locks
        self._numbers = 0
        self._rows: dict[ChatId, deque[Chat]] = {}
        self._everyone = {replica.id for replica in self.replicas}

    async def begin(self) -> None:
        """A family of three, a chat of somebody else, and two replicas that tick."""
        for replica in self.replicas:
            await self._locks.fetchval(HOLD, lock_key(replica.id))
            await replica.tick(self.now)
        root = await self.create(PEOPLE[0], None)
        await self.create(PEOPLE[0], root)
        await self.create(PEOPLE[0], root)
        await self.create(PEOPLE[1], None)

    def scene(self, name: str) -> None:
        self.log.append(f"{len(self.log)} {self.now:.1f} {name}")
        self.happened[name] += 1
        self.serving = None
        self.nobody_hears = False

    def note(self, what: str) -> None:
        self.log[-1] += f" {what}"

    def check(self) -> None:
        for chat in self.mirror.chats.values():
            check_alive(chat, self._everyone)

    # Writing

    async def do(self, plan: Plan) -> Applied | None:
        errand = Errand(plan, self.mirror.ledger)
        applied = await self.mirror.do(errand)
        chat = self.mirror.chats[plan.chat_id]
        outcome = f"-> {chat.snapshot_version} {chat.state}" if applied else "-> nothing"
        self.note(f"{plan.move} #{plan.number} on {str(plan.chat_id)[-4:]} {outcome}")
        self.happened[f"{plan.move} {'done' if applied else 'refused'}"] += 1
        if applied is not None:
            version = applied.chat.snapshot_version
            self.written.append(Written(errand=errand, version=version))
        return applied

    async def create(self, owner: UserId, root: ChatId | None) -> ChatId:
        number = self.number()
        command = CreateChat(
            id=ChatId(UUID(int=10**9 + number)),
            owner_id=owner,
            title="A chat",
            prompt=prompt(f"words {number}"),
            parent_chat_id=root,
            root_chat_id=root,
        )
        self.serve()
        change = create(command, self.serving.free if self.serving else None)
        await self.mirror.create(change, ChangeId(number))
        self.views[command.id] = deque([ClientState()], maxlen=6)
        return command.id

    # News

    def _tell(self, applied: Applied) -> None:
        self._rows.setdefault(applied.chat.id, deque(maxlen=4)).append(applied.chat)
        if self.nobody_hears:
            return
        if self.serving is not None:
            self.serving.own(applied.chat)
        for replica in self.replicas:
            for _ in range(self.rng.choice((1, 1, 1, 2))):
                if self.rng.random() >= self.hints_get_lost:
                    replica.inbox.append(Hint.of(applied.chat))
            del replica.inbox[:-20]

    # Time and death

    async def pass_time(self, seconds: float) -> None:
        self.now += seconds
        await self.mirror.pool.execute(AGE_WORKERS, seconds)
        await self.age_chats(seconds)

    async def age_chats(self, seconds: float) -> None:
        await self.mirror.pool.execute(AGE_CHATS, seconds)

    async def die(self, replica: Replica) -> None:
        """Another process takes its place. What the dead one had sent may still arrive."""
        self.ghosts += [(runner.fence, runner.row) for runner in replica.runners.values()]
        await self._locks.fetchval(LET_GO, lock_key(replica.reborn()))
        await self._locks.fetchval(HOLD, lock_key(replica.id))
        self._everyone.add(replica.id)
        await replica.tick(self.now)

    # Chance

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def serve(self) -> None:
        """Some replica gets the request; if it has no worker, nobody takes the chat at once."""
        self.serving = self.rng.choice((*self.awake(), None))

    def any_chat(self) -> Chat:
        return self.rng.choice(list(self.mirror.chats.values()))

    def awake(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.awake]

    def perhaps_old_row(self, chat_id: ChatId) -> Chat | None:
        rows = self._rows.get(chat_id)
        return self.rng.choice(rows) if rows and self.rng.random() < 0.4 else None
