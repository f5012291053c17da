"""A turn from a person's message to rest, through the whole engine."""

import asyncio

import msgspec
import pytest

from chatd.domain.chat.row import MAX_QUEUED_MESSAGES, Chat
from chatd.domain.errors import QueueFull
from tests.support.chaos.remains import remains_of
from tests.support.eventually import eventually
from tests.support.house import WITHIN_S, House, a_house
from tests.support.providers.server import Gate
from tests.support.streaming import Client
from tests.support.tools import GatedTool


async def test_a_message_is_answered_and_the_chat_rests(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.says("Hello", " there.")
        chat_id = await house.create("hi")
        chat = await house.rests(chat_id)
        assert chat.state == "W"
        assert await house.transcript(chat_id) == ["user: hi", "assistant: Hello there."]


async def test_a_tool_is_run_and_the_model_sees_its_result(dsn: str) -> None:
    tool = GatedTool()
    async with a_house(dsn, tools=[tool]) as house:
        house.calls(("c1", "echo", '{"say":"x"}'))
        house.says("done")
        chat_id = await house.create("use it")
        await house.rests(chat_id)
        assert await house.transcript(chat_id) == [
            "user: use it",
            "assistant: echo(c1)",
            "tool: result(c1) {'output': 'said {\"say\":\"x\"}'}",
            "assistant: done",
        ]
        assert len(house.api.requests) == 2


async def test_a_queued_message_is_answered_after_the_running_one(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("one", gate)
        house.says("two")
        chat_id = await house.create("first")
        await gate.reached.wait()
        assert (await house.send(chat_id, "second")).state == "R1"
        gate.open()
        await house.rests(chat_id)
        assert await house.transcript(chat_id) == [
            "user: first",
            "assistant: one",
            "user: second",
            "assistant: two",
        ]


async def test_an_interrupted_answer_is_saved_before_the_queued_message(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn) as house:
        house.says("Once upon", gate, " a time")
        house.says("ok")
        chat_id = await house.create("tell me a story")
        await house.shown(chat_id, "Once upon")
        await house.send(chat_id, "shorter!", when_busy="interrupt")
        await house.rests(chat_id)
        assert await house.transcript(chat_id) == [
            "user: tell me a story",
            "assistant: Once upon",
            "user: shorter!",
            "assistant: ok",
        ]
        assert house.api.requests[0].disconnected.is_set()


@pytest.mark.covers("T31", "loop-32")
async def test_a_stop_during_a_tool_ends_the_turn_and_answers_the_call(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn, tools=[GatedTool(gate=gate)]) as house:
        house.calls(("c1", "echo", "{}"))
        chat_id = await house.create("use it")
        await gate.reached.wait()
        assert (await house.interrupt(chat_id)).state == "I0"
        chat = await house.rests(chat_id)
        assert chat.state == "W"
        lines = await house.transcript(chat_id)
        assert lines[:2] == ["user: use it", "assistant: echo(c1)"]
        assert lines[2].startswith("tool: error(c1)")


@pytest.mark.covers("T31")
async def test_a_lasting_failure_ends_in_an_error_that_says_why(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.api.reply(401, {"error": {"message": "wrong key"}})
        chat_id = await house.create("hi")
        chat = await house.rests(chat_id)
        assert chat.state == "E0"
        assert chat.last_error is not None
        assert chat.last_error.kind == "auth"


@pytest.mark.covers("T16")
@pytest.mark.promise("P1")
@pytest.mark.promise("P9")
async def test_messages_that_come_all_at_once_are_answered_one_by_one(dsn: str) -> None:
    """Fifty, of which the queue has room for some; the others are told so."""
    gate, texts = Gate(), [f"message {n}" for n in range(50)]
    async with a_house(dsn) as house:
        house.says("busy", gate)
        for _ in range(MAX_QUEUED_MESSAGES):
            house.says("ok")
        chat_id = await house.create("go")
        await gate.reached.wait()
        sends = (house.send(chat_id, text) for text in texts)
        sent = await asyncio.gather(*sends, return_exceptions=True)
        taken = {text for text, done in zip(texts, sent, strict=True) if isinstance(done, Chat)}
        assert {type(done) for done in sent} == {Chat, QueueFull}
        rows = await house.pool.fetch("SELECT content FROM chat_queued_messages ORDER BY position")
        queued = [msgspec.json.decode(row["content"])[0]["text"] for row in rows]
        gate.open()
        assert (await house.rests(chat_id)).state == "W"
        lines = (await house.transcript(chat_id))[2:]
        assert lines[0::2] == [f"user: {text}" for text in queued]
        assert lines[1::2] == ["assistant: ok"] * MAX_QUEUED_MESSAGES
        assert sorted(queued) == sorted(taken)


@pytest.mark.covers("T28")
async def test_nothing_is_left_over_after_two_hundred_turns(dsn: str) -> None:
    """Some with a tool; then ten chats at once, each watched by somebody."""
    async with a_house(dsn, tools=[GatedTool()]) as house:
        house.says("ready")
        await turns(house, 1)
        before = remains_of(house.replica)
        for _ in range(10):
            house.calls(("c1", "echo", "{}"))
            house.says("done")
            await house.rests(await house.create("go"))
        for _ in range(200):
            house.says("done")
        await asyncio.gather(*(turns(house, 20) for _ in range(10)))

        async def as_before() -> bool:
            return remains_of(house.replica).is_no_more_than(before, forgets=False)

        await eventually(as_before, within_s=WITHIN_S)
        assert remains_of(house.replica).episode_bytes < before.episode_bytes * 60


async def turns(house: House, count: int) -> None:
    chat_id = await house.create("go")
    viewer = Client(chat_id)
    async with viewer.connected(house.replica.feeds) as view:
        for number in range(1, count + 1):
            if number > 1:
                await house.send(chat_id, "again")
            await viewer.watch(view, lambda seen, n=number: is_answered(seen, n))


def is_answered(viewer: Client, turn: int) -> bool:
    return viewer.state.status == "waiting" and len(viewer.state.messages) == 2 * turn
