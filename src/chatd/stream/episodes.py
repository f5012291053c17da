"""The episodes of this replica's running steps, in memory, and the buffer of each.

Owns when parts are flushed to viewers and to the journal (the first at once, then a few dozen times
a second; viewers wait while the journal is far behind), which buffer is a chat's current one, how
long a closed buffer is kept, and how much memory all of them may take. History does not depend on
any of this.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, Protocol

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.chat.messages import Role, public_part
from chatd.domain.chat.parts import (
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UnknownPart,
)
from chatd.domain.chat.row import Episode
from chatd.domain.chat_views.events import MessagePart, PartPayload, encode_part
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock

# The live parts of one episode: coalesced, numbered from 1 without gaps, encoded once for all
# viewers, truncated at a size limit. `episodes` decides when parts are flushed and how long a
# buffer is kept.

MAX_PREVIEW_BYTES: Final = 1024 * 1024
PREVIEW_TRUNCATED_PART: Final = TextPart(
    text="\n[The preview ends here. The whole answer follows when it is done.]"
)
"""The last part of an episode that outgrew the limit."""

_FLUSH_AT_CHARS: Final = 32 * 1024
_PART_OVERHEAD_CHARS: Final = 64

_Key = tuple[str, str] | None
_PendingPart = tuple[Role, _Key, Part]


class EpisodeBuffer:
    """`events[n]` is the encoded part with number n + 1. A reader remembers how many events it has
    read, so a slow reader costs nothing. The first `shown` events are for viewers."""

    __slots__ = (
        "_encoder",
        "_pending",
        "_pending_chars",
        "closed_at",
        "episode",
        "events",
        "flushed_at",
        "shown",
        "size",
        "truncated",
    )

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.events: list[bytes] = []
        self.shown = 0
        self.size = 0
        self.truncated = False
        self.flushed_at = float("-inf")
        self.closed_at: float | None = None
        self._pending: list[_PendingPart] = []
        self._pending_chars = 0
        self._encoder = PartEncoder(episode)

    @property
    def has_unflushed(self) -> bool:
        return bool(self._pending)

    @property
    def is_full(self) -> bool:
        """So much is pending that the next flush must not wait."""
        return self._pending_chars > _FLUSH_AT_CHARS

    def add(self, role: Role, parts: Iterable[Part]) -> None:
        if self.truncated:
            return
        for part in parts:
            key, chars = _measure(part)
            self._pending.append((role, key, part))
            self._pending_chars += chars

    def flush(self) -> Sequence[bytes]:
        """Number and encode the pending parts; return the new events."""
        pending, self._pending = self._pending, []
        self._pending_chars = 0
        first = len(self.events)
        if len(pending) == 1:
            role, _, part = pending[0]
            self._append(role, part)
            return self.events[first:]
        for role, part in _coalesce(pending):
            self._append(role, part)
        return self.events[first:]

    def truncate(self, role: Role) -> None:
        """End the preview: append one mark and ignore all later parts."""
        if self.truncated:
            return
        mark = self._encode(role, PREVIEW_TRUNCATED_PART)
        self.truncated = True
        self._pending.clear()
        if mark is not None:
            self._store(mark)

    def _append(self, role: Role, part: Part) -> None:
        if self.truncated:
            return
        event = self._encode(role, part)
        if event is None:
            return
        if self.size + len(event) > MAX_PREVIEW_BYTES:
            self.truncate(role)
        else:
            self._store(event)

    def _store(self, event: bytes) -> None:
        self.events.append(event)
        self.size += len(event)

    def _encode(self, role: Role, part: Part) -> bytes | None:
        return self._encoder.encode(len(self.events) + 1, role, part)


def encode_live_part(episode: Episode, seq: int, role: Role, part: Part) -> bytes | None:
    """None for a part that viewers do not get."""
    visible = public_part(part)
    if visible is None or isinstance(visible, UnknownPart):
        return None
    payload = PartPayload(
        role=role,
        part=visible,
        history_version=episode.history_version,
        attempt=episode.attempt,
        seq=seq,
    )
    return encode_part(MessagePart(chat_id=episode.chat_id, message_part=payload))


class PartEncoder:
    """Encodes the live parts of one episode. Of a plain text only the text and the number are
    encoded; all else stays the same."""

    __slots__ = ("_after", "_before", "_episode")

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._before = b""
        self._after = b""

    def encode(self, seq: int, role: Role, part: Part) -> bytes | None:
        """None for a part that viewers do not get."""
        if role != "assistant" or type(part) is not TextPart or part.provider_metadata is not UNSET:
            return encode_live_part(self._episode, seq, role, part)
        if not self._before:
            whole = encode_live_part(self._episode, _SAMPLE_SEQ, role, TextPart(text=""))
            assert whole is not None, "an empty text can be encoded"
            self._before, _, after = whole.partition(b'"text":""')
            self._before += b'"text":'
            self._after = after.removesuffix(b"%d}}" % _SAMPLE_SEQ)
        try:
            text = _TEXT_ENCODER.encode(part.text)
        except UnicodeEncodeError:
            return encode_live_part(self._episode, seq, role, part)
        return b"%b%b%b%d}}" % (self._before, text, self._after, seq)


_TEXT_ENCODER: Final = msgspec.json.Encoder()
_SAMPLE_SEQ: Final = 1_000_000_001


def _measure(part: Part) -> tuple[_Key, int]:
    """The key of deltas that may be joined (None: never joined), and its size in characters."""
    match part:
        case TextPart():
            return ("text", ""), len(part.text) + _PART_OVERHEAD_CHARS
        case ReasoningPart():
            plain = part.created_at is None and part.completed_at is None
            return ("reasoning", "") if plain else None, len(part.text) + _PART_OVERHEAD_CHARS
        case ToolCallPart(args_delta=str(delta)) if part.args is UNSET:
            return ("call", part.tool_call_id), len(delta) + _PART_OVERHEAD_CHARS
        case ToolResultPart(result_delta=str(delta)) if part.result is UNSET:
            return ("result", part.tool_call_id), len(delta) + _PART_OVERHEAD_CHARS
        case _:
            return None, _PART_OVERHEAD_CHARS


def _coalesce(pending: Sequence[_PendingPart]) -> Iterator[tuple[Role, Part]]:
    """Join neighbouring deltas of the same part."""
    for (role, key), group in groupby(pending, key=_join_key):
        parts = [part for _, _, part in group]
        for part in parts if key is None else [_join(parts)]:
            yield role, part


def _join_key(group: _PendingPart) -> tuple[Role, _Key]:
    return group[0], group[1]


def _join(parts: Sequence[Part]) -> Part:
    first = parts[0]
    if len(parts) == 1:
        return first
    whole = "".join(_delta(part) for part in parts)
    match first:
        case TextPart() | ReasoningPart():
            return msgspec.structs.replace(first, text=whole)
        case ToolCallPart():
            return msgspec.structs.replace(first, args_delta=whole)
        case ToolResultPart():
            return msgspec.structs.replace(first, result_delta=whole)
        case _:
            return first


def _delta(part: Part) -> str:
    match part:
        case TextPart() | ReasoningPart():
            return part.text
        case ToolCallPart():
            return part.args_delta or ""
        case ToolResultPart():
            return part.result_delta or ""
        case _:
            return ""


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
        parts twice and miss others. An episode older than the open one comes from a stale chat
        task: its parts are discarded.
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
