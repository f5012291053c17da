"""The actions of replicas in the simulation, and the faults that happen to them."""

from typing import Final

from msgspec import Struct

from chatd.domain.chat.lease import SILENT_AFTER_S
from chatd.domain.chat.states import Transition
from chatd.domain.ids import ChatId, WorkerId
from chatd.store.chat import workers
from chatd.store.chat.workers import HeartbeatResult
from tests.model.invariants import at_rest
from tests.model.replica import HEARTBEAT_INTERVAL_S, ModelReplica, ModelRunner
from tests.model.simulation import Simulation
from tests.support.random_operations import OperationPlan

_STALE_TRANSITIONS: Final = (
    Transition.COMMIT_STEP,
    Transition.FINISH_TURN,
    Transition.REQUIRE_ACTION,
    Transition.FAIL_TURN,
    Transition.RECORD_RETRY,
    Transition.SUSPEND,
    Transition.NOTE_WAITS,
    Transition.RELEASE,
)


class LateAction(Struct, frozen=True, kw_only=True):
    """An action that a heartbeat asked for and that is still to be done."""

    move: Transition
    chat_id: ChatId
    dead: WorkerId | None = None


class ReplicaActions:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._rng = simulation.rng
        self.late: list[LateAction] = []

    # Work

    async def work(self) -> None:
        """Run the next step of some chat, or acquire chats for free slots."""
        running = [replica for replica in self._simulation.awake() if replica.runners]
        if not running or self._rng.random() < 0.1:
            await self._rng.choice(self._simulation.awake()).fill_slots()
            return
        replica = self._rng.choice(running)
        runner = self._rng.choice(list(replica.runners.values()))
        if await self._is_sure(replica, runner):
            move = await replica.next_move(runner)
            self._simulation.reply_lost = self._rng.random() < 0.05
            await self._step(
                replica, runner, Transition.RELEASE if self._rng.random() < 0.05 else move
            )

    async def _is_sure(self, replica: ModelReplica, runner: ModelRunner) -> bool:
        """A runner without a reply to its write first repeats the write, or stops."""
        if runner.unconfirmed is None:
            return True
        self._simulation.serving, unsure, runner.unconfirmed = replica, runner.unconfirmed, None
        if not await self._simulation.repeat_write(unsure):
            replica.drop(runner.row.id)
        return False

    async def _step(self, replica: ModelReplica, runner: ModelRunner, move: Transition) -> None:
        simulation, row = self._simulation, runner.row
        simulation.serving = replica
        number, fence = simulation.number(), runner.fence
        plan = OperationPlan(move=move, chat_id=row.id, number=number, fence=fence, known=row)
        written = await simulation.do(plan)
        if written is not None and simulation.reply_lost:
            runner.unconfirmed = written
        elif written is None:
            # Fenced: the chat has changed. This runner stops.
            replica.drop(row.id)

    async def hint(self) -> None:
        """Deliver a pending hint, in any order, perhaps repeatedly."""
        replica = self._rng.choice(
            [replica for replica in self._simulation.awake() if replica.inbox]
        )
        index = self._rng.randrange(len(replica.inbox))
        again = self._rng.random() < 0.2
        await replica.on_hint(replica.inbox[index] if again else replica.inbox.pop(index))

    # Time

    async def heartbeat(self) -> None:
        """Pass some time; every running replica sends a heartbeat."""
        await self._simulation.pass_time(self._rng.choice((1.0, HEARTBEAT_INTERVAL_S, 5.0)))
        for replica in self._simulation.awake():
            self.late += await self._tick(replica)

    async def quiet_period(self) -> None:
        """Pass enough time to detect dead workers."""
        for _ in range(self._rng.choice((3, 10))):
            await self.heartbeat()

    async def time_passes(self) -> None:
        """Pass time without heartbeats, as when the database is unavailable."""
        await self._simulation.pass_time(self._rng.choice((0.5, HEARTBEAT_INTERVAL_S, 12.0, 40.0)))

    async def _tick(self, replica: ModelReplica) -> list[LateAction]:
        store = self._simulation.store
        result = await replica.send_heartbeat(self._simulation.now)
        self._check_deaths(result)
        if result.unknown:
            await store.release(replica.id, sorted(result.unknown))
        await workers.delete_workers(store.pool, result.dead)
        expired = [
            LateAction(move=Transition.EXPIRE_INTERRUPT, chat_id=chat_id)
            if store.chats[chat_id].status == "interrupting"
            else LateAction(move=Transition.EXPIRE_ACTION, chat_id=chat_id)
            for chat_id in sorted(result.expired)
        ]
        orphaned = [
            LateAction(move=Transition.REAP, chat_id=chat_id, dead=store.chats[chat_id].worker_id)
            for chat_id in sorted(result.orphaned)
        ]
        self._simulation.note(f"dead={len(result.dead)} late={len(expired) + len(orphaned)}")
        return [*expired, *orphaned]

    def _check_deaths(self, result: HeartbeatResult) -> None:
        """A worker that holds its lock and renews its lease is never counted as dead."""
        for replica in self._simulation.replicas:
            if replica.id in result.dead:
                since = self._simulation.now - replica.observations.history.last_at
                assert since > SILENT_AFTER_S, "a live worker counted as dead"

    async def act_late(self) -> None:
        """The chat may have changed since the heartbeat."""
        await self._act(self.late.pop(self._rng.randrange(len(self.late))))

    async def _act(self, late: LateAction) -> None:
        number = self._simulation.number()
        plan = OperationPlan(move=late.move, chat_id=late.chat_id, number=number, dead=late.dead)
        await self._simulation.do(plan)

    # Death

    async def crash(self) -> None:
        """The process dies and releases its lock."""
        await self._simulation.replace_replica(self._rng.choice(self._simulation.replicas))

    async def drain(self) -> None:
        """SIGTERM: release all chats, then exit."""
        replica = self._rng.choice(self._simulation.awake())
        await replica.send_heartbeat(self._simulation.now, draining=True)
        await self._simulation.store.release(replica.id, None)
        await self._simulation.replace_replica(replica)

    async def freeze_or_resume(self) -> None:
        """A frozen replica keeps its lock."""
        asleep = [replica for replica in self._simulation.replicas if not replica.awake]
        replica = self._rng.choice(asleep or self._simulation.replicas)
        replica.awake = not replica.awake

    async def write_with_stale_fence(self) -> None:
        """A runner that lost its chat writes."""
        stale_chat_tasks = self._simulation.stale_chat_tasks()
        tempted = [runner for runner in stale_chat_tasks if self._almost_owns(runner)]
        runner = self._rng.choice(tempted or stale_chat_tasks)
        fence, row = runner.fence, runner.row
        stopping = fence.status == "interrupting"
        move = Transition.FINISH_INTERRUPT if stopping else self._rng.choice(_STALE_TRANSITIONS)
        number = self._simulation.number()
        await self._simulation.do(
            OperationPlan(move=move, chat_id=row.id, number=number, fence=fence, known=row)
        )

    def _almost_owns(self, runner: ModelRunner) -> bool:
        """Its worker has acquired the chat again; only the epoch differs."""
        now, held = self._simulation.store.chats[runner.row.id], runner.fence
        return (now.worker_id, now.history_version) == (held.worker_id, held.history_version)

    # The end

    async def settle(self) -> None:
        """With all hints lost and without users, heartbeats alone settle every chat, also chats
        with tools that ignore an interrupt."""
        simulation = self._simulation
        stubborn = {chat_id for chat_id in simulation.store.chats if self._rng.random() < 0.5}
        simulation.hint_loss_rate = 1.0
        for replica in simulation.replicas:
            replica.awake = True
            replica.inbox.clear()
        for _ in range(80):
            chats = simulation.store.chats.values()
            if all(at_rest(chat) for chat in chats):
                return
            simulation.start_step("settle")
            await simulation.pass_time(HEARTBEAT_INTERVAL_S)
            if all(at_rest(chat) or chat.status == "requires_action" for chat in chats):
                await simulation.expire(simulation.store.chats)
            for replica in simulation.replicas:
                await self._do_all(replica, stubborn)
        raise AssertionError(f"stuck: {[chat.state for chat in simulation.store.chats.values()]}")

    async def _do_all(self, replica: ModelReplica, stubborn: set[ChatId]) -> None:
        self._simulation.serving = None
        for late in await self._tick(replica):
            await self._act(late)
        await replica.fill_slots()
        for _ in range(4):
            for runner in list(replica.runners.values()):
                if not await self._is_sure(replica, runner):
                    continue
                move = await replica.next_move(runner, orderly=True)
                if move is not Transition.FINISH_INTERRUPT or runner.row.id not in stubborn:
                    await self._step(replica, runner, move)
