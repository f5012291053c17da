"""One replica's engine: takes chats, runs them, keeps its lease, hands on what the dead left.

Owns which chats run here. What is done with a chat is the runner's; who owns
it is the row's. Chats come by this replica's own writes (no query at all), by
a hint, by a freed slot, or by the tick.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Final

from msgspec import Struct

from chatd.domain import worker_moves
from chatd.domain.change import Change
from chatd.domain.chat import Chat
from chatd.domain.errors import NotFound, StaleFence, Unavailable
from chatd.domain.hint import Hint
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.lease import Ticks, lease_health, may_reap
from chatd.domain.ports import Env
from chatd.engine.runner import Actions, Runner
from chatd.engine.slots import Slots, SlotsConfig
from chatd.engine.work import Work
from chatd.store import chats, workers
from chatd.store.pool import Database
from chatd.store.transact import Applied, Operation, Transactor

TICK_S: Final = 1.0
DRAIN_S: Final = 25.0
AT_ONCE: Final = 10


class WorkerConfig(Struct, frozen=True, kw_only=True):
    slots: SlotsConfig = SlotsConfig()
    tick_s: float = TICK_S
    lease_s: float = 30.0
    drain_s: float = DRAIN_S


class Doors(Struct, frozen=True, kw_only=True):
    """What a worker is connected to. `announce` tells others of rows that were written by a
    batch statement, not by a move."""

    database: Database
    transactor: Transactor
    actions: Actions
    announce: Callable[[Chat], None]


class Worker:
    def __init__(self, me: WorkerId, doors: Doors, env: Env, config: WorkerConfig) -> None:
        self.me = me
        self._database = doors.database
        self._transactor = doors.transactor
        self._actions = doors.actions
        self._announce = doors.announce
        self._env = env
        self._config = config
        self._slots = Slots(config.slots, me)
        self._runners: dict[ChatId, Runner] = {}
        self._ticks = Ticks(interval_s=config.tick_s)
        self._last_tick = env.clock.monotonic()
        self._wanted = asyncio.Event()
        self._strays: frozenset[ChatId] = frozenset()
        self._dirty: set[ChatId] = set()
        self._dirtied = asyncio.Event()
        self._emptied = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._draining = False

    # Doors

    def offer(self, *, root: bool) -> AbstractContextManager[WorkerId | None]:
        """For whoever writes a message: this worker, if it has a slot for the chat."""
        return self._slots.offer(root=root)

    def told(self, applied: Applied) -> None:
        """A write of this replica. If it made the chat ours, run it at once."""
        self._heard_row(applied.chat, applied if applied.chat.snapshot_version == 1 else None)

    def hinted(self, hint: Hint) -> None:
        """Something changed elsewhere. Only a row read can tell what."""
        runner = self._runners.get(hint.chat_id)
        if runner is not None and hint.snapshot_version > runner.work.chat.snapshot_version:
            self._dirty.add(hint.chat_id)
            self._dirtied.set()
        if hint.runnable:
            self._wanted.set()

    def everything_is_dirty(self) -> None:
        """Hints may have been lost."""
        self._dirty.update(self._runners)
        self._dirtied.set()
        self._wanted.set()

    @property
    def running(self) -> int:
        return len(self._runners)

    # Life

    async def run(self) -> None:
        """Until drained. The listener must hold this worker's lock already."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            loops = [
                group.create_task(self._tick_loop(), name="tick"),
                group.create_task(self._acquire_loop(), name="acquire"),
                group.create_task(self._read_loop(), name="read"),
            ]
            try:
                await self._drained()
            finally:
                for loop in loops:
                    loop.cancel()

    async def drain(self) -> None:
        """Take nothing more; let steps commit; release what is left. Bounded by the window."""
        self._draining = True
        self._slots.close()
        for runner in self._runners.values():
            runner.stop_after_step()
        self._env.emit("drain_started", running=len(self._runners))
        window = asyncio.get_running_loop().create_task(
            self._env.clock.sleep(self._config.drain_s, "drain")
        )
        empty = asyncio.get_running_loop().create_task(self._until_empty())
        await asyncio.wait({window, empty}, return_when=asyncio.FIRST_COMPLETED)
        window.cancel()
        empty.cancel()
        await self._release_all()
        self._emptied.set()

    async def _release_all(self) -> None:
        """Without a database there is nobody to tell: the others will see that we are gone."""
        try:
            released = await workers.release(self._database.pool, self.me)
        except Unavailable as error:
            self._env.emit("release_failed", error_kind=error.code)
            released = []
        for chat in released:
            self._announce(chat)
            self._heard_row(chat, None)
        for runner in self._runners.values():
            runner.abandon()
        self._env.emit("drained", released=len(released))

    async def _until_empty(self) -> None:
        while self._runners:
            self._emptied.clear()
            await self._emptied.wait()

    async def _drained(self) -> None:
        while not (self._draining and not self._runners):
            self._emptied.clear()
            await self._emptied.wait()

    # Rows

    def _heard_row(self, chat: Chat, created: Applied | None) -> None:
        runner = self._runners.get(chat.id)
        if runner is not None:
            runner.hear(chat)
        if chat.worker_id == self.me and (runner is None or runner.epoch < chat.epoch):
            self._start(chat, created)
        elif chat.runnable_at is not None:
            self._wanted.set()

    def _start(self, chat: Chat, created: Applied | None) -> None:
        """Under a new epoch an older runner of the same chat leaves by itself: it has heard."""
        if self._group is None:
            return
        work = Work(chat)
        if created is not None:
            work.begun_with(created.messages)
        runner = Runner(work, self.me, self._actions, self._env)
        if self._draining:
            runner.stop_after_step()
        self._runners[chat.id] = runner
        self._slots.take(chat)
        self._group.create_task(self._shell(runner), name=f"runner {chat.id}")

    async def _shell(self, runner: Runner) -> None:
        """One of the two places where anything may be caught: a runner must not take the
        others with it."""
        chat_id = runner.work.chat.id
        try:
            await runner.run()
        except Exception as error:  # noqa: BLE001
            self._env.emit("runner_crashed", chat_id=chat_id, error=error)
        finally:
            if self._runners.get(chat_id) is runner:
                del self._runners[chat_id]
                self._slots.give_back(chat_id)
            self._emptied.set()
            self._wanted.set()

    async def _read_loop(self) -> None:
        """Rows that a hint was about, all in one statement."""
        while True:
            await self._dirtied.wait()
            self._dirtied.clear()
            wanted, self._dirty = list(self._dirty), set()
            try:
                rows = await chats.get_many(self._database.pool, wanted)
            except Unavailable:
                self._dirty.update(wanted)
                self._dirtied.set()
                await self._env.clock.sleep(self._config.tick_s, "read_retry")
                continue
            for row in rows:
                self._heard_row(row, None)

    # Taking chats

    async def _acquire_loop(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._acquire()
            except Unavailable:
                await self._env.clock.sleep(self._config.tick_s, "acquire_retry")

    async def _acquire(self) -> None:
        if lease_health(self._last_tick, self._env.clock.monotonic()) != "ok":
            return
        roots = min(self._slots.free(root=True), AT_ONCE)
        children = min(self._slots.free(root=False), AT_ONCE)
        if roots + children == 0:
            return
        # Not to be cut in the middle: a chat taken and not known of would wait for the tick.
        taken = await asyncio.shield(
            workers.acquire(self._database.pool, self.me, roots=roots, children=children)
        )
        for chat in taken:
            self._announce(chat)
            self._heard_row(chat, None)
        if len(taken) >= AT_ONCE:
            self._wanted.set()

    # The tick

    async def _tick_loop(self) -> None:
        while True:
            try:
                await self._tick()
            except Unavailable as error:
                self._ticks = self._ticks.failed()
                self._env.emit("tick_failed", error_kind=error.code)
            self._check_lease()
            await self._env.clock.sleep(self._config.tick_s, "tick")

    async def _tick(self) -> None:
        now = self._env.clock.monotonic()
        beat = workers.Beat(
            worker_id=self.me,
            running={chat_id: runner.epoch for chat_id, runner in self._runners.items()},
            scope=may_reap(self._ticks, now),
            draining=self._draining,
            lease_s=self._config.lease_s,
        )
        heard = await workers.tick(self._database.tick, beat)
        self._last_tick = self._env.clock.monotonic()
        self._ticks = self._ticks.succeeded(self._last_tick)
        if heard.lost:
            self._dirty.update(heard.lost)
            self._dirtied.set()
        await self._let_go(heard.unknown)
        for chat_id in heard.orphaned:
            await self._sweep(chat_id, lambda chat: _reap(chat, heard.dead))
        for chat_id in heard.expired:
            await self._sweep(chat_id, lambda chat: _expire(chat, heard.at))
        if heard.dead:
            await workers.strike(self._database.tick, heard.dead)
        if heard.runnable:
            self._wanted.set()

    async def _let_go(self, unknown: tuple[ChatId, ...]) -> None:
        """Ours by the row, but nobody here runs them: an answer to an acquire was lost. Not
        at first sight: the answer to a write that took the chat may just be on its way."""
        strays = [c for c in unknown if c not in self._runners and c in self._strays]
        self._strays = frozenset(unknown) - frozenset(strays)
        if not strays:
            return
        for chat in await workers.release(self._database.tick, self.me, strays):
            self._announce(chat)
        self._wanted.set()

    async def _sweep(self, chat_id: ChatId, decide: Callable[[Chat], Change]) -> None:
        operation = Operation(
            chat_id=chat_id,
            change_id=self._env.new_change_id(),
            decide=lambda loaded: decide(loaded.chat),
        )
        try:
            await self._transactor.run(operation)
        except (StaleFence, NotFound):
            return

    def _check_lease(self) -> None:
        """Past the lease somebody else may run our chats; they must not run twice."""
        health = lease_health(self._last_tick, self._env.clock.monotonic())
        if health == "cancel_runs":
            for runner in self._runners.values():
                runner.abandon()


def _reap(chat: Chat, dead: frozenset[WorkerId]) -> Change:
    if chat.worker_id is None or chat.worker_id not in dead:
        raise StaleFence(f"Chat {chat.id} has another owner.")
    return worker_moves.reap(chat, chat.worker_id)


def _expire(chat: Chat, at: datetime) -> Change:
    """Looked at again, the chat may have a new deadline that has not passed."""
    if chat.interrupt_deadline is not None and chat.interrupt_deadline < at:
        return worker_moves.expire_interrupt(chat)
    if chat.action_deadline is not None and chat.action_deadline < at:
        return worker_moves.expire_action(chat)
    raise StaleFence(f"Chat {chat.id} is not late any more.")
