"""Limits how often busy streams are read, and merges the deltas of one read.

Viewers get parts a few dozen times a second, so that a wake-up for each token is wasted work: the
socket buffers what arrives meanwhile. The first reads of a stream and the reads of slow streams
are not delayed. One timer wakes all streams of a provider.
"""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from chatd.domain.model.protocol import ModelEvent, TextDelta, ToolCallDelta

READ_INTERVAL_S: Final = 0.03
"""Not shorter than the interval at which parts for viewers are coalesced: one read is one part."""
MAX_READ_INTERVAL_S: Final = 0.1
MAX_READS_PER_S: Final = 1600
"""Of all streams of a provider together. A wake-up has a fixed cost, so the interval between reads
grows with the number of waiting streams."""
BUSY_STREAM_GAP_S: Final = 0.05
UNTHROTTLED_READS: Final = 8


class ReadTimer:
    """Wakes all waiting streams at once. Runs only while a stream waits."""

    def __init__(self, interval_s: float = READ_INTERVAL_S) -> None:
        self._least_s = interval_s
        self.interval_s = interval_s
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_later(self.interval_s, self._ring)
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _ring(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.interval_s = max(
            self._least_s, min(len(waiting) / MAX_READS_PER_S, MAX_READ_INTERVAL_S)
        )
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class ReadThrottle:
    """The throttle of one stream. A gap above `busy_gap_s` between reads makes it a slow stream."""

    def __init__(self, timer: ReadTimer, *, busy_gap_s: float = BUSY_STREAM_GAP_S) -> None:
        self._beat = timer
        self._busy_s = busy_gap_s
        self._loop = asyncio.get_running_loop()
        self._asked_at = self._loop.time()
        self._in_a_row = 0

    async def wait(self) -> None:
        """Call before each read. Returns at once unless the last reads had short gaps."""
        waited_s = self._loop.time() - self._asked_at
        self._in_a_row = self._in_a_row + 1 if waited_s <= self._busy_s else 0
        if self._in_a_row > UNTHROTTLED_READS:
            await self._beat.wait()
        self._asked_at = self._loop.time()


def merge_deltas(events: Sequence[ModelEvent]) -> Sequence[ModelEvent]:
    """Merge adjacent deltas of the same text or call."""
    if len(events) < 2:
        return events
    return [event for key, run in groupby(events, key=_piece_of) for event in _joined(key, run)]


def _piece_of(event: ModelEvent) -> tuple[type[ModelEvent], str] | None:
    """Equal for deltas that can be merged; None for other events."""
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
