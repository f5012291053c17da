"""Throttled reads of busy streams, and merged deltas."""

import asyncio

import pytest

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import ModelEvent, TextDelta, TextEnd, TextStart, ToolCallDelta
from chatd.providers.http import UNTHROTTLED_READS, ReadThrottle, ReadTimer, merge_deltas

NEVER_S = 3600.0


def text(delta: str, block: str = "1") -> TextDelta:
    return TextDelta(id=block, delta=delta)


def call(delta: str, id_: str) -> ToolCallDelta:
    return ToolCallDelta(id=ToolCallId(id_), delta=delta)


def test_adjacent_deltas_of_one_text_are_merged() -> None:
    events: list[ModelEvent] = [TextStart(id="1"), text("a"), text("b"), text("c"), TextEnd(id="1")]
    assert list(merge_deltas(events)) == [TextStart(id="1"), text("abc"), TextEnd(id="1")]


def test_deltas_of_different_blocks_are_not_merged() -> None:
    events: list[ModelEvent] = [text("a"), text("b", "2"), call("{", "1"), call("}", "1")]
    events += [call("[", "2"), text("c"), TextEnd(id="1"), text("d")]
    assert list(merge_deltas(events)) == [
        text("a"),
        text("b", "2"),
        call("{}", "1"),
        call("[", "2"),
        text("c"),
        TextEnd(id="1"),
        text("d"),
    ]


def test_a_single_event_is_unchanged() -> None:
    events: list[ModelEvent] = [text("a")]
    assert merge_deltas(events) is events
    assert merge_deltas([]) == []


async def test_first_reads_are_immediate_and_later_ones_wait_for_the_timer() -> None:
    pace = ReadThrottle(ReadTimer(interval_s=NEVER_S), busy_gap_s=NEVER_S)
    async with asyncio.timeout(30):
        for _ in range(UNTHROTTLED_READS):
            await pace.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await pace.wait()


async def test_a_slow_stream_is_always_read_at_once() -> None:
    pace = ReadThrottle(ReadTimer(interval_s=NEVER_S), busy_gap_s=-1)
    async with asyncio.timeout(30):
        for _ in range(UNTHROTTLED_READS * 3):
            await pace.wait()


async def test_the_timer_wakes_all_waiting_streams_but_no_cancelled_one() -> None:
    beat = ReadTimer(interval_s=0.001)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        waiting = [group.create_task(beat.wait()) for _ in range(3)]
        gone = group.create_task(beat.wait())
        gone.cancel()
    assert [task.done() for task in waiting] == [True, True, True]
    async with asyncio.timeout(30):
        await beat.wait()


@pytest.mark.parametrize(("many", "every_s"), [(1, 0.03), (48, 0.03), (80, 0.05), (500, 0.1)])
async def test_the_interval_grows_with_the_number_of_streams(many: int, every_s: float) -> None:
    beat = ReadTimer()
    async with asyncio.timeout(20):
        await asyncio.gather(*(beat.wait() for _ in range(many)))
    assert beat.interval_s == every_s
