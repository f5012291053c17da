"""A replica as the database sees it: a worker with slots, an inbox of hints, and runners.

It decides by chatd's own pure rules: the next action, the reaction to a row, trust in a lease. The
simulation decides when it acts.
"""

from collections import deque
from random import Random
from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.domain.chat import lease
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat, Fence, Hint
from chatd.domain.chat.states import Transition
from chatd.domain.decisions import (
    PENDING_CALLS_MISMATCH_ERROR,
    Action,
    AskHooks,
    Compact,
    DeferRow,
    Fail,
    Finish,
    Generate,
    IgnoreRow,
    RequireAction,
    RestartTask,
    RunTools,
    StartCommand,
    StopChatTask,
    TaskView,
    TurnRules,
    UpdateView,
    decide_reaction,
    next_action,
)
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.prompt import compaction
from chatd.store.chat import chats, messages, workers
from chatd.store.chat.workers import Heartbeat, HeartbeatResult
from tests.model.checked_store import PASS_DELAYS, CheckedStore
from tests.model.drafts import CLIENT_TOOLS
from tests.support.factories import HARNESS
from tests.support.random_operations import RetriedOperation

SLOTS: Final = 3
HEARTBEAT_INTERVAL_S: Final = 3.0
_NOTHING_OBSERVED: Final = lease.WorkerObservations(
    history=lease.HeartbeatHistory(interval_s=HEARTBEAT_INTERVAL_S)
)
_RULES: Final = TurnRules(client_tools=CLIENT_TOOLS)
_GENERATED: Final = (
    *(Transition.COMMIT_STEP,) * 5,
    *(Transition.FINISH_TURN,) * 3,
    Transition.REQUIRE_ACTION,
    Transition.FAIL_TURN,
    Transition.RECORD_RETRY,
)


class WrittenOperation(Struct, frozen=True, kw_only=True):
    """An operation that was applied; its reply may have been lost."""

    operation: RetriedOperation
    version: int


class ModelRunner:
    """One chat under one epoch, with its last row. `unconfirmed` is a write without a reply."""

    def __init__(self, row: Chat) -> None:
        self.row = row
        self.view = TaskView.of(row)
        self.fence = Fence.of(row)
        self.unconfirmed: WrittenOperation | None = None

    def on_row(self, row: Chat, me: WorkerId) -> bool:
        """False if the runner must stop."""
        match decide_reaction(self.view, row, me):
            case IgnoreRow():
                return True
            case UpdateView(view=view):
                self.row, self.view = row, view
                return True
            case RestartTask(fence=fence, view=view):
                self.row, self.view, self.fence = row, view, fence
                return True
            case StopChatTask():
                return False
            case DeferRow():
                raise AssertionError("replies come before rows")


