"""Write live parts to the journal, in the background, for viewers on other replicas.

One statement writes all episodes of this replica. If it falls behind or fails, previews on other
replicas are late or missing; messages never are. Owns the flush interval, the choice of parts to
drop when the database does not accept them, and truncation of old journal slots.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from chatd.aio import Backoff, InterruptibleSleep, retry_unavailable
from chatd.domain.chat.row import Episode, Hint
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkerId
from chatd.domain.ports import Env
from chatd.store.chat import journal
from chatd.store.database.conn import Conn

TAILED_HINT_KIND: Final = "tailed"
"""The kind of the hint that a replica tails a chat of another replica."""


class JournalWriterConfig(Struct, frozen=True, kw_only=True):
    """Flush intervals: short while another replica tails this worker's chats, long otherwise,
    because a statement has a fixed cost. Under load the interval is `load_factor` times the
    duration of the last statement. Viewers here are at most `max_lead_s` ahead of the journal, so
    that an interrupt after this process has died keeps what they saw, but for that much."""

    tailed_interval_s: float = 0.025
    untailed_interval_s: float = 0.1
    max_interval_s: float = 0.25
    max_lead_s: float = 0.25
    load_factor: float = 4
    tailed_for_s: float = 25
    max_pending_bytes: int = 64 * 1024 * 1024
    batch_bytes: int = 4 * 1024 * 1024
    truncate_interval_s: float = journal.JOURNAL_SLOT_S / 3
    backoff: Backoff = Backoff()


DEFAULT_JOURNAL_WRITER_CONFIG: Final = JournalWriterConfig()


def _ignore(_: Mapping[Episode, int]) -> None:
    pass


class _Pending:
    __slots__ = ("closed", "events", "first_seq", "size")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.events: list[bytes] = []
        self.size = 0
        self.closed = False


class JournalWriter:
    """Satisfies `episodes.JournalSink`. `worker_id` names this replica's worker. `on_written` gets
    the last number of each episode in a statement, after it."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        worker_id: WorkerId | None = None,
        config: JournalWriterConfig = DEFAULT_JOURNAL_WRITER_CONFIG,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._conn = conn
        self._env = env
        self._worker_id = worker_id
        self._config = config
        self._draw = draw
        self.on_written: Callable[[Mapping[Episode, int]], None] = _ignore
        self._pending: dict[Episode, _Pending] = {}
        self._pending_since: float | None = None
        self._writing_since: float | None = None
        self._flushing: asyncio.Future[None] | None = None
        self._calls: list[journal.JournalEntry] = []
        self._size = 0
        self._dropped_episodes: set[Episode] = set()
        self._has_pending = asyncio.Event()
        self._sleep = InterruptibleSleep(env.clock)
        self._tailed_until = float("-inf")
        self._writes_first_part_at_once = False
        self._writes_calls_at_once = True
        self.dropped = 0

    # Callbacks of the episodes and of the hint listener

    def enqueue(
        self, episode: Episode, first_seq: int, events: Sequence[bytes], *, closed: bool
    ) -> None:
        if events and not self._is_dropped(episode, events):
            pending = self._pending.get(episode)
            if pending is None:
                pending = self._pending[episode] = _Pending(first_seq)
            pending.events += events
            size = sum(map(len, events))
            pending.size += size
            self._size += size
            now = self._env.clock.monotonic()
            if self._pending_since is None:
                self._pending_since = now
            self._has_pending.set()
            if (first_seq == 1 and self._writes_first_part_at_once) or self.is_behind(now):
                self._sleep.wake()
        if closed:
            self._dropped_episodes.discard(episode)
            if episode in self._pending:
                self._pending[episode].closed = True

    def enqueue_call(self, episode: Episode, number: int, record: bytes) -> None:
        """Written at once unless the database is slow: a call without a record is not billed if
        this process dies."""
        if self._size < self._config.max_pending_bytes:
            self._size += len(record)
            self._calls.append(
                journal.JournalEntry(
                    episode=episode, first_seq=-number, last_seq=-number, parts=record
                )
            )
            self._has_pending.set()
            if self._writes_calls_at_once:
                self._sleep.wake()

    async def flush(self) -> None:
        """Return when all that is pending now is written. `run` must be running."""
        if not self._pending and self._writing_since is None:
            return
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_future()
        flushing = self._flushing
        self._has_pending.set()
        self._sleep.wake()
        await asyncio.shield(flushing)

    def is_behind(self, now: float) -> bool:
        """Parts have waited for the database longer than viewers may be ahead of the journal."""
        since = self._pending_since if self._writing_since is None else self._writing_since
        return since is not None and now - since >= self._config.max_lead_s

    def on_hint(self, hint: Hint) -> None:
        if (
            hint.kind != TAILED_HINT_KIND
            or hint.worker_id is None
            or hint.worker_id != self._worker_id
        ):
            return
        now = self._env.clock.monotonic()
        if now >= self._tailed_until:
            self._sleep.wake()
        self._tailed_until = now + self._config.tailed_for_s

    def _is_dropped(self, episode: Episode, events: Sequence[bytes]) -> bool:
        """Whether to drop these parts. Readers ignore what follows a dropped part, so the writer
        drops the rest of the episode too."""
        if episode not in self._dropped_episodes:
            if self._size < self._config.max_pending_bytes:
                return False
            self._dropped_episodes.add(episode)
        self.dropped += len(events)
        return True

    # Background tasks

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_periodically(), name="journal_write")
            group.create_task(self._truncate_periodically(), name="journal_empty")

    async def _write_periodically(self) -> None:
        while True:
            await self._has_pending.wait()
            self._has_pending.clear()
            began = self._env.clock.monotonic()
            batch = self._next_batch()
            left = bool(self._pending or self._calls)
            self._writing_since = self._pending_since
            self._pending_since = began if self._pending else None
            flushing = None if left else self._flushing
            if batch:
                await self._write(batch)
            self._writing_since = None
            if flushing is not None:
                self._flushing = None
                flushing.set_result(None)
            self.on_written({entry.episode: entry.last_seq for entry in batch})
            if left:
                self._has_pending.set()
            else:
                duration_s = self._env.clock.monotonic() - began
                await self._sleep.sleep(self._next_interval_s(duration_s), "journal_flush")

    def _next_interval_s(self, duration_s: float) -> float:
        tailed = self._env.clock.monotonic() < self._tailed_until
        minimum_s = self._config.tailed_interval_s if tailed else self._config.untailed_interval_s
        interval_s = max(
            minimum_s, min(duration_s * self._config.load_factor, self._config.max_interval_s)
        )
        # With the short interval (tailed, no load) the first part of a step is written at once.
        self._writes_first_part_at_once = interval_s <= self._config.tailed_interval_s
        self._writes_calls_at_once = interval_s <= self._config.untailed_interval_s
        return interval_s

    def _next_batch(self) -> list[journal.JournalEntry]:
        """The entries for one statement."""
        batch, self._calls = self._calls, []
        size = sum(len(record.parts) for record in batch)
        while self._pending and size < self._config.batch_bytes:
            episode = next(iter(self._pending))
            pending = self._pending.pop(episode)
            size += pending.size
            batch.append(_entry(episode, pending))
        self._size -= size
        return batch

    async def _write(self, batch: list[journal.JournalEntry]) -> None:
        """Retry until the database answers. If a statement was applied and its reply was lost, the
        repeat stores the same rows again, and readers skip them."""
        try:
            await retry_unavailable(
                self._env.clock,
                lambda: journal.append(self._conn, batch),
                tag="journal_retry",
                delay=lambda failures: self._config.backoff.delay(failures, self._draw),
                budget_s=None,
                on_failure=self._report_lag,
            )
        except ChatdError as error:
            self._env.emit("journal_write_failed", error_kind=error.code, error=error)
            self._drop(batch)

    def _report_lag(self, error: Unavailable, failures: int) -> None:
        self._env.emit("journal_lagging", error_kind=error.code, failures=failures)

    def _drop(self, batch: list[journal.JournalEntry]) -> None:
        parts = [entry for entry in batch if entry.first_seq > 0]
        self.dropped += sum(entry.last_seq - entry.first_seq + 1 for entry in parts)
        self._dropped_episodes.update(entry.episode for entry in parts if not entry.closed)
        for episode in self._dropped_episodes.intersection(self._pending):
            pending = self._pending.pop(episode)
            self._size -= pending.size
            self.dropped += len(pending.events)
            if pending.closed:
                self._dropped_episodes.discard(episode)

    async def _truncate_periodically(self) -> None:
        while True:
            try:
                await journal.truncate_oldest_slot(self._conn)
            except ChatdError as error:
                self._env.emit("journal_truncate_failed", error_kind=error.code)
            await self._env.clock.sleep(self._config.truncate_interval_s, "journal_empty")


def _entry(episode: Episode, pending: _Pending) -> journal.JournalEntry:
    return journal.JournalEntry(
        episode=episode,
        first_seq=pending.first_seq,
        last_seq=pending.first_seq + len(pending.events) - 1,
        parts=b"\n".join(pending.events),
        closed=pending.closed,
    )
