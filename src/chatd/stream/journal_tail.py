"""Read live parts from the journal: for viewers of chats that run on other replicas, and to recover
the partial answer of a dead worker.

One statement reads all tailed chats, a few dozen times a second, and only while there are any. A
quiet chat is read less often: the interval grows to a twentieth of its silence. What has been read
of an episode is always its beginning, without gaps. The caller decides which chats are tailed.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from chatd.aio import Backoff, InterruptibleSleep
from chatd.domain.answer.partial import LivePart, missing_parts
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat, Episode, Hint
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat_views.events import MessagePart
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId, WorkerId
from chatd.domain.ports import Env
from chatd.store.chat import journal
from chatd.store.database.conn import Conn
from chatd.stream.episodes import PREVIEW_TRUNCATED_PART, EpisodeRegistry, encode_live_part
from chatd.stream.journal_writer import TAILED_HINT_KIND


class JournalTailConfig(Struct, frozen=True, kw_only=True):
    interval_s: float = 0.03
    quiet_interval_s: float = 0.25
    quiet_fraction: float = 0.05
    hint_interval_s: float = 10
    max_per_read: int = 500
    max_new_per_read: int = 50
    backoff: Backoff = Backoff(first_delay_s=0.2, max_delay_s=2.0)


DEFAULT_JOURNAL_TAIL_CONFIG: Final = JournalTailConfig()

ALL_PARTS_LIMIT: Final = 100_000
"""More rows than an episode can have. A read from the start must return all rows at once: only such
a read looks into older journal slots."""


class TailedEpisode:
    """One episode, as far as it has been read."""

    __slots__ = (
        "active_at",
        "broken",
        "chat",
        "closed",
        "due",
        "episode",
        "events",
        "hinted_at",
        "wake",
    )

    def __init__(self, chat: Chat, wake: Callable[[], None], now: float) -> None:
        self.chat = chat
        self.episode = Episode.of(chat)
        self.wake = wake
        self.events: list[bytes] = []
        self.active_at = now
        self.due = now
        self.hinted_at = float("-inf")
        self.broken = False
        self.closed = False

    def take(self, entry: journal.JournalEntry) -> bool:
        """Add a row; True if it had new parts. Duplicate rows are skipped. After a gap every row is
        ignored."""
        had = len(self.events)
        if self.broken or entry.last_seq <= had:
            return False
        events = entry.parts.split(b"\n")
        whole = len(events) == entry.last_seq - entry.first_seq + 1
        if entry.first_seq > had + 1 or not whole:
            self.broken = True
            return False
        self.events += events[had + 1 - entry.first_seq :]
        self.closed = entry.closed
        return True


class JournalTail:
    """`publish` sends the hint by which the chat's replica shortens its flush interval."""

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
        self._tailed: dict[ChatId, TailedEpisode] = {}
        self._has_tailed = asyncio.Event()
        self._sleep = InterruptibleSleep(env.clock)

    def follow(self, chat: Chat, wake: Callable[[], None]) -> None:
        """Tail the chat's current episode from its first part, until its next episode or `drop`."""
        known = self._tailed.get(chat.id)
        if known is not None and known.episode == Episode.of(chat):
            known.chat, known.wake = chat, wake
            return
        self._tailed[chat.id] = TailedEpisode(chat, wake, self._env.clock.monotonic())
        self._has_tailed.set()
        self._sleep.wake()

    def drop(self, chat_id: ChatId) -> None:
        self._tailed.pop(chat_id, None)

    def hurry(self, chat_id: ChatId) -> None:
        """A hint named the chat: read it in the next round."""
        if (tailed := self._tailed.get(chat_id)) is not None and not tailed.broken:
            tailed.active_at = self._env.clock.monotonic()
            tailed.due = min(tailed.due, tailed.active_at)

    def find(self, chat_id: ChatId) -> TailedEpisode | None:
        return self._tailed.get(chat_id)

    @property
    def is_active(self) -> bool:
        return bool(self._tailed)

    async def run(self) -> None:
        failures = 0
        while True:
            await self._has_tailed.wait()
            try:
                more = await self._read_due()
                failures = 0
            except ChatdError as error:
                failures += 1
                self._env.emit("tail_failed", error_kind=error.code, failures=failures)
                delay = self._config.backoff.delay(failures, self._draw)
                await self._env.clock.sleep(delay, "tail_retry")
                continue
            if not any(not tailed.broken for tailed in self._tailed.values()):
                self._has_tailed.clear()
            elif not more:
                await self._sleep.sleep(self._config.interval_s, "tail")

    async def _read_due(self) -> bool:
        """Read the episodes that are due. True if they were too many for one statement."""
        now = self._env.clock.monotonic()
        due = [f for f in self._tailed.values() if not f.broken and f.due <= now]
        new = [f for f in due if not f.events][: self._config.max_new_per_read]
        batch = [*new, *(f for f in due if f.events)][: self._config.max_per_read]
        if not batch:
            return False
        self._send_hints(batch, now)
        rows = await journal.tail(
            self._conn, [(f.episode, len(f.events)) for f in batch], limit=ALL_PARTS_LIMIT
        )
        self._deliver(rows)
        self._reschedule(batch)
        return len(batch) < len(due)

    def _deliver(self, rows: list[journal.JournalEntry]) -> None:
        now = self._env.clock.monotonic()
        woken: dict[ChatId, Callable[[], None]] = {}
        for row in rows:
            tailed = self._tailed.get(row.episode.chat_id)
            # The chat may have started another episode during the read.
            if tailed is not None and tailed.episode == row.episode and tailed.take(row):
                tailed.active_at = now
                woken[row.episode.chat_id] = tailed.wake
        for wake in woken.values():
            wake()

    def _reschedule(self, batch: list[TailedEpisode]) -> None:
        now, config = self._env.clock.monotonic(), self._config
        for tailed in batch:
            quiet = (now - tailed.active_at) * config.quiet_fraction
            tailed.due = now + min(max(config.interval_s, quiet), config.quiet_interval_s) * 0.9

    def _send_hints(self, batch: list[TailedEpisode], now: float) -> None:
        for tailed in batch:
            owned = tailed.chat.worker_id is not None
            if owned and now - tailed.hinted_at >= self._config.hint_interval_s:
                tailed.hinted_at = now
                self._publish(Hint.of(tailed.chat, TAILED_HINT_KIND))


