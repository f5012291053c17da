"""One episode's live parts: coalesced, numbered from 1, encoded once for everybody.

Owns that the numbers have no holes and what happens when there are too many parts. When parts
are coalesced, and how long a tape is kept, is the business of `episodes`.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec
from msgspec import UNSET

from chatd.domain.chat.events import MessagePart, PartPayload, encode_part
from chatd.domain.chat.messages import Role
from chatd.domain.chat.parts import (
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    UnknownPart,
    public_part,
)
from chatd.domain.chat.row import Episode

MAX_PREVIEW_BYTES: Final = 1024 * 1024
PREVIEW_TRUNCATED_PART: Final = TextPart(
    text="\n[The preview ends here. The whole answer follows when it is done.]"
)
"""The last part of an episode that said more than is kept of it."""

_SOON: Final = 32 * 1024
_PART_COST: Final = 64

_Key = tuple[str, str] | None
_Said = tuple[Role, _Key, Part]


class EpisodeBuffer:
    """`events[n]` is the part with number n + 1, as it is sent. A reader keeps how many it has
    had, so a slow one costs nothing."""

    __slots__ = (
        "_pending",
        "_weight",
        "closed_at",
        "episode",
        "events",
        "settled_at",
        "size",
        "truncated",
    )

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.events: list[bytes] = []
        self.size = 0
        self.truncated = False
        self.settled_at = float("-inf")
        self.closed_at: float | None = None
        self._pending: list[_Said] = []
        self._weight = 0

    @property
    def has_unflushed(self) -> bool:
        return bool(self._pending)

    @property
    def is_full(self) -> bool:
        """So much is pending that it should not wait."""
        return self._weight > _SOON

    def add(self, role: Role, parts: Iterable[Part]) -> None:
        if self.truncated:
            return
        for part in parts:
            key, weight = _weighed(part)
            self._pending.append((role, key, part))
            self._weight += weight

    def flush(self) -> Sequence[bytes]:
        """Number and encode what is pending; returns what is new."""
        pending, self._pending = self._pending, []
        self._weight = 0
        first = len(self.events)
        for role, part in _coalesced(pending):
            self._append(role, part)
        return self.events[first:]

    def truncate(self, role: Role) -> None:
        """Full once is full for good: one mark, and nothing after it."""
        if self.truncated:
            return
        mark = self._encoded(role, PREVIEW_TRUNCATED_PART)
        self.truncated = True
        self._pending.clear()
        if mark is not None:
            self._put(mark)

    def _append(self, role: Role, part: Part) -> None:
        if self.truncated:
            return
        event = self._encoded(role, part)
        if event is None:
            return
        if self.size + len(event) > MAX_PREVIEW_BYTES:
            self.truncate(role)
        else:
            self._put(event)

    def _put(self, event: bytes) -> None:
        self.events.append(event)
        self.size += len(event)

    def _encoded(self, role: Role, part: Part) -> bytes | None:
        seen = public_part(part)
        if seen is None or isinstance(seen, UnknownPart):
            return None
        payload = PartPayload(
            role=role,
            part=seen,
            history_version=self.episode.history_version,
            attempt=self.episode.attempt,
            seq=len(self.events) + 1,
        )
        return encode_part(MessagePart(chat_id=self.episode.chat_id, message_part=payload))


def _weighed(part: Part) -> tuple[_Key, int]:
    """What a delta goes on with, and about how much it is; None stands by itself."""
    match part:
        case TextPart():
            return ("text", ""), len(part.text) + _PART_COST
        case ReasoningPart():
            plain = part.created_at is None and part.completed_at is None
            return ("reasoning", "") if plain else None, len(part.text) + _PART_COST
        case ToolCallPart(args_delta=str(delta)) if part.args is UNSET:
            return ("call", part.tool_call_id), len(delta) + _PART_COST
        case ToolResultPart(result_delta=str(delta)) if part.result is UNSET:
            return ("result", part.tool_call_id), len(delta) + _PART_COST
        case _:
            return None, _PART_COST


def _coalesced(pending: Sequence[_Said]) -> Iterator[tuple[Role, Part]]:
    """Neighbouring deltas of the same thing become one."""
    for (role, key), said in groupby(pending, key=_speaker):
        parts = [part for _, _, part in said]
        for part in parts if key is None else [_joined(parts)]:
            yield role, part


def _speaker(said: _Said) -> tuple[Role, _Key]:
    return said[0], said[1]


def _joined(parts: Sequence[Part]) -> Part:
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
