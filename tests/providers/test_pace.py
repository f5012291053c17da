"""How a stream without a pause is read, and how its pieces are joined."""

import asyncio

import pytest

from chatd.domain.ids import ToolCallId
from chatd.domain.model.protocol import ModelEvent, TextDelta, TextEnd, TextStart, ToolCallDelta
from chatd.providers.pace import PROMPT_READS, Beat, Pace, joined

NEVER_S = 3600.0


def text(delta: str, block: str = "1") -> TextDelta:
    return TextDelta(id=block, delta=delta)


def call(delta: str, id_: str) -> ToolCallDelta:
    return ToolCallDelta(id=ToolCallId(id_), delta=delta)


def test_neighbouring_pieces_of_one_text_become_one() -> None:
    events: list[ModelEvent] = [TextStart(id="1"), text("a"), text("b"), text("c"), TextEnd(id="1")]
    assert list(joined(events)) == [TextStart(id="1"), text("abc"), TextEnd(id="1")]


def test_pieces_of_different_things_stay_apart() -> None:
    events: list[ModelEvent] = [text("a"), text("b", "2"), call("{", "1"), call("}", "1")]
    events += [call("[", "2"), text("c"), TextEnd(id="1"), text("d")]
    assert list(joined(events)) == [
        text("a"),
        text("b", "2"),
        call("{}", "1"),
        call("[", "2"),
        text("c"),
        TextEnd(id="1"),
        text("d"),
    ]


def test_one_event_is_left_as_it_is() -> None:
    events: list[ModelEvent] = [text("a")]
    assert joined(events) is events
    assert joined([]) == []


async def test_the_first_words_are_read_as_they_come_and_later_ones_at_the_beat() -> None:
    pace = Pace(Beat(every_s=NEVER_S), busy_s=NEVER_S)
    async with asyncio.timeout(30):
        for _ in range(PROMPT_READS):
            await pace.rest()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await pace.rest()


async def test_a_slow_stream_is_always_read_as_it_comes() -> None:
    pace = Pace(Beat(every_s=NEVER_S), busy_s=-1)
    async with asyncio.timeout(30):
        for _ in range(PROMPT_READS * 3):
            await pace.rest()


async def test_one_beat_is_for_all_who_wait_and_for_nobody_who_has_left() -> None:
    beat = Beat(every_s=0.001)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        waiting = [group.create_task(beat.next()) for _ in range(3)]
        gone = group.create_task(beat.next())
        gone.cancel()
    assert [task.done() for task in waiting] == [True, True, True]
    async with asyncio.timeout(30):
        await beat.next()


@pytest.mark.parametrize(("many", "every_s"), [(1, 0.03), (48, 0.03), (80, 0.05), (500, 0.1)])
async def test_a_beat_that_many_share_is_longer(many: int, every_s: float) -> None:
    beat = Beat()
    async with asyncio.timeout(20):
        await asyncio.gather(*(beat.next() for _ in range(many)))
    assert beat.every_s == every_s
