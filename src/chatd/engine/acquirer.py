"""Slots, acquiring chats for them, and reading rows: all statements of a worker but the heartbeat.

One statement acquires several chats, one reads all rows that hints named, and one releases chats
that the database assigns to this worker but that no chat task here has.
"""

import asyncio
import heapq
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

from chatd.aio import InterruptibleSleep
from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.lease import STABLE_MARGIN_S, STABLE_WORKER_S, is_stable
from chatd.domain.chat.row import MAX_RUNNABLE_DELAY_S, Chat, Hint
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.ports import Env
from chatd.engine.chat_tasks import ChatTasks
from chatd.engine.lease import WorkerLease
from chatd.store.chat import chats, workers
from chatd.store.chat.workers import RunningLimits
from chatd.store.database.conn import Conn

DEFAULT_ROOT_SLOTS: Final = 100
DEFAULT_CHILD_SLOTS: Final = 200
ACQUIRE_BATCH_SIZE: Final = 10
FULL_WORKER_DELAY_S: Final = 0.02
"""Delay before an acquire, multiplied by the worker's load, so that a less loaded worker acquires
first."""
ACQUIRE_RETRY_DELAY_S: Final = 1.0
MAX_LEFT_CHATS_KEPT: Final = 1000
MAX_DUE_TIMES_KEPT: Final = 1000
"""More chats wait for a retry than this: heartbeats find the others."""


class SlotsConfig(Struct, frozen=True, kw_only=True):
    """`roots` and `children` limit this worker, `limits` all workers together."""

    roots: int = DEFAULT_ROOT_SLOTS
    children: int = DEFAULT_CHILD_SLOTS
    limits: RunningLimits | None = None


class Slots:
    """How many chats a worker runs at once. Root chats and subagents have separate slots, so that
    a parent that waits for a subagent never holds the slot that the subagent needs.

    Each chat task of the pool holds a slot, and a reservation holds one until the result of its
    write is known. There are no free slots before the worker is registered and while it drains."""

    def __init__(self, config: SlotsConfig, worker_id: WorkerId, chat_tasks: ChatTasks) -> None:
        self._config = config
        self._worker_id = worker_id
        self._chat_tasks = chat_tasks
        self._reserved = {True: 0, False: 0}
        self.is_open = False

    def free(self, *, root: bool) -> int:
        if not self.is_open:
            return 0
        limit = self._config.roots if root else self._config.children
        return max(limit - self._chat_tasks.count(root=root) - self._reserved[root], 0)

    @property
    def limits(self) -> RunningLimits | None:
        return self._config.limits

    @property
    def load(self) -> float:
        """The occupied share of all slots, from 0 to 1."""
        slots = self._config.roots + self._config.children
        return min(len(self._chat_tasks) / slots, 1.0) if slots else 1.0

    @contextmanager
    def reserve(self, *, root: bool) -> Generator[WorkerId | None]:
        """This worker's id, or None without a free slot. None under limits of all workers too:
        only the acquire statement knows how many chats run on other workers."""
        if self._config.limits is not None or self.free(root=root) == 0:
            yield None
            return
        self._reserved[root] += 1
        try:
            yield self._worker_id
        finally:
            self._reserved[root] -= 1


