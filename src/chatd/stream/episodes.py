"""The episodes of this replica's running steps, in memory.

Owns when parts are flushed to viewers and to the journal (the first at once, then a few dozen times
a second; viewers wait while the journal is far behind), which buffer is a chat's current one, how
long a closed buffer is kept, and how much memory all of them may take. History does not depend on
any of this.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

from chatd.domain.chat.messages import Role
from chatd.domain.chat.parts import Part
from chatd.domain.chat.row import Episode
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock
from chatd.stream.episode_buffer import EpisodeBuffer


class EpisodesConfig(Struct, frozen=True, kw_only=True):
    coalesce_s: float = 0.025
    keep_closed_s: float = 30.0
    max_total_bytes: int = 512 * 1024 * 1024


DEFAULT_EPISODES_CONFIG: Final = EpisodesConfig()


class JournalSink(Protocol):
    """Writes parts for viewers on other replicas. Never blocks and never raises. While it is
    behind, viewers here see only what it has written: it tells `on_written` the last number of
    each episode."""

    on_written: Callable[[Mapping[Episode, int]], None]

    def is_behind(self, now: float) -> bool: ...

    def enqueue(
        self, episode: Episode, first_seq: int, events: Sequence[bytes], *, closed: bool
    ) -> None: ...

    def enqueue_call(self, episode: Episode, number: int, record: bytes) -> None: ...


class PartRecorder:
    """A running step adds its parts here."""

    def __init__(self, episodes: "EpisodeRegistry", buffer: EpisodeBuffer) -> None:
        self._episodes = episodes
        self._buffer = buffer
        self._calls_recorded = 0

    def record_call(self, record: bytes) -> None:
        """Write the state of a model call to the journal, for the worker that takes over. Viewers
        do not get it. A later record replaces an earlier one of the same call."""
        if self._buffer.closed_at is None:
            self._episodes.record_call(self._buffer.episode, self._calls_recorded, record)
            self._calls_recorded += 1

    def add(self, role: Role, parts: Iterable[Part]) -> None:
        self._episodes.add_parts(self._buffer, role, parts)

    def close(self) -> None:
        """The episode is complete. May be called again."""
        self._episodes.close(self._buffer)


class EpisodeRegistry:
    """`run` must be running. It sleeps without a timer while there is nothing to do."""

    def __init__(
        self, clock: Clock, journal: JournalSink, config: EpisodesConfig = DEFAULT_EPISODES_CONFIG
    ) -> None:
        self._clock = clock
        self._journal = journal
        self._config = config
        self._buffers: dict[ChatId, EpisodeBuffer] = {}
        self._wakers: dict[ChatId, Callable[[], None]] = {}
        self._unflushed: set[EpisodeBuffer] = set()
        self._has_unflushed = asyncio.Event()
        self._closed: dict[ChatId, EpisodeBuffer] = {}  # in the order of closing
        self._has_closed = asyncio.Event()
        self._expired: dict[ChatId, EpisodeBuffer] = {}  # kept for a viewer
        self._withheld: set[EpisodeBuffer] = set()
        journal.on_written = self._on_written
        self.total = 0

    # For the step

    def open(self, episode: Episode) -> PartRecorder:
        """Start recording an episode. It replaces the chat's last one, which ignores late parts.

        An episode that is opened again continues its numbering; otherwise viewers would get some
        parts twice and miss others. An episode older than the open one comes from a stale runner:
        its parts are discarded.
        """
        last = self._buffers.get(episode.chat_id)
        if last is not None and episode == last.episode:
            self._reopen(last)
            return PartRecorder(self, last)
        if last is not None:
            if last.closed_at is None and episode < last.episode:
                return self._discarding_recorder(episode)
            self.close(last)
            self._drop(last)
        buffer = EpisodeBuffer(episode)
        self._buffers[episode.chat_id] = buffer
        return PartRecorder(self, buffer)

    def add_parts(self, buffer: EpisodeBuffer, role: Role, parts: Iterable[Part]) -> None:
        if buffer.closed_at is not None:
            return
        buffer.add(role, parts)
        if not buffer.has_unflushed:
            return
        now = self._clock.monotonic()
        if buffer.is_full or now - buffer.flushed_at >= self._config.coalesce_s:
            self._flush(buffer, role, now)
        else:
            self._unflushed.add(buffer)
            self._has_unflushed.set()

    def record_call(self, episode: Episode, number: int, record: bytes) -> None:
        self._journal.enqueue_call(episode, number, record)

    def close(self, buffer: EpisodeBuffer) -> None:
        if buffer.closed_at is not None:
            return
        buffer.closed_at = self._clock.monotonic()
        self._flush(buffer, "assistant", buffer.closed_at)
        self._closed[buffer.episode.chat_id] = buffer
        self._has_closed.set()

    def flush_all(self) -> None:
        """Pass on what waits for its turn: the process is about to end."""
        now = self._clock.monotonic()
        for buffer in tuple(self._unflushed):
            self._flush(buffer, "assistant", now)

    # For viewers

    def find(self, chat_id: ChatId) -> EpisodeBuffer | None:
        """The chat's last episode on this replica: open, or closed recently."""
        return self._buffers.get(chat_id)

    def watch(self, chat_id: ChatId, wake: Callable[[], None]) -> None:
        """Call `wake` whenever the chat has new parts. One callback per chat."""
        self._wakers[chat_id] = wake

    def unwatch(self, chat_id: ChatId) -> None:
        self._wakers.pop(chat_id, None)
        if (buffer := self._expired.get(chat_id)) is not None:
            self._drop(buffer)

    # Background tasks

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._flush_periodically(), name="parts_flush")
            group.create_task(self._expire_closed(), name="parts_expire")

    async def _flush_periodically(self) -> None:
        while True:
            await self._has_unflushed.wait()
            await self._clock.sleep(self._config.coalesce_s, "coalesce")
            self._has_unflushed.clear()
            unflushed, self._unflushed = self._unflushed, set()
            now = self._clock.monotonic()
            for buffer in unflushed:
                self._flush(buffer, "assistant", now)

    async def _expire_closed(self) -> None:
        while True:
            while not self._closed:
                self._has_closed.clear()
                await self._has_closed.wait()
            oldest = next(iter(self._closed.values()))
            age = self._clock.monotonic() - (oldest.closed_at or 0.0)
            if age < self._config.keep_closed_s:
                await self._clock.sleep(self._config.keep_closed_s - age, "forget_parts")
            else:
                self._expire(oldest)

    def _flush(self, buffer: EpisodeBuffer, role: Role, now: float) -> None:
        self._unflushed.discard(buffer)
        before, first = buffer.size, len(buffer.events)
        buffer.flush()
        buffer.flushed_at = now
        self.total += buffer.size - before
        if self.total > self._config.max_total_bytes:
            self._free_memory(buffer, role)
        events, closed = buffer.events[first:], buffer.closed_at is not None
        if events or closed:
            self._journal.enqueue(buffer.episode, first + 1, events, closed=closed)
        if events and self._journal.is_behind(now):
            self._withheld.add(buffer)
        elif events:
            self._show(buffer, len(buffer.events))

    def _show(self, buffer: EpisodeBuffer, seq: int) -> None:
        if seq <= buffer.shown:
            return
        buffer.shown = seq
        if (wake := self._wakers.get(buffer.episode.chat_id)) is not None:
            wake()

    def _on_written(self, last: Mapping[Episode, int]) -> None:
        is_behind = self._journal.is_behind(self._clock.monotonic())
        for buffer in tuple(self._withheld):
            self._show(buffer, last.get(buffer.episode, 0) if is_behind else len(buffer.events))
        if not is_behind:
            self._withheld.clear()

    def _free_memory(self, growing: EpisodeBuffer, role: Role) -> None:
        """Drop closed buffers first. If that is not enough, truncate the growing one."""
        for buffer in (*self._expired.values(), *self._closed.values()):
            if self.total <= self._config.max_total_bytes:
                return
            if buffer is not growing:
                self._drop(buffer)
        if self.total > self._config.max_total_bytes:
            before = growing.size
            growing.truncate(role)
            self.total += growing.size - before

    def _expire(self, buffer: EpisodeBuffer) -> None:
        chat_id = buffer.episode.chat_id
        if chat_id in self._wakers:
            del self._closed[chat_id]
            self._expired[chat_id] = buffer
        else:
            self._drop(buffer)

    def _reopen(self, buffer: EpisodeBuffer) -> None:
        buffer.closed_at = None
        self._closed.pop(buffer.episode.chat_id, None)
        self._expired.pop(buffer.episode.chat_id, None)

    def _drop(self, buffer: EpisodeBuffer) -> None:
        chat_id = buffer.episode.chat_id
        for buffers in (self._buffers, self._closed, self._expired):
            if buffers.get(chat_id) is buffer:
                del buffers[chat_id]
        self._withheld.discard(buffer)
        self.total -= buffer.size

    def _discarding_recorder(self, episode: Episode) -> PartRecorder:
        buffer = EpisodeBuffer(episode)
        buffer.closed_at = self._clock.monotonic()
        return PartRecorder(self, buffer)
