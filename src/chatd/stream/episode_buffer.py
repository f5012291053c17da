"""The live parts of one episode: coalesced, numbered from 1 without gaps, encoded once for all
viewers, truncated at a size limit. `episodes` decides when parts are flushed and how long a buffer
is kept.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec
from msgspec import UNSET

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
        return encode_live_part(self.episode, len(self.events) + 1, role, part)


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
