"""One replica's engine: registers, takes chats, runs them, and leaves in good order.

Owns the order of these. What is done with a chat is the runner's; who owns it is the row's.
Chats come by this replica's own writes (no query at all), by a hint, by a freed slot, or by the
tick. A worker that has not registered yet takes none, and neither does one whose lease is old.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from msgspec import Struct

from chatd.domain.chat import Chat
from chatd.domain.errors import Unavailable
from chatd.domain.hint import Hint
from chatd.domain.ids import WorkerId
from chatd.domain.ports import Env
from chatd.engine.acquirer import Taking
from chatd.engine.chat_reaper import ChatReaper
from chatd.engine.lease import Ticking, WorkerLease
from chatd.engine.runner import Actions
from chatd.engine.runner_pool import Roster
from chatd.engine.slots import Slots, SlotsConfig
from chatd.engine.tasks import TaskReaper, run_contained
from chatd.store import workers
from chatd.store.pool import Database
from chatd.store.transact import Applied, Transactor

HEARTBEAT_INTERVAL_S: Final = 1.0
DRAIN_TIMEOUT_S: Final = 25.0
RELEASE_TIMEOUT_S: Final = 1.0
LOOP_RESTART_DELAY_S: Final = 1.0
ROW_POLL_INTERVAL_S: Final = 4.0
"""How often the rows of running chats are looked at, hints or not: a stop whose hint was lost must
be heard of before its deadline, or what only its owner knows of it would be lost."""


class WorkerConfig(Struct, frozen=True, kw_only=True):
    slots: SlotsConfig = SlotsConfig()
    heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S
    drain_timeout_s: float = DRAIN_TIMEOUT_S


class WorkerDeps(Struct, frozen=True, kw_only=True):
    """What a worker is connected to. `announce` tells others of rows that were written by a
    batch statement, not by a move. `listening` is set while this process holds its lock."""

    database: Database
    transactor: Transactor
    actions: Actions
    announce: Callable[[Chat], None]
    lease: WorkerLease
    left: TaskReaper
    listening: asyncio.Event


class Worker:
    def __init__(self, me: WorkerId, doors: WorkerDeps, env: Env, config: WorkerConfig) -> None:
        self.worker_id = me
        self._env = env
        self._config = config
        self._lease = doors.lease
        self._announce = doors.announce
        self._pool = doors.database.pool
        self._slots = Slots(config.slots, me)
        self._roster = Roster(
            me,
            env,
            doors.actions,
            transactor=doors.transactor,
            left=doors.left,
            slots=self._slots,
            freed=self._freed,
        )
        self._taking = Taking(
            me,
            self._pool,
            env,
            lease=self._lease,
            slots=self._slots,
            roster=self._roster,
            announce=doors.announce,
        )
        self._sweeper = ChatReaper(self._pool, doors.transactor, me, env)
        self._ticking = Ticking(
            me,
            doors.database.tick,
            env,
            self._lease,
            every_s=config.heartbeat_interval_s,
            listening=doors.listening,
            running=self._roster.epochs,
            heard=self._ticked,
        )
        self._looked_at = env.clock.monotonic()
        self.registered = asyncio.Event()
        self._drained = asyncio.Event()

    # Doors

    def reserve_slot(self, *, root: bool) -> AbstractContextManager[WorkerId | None]:
        """For whoever writes a message: this worker, if it has a slot for the chat."""
        if self._lease.health != "ok":
            return nullcontext(None)
        return self._slots.offer(root=root)

    def on_applied(self, applied: Applied) -> None:
        """A write of this replica. If it made the chat ours, run it at once."""
        chat = applied.chat
        self._roster.hear(chat, applied if chat.snapshot_version == 1 else None)
        if chat.runnable_at is not None:
            self._taking.some()

    def on_hint(self, hint: Hint) -> None:
        self._taking.hinted(hint)

    def mark_all_dirty(self) -> None:
        """Hints may have been lost."""
        self._taking.look_at(list(self._roster))
        self._taking.some()

    @property
    def running(self) -> int:
        return len(self._roster)

    @property
    def draining(self) -> bool:
        return self._ticking.draining

    # Life

    async def run(self) -> None:
        """Until drained."""
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(self._for_ever(name, loop), name=name)
                for name, loop in self._loops()
            ]
            group.create_task(self._roster.run(), name="roster")
            await self._drained.wait()
            for loop in loops:
                loop.cancel()
        await self._sign_off()

    def _loops(self) -> list[tuple[str, Callable[[], Coroutine[None, None, None]]]]:
        return [
            ("tick", self._ticking.run),
            ("sweep", self._sweeper.run),
            ("acquire", self._taking.take),
            ("read", self._taking.read),
            ("lease", self._watch_lease),
        ]

    async def _for_ever(self, name: str, loop: Callable[[], Coroutine[None, None, None]]) -> None:
        """One row that cannot be read must not end the work on all others."""
        while True:
            await run_contained(
                loop(), lambda error: self._env.emit("worker_failed", task=name, error=error)
            )
            await self._env.clock.sleep(LOOP_RESTART_DELAY_S, f"again_{name}")

    async def drain(self) -> None:
        """Take nothing more; let steps commit; release what is left. Bounded by the window."""
        self._ticking.draining = True
        self._slots.close()
        self._roster.leave()
        self._env.emit("drain_started", running=len(self._roster))
        await self._until_empty()
        await self._taking.none_on_the_way(RELEASE_TIMEOUT_S / 3)
        await self._release_all()
        self._roster.close()
        self._drained.set()

    async def _until_empty(self) -> None:
        loop = asyncio.get_running_loop()
        window = loop.create_task(self._env.clock.sleep(self._config.drain_timeout_s, "drain"))
        empty = loop.create_task(self._roster.empty())
        try:
            await asyncio.wait({window, empty}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            window.cancel()
            empty.cancel()

    async def _release_all(self) -> None:
        """Without a database there is nobody to tell: the others will see that we are gone."""
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                released = await workers.release(self._pool, self.worker_id)
        except (Unavailable, TimeoutError):
            self._env.emit("release_failed")
            return
        for chat in released:
            self._announce(chat)
            self._roster.hear(chat)
        self._env.emit("drained", released=len(released))

    async def _sign_off(self) -> None:
        """Else the others would take us for dead in a moment, and look for what we left."""
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S / 3):
                await workers.strike(self._pool, frozenset({self.worker_id}))
        except (Unavailable, TimeoutError):
            return

    def _freed(self, chat: Chat) -> None:
        self._taking.left(chat)

    # The tick

    def _ticked(self, heard: workers.Heard) -> None:
        self.registered.set()
        if not self.draining:
            self._slots.open()
        self._taking.look_at(heard.lost)
        self._taking.unknown(heard.unknown)
        self._sweeper.on_heartbeat(heard)
        if heard.runnable:
            self._taking.some()
        now = self._env.clock.monotonic()
        if now - self._looked_at >= ROW_POLL_INTERVAL_S:
            self._looked_at = now
            self._taking.look_at(list(self._roster))

    async def _watch_lease(self) -> None:
        """Past the lease somebody else may run our chats; they must not run twice."""
        while True:
            await self._lease.wait_expired()
            self._env.emit("lease_lost", running=len(self._roster))
            self._roster.cut_off()
            await self._lease.wait_healthy()
