"""What replicas do in the database's model, and what is done to them."""

from typing import Final

from msgspec import Struct

from chatd.domain.chat.states import Transition
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.lease import LEASE_TTL_S
from chatd.store.chat import workers
from chatd.store.chat.workers import HeartbeatResult
from tests.model.invariants import at_rest
from tests.model.replica import HEARTBEAT_INTERVAL_S, ModelReplica, ModelRunner
from tests.model.simulation import Simulation
from tests.support.errands import Plan

_GHOSTLY: Final = (
    Transition.COMMIT_STEP,
    Transition.FINISH_TURN,
    Transition.REQUIRE_ACTION,
    Transition.FAIL_TURN,
    Transition.RECORD_RETRY,
    Transition.RELEASE,
)


class LateAction(Struct, frozen=True, kw_only=True):
    """What somebody learned from a tick and has not acted upon yet."""

    move: Transition
    chat_id: ChatId
    dead: WorkerId | None = None


class ReplicaActions:
    def __init__(self, stage: Simulation) -> None:
        self._stage = stage
        self._rng = stage.rng
        self.late: list[LateAction] = []

    # Work

    async def work(self) -> None:
        """The next step of some chat, or chats for a slot that is free."""
        running = [replica for replica in self._stage.awake() if replica.runners]
        if not running or self._rng.random() < 0.1:
            await self._rng.choice(self._stage.awake()).fill_slots()
            return
        replica = self._rng.choice(running)
        runner = self._rng.choice(list(replica.runners.values()))
        if await self._is_sure(replica, runner):
            move = await replica.next_move(runner)
            self._stage.reply_lost = self._rng.random() < 0.05
            await self._step(
                replica, runner, Transition.RELEASE if self._rng.random() < 0.05 else move
            )

    async def _is_sure(self, replica: ModelReplica, runner: ModelRunner) -> bool:
        """One whose write was not answered first finds out, or leaves."""
        if runner.unconfirmed is None:
            return True
        self._stage.serving, unsure, runner.unconfirmed = replica, runner.unconfirmed, None
        if not await self._stage.repeat_write(unsure):
            replica.drop(runner.row.id)
        return False

    async def _step(self, replica: ModelReplica, runner: ModelRunner, move: Transition) -> None:
        stage, row = self._stage, runner.row
        stage.serving = replica
        number, fence = stage.number(), runner.fence
        plan = Plan(move=move, chat_id=row.id, number=number, fence=fence, known=row)
        written = await stage.do(plan)
        if written is not None and stage.reply_lost:
            runner.unconfirmed = written
        elif written is None:
            # Fenced: someone else has moved the chat. Whatever comes of it, not by this runner.
            replica.drop(row.id)

    async def hint(self) -> None:
        """Any of those that are waiting, in any order, and perhaps not for the last time."""
        replica = self._rng.choice([replica for replica in self._stage.awake() if replica.inbox])
        index = self._rng.randrange(len(replica.inbox))
        again = self._rng.random() < 0.2
        await replica.on_hint(replica.inbox[index] if again else replica.inbox.pop(index))

    # Time

    async def heartbeat(self) -> None:
        """As it should be: a moment passes and everybody ticks."""
        await self._stage.pass_time(self._rng.choice((1.0, HEARTBEAT_INTERVAL_S, 5.0)))
        for replica in self._stage.awake():
            self.late += await self._tick(replica)

    async def quiet_period(self) -> None:
        """Long enough to tell who is dead."""
        for _ in range(self._rng.choice((3, 10))):
            await self.heartbeat()

    async def time_passes(self) -> None:
        """And nobody ticks: the database was away, or slow."""
        await self._stage.pass_time(self._rng.choice((0.5, HEARTBEAT_INTERVAL_S, 12.0, 40.0)))

    async def _tick(self, replica: ModelReplica) -> list[LateAction]:
        mirror = self._stage.store
        heard = await replica.send_heartbeat(self._stage.now)
        self._check_deaths(heard)
        if heard.unknown:
            await mirror.release(replica.id, sorted(heard.unknown))
        await workers.delete_workers(mirror.pool, heard.dead)
        expired = [
            LateAction(move=Transition.EXPIRE_INTERRUPT, chat_id=chat_id)
            if mirror.chats[chat_id].status == "interrupting"
            else LateAction(move=Transition.EXPIRE_ACTION, chat_id=chat_id)
            for chat_id in sorted(heard.expired)
        ]
        orphaned = [
            LateAction(move=Transition.REAP, chat_id=chat_id, dead=mirror.chats[chat_id].worker_id)
            for chat_id in sorted(heard.orphaned)
        ]
        self._stage.note(f"dead={len(heard.dead)} late={len(expired) + len(orphaned)}")
        return [*expired, *orphaned]

    def _check_deaths(self, heard: HeartbeatResult) -> None:
        """Nobody who holds his lock and renews his lease is ever taken for dead."""
        for replica in self._stage.replicas:
            if replica.id in heard.dead:
                since = self._stage.now - replica.ticks.last_at
                assert since > LEASE_TTL_S, "a live worker was buried"

    async def act_late(self) -> None:
        """Much may have happened since it was learned."""
        await self._act(self.late.pop(self._rng.randrange(len(self.late))))

    async def _act(self, late: LateAction) -> None:
        number = self._stage.number()
        plan = Plan(move=late.move, chat_id=late.chat_id, number=number, dead=late.dead)
        await self._stage.do(plan)

    # Death

    async def crash(self) -> None:
        """The process is gone, and its lock with it."""
        await self._stage.replace_replica(self._rng.choice(self._stage.replicas))

    async def drain(self) -> None:
        """SIGTERM: give back what is left, then go."""
        replica = self._rng.choice(self._stage.awake())
        await replica.send_heartbeat(self._stage.now, draining=True)
        await self._stage.store.release(replica.id, None)
        await self._stage.replace_replica(replica)

    async def freeze_or_resume(self) -> None:
        """Stopped, or so slow that it makes no difference. It keeps its lock."""
        asleep = [replica for replica in self._stage.replicas if not replica.awake]
        replica = self._rng.choice(asleep or self._stage.replicas)
        replica.awake = not replica.awake

    async def write_with_stale_fence(self) -> None:
        """A write of one who died long ago, or has lost the chat since."""
        ghosts = self._stage.ghosts()
        tempted = [ghost for ghost in ghosts if self._almost_owns(ghost)]
        ghost = self._rng.choice(tempted or ghosts)
        fence, row = ghost.fence, ghost.row
        stopping = fence.status == "interrupting"
        move = Transition.FINISH_INTERRUPT if stopping else self._rng.choice(_GHOSTLY)
        number = self._stage.number()
        await self._stage.do(Plan(move=move, chat_id=row.id, number=number, fence=fence, known=row))

    def _almost_owns(self, ghost: ModelRunner) -> bool:
        """Its worker has got the chat back meanwhile, and only the epoch tells them apart."""
        now, held = self._stage.store.chats[ghost.row.id], ghost.fence
        return (now.worker_id, now.history_version) == (held.worker_id, held.history_version)

    # The end

    async def settle(self) -> None:
        """Nothing is stuck: with all hints lost and nobody but the replicas at it, ticks alone
        bring every chat to rest; also those in which a tool does not heed a stop."""
        stage = self._stage
        stubborn = {chat_id for chat_id in stage.store.chats if self._rng.random() < 0.5}
        stage.hint_loss_rate = 1.0
        for replica in stage.replicas:
            replica.awake = True
            replica.inbox.clear()
        for _ in range(80):
            chats = stage.store.chats.values()
            if all(at_rest(chat) for chat in chats):
                return
            stage.start_step("settle")
            await stage.pass_time(HEARTBEAT_INTERVAL_S)
            if all(at_rest(chat) or chat.status == "requires_action" for chat in chats):
                await stage.expire(stage.store.chats)
            for replica in stage.replicas:
                await self._do_all(replica, stubborn)
        raise AssertionError(f"stuck: {[chat.state for chat in stage.store.chats.values()]}")

    async def _do_all(self, replica: ModelReplica, stubborn: set[ChatId]) -> None:
        self._stage.serving = None
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
