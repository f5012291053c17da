"""The journal, written behind: what viewers on other replicas will tail.

One statement for all episodes of this replica. It may fall behind or fail: previews elsewhere
are then late or missing, messages never are. Owns when it is written, what is given up when
the database does not take it, and the emptying of old journal. What is in it comes from
`episodes`; reading it is `tail`'s and `replay`'s business.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from chatd.aio.backoff import Backoff
from chatd.aio.waits import InterruptibleSleep
from chatd.domain.chat.row import Episode, Hint
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import WorkerId
from chatd.domain.ports import Env
from chatd.store.chat import journal
from chatd.store.conn import Conn

TAILED_HINT_KIND: Final = "tailed"
"""The kind of a hint by which a replica says that it tails a chat which runs elsewhere."""


class JournalWriterConfig(Struct, frozen=True, kw_only=True):
    """Somebody tails: prompt. Nobody does: the fixed cost of a statement is what counts. Under
    load a pause is a few times as long as the statement before it took."""

    tailed_interval_s: float = 0.025
    untailed_interval_s: float = 0.1
    max_interval_s: float = 0.25
    rest: float = 4
    tailed_for_s: float = 25
    max_pending_bytes: int = 64 * 1024 * 1024
    batch_bytes: int = 4 * 1024 * 1024
    empty_every_s: float = journal.JOURNAL_SLOT_S / 3
    backoff: Backoff = Backoff()


DEFAULT_JOURNAL_WRITER_CONFIG: Final = JournalWriterConfig()


class _Pending:
    __slots__ = ("closed", "events", "first_seq", "size")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.events: list[bytes] = []
        self.size = 0
        self.closed = False


class JournalWriter:
    """Satisfies `episodes.Journal`. `me` is the worker whose chats are recorded here."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        me: WorkerId | None = None,
        config: JournalWriterConfig = DEFAULT_JOURNAL_WRITER_CONFIG,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._conn = conn
        self._env = env
        self._me = me
        self._config = config
        self._draw = draw
        self._pending: dict[Episode, _Pending] = {}
        self._size = 0
        self._given_up: set[Episode] = set()
        self._some = asyncio.Event()
        self._pause = InterruptibleSleep(env.clock)
        self._tailed_until = float("-inf")
        self._prompt = False
        self.dropped = 0

    # For the episodes, and for whoever hears hints

    def enqueue(
        self, episode: Episode, first_seq: int, events: Sequence[bytes], *, closed: bool
    ) -> None:
        if events and not self._gave_up(episode, events):
            pending = self._pending.get(episode)
            if pending is None:
                pending = self._pending[episode] = _Pending(first_seq)
            pending.events += events
            size = sum(map(len, events))
            pending.size += size
            self._size += size
            self._some.set()
            if first_seq == 1 and self._prompt:
                self._pause.wake()
        if closed:
            self._given_up.discard(episode)
            if episode in self._pending:
                self._pending[episode].closed = True

    def on_hint(self, hint: Hint) -> None:
        if hint.kind != TAILED_HINT_KIND or hint.worker_id is None or hint.worker_id != self._me:
            return
        now = self._env.clock.monotonic()
        if now >= self._tailed_until:
            self._pause.wake()
        self._tailed_until = now + self._config.tailed_for_s

    def _gave_up(self, episode: Episode, events: Sequence[bytes]) -> bool:
        """What is dropped once leaves a hole, and past a hole nobody reads."""
        if episode not in self._given_up:
            if self._size < self._config.max_pending_bytes:
                return False
            self._given_up.add(episode)
        self.dropped += len(events)
        return True

    # Life

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_in_time(), name="journal_write")
            group.create_task(self._empty_in_time(), name="journal_empty")

    async def _write_in_time(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            began = self._env.clock.monotonic()
            batch = self._take()
            left = bool(self._pending)
            await self._write(batch)
            if left:
                self._some.set()
            else:
                took = self._env.clock.monotonic() - began
                await self._pause.sleep(self._rest(took), "journal_flush")

    def _rest(self, took: float) -> float:
        tailed = self._env.clock.monotonic() < self._tailed_until
        least = self._config.tailed_interval_s if tailed else self._config.untailed_interval_s
        rest = max(least, min(took * self._config.rest, self._config.max_interval_s))
        # The first part of a step need not wait for the others, as long as there is no load.
        self._prompt = rest <= self._config.tailed_interval_s
        return rest

    def _take(self) -> list[journal.JournalEntry]:
        """As much as one statement should carry."""
        batch: list[journal.JournalEntry] = []
        size = 0
        while self._pending and size < self._config.batch_bytes:
            episode = next(iter(self._pending))
            pending = self._pending.pop(episode)
            size += pending.size
            batch.append(_flush(episode, pending))
        self._size -= size
        return batch

    async def _write(self, batch: list[journal.JournalEntry]) -> None:
        """Until it is written. Whether a lost statement was, nobody can say: the same rows
        are then there twice, and readers skip the second."""
        failures = 0
        while True:
            try:
                await journal.append(self._conn, batch)
            except Unavailable as error:
                failures += 1
                self._env.emit("journal_behind", error_kind=error.code, failures=failures)
                delay = self._config.backoff.delay(failures, self._draw)
                await self._env.clock.sleep(delay, "journal_retry")
            except ChatdError as error:
                self._env.emit("journal_refused", error_kind=error.code, error=error)
                self._lose(batch)
                return
            else:
                return

    def _lose(self, batch: list[journal.JournalEntry]) -> None:
        self.dropped += sum(flush.last_seq - flush.first_seq + 1 for flush in batch)
        self._given_up.update(flush.episode for flush in batch if not flush.closed)
        for episode in self._given_up.intersection(self._pending):
            pending = self._pending.pop(episode)
            self._size -= pending.size
            self.dropped += len(pending.events)
            if pending.closed:
                self._given_up.discard(episode)

    async def _empty_in_time(self) -> None:
        while True:
            try:
                await journal.truncate_oldest_slot(self._conn)
            except ChatdError as error:
                self._env.emit("journal_not_emptied", error_kind=error.code)
            await self._env.clock.sleep(self._config.empty_every_s, "journal_empty")


def _flush(episode: Episode, pending: _Pending) -> journal.JournalEntry:
    return journal.JournalEntry(
        episode=episode,
        first_seq=pending.first_seq,
        last_seq=pending.first_seq + len(pending.events) - 1,
        parts=b"\n".join(pending.events),
        closed=pending.closed,
    )
