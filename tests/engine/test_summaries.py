"""Chats that grow too long: summarized by themselves, when asked, and when the model refuses."""

import pytest

from chatd.domain.prompt.compaction import SUMMARY_INSTRUCTION
from tests.support.house import House, a_house
from tests.support.providers.server import Gate
from tests.support.tools import GatedTool

OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 100 tokens.",
        "code": "context_length_exceeded",
    }
}


def asked_for_a_summary(house: House, number: int) -> bool:
    return SUMMARY_INSTRUCTION[:40].encode() in house.api.requests[number].body


async def test_a_full_context_is_summarized_before_the_next_call(dsn: str) -> None:
    async with a_house(dsn, tools=[GatedTool()]) as house:
        house.with_context(100)
        house.calls(("c1", "echo", "{}"), used=80)
        house.says("what happened so far", used=90)
        house.says("done", used=20)
        chat_id = await house.create("go")
        assert (await house.rests(chat_id)).state == "W"
        assert [asked_for_a_summary(house, n) for n in range(3)] == [False, True, False]
        told = house.api.requests[2].body
        assert b"what happened so far" in told
        assert b"said {}" not in told
        assert await house.booked() == [
            ("turn", True, 80),
            ("compaction", True, 90),
            ("turn", True, 20),
        ]


async def test_below_the_threshold_nothing_is_summarized(dsn: str) -> None:
    async with a_house(dsn, tools=[GatedTool()]) as house:
        house.with_context(100)
        house.calls(("c1", "echo", "{}"), used=60)
        house.says("done", used=65)
        chat_id = await house.create("go")
        assert (await house.rests(chat_id)).state == "W"
        assert len(house.api.requests) == 2


async def test_a_summary_that_was_asked_for_is_all_that_is_done(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.says("hello")
        chat_id = await house.create("hi")
        await house.rests(chat_id, epoch=1)
        house.says("they greeted each other")
        chat = await house.compact(chat_id)
        assert (chat.state, chat.compaction_requested) == ("R0", True)
        chat = await house.rests(chat_id, epoch=3)
        assert (chat.state, chat.compaction_requested) == ("W", False)
        assert len(house.api.requests) == 2
        house.says("again")
        await house.send(chat_id, "hi again")
        await house.rests(chat_id, epoch=5)
        assert b"they greeted each other" in house.api.requests[2].body
        assert b'"hello"' not in house.api.requests[2].body


async def test_a_chat_that_the_model_finds_too_long_is_summarized_and_goes_on(dsn: str) -> None:
    """Of ever less of it: the first summary is refused as well."""
    async with a_house(dsn) as house:
        house.says("hello " * 500)
        chat_id = await house.create("hi " * 500)
        await house.rests(chat_id, epoch=1)
        house.api.reply(400, OVERFLOW)
        house.api.reply(400, OVERFLOW)
        house.says("a short summary")
        house.says("ok")
        await house.send(chat_id, "go on")
        assert (await house.rests(chat_id, epoch=3)).state == "W"
        sizes = [len(request.body) for request in house.api.requests[1:4]]
        assert sizes[0] > sizes[1] > sizes[2]
        assert (await house.transcript(chat_id))[-1] == "assistant: ok"


async def test_a_chat_that_is_too_long_from_the_start_says_so(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.api.reply(400, OVERFLOW)
        chat_id = await house.create("hi")
        chat = await house.rests(chat_id)
        assert chat.last_error is not None
        assert chat.last_error.kind == "context_overflow"


async def test_a_summary_that_does_not_come_about_leaves_nothing_but_a_reason(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.says("hello")
        chat_id = await house.create("hi")
        await house.rests(chat_id, epoch=1)
        house.says()
        await house.compact(chat_id)
        chat = await house.rests(chat_id, epoch=3)
        assert (chat.state, chat.compaction_requested) == ("E0", False)
        assert await house.transcript(chat_id) == ["user: hi", "assistant: hello"]
        assert await house.booked() == [("turn", True, 0), ("compaction", False, 0)]


@pytest.mark.promise("P11")
async def test_a_summary_that_is_stopped_leaves_nothing_but_its_bill(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("hello")
        chat_id = await house.create("hi")
        await house.rests(chat_id, epoch=1)
        house.says("they gr", gate)
        await house.compact(chat_id)
        await gate.reached.wait()
        # That one is being made can be seen; what it says cannot, until it is done.
        await house.shown(chat_id, "chat_summarized")
        await house.interrupt(chat_id)
        assert (await house.rests(chat_id, epoch=3)).state == "W"
        assert await house.transcript(chat_id) == ["user: hi", "assistant: hello"]
        assert await house.booked() == [("turn", True, 0), ("compaction", False, 0)]