_DECODER: Final = msgspec.json.Decoder(MessagePart)
_KEPT_DECODER: Final = msgspec.json.Decoder(tuple[LivePart, ...])


async def read_episode(conn: Conn, episode: Episode) -> tuple[LivePart, ...]:
    return (await read_episodes(conn, (episode,)))[episode]


async def read_episodes(
    conn: Conn, episodes: Sequence[Episode]
) -> Mapping[Episode, tuple[LivePart, ...]]:
    """The journaled parts of each, in order, up to the first gap. The journal may have none any
    more."""
    events: dict[Episode, list[bytes]] = {episode: [] for episode in episodes}
    positions = [(episode, 0) for episode in episodes]
    for row in await journal.tail(conn, positions, limit=ALL_PARTS_LIMIT):
        known = events[row.episode]
        if row.first_seq <= len(known) + 1 and row.last_seq > len(known):
            known += row.parts.split(b"\n")[len(known) + 1 - row.first_seq :]
    return {episode: decode_live_parts(known) for episode, known in events.items()}


async def read_said(
    conn: Conn, chat: Chat, episodes: Sequence[Episode]
) -> dict[Episode, tuple[LivePart, ...]]:
    """What these attempts at the chat's step said, and what was kept of an earlier one; the newest
    first."""
    parts = dict(await read_episodes(conn, episodes))
    kept = await journal.find_kept_answer(conn, chat)
    if kept is not None and kept[0].is_kept(chat) and not parts.get(kept[0]):
        parts[kept[0]] = _decode_kept(kept[1])
    return dict(sorted(parts.items(), reverse=True))


async def keep_said(conn: Conn, chat: Chat, episode: Episode, parts: Sequence[LivePart]) -> None:
    """Keep what an attempt said until the chat's next step, for the chat's owner."""
    await journal.keep_answer(conn, chat, episode.attempt, msgspec.json.encode(parts))


def _decode_kept(parts: bytes) -> tuple[LivePart, ...]:
    """Nothing if a newer version wrote a part that this one does not know."""
    try:
        return _KEPT_DECODER.decode(parts)
    except msgspec.DecodeError:
        return ()