class ModelReplica:
    """`id` changes with each restart. `awake`: not frozen."""

    def __init__(self, store: CheckedStore, rng: Random) -> None:
        self._store = store
        self._rng = rng
        self.id = new_worker_id(rng)
        self.awake = True
        self.runners: dict[ChatId, ModelRunner] = {}
        self.inbox: list[Hint] = []
        self.observations = _NOTHING_OBSERVED
        self.stale_chat_tasks: deque[ModelRunner] = deque(maxlen=8)

    @property
    def free(self) -> WorkerId | None:
        """The replica that receives a message acquires the chat, if it has a free slot."""
        return self.id if self.awake and self.slots(root=True) > 0 else None

    def slots(self, *, root: bool) -> int:
        used = sum(runner.row.is_root == root for runner in self.runners.values())
        return max(0, SLOTS - used)

    # Rows and hints

    def on_own_row(self, row: Chat) -> None:
        """A row that this replica wrote or acquired."""
        runner = self.runners.get(row.id)
        if row.worker_id == self.id and (runner is None or runner.view.epoch != row.epoch):
            self.drop(row.id)
            self.runners[row.id] = ModelRunner(row)
        elif runner is not None:
            self._hear(runner, row)

    def _hear(self, runner: ModelRunner, row: Chat) -> None:
        if not runner.on_row(row, self.id):
            self.drop(row.id)

    def drop(self, chat_id: ChatId) -> None:
        """Stop the runner, but keep it: a late task may still write with its fence, even after its
        process ended."""
        if (runner := self.runners.pop(chat_id, None)) is not None:
            self.stale_chat_tasks.append(runner)

    async def on_hint(self, hint: Hint) -> None:
        """A hint may be old: read the row first."""
        runner = self.runners.get(hint.chat_id)
        if runner is not None:
            if hint.snapshot_version > runner.view.snapshot_version:
                row = await chats.get(self._store.pool, HARNESS, hint.chat_id)
                assert row is not None
                self._hear(runner, row)
        elif hint.is_runnable:
            await self.fill_slots()

    async def fill_slots(self) -> None:
        roots, children = self.slots(root=True), self.slots(root=False)
        for row in await self._store.acquire(self.id, roots=roots, children=children):
            self.on_own_row(row)

    # Work

    async def next_move(self, runner: ModelRunner, *, orderly: bool = False) -> Transition:
        """The next transition of a runner, with a random result of the model."""
        if runner.fence.status == "interrupting":
            return Transition.FINISH_INTERRUPT
        row = runner.row
        history = await messages.load_history(self._store.pool, HARNESS, row.id)
        action = next_action(history, row, _RULES)
        now = self._store.reference.chats[row.id]
        if now.chat.history_version == row.history_version:
            assert action != Fail(error=PENDING_CALLS_MISMATCH_ERROR), (
                "history and row have different pending calls"
            )
            assert [message.id for message in history] == _since_summary(now.live)
        return self._move_of(action, orderly=orderly)

    def _move_of(self, action: Action, *, orderly: bool) -> Transition:
        match action:
            case Generate():
                return Transition.FINISH_TURN if orderly else self._rng.choice(_GENERATED)
            case RunTools() if not orderly and self._rng.random() < 0.1:
                return Transition.SUSPEND
            case RunTools() if not orderly and self._rng.random() < 0.1:
                return Transition.NOTE_WAITS
            case RunTools() | StartCommand() | Compact():
                return Transition.COMMIT_STEP
            case AskHooks():
                return Transition.NOTE_WAITS
            case RequireAction():
                return Transition.REQUIRE_ACTION
            case Finish():
                return Transition.FINISH_TURN
            case Fail():
                return Transition.FAIL_TURN

    # Life

    async def send_heartbeat(self, now: float, *, draining: bool = False) -> HeartbeatResult:
        """Renew the lease. Returns what must be done for chats of other workers."""
        store, running = self._store, {id_: r.view.epoch for id_, r in self.runners.items()}
        judged = self.observations.dead(now)
        heartbeat = Heartbeat(worker_id=self.id, running=running, dead=judged, draining=draining)
        await store.pool.execute(PASS_DELAYS)
        result = await workers.send_heartbeat(store.pool, heartbeat)
        self.observations = self.observations.succeeded(result.others, sent_at=now, now=now)
        mine = {c.id: c.epoch for c in store.chats.values() if c.worker_id == self.id}
        assert set(result.lost) == {id_ for id_ in running if mine.get(id_) != running[id_]}
        assert set(result.unknown) == {id_ for id_ in mine if running.get(id_) != mine[id_]}
        wanting = any(chat.runnable_at is not None for chat in store.chats.values())
        assert result.runnable == wanting
        assert result.dead <= {seen.worker_id for seen in judged}, "reaped without the right to"
        for chat_id in result.lost:
            self.drop(chat_id)
        await store.verify()
        return result

    def restart(self) -> WorkerId:
        """Replace the process by a new one. Returns the old worker id."""
        was, self.id = self.id, new_worker_id(self._rng)
        self.awake = True
        for chat_id in list(self.runners):
            self.drop(chat_id)
        self.inbox.clear()
        self.observations = _NOTHING_OBSERVED
        return was


def _since_summary(live: list[Message]) -> list[int]:
    cut = compaction.find_boundary(live)
    since = cut.id if cut is not None else 0
    return [
        row.id
        for row in live
        if row.id >= since or (row.role == "system" and not row.compressed and not row.is_notice)
    ]


def new_worker_id(rng: Random) -> WorkerId:
    return WorkerId(UUID(int=rng.getrandbits(128), version=4))
