"""Live parts of the steps under way on this replica, in memory.

Owns when parts are shown (the first at once, then a few dozen times a second), which tape is a
chat's current one, how long a closed one is kept, and how much memory they may take in all.
Viewers here and the journal are told as parts are settled. History does not depend on any of
this.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from chatd.domain.chat.messages import Role
from chatd.domain.chat.parts import Part
from chatd.domain.chat.row import Episode
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock
from chatd.parts.episode_buffer import EpisodeBuffer


class EpisodesConfig(Struct, frozen=True, kw_only=True):
    coalesce_s: float = 0.025
    keep_closed_s: float = 30.0
    max_total_bytes: int = 512 * 1024 * 1024


DEFAULT_EPISODES_CONFIG: Final = EpisodesConfig()


class JournalSink(Protocol):
    """Whoever writes parts down for viewers elsewhere. Never waits and never fails."""

    def enqueue(
        self, episode: Episode, first_seq: int, events: Sequence[bytes], *, closed: bool
    ) -> None: ...


class PartRecorder:
    """Where a running step puts its parts."""

    def __init__(self, episodes: "EpisodeRegistry", tape: EpisodeBuffer) -> None:
        self._episodes = episodes
        self._tape = tape

    def add(self, role: Role, parts: Iterable[Part]) -> None:
        self._episodes.added(self._tape, role, parts)

    def close(self) -> None:
        """No more will come. Can be called again."""
        self._episodes.close(self._tape)


class EpisodeRegistry:
    """`run` must be running; nothing is ticking while there is nothing to do."""

    def __init__(
        self, clock: Clock, journal: JournalSink, config: EpisodesConfig = DEFAULT_EPISODES_CONFIG
    ) -> None:
        self._clock = clock
        self._journal = journal
        self._config = config
        self._tapes: dict[ChatId, EpisodeBuffer] = {}
        self._wakers: dict[ChatId, Callable[[], None]] = {}
        self._unsettled: set[EpisodeBuffer] = set()
        self._some_unsettled = asyncio.Event()
        self._closed: dict[ChatId, EpisodeBuffer] = {}  # the one closed first is first
        self._some_closed = asyncio.Event()
        self._expired: dict[ChatId, EpisodeBuffer] = {}  # kept because somebody watches
        self.total = 0

    # For the step

    def open(self, episode: Episode) -> PartRecorder:
        """A new episode takes the place of the chat's last one, whose late parts bounce.

        One that is opened again goes on where it was: its numbers must not begin anew, or
        viewers would get some parts twice and miss others. And one that is older than what is
        under way comes from a late runner, and is shown to nobody.
        """
        last = self._tapes.get(episode.chat_id)
        if last is not None and episode == last.episode:
            self._reopen(last)
            return PartRecorder(self, last)
        if last is not None:
            if last.closed_at is None and episode < last.episode:
                return self._unheard(episode)
            self.close(last)
            self._drop(last)
        tape = EpisodeBuffer(episode)
        self._tapes[episode.chat_id] = tape
        return PartRecorder(self, tape)

    def added(self, tape: EpisodeBuffer, role: Role, parts: Iterable[Part]) -> None:
        if tape.closed_at is not None:
            return
        tape.add(role, parts)
        if not tape.has_unflushed:
            return
        now = self._clock.monotonic()
        if tape.is_full or now - tape.settled_at >= self._config.coalesce_s:
            self._settle(tape, role, now)
        else:
            self._unsettled.add(tape)
            self._some_unsettled.set()

    def close(self, tape: EpisodeBuffer) -> None:
        if tape.closed_at is not None:
            return
        tape.closed_at = self._clock.monotonic()
        self._settle(tape, "assistant", tape.closed_at)
        self._closed[tape.episode.chat_id] = tape
        self._some_closed.set()

    # For viewers

    def find(self, chat_id: ChatId) -> EpisodeBuffer | None:
        """The chat's last episode here: under way, or closed a while ago."""
        return self._tapes.get(chat_id)

    def watch(self, chat_id: ChatId, wake: Callable[[], None]) -> None:
        """`wake` is called whenever the chat has new parts. One for each chat."""
        self._wakers[chat_id] = wake

    def unwatch(self, chat_id: ChatId) -> None:
        self._wakers.pop(chat_id, None)
        if (tape := self._expired.get(chat_id)) is not None:
            self._drop(tape)

    # Life

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._settle_in_time(), name="parts_settle")
            group.create_task(self._forget_in_time(), name="parts_forget")

    async def _settle_in_time(self) -> None:
        while True:
            await self._some_unsettled.wait()
            await self._clock.sleep(self._config.coalesce_s, "coalesce")
            self._some_unsettled.clear()
            unsettled, self._unsettled = self._unsettled, set()
            now = self._clock.monotonic()
            for tape in unsettled:
                self._settle(tape, "assistant", now)

    async def _forget_in_time(self) -> None:
        while True:
            while not self._closed:
                self._some_closed.clear()
                await self._some_closed.wait()
            oldest = next(iter(self._closed.values()))
            age = self._clock.monotonic() - (oldest.closed_at or 0.0)
            if age < self._config.keep_closed_s:
                await self._clock.sleep(self._config.keep_closed_s - age, "forget_parts")
            else:
                self._expire(oldest)

    def _settle(self, tape: EpisodeBuffer, role: Role, now: float) -> None:
        self._unsettled.discard(tape)
        before, first = tape.size, len(tape.events)
        tape.flush()
        tape.settled_at = now
        self.total += tape.size - before
        if self.total > self._config.max_total_bytes:
            self._make_room(tape, role)
        events, closed = tape.events[first:], tape.closed_at is not None
        if events or closed:
            self._journal.enqueue(tape.episode, first + 1, events, closed=closed)
        if events and (wake := self._wakers.get(tape.episode.chat_id)) is not None:
            wake()

    def _make_room(self, growing: EpisodeBuffer, role: Role) -> None:
        """Those that are over go first. If that is not enough, the one that grows stops."""
        for tape in (*self._expired.values(), *self._closed.values()):
            if self.total <= self._config.max_total_bytes:
                return
            if tape is not growing:
                self._drop(tape)
        if self.total > self._config.max_total_bytes:
            before = growing.size
            growing.truncate(role)
            self.total += growing.size - before

    def _expire(self, tape: EpisodeBuffer) -> None:
        chat_id = tape.episode.chat_id
        if chat_id in self._wakers:
            del self._closed[chat_id]
            self._expired[chat_id] = tape
        else:
            self._drop(tape)

    def _reopen(self, tape: EpisodeBuffer) -> None:
        tape.closed_at = None
        self._closed.pop(tape.episode.chat_id, None)
        self._expired.pop(tape.episode.chat_id, None)

    def _drop(self, tape: EpisodeBuffer) -> None:
        chat_id = tape.episode.chat_id
        for shelf in (self._tapes, self._closed, self._expired):
            if shelf.get(chat_id) is tape:
                del shelf[chat_id]
        self.total -= tape.size

    def _unheard(self, episode: Episode) -> PartRecorder:
        tape = EpisodeBuffer(episode)
        tape.closed_at = self._clock.monotonic()
        return PartRecorder(self, tape)
