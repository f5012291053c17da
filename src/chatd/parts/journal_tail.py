"""Live parts of chats that run elsewhere and are watched here, read from the journal.

One statement for all of them, a few dozen times a second, and only while there are any. A chat
that has been quiet is asked after less often: by a twentieth of the time that it has been. Owns
the order: what it has of an episode is always its beginning, without holes. Who watches what,
and when a chat counts as running elsewhere, is decided above.

Live parts read back: what a worker that is gone had shown of its last step.

Owns turning the journal's rows, or a tape, into parts again. They are as viewers saw them:
without what clients may not see, and only up to the first hole.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import Struct

from chatd.aio.backoff import Backoff
from chatd.aio.waits import InterruptibleSleep
from chatd.domain.answer.partial import LivePart
from chatd.domain.chat.events import MessagePart
from chatd.domain.chat.row import Chat, Episode, Hint
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.parts.episode_buffer import PREVIEW_TRUNCATED_PART
from chatd.parts.journal_writer import TAILED_HINT_KIND
from chatd.store.chat import journal
from chatd.store.conn import Conn


class JournalTailConfig(Struct, frozen=True, kw_only=True):
    interval_s: float = 0.03
    quiet_interval_s: float = 0.25
    quiet_part: float = 0.05
    tell_every_s: float = 10
    at_once: int = 500
    newcomers: int = 50
    backoff: Backoff = Backoff(first_delay_s=0.2, max_delay_s=2.0)


DEFAULT_JOURNAL_TAIL_CONFIG: Final = JournalTailConfig()

ALL_PARTS_LIMIT: Final = 100_000
"""More rows than an episode can have. Of one that is read from its start all rows must come at
once: those that lie further back in time are only looked for then."""


class TailedEpisode:
    """One episode, as far as it has been read."""

    __slots__ = ("active_at", "broken", "chat", "due", "episode", "events", "told_at", "wake")

    def __init__(self, chat: Chat, wake: Callable[[], None], now: float) -> None:
        self.chat = chat
        self.episode = Episode.of(chat)
        self.wake = wake
        self.events: list[bytes] = []
        self.active_at = now
        self.due = now
        self.told_at = float("-inf")
        self.broken = False

    def take(self, flush: journal.JournalEntry) -> bool:
        """Whether it brought news. Rows may be there twice; after a hole nothing is taken."""
        had = len(self.events)
        if self.broken or flush.last_seq <= had:
            return False
        events = flush.parts.split(b"\n")
        whole = len(events) == flush.last_seq - flush.first_seq + 1
        if flush.first_seq > had + 1 or not whole:
            self.broken = True
            return False
        self.events += events[had + 1 - flush.first_seq :]
        return True


class JournalTail:
    """`publish` tells the replica where a chat runs that it should write promptly."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        publish: Callable[[Hint], None],
        config: JournalTailConfig = DEFAULT_JOURNAL_TAIL_CONFIG,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._conn = conn
        self._env = env
        self._publish = publish
        self._config = config
        self._draw = draw
        self._followed: dict[ChatId, TailedEpisode] = {}
        self._some = asyncio.Event()
        self._pause = InterruptibleSleep(env.clock)

    def follow(self, chat: Chat, wake: Callable[[], None]) -> None:
        """The chat's present episode, from its first part on, until another or `drop`."""
        known = self._followed.get(chat.id)
        if known is not None and known.episode == Episode.of(chat):
            known.chat, known.wake = chat, wake
            return
        self._followed[chat.id] = TailedEpisode(chat, wake, self._env.clock.monotonic())
        self._some.set()
        self._pause.wake()

    def drop(self, chat_id: ChatId) -> None:
        self._followed.pop(chat_id, None)

    def hurry(self, chat_id: ChatId) -> None:
        """Something was heard of the chat: perhaps there is more to come."""
        if (followed := self._followed.get(chat_id)) is not None and not followed.broken:
            followed.active_at = self._env.clock.monotonic()
            followed.due = min(followed.due, followed.active_at)

    def find(self, chat_id: ChatId) -> TailedEpisode | None:
        return self._followed.get(chat_id)

    async def run(self) -> None:
        failures = 0
        while True:
            await self._some.wait()
            try:
                more = await self._round()
                failures = 0
            except ChatdError as error:
                failures += 1
                self._env.emit("tail_failed", error_kind=error.code, failures=failures)
                delay = self._config.backoff.delay(failures, self._draw)
                await self._env.clock.sleep(delay, "tail_retry")
                continue
            if not any(not followed.broken for followed in self._followed.values()):
                self._some.clear()
            elif not more:
                await self._pause.sleep(self._config.interval_s, "tail")

    async def _round(self) -> bool:
        """Ask after all that are due. True if there were too many for one statement."""
        now = self._env.clock.monotonic()
        due = [f for f in self._followed.values() if not f.broken and f.due <= now]
        new = [f for f in due if not f.events][: self._config.newcomers]
        asked = [*new, *(f for f in due if f.events)][: self._config.at_once]
        if not asked:
            return False
        self._tell(asked, now)
        rows = await journal.tail(
            self._conn, [(f.episode, len(f.events)) for f in asked], most=ALL_PARTS_LIMIT
        )
        self._hand_out(rows)
        self._reschedule(asked)
        return len(asked) < len(due)

    def _hand_out(self, rows: list[journal.JournalEntry]) -> None:
        now = self._env.clock.monotonic()
        woken: dict[ChatId, Callable[[], None]] = {}
        for row in rows:
            followed = self._followed.get(row.episode.chat_id)
            # While we asked, the chat may have gone on to another episode.
            if followed is not None and followed.episode == row.episode and followed.take(row):
                followed.active_at = now
                woken[row.episode.chat_id] = followed.wake
        for wake in woken.values():
            wake()

    def _reschedule(self, asked: list[TailedEpisode]) -> None:
        now, config = self._env.clock.monotonic(), self._config
        for followed in asked:
            quiet = (now - followed.active_at) * config.quiet_part
            followed.due = now + min(max(config.interval_s, quiet), config.quiet_interval_s) * 0.9

    def _tell(self, asked: list[TailedEpisode], now: float) -> None:
        for followed in asked:
            owned = followed.chat.worker_id is not None
            if owned and now - followed.told_at >= self._config.tell_every_s:
                followed.told_at = now
                self._publish(Hint.of(followed.chat, TAILED_HINT_KIND))


_DECODER: Final = msgspec.json.Decoder(MessagePart)


async def read_episode(conn: Conn, episode: Episode) -> tuple[LivePart, ...]:
    """In order. Nothing, if nothing was written or it was too long ago."""
    events: list[bytes] = []
    for row in await journal.tail(conn, [(episode, 0)], most=ALL_PARTS_LIMIT):
        if row.first_seq > len(events) + 1:
            break
        if row.last_seq > len(events):
            events += row.parts.split(b"\n")[len(events) + 1 - row.first_seq :]
    return decode_live_parts(events)


def decode_live_parts(events: Iterable[bytes]) -> tuple[LivePart, ...]:
    """The mark that stands for the rest of a very long step is nothing that anybody said."""
    decoded = (_decoded(event) for event in events)
    return tuple(
        live for live in decoded if live is not None and live.part != PREVIEW_TRUNCATED_PART
    )


def _decoded(event: bytes) -> LivePart | None:
    """None for a kind of part that only a newer replica knows."""
    try:
        payload = _DECODER.decode(event).message_part
    except msgspec.DecodeError:
        return None
    return LivePart(role=payload.role, part=payload.part)
