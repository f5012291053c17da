"""How often a stream is read that talks without a pause, and what is made of one reading.

Nobody is shown words more often than a few dozen times a second, so waking up for each of them
is work for nothing: what comes in between waits in the socket's buffer. The first words of a
stream are read as they come, and so are those of a slow one. All streams of a provider are read
at the same beat, by one timer.
"""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from chatd.domain.model.protocol import ModelEvent, TextDelta, ToolCallDelta

BEAT_S: Final = 0.03
"""Not shorter than viewers' parts are coalesced for: one reading is then one part."""
LONGEST_S: Final = 0.1
READINGS: Final = 1600
"""In a second, of all streams together: a wake-up costs the same however little there is to read,
so the beat grows with those who share it."""
BUSY_S: Final = 0.05
PROMPT_READS: Final = 8


class Beat:
    """The timer. It runs only while somebody waits for it."""

    def __init__(self, every_s: float = BEAT_S) -> None:
        self._least_s = every_s
        self.every_s = every_s
        self._waiting: list[asyncio.Future[None]] = []

    async def next(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_later(self.every_s, self._ring)
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _ring(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.every_s = max(self._least_s, min(len(waiting) / READINGS, LONGEST_S))
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class Pace:
    """Of one stream. `busy_s`: a stream that makes us wait longer for its next word is slow."""

    def __init__(self, beat: Beat, *, busy_s: float = BUSY_S) -> None:
        self._beat = beat
        self._busy_s = busy_s
        self._loop = asyncio.get_running_loop()
        self._asked_at = self._loop.time()
        self._in_a_row = 0

    async def rest(self) -> None:
        """Before each reading. Returns at once unless the last few came quickly one after the
        other."""
        waited_s = self._loop.time() - self._asked_at
        self._in_a_row = self._in_a_row + 1 if waited_s <= self._busy_s else 0
        if self._in_a_row > PROMPT_READS:
            await self._beat.next()
        self._asked_at = self._loop.time()


def joined(events: Sequence[ModelEvent]) -> Sequence[ModelEvent]:
    """Neighbouring pieces of the same text become one piece."""
    if len(events) < 2:
        return events
    return [event for key, run in groupby(events, key=_piece_of) for event in _joined(key, run)]


def _piece_of(event: ModelEvent) -> tuple[type[ModelEvent], str] | None:
    """What the event goes on with; None stands by itself."""
    return (type(event), event.id) if isinstance(event, TextDelta | ToolCallDelta) else None


def _joined(key: object, run: Iterable[ModelEvent]) -> Sequence[ModelEvent]:
    events = list(run)
    if key is None or len(events) == 1:
        return events
    whole = "".join(event.delta for event in events if isinstance(event, TextDelta | ToolCallDelta))
    match events[0]:
        case TextDelta(id=block):
            return [TextDelta(id=block, delta=whole)]
        case ToolCallDelta(id=call):
            return [ToolCallDelta(id=call, delta=whole)]
        case _:
            return events
