"""The engine of one replica: registers, acquires chats, runs them and drains.

Chats arrive by this replica's own writes (without a query), by a hint, by a freed slot, or by a
heartbeat. A worker acquires nothing before it is registered, nor while its lease is old.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final

from msgspec import Struct

from chatd.aio import TaskReaper, first_of, run_contained
from chatd.domain.chat.row import Chat, Hint
from chatd.domain.errors import Unavailable
from chatd.domain.ids import WorkerId
from chatd.domain.ports import Env
from chatd.engine.acquirer import Acquirer, Slots, SlotsConfig
from chatd.engine.chat_tasks import ChatTasks
from chatd.engine.lease import ChatReaper, HeartbeatLoop, OwnState, WorkerLease
from chatd.engine.model.attempt import Committer
from chatd.engine.model.call_records import UsageWriter
from chatd.engine.turn_loop import TurnLoop
from chatd.store.chat import workers
from chatd.store.chat.operation import AppliedChange
from chatd.store.database.pool import Database

HEARTBEAT_INTERVAL_S: Final = 2.0
"""While no chat runs anywhere; more often else."""
DRAIN_TIMEOUT_S: Final = 60.0
"""A step that is not committed by then is made and paid again by another worker. Most answers take
less: 4,000 tokens at 70 a second. A single server accepts no message meanwhile, so not longer."""
RELEASE_TIMEOUT_S: Final = 1.0
LOOP_RESTART_DELAY_S: Final = 1.0
ROW_POLL_INTERVAL_S: Final = 4.0
"""How often the worker reads the rows of its chats even without hints. It must find an interrupt
with a lost hint before the deadline, or the partial answer in memory is lost."""


class WorkerConfig(Struct, frozen=True, kw_only=True):
    slots: SlotsConfig = SlotsConfig()
    heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S
    drain_timeout_s: float = DRAIN_TIMEOUT_S
    host: str = ""
    version: str = ""


class WorkerDeps(Struct, frozen=True, kw_only=True):
    """`announce` publishes rows written by a batch statement. `listening` is set while this
    process holds its session lock. `save_live_parts` writes what running steps have said so far.
    `is_tailing`: viewers here see live answers of other replicas."""

    database: Database
    committer: Committer
    turn_loop: TurnLoop
    usage_writer: UsageWriter
    announce: Callable[[Chat], None]
    save_live_parts: Callable[[], Awaitable[None]]
    is_tailing: Callable[[], bool]
    lease: WorkerLease
    task_reaper: TaskReaper
    listening: asyncio.Event
    lost: asyncio.Event


class Worker:
    def __init__(
        self, worker_id: WorkerId, deps: WorkerDeps, env: Env, config: WorkerConfig
    ) -> None:
        self.worker_id = worker_id
        self._env = env
        self._config = config
        self._lease = deps.lease
        self._announce = deps.announce
        self._save_live_parts = deps.save_live_parts
        self._pool = deps.database.pool
        self._chat_tasks = ChatTasks(
            worker_id,
            env,
            deps.turn_loop,
            committer=deps.committer,
            task_reaper=deps.task_reaper,
            on_chat_task_left=self._on_chat_task_left,
        )
        self._slots = Slots(config.slots, worker_id, self._chat_tasks)
        self._acquirer = Acquirer(
            worker_id,
            self._pool,
            env,
            lease=self._lease,
            slots=self._slots,
            chat_tasks=self._chat_tasks,
            announce=deps.announce,
        )
        self._reaper = ChatReaper(
            self._pool, deps.committer, worker_id, env, usage_writer=deps.usage_writer
        )
        self._heartbeats = HeartbeatLoop(
            workers.WorkerDescription(
                worker_id=worker_id,
                host=config.host,
                version=config.version,
                slots=config.slots.roots,
                child_slots=config.slots.children,
            ),
            deps.database.heartbeat,
            env,
            self._lease,
            interval_s=config.heartbeat_interval_s,
            own=OwnState(
                running=self._chat_tasks.epochs,
                is_tailing=deps.is_tailing,
                listening=deps.listening,
                lost=deps.lost,
            ),
            on_heartbeat=self._on_heartbeat,
        )
        self._polled_at = env.clock.monotonic()
        self._is_paused = False
        self.registered = asyncio.Event()
        self._drained = asyncio.Event()

    # Called by the replica

    def reserve_slot(self, *, root: bool) -> AbstractContextManager[WorkerId | None]:
        """This worker's id, if it can run one more chat: for a write that makes a chat runnable."""
        if self._lease.health != "ok":
            return nullcontext(None)
        return self._slots.reserve(root=root)

    def on_applied(self, applied: AppliedChange) -> None:
        """A write of this replica. If it made this worker the owner, run the chat at once."""
        chat = applied.chat
        self._chat_tasks.on_row(chat, applied if chat.snapshot_version == 1 else None)
        if chat.runnable_at is None:
            return
        delay_s = None if applied.change is None else applied.change.delay_s
        if delay_s:
            self._acquirer.request_acquire_after(delay_s)
        else:
            self._acquirer.request_acquire()

    def on_hint(self, hint: Hint) -> None:
        self._acquirer.on_hint(hint)

    def pause(self) -> None:
        """A paused worker finishes what it runs and acquires nothing more. It still reaps."""
        self._is_paused = True
        self._slots.is_open = False

    def unpause(self) -> None:
        self._is_paused = False
        self._slots.is_open = self.registered.is_set() and not self.draining
        self._acquirer.request_acquire()

    def mark_all_dirty(self) -> None:
        """Hints may have been lost: read every row again."""
        self._acquirer.refresh_rows(list(self._chat_tasks))
        self._acquirer.request_acquire()

    @property
    def running(self) -> int:
        return len(self._chat_tasks)

    @property
    def draining(self) -> bool:
        return self._heartbeats.draining

    # Life cycle

    async def run(self) -> None:
        """Return when drained."""
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(self._restart_forever(name, loop), name=name)
                for name, loop in self._loops()
            ]
            group.create_task(self._chat_tasks.run(), name="chat tasks")
            await self._drained.wait()
            for loop in loops:
                loop.cancel()
        await self._unregister()

    def _loops(self) -> list[tuple[str, Callable[[], Coroutine[None, None, None]]]]:
        return [
            ("heartbeat", self._heartbeats.run),
            ("reap", self._reaper.run),
            ("acquire", self._acquirer.acquire),
            ("read", self._acquirer.read_rows),
            ("due", self._acquirer.watch_due_times),
            ("lease", self._watch_lease),
        ]

    async def _restart_forever(
        self, name: str, loop: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """One row that cannot be read must not end the work on all others."""
        while True:
            await run_contained(
                loop(), lambda error: self._env.emit("worker_failed", task=name, error=error)
            )
            await self._env.clock.sleep(LOOP_RESTART_DELAY_S, f"restart_{name}")

    async def drain(self) -> None:
        """Acquire nothing more, let steps commit within the drain timeout, release the rest."""
        self._heartbeats.draining = True
        self._slots.is_open = False
        self._chat_tasks.drain()
        self._env.emit("drain_started", running=len(self._chat_tasks))
        timeout = self._env.clock.sleep(self._config.drain_timeout_s, "drain")
        await first_of(timeout, self._chat_tasks.wait_empty())
        await self._acquirer.wait_idle(RELEASE_TIMEOUT_S / 3)
        await self._save_unfinished()
        await self._release_all()
        self._chat_tasks.close()
        self._drained.set()

    async def _save_unfinished(self) -> None:
        """The next owners go on from what these steps have said."""
        if len(self._chat_tasks) == 0:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT_S / 3):
                await self._save_live_parts()

    async def _release_all(self) -> None:
        """Without a database other replicas find these chats when the lease expires."""
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                released = await workers.release(self._pool, self.worker_id)
        except (Unavailable, TimeoutError):
            self._env.emit("release_failed")
            return
        for chat in released:
            self._announce(chat)
            self._chat_tasks.on_row(chat)
        self._env.emit("drain_finished", released=len(released))

    async def _unregister(self) -> None:
        """Otherwise other replicas would reap this worker and look for its chats."""
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT_S / 3):
                await workers.delete_workers(self._pool, frozenset({self.worker_id}))

    def _on_chat_task_left(self, chat: Chat) -> None:
        self._acquirer.on_chat_task_left(chat)

    # Heartbeats

    def _on_heartbeat(self, result: workers.HeartbeatResult) -> None:
        self.registered.set()
        if not self.draining and not self._is_paused:
            self._slots.is_open = True
        self._acquirer.refresh_rows(result.lost)
        self._acquirer.on_unknown_chats(result.unknown)
        self._reaper.on_heartbeat(result)
        if result.runnable:
            self._acquirer.request_acquire()
        now = self._env.clock.monotonic()
        if now - self._polled_at >= ROW_POLL_INTERVAL_S:
            self._polled_at = now
            self._acquirer.refresh_rows(list(self._chat_tasks))

    async def _watch_lease(self) -> None:
        """Once the lease has expired, another worker may run these chats: cancel them here."""
        while True:
            await self._lease.wait_expired()
            self._env.emit("lease_lost", running=len(self._chat_tasks))
            self._chat_tasks.cancel_all()
            await self._lease.wait_healthy()