def decode_live_parts(events: Iterable[bytes], *, with_mark: bool = False) -> tuple[LivePart, ...]:
    """Decode the parts; the mark of a truncated preview is not part of the answer."""
    decoded = (_decode(event) for event in events)
    return tuple(
        live
        for live in decoded
        if live is not None and (with_mark or live.part != PREVIEW_TRUNCATED_PART)
    )


def _decode(event: bytes) -> LivePart | None:
    """None for a part type that only a newer version knows."""
    try:
        payload = _DECODER.decode(event).message_part
    except msgspec.DecodeError:
        return None
    return LivePart(role=payload.role, part=payload.part)


# The live parts of a chat: from memory if it runs on this replica, else from the journal.
#
# Both sources number an episode's parts alike, so a viewer keeps one number and the source may
# change.

LIVE_STATUSES: Final[frozenset[PublicStatus]] = frozenset({"pending", "running", "interrupting"})


def is_live(chat: Chat) -> bool:
    """Whether the chat's episode may be shown. A chat at rest has no step in progress, even if its
    last attempt left nothing in history."""
    return chat.public_status in LIVE_STATUSES


class LivePartSource:
    """`worker_id` names this replica's worker, if it has one."""

    def __init__(
        self, episodes: EpisodeRegistry, tail: JournalTail, worker_id: WorkerId | None
    ) -> None:
        self._episodes = episodes
        self._tail = tail
        self._worker_id = worker_id

    def watch(self, chat_id: ChatId, wake: Callable[[], None]) -> None:
        self._episodes.watch(chat_id, wake)

    def unwatch(self, chat_id: ChatId) -> None:
        self._episodes.unwatch(chat_id)
        self._tail.drop(chat_id)

    def on_row(self, chat: Chat, wake: Callable[[], None]) -> None:
        """Choose the source for the new row: memory, or the journal."""
        if not is_live(chat) or self._runs_here(chat):
            self._tail.drop(chat.id)
        else:
            self._tail.follow(chat, wake)

    def hurry(self, chat_id: ChatId) -> None:
        self._tail.hurry(chat_id)

    def parts_after(self, episode: Episode, seq: int, limit: int) -> Sequence[bytes]:
        """At limit `limit` parts after number `seq`."""
        events, shown = self._events(episode)
        return events[seq : min(seq + limit, shown)] if shown > seq else ()

    def has_after(self, episode: Episode, seq: int) -> bool:
        return self._events(episode)[1] > seq

    def _events(self, episode: Episode) -> tuple[Sequence[bytes], int]:
        """The parts, and how many of them are for viewers."""
        buffer = self._episodes.find(episode.chat_id)
        if buffer is not None and buffer.episode == episode:
            return buffer.events, buffer.shown
        tailed = self._tail.find(episode.chat_id)
        if tailed is not None and tailed.episode == episode:
            return tailed.events, len(tailed.events)
        return (), 0

    def ended_parts(self, chat: Chat, messages: Iterable[Message]) -> Sequence[bytes]:
        """All parts of the chat's episode, which a step has ended with these messages. A tail is
        often behind the commit: what it lacks of the answer is taken from the message."""
        episode = Episode.of(chat)
        events, _ = self._events(episode)
        tailed = self._tail.find(episode.chat_id)
        if chat.pending_calls or tailed is None or events is not tailed.events or tailed.closed:
            return events
        answer = next((each for each in messages if each.role == "assistant"), None)
        if answer is None:
            return events
        live_parts = decode_live_parts(events, with_mark=True)
        if any(live.part == PREVIEW_TRUNCATED_PART for live in live_parts):
            return events
        whole = list(events)
        for part in missing_parts(live_parts, answer.content):
            encoded = encode_live_part(episode, len(whole) + 1, "assistant", part)
            if encoded is not None:
                whole.append(encoded)
        return whole

    def _runs_here(self, chat: Chat) -> bool:
        """A worker that takes over an interrupt publishes nothing: the live parts stay those of
        the worker before it."""
        is_owned_here = self._worker_id is not None and chat.worker_id == self._worker_id
        if is_owned_here and chat.status == "running":
            return True
        buffer = self._episodes.find(chat.id)
        return buffer is not None and buffer.episode == Episode.of(chat)