class Acquirer:
    def __init__(
        self,
        worker_id: WorkerId,
        conn: Conn,
        env: Env,
        *,
        lease: WorkerLease,
        slots: Slots,
        chat_tasks: ChatTasks,
        announce: Callable[[Chat], None],
    ) -> None:
        self._worker_id = worker_id
        self._conn = conn
        self._env = env
        self._lease = lease
        self._slots = slots
        self._chat_tasks = chat_tasks
        self._announce = announce
        self._acquire_requested = asyncio.Event()
        self._acquiring = asyncio.Lock()
        self._was_short_of_slots = False
        self._dirty: set[ChatId] = set()
        self._unknown: frozenset[ChatId] = frozenset()
        self._to_release: set[ChatId] = set()
        self._rows_requested = asyncio.Event()
        self._left: dict[ChatId, int] = {}
        self._started_at = env.clock.monotonic()
        self._due_times: list[float] = []
        self._due_timer = InterruptibleSleep(env.clock)

    # Requests

    def request_acquire(self) -> None:
        self._acquire_requested.set()

    def request_acquire_after(self, delay_s: float) -> None:
        """For a chat that waits. Every replica also finds it by a heartbeat."""
        due_at = self._env.clock.monotonic() + delay_s
        if len(self._due_times) < MAX_DUE_TIMES_KEPT:
            heapq.heappush(self._due_times, due_at)
            if self._due_times[0] == due_at:
                self._due_timer.wake()

    def refresh_rows(self, chat_ids: Collection[ChatId]) -> None:
        if chat_ids:
            self._dirty.update(chat_ids)
            self._rows_requested.set()

    def on_hint(self, hint: Hint) -> None:
        known = self._chat_tasks.last_row(hint.chat_id)
        if known is not None and not known.contains(hint.snapshot_version, hint.change_id):
            self.refresh_rows((hint.chat_id,))
        if hint.is_runnable:
            self.request_acquire()

    def on_chat_task_left(self, chat: Chat) -> None:
        """Remember the version, so that an older row that is still being read starts nothing."""
        self._left.pop(chat.id, None)
        self._left[chat.id] = chat.snapshot_version
        if len(self._left) > MAX_LEFT_CHATS_KEPT:
            del self._left[next(iter(self._left))]
        if self._was_short_of_slots or self._acquiring.locked() or self._slots.limits is not None:
            # No hint repeats for chats that could not be acquired when their hint arrived.
            self._was_short_of_slots = False
            self.request_acquire()

    def on_unknown_chats(self, chat_ids: Collection[ChatId]) -> None:
        """Chats that the row assigns to this worker at an epoch that no chat task here has: the
        reply to a write was lost, or the lease had expired. Released when reported twice in a row,
        because at first the reply may still be on its way.
        """
        reported = frozenset(chat_ids)
        self.refresh_rows([chat_id for chat_id in reported if chat_id in self._chat_tasks])
        unknown = reported - frozenset(self._chat_tasks)
        if again := unknown & self._unknown:
            self._to_release |= again
            self._rows_requested.set()
        self._unknown = unknown - again

    # Acquire

    async def acquire(self) -> None:
        while True:
            await self._acquire_requested.wait()
            self._acquire_requested.clear()
            try:
                async with self._acquiring:
                    await self._acquire()
            except Unavailable as error:
                self._env.emit("acquire_failed", error_kind=error.code)
                await self._env.clock.sleep(ACQUIRE_RETRY_DELAY_S, "acquire_retry")
                self._acquire_requested.set()

    async def watch_due_times(self) -> None:
        """Request an acquire whenever a chat that this worker released is due."""
        while True:
            now = self._env.clock.monotonic()
            next_s = self._due_times[0] - now if self._due_times else MAX_RUNNABLE_DELAY_S
            if next_s > 0:
                tag = "retry_backoff" if self._due_times else "no_retry"
                await self._due_timer.sleep(next_s, tag)
                continue
            heapq.heappop(self._due_times)
            self.request_acquire()

    async def _acquire(self) -> None:
        if self._slots.load > 0:
            await self._env.clock.sleep(self._slots.load * FULL_WORKER_DELAY_S, "acquire_delay")
        roots = min(self._slots.free(root=True), ACQUIRE_BATCH_SIZE)
        children = min(self._slots.free(root=False), ACQUIRE_BATCH_SIZE)
        self._was_short_of_slots = roots == 0 or children == 0
        if roots + children == 0 or self._lease.health != "ok":
            return
        limits = self._slots.limits
        isolated = workers.IsolatedVacancy(
            chats=0 if self._chat_tasks.has_new_isolated() else 1,
            overdue_s=0.0 if self._is_stable() else STABLE_WORKER_S + STABLE_MARGIN_S,
        )
        conn, me = self._conn, self._worker_id
        acquired = await (
            workers.acquire(conn, me, roots=roots, children=children, isolated=isolated)
            if limits is None
            else workers.acquire_within_limits(
                conn, me, limits, roots=roots, children=children, isolated=isolated
            )
        )
        acquired_roots = sum(chat.is_root for chat in acquired)
        if acquired_roots == roots or len(acquired) - acquired_roots == children:
            self._was_short_of_slots = True
        for chat in acquired:
            self._env.emit("chats_acquired", chat_id=chat.id, epoch=chat.epoch)
            if chat.orphan_count > 0:
                self._env.emit("chat_taken_over", chat_id=chat.id, epoch=chat.epoch)
            self._announce(chat)
            self._chat_tasks.on_row(chat)
        if len(acquired) >= (ACQUIRE_BATCH_SIZE if limits is None else 1):
            self._acquire_requested.set()

    def _is_stable(self) -> bool:
        """A worker that has just started may be dying again and again, and leaves isolated chats
        to others for a while."""
        return is_stable(self._env.clock.monotonic() - self._started_at)

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait for an acquire in progress: its chats must be known before all are released."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._acquiring:
                return

    # Rows

    async def read_rows(self) -> None:
        while True:
            await self._rows_requested.wait()
            self._rows_requested.clear()
            try:
                await self._read_dirty()
                await self._release_unknown()
            except Unavailable:
                await self._env.clock.sleep(ACQUIRE_RETRY_DELAY_S, "read_retry")
                self._rows_requested.set()

    async def _read_dirty(self) -> None:
        """A chat that becomes dirty during the read is read again."""
        requested, self._dirty = self._dirty, set()
        if not requested:
            return
        known = {chat_id: self._chat_tasks.last_row(chat_id) for chat_id in requested}
        try:
            rows = await chats.get_many(self._conn, WORKER, list(requested))
        except Unavailable:
            self._dirty |= requested
            raise
        for row in rows:
            before = known[row.id]
            if before is not None and not row.may_follow(before):
                # The database lost commits in a failover: the chat task's past is gone.
                self._env.emit("chat_task_past_lost", chat_id=row.id, epoch=before.epoch)
                self._chat_tasks.cancel(row.id)
            elif row.snapshot_version >= self._left.get(row.id, 0):
                self._chat_tasks.on_row(row)
        for missing in requested - {row.id for row in rows}:
            self._chat_tasks.cancel(missing)

    async def _release_unknown(self) -> None:
        unknown = [chat_id for chat_id in self._to_release if chat_id not in self._chat_tasks]
        if unknown:
            for chat in await workers.release(self._conn, self._worker_id, unknown):
                self._env.emit("unknown_chat_released", chat_id=chat.id, epoch=chat.epoch)
                self._announce(chat)
            self.request_acquire()
        self._to_release.difference_update(unknown)
