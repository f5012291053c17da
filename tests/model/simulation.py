"""The shared state of the simulation: chats, replicas, time, hints and a log.

One generator is the only source of chance, so a seed replays. Time is simulated: when it passes,
deadlines are moved back and the replicas' clock forward.
"""

from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Final, LiteralString
from uuid import UUID

from chatd.domain.chat.call_waits import CLIENT_TOOL_DEADLINE_S
from chatd.domain.chat.change import INTERRUPT_DEADLINE_S
from chatd.domain.chat.commands import CreateChat
from chatd.domain.chat.row import RECENT_CHANGES_KEPT, Chat, Hint
from chatd.domain.ids import ChangeId, ChatId, UserId
from chatd.store.chat.operation import AppliedChange
from chatd.store.chat.workers import worker_lock_key
from chatd.store.database.conn import DatabaseSession
from chatd.store.database.notifications import HOLD_WORKER_LOCK
from chatd.store.database.pool import Pool
from tests.model.checked_store import CheckedStore
from tests.model.invariants import check_alive
from tests.model.replica import ModelReplica, ModelRunner, WrittenOperation
from tests.support.client_state import ClientState
from tests.support.factories import prompt
from tests.support.random_operations import OperationPlan, RetriedOperation

RELEASE_WORKER_LOCK: Final[LiteralString] = "SELECT pg_advisory_unlock_shared($1)"
# Deadlines expire by simulated time, not by the real time of a walk.
AGE_CHATS: Final[LiteralString] = """
    UPDATE chats c SET
        action_deadline = CASE WHEN c.action_deadline IS NOT NULL THEN d.deadline END,
        interrupt_deadline = CASE WHEN c.interrupt_deadline IS NOT NULL THEN d.deadline END
    FROM (SELECT id, now() + CASE WHEN id = ANY ($1::uuid[]) THEN '-1 s' ELSE '1 h' END::interval
            AS deadline FROM chats) d
    WHERE d.id = c.id AND (c.action_deadline IS NOT NULL OR c.interrupt_deadline IS NOT NULL)"""

USERS: Final = (UserId(UUID(int=7)), UserId(UUID(int=8)))


class Simulation:
    """`locks` is the session that holds the replicas' locks. Other tests show that a dead process
    releases its lock."""

    def __init__(self, pool: Pool, locks: DatabaseSession, rng: Random) -> None:
        self.rng = rng
        self.now = 1000.0
        self.store = CheckedStore(pool, self._on_applied)
        self.replicas = [ModelReplica(self.store, rng) for _ in range(2)]
        self.serving: ModelReplica | None = None
        self.hint_loss_rate = 0.3
        self.reply_lost = False
        self.written: deque[WrittenOperation] = deque(maxlen=8)
        self.views: dict[ChatId, deque[ClientState]] = {}
        self.log: list[str] = []
        self._locks = locks
        self._numbers = 0
        self._rows: dict[ChatId, deque[Chat]] = {}
        self._all_worker_ids = {replica.id for replica in self.replicas}

    async def begin(self) -> None:
        """A chat tree of three, another user's chat, and two replicas with a heartbeat."""
        for replica in self.replicas:
            await self._locks.fetchval(HOLD_WORKER_LOCK, worker_lock_key(replica.id))
            await replica.send_heartbeat(self.now)
        root = await self.create(USERS[0], None)
        await self.create(USERS[0], root)
        await self.create(USERS[0], root)
        await self.create(USERS[1], None)

    def start_step(self, name: str) -> None:
        self.log.append(f"{len(self.log)} {self.now:.1f} {name}")
        self.serving = None
        self.reply_lost = False

    def note(self, what: str) -> None:
        self.log[-1] += f" {what}"

    def check(self) -> None:
        for chat in self.store.chats.values():
            check_alive(chat, self._all_worker_ids)

    # Writing

    async def do(self, plan: OperationPlan) -> WrittenOperation | None:
        operation = RetriedOperation(plan, self.store.change_log)
        applied = await self.store.do(operation)
        chat = self.store.chats[plan.chat_id]
        outcome = f"-> {chat.snapshot_version} {chat.state}" if applied else "-> nothing"
        self.note(f"{plan.move} #{plan.number} on {str(plan.chat_id)[-4:]} {outcome}")
        if applied is None:
            return None
        written = WrittenOperation(operation=operation, version=applied.chat.snapshot_version)
        self.written.append(written)
        return written

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
        self.choose_replica()
        free = self.serving.free if self.serving else None
        await self.store.create(command, free, ChangeId(number))
        self.views[command.id] = deque([ClientState()], maxlen=6)
        return command.id

    async def repeat_write(self, written: WrittenOperation) -> bool:
        """Repeat a write whose reply was lost. False if the row has had too many changes since to
        recognize it."""
        chat = self.store.chats[written.operation.plan.chat_id]
        if chat.snapshot_version - written.version >= RECENT_CHANGES_KEPT:
            return False
        await self.store.repeat(written.operation)
        self.note(f"again #{written.operation.plan.number}")
        return True

    # Hints

    def _on_applied(self, applied: AppliedChange) -> None:
        self._rows.setdefault(applied.chat.id, deque(maxlen=4)).append(applied.chat)
        if self.reply_lost:
            return
        if self.serving is not None:
            self.serving.on_own_row(applied.chat)
        for replica in self.replicas:
            for _ in range(self.rng.choice((1, 1, 1, 2))):
                if self.rng.random() >= self.hint_loss_rate:
                    replica.inbox.append(Hint.of(applied.chat))
            del replica.inbox[:-20]

    # Time and death

    async def pass_time(self, seconds: float) -> None:
        """The longer, the more likely a deadline expires."""
        self.now += seconds
        likely = {"interrupting": INTERRUPT_DEADLINE_S, "requires_action": CLIENT_TOOL_DEADLINE_S}
        await self.expire(
            [
                chat.id
                for chat in self.store.chats.values()
                if chat.status in likely and self.rng.random() * likely[chat.status] < seconds
            ]
        )

    async def expire(self, chats: Iterable[ChatId]) -> None:
        await self.store.pool.execute(AGE_CHATS, list(chats))

    async def replace_replica(self, replica: ModelReplica) -> None:
        """End the process; a new one replaces it."""
        await self._locks.fetchval(RELEASE_WORKER_LOCK, worker_lock_key(replica.restart()))
        await self._locks.fetchval(HOLD_WORKER_LOCK, worker_lock_key(replica.id))
        self._all_worker_ids.add(replica.id)
        if self.rng.random() < 0.8:
            # Without it the replica may acquire chats before its first heartbeat.
            await replica.send_heartbeat(self.now)

    def stale_chat_tasks(self) -> list[ModelRunner]:
        return [runner for replica in self.replicas for runner in replica.stale_chat_tasks]

    # Chance

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def choose_replica(self) -> None:
        """Choose the replica that gets the request; None is one without a worker."""
        self.serving = self.rng.choice((*self.awake(), None))

    def any_chat(self) -> Chat:
        return self.rng.choice(list(self.store.chats.values()))

    def awake(self) -> list[ModelReplica]:
        return [replica for replica in self.replicas if replica.awake]

    def perhaps_old_row(self, chat_id: ChatId) -> Chat | None:
        rows = self._rows.get(chat_id)
        return self.rng.choice(rows) if rows and self.rng.random() < 0.4 else None
