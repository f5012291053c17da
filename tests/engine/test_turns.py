"""A turn from a user message until the chat waits, through the whole engine."""

import asyncio

import msgspec
import pytest

from chatd.domain.chat.row import MAX_QUEUED_MESSAGES, Chat
from chatd.domain.errors import QueueFull
from tests.support.chaos.replica_resources import measure_resources
from tests.support.engine_rig import WAIT_TIMEOUT_S, EngineRig, engine_rig
from tests.support.eventually import eventually
from tests.support.providers.server import Gate
from tests.support.stream_replica import StreamClient
from tests.support.tools import GatedTool


@pytest.mark.stock_server
async def test_a_message_is_answered_and_the_chat_waits(rig: EngineRig) -> None:
    chat_id = await rig.ask("hi", "Hello", " there.")
    chat = await rig.wait_chat_task_left(chat_id)
    assert chat.state == "W"
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: Hello there."]


@pytest.mark.stock_server
async def test_a_tool_runs_and_the_model_gets_its_result(dsn: str) -> None:
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool]) as rig:
        rig.call_tools(("c1", "echo", '{"say":"x"}'))
        chat_id = await rig.ask("use it", "done")
        await rig.wait_chat_task_left(chat_id)
        assert await rig.transcript(chat_id) == [
            "user: use it",
            "assistant: echo(c1)",
            "tool: result(c1) {'output': 'said {\"say\":\"x\"}'}",
            "assistant: done",
        ]
        assert len(rig.api.requests) == 2


@pytest.mark.stock_server
async def test_a_queued_message_is_answered_after_the_running_turn(rig: EngineRig) -> None:
    gate = Gate()
    rig.answer("one", gate)
    chat_id = await rig.ask("first", "two")
    await gate.reached.wait()
    assert (await rig.send(chat_id, "second")).state == "R1"
    gate.open()
    await rig.wait_chat_task_left(chat_id)
    expected = ["user: first", "assistant: one", "user: second", "assistant: two"]
    assert await rig.transcript(chat_id) == expected


@pytest.mark.stock_server
async def test_an_interrupted_answer_is_stored_before_the_queued_message(rig: EngineRig) -> None:
    gate = Gate()
    rig.answer("Once upon", gate, " a time")
    chat_id = await rig.ask("tell me a story", "ok")
    await rig.wait_shown(chat_id, "Once upon")
    await rig.send(chat_id, "shorter!", when_busy="interrupt")
    await rig.wait_chat_task_left(chat_id)
    assert await rig.transcript(chat_id) == [
        "user: tell me a story",
        "assistant: Once upon",
        "user: shorter!",
        "assistant: ok",
    ]
    assert rig.api.requests[0].disconnected.is_set()


@pytest.mark.covers("T31", "loop-32")
@pytest.mark.stock_server
async def test_an_interrupt_during_a_tool_ends_the_turn_and_answers_the_call(dsn: str) -> None:
    gate = Gate()
    async with engine_rig(dsn, tools=[GatedTool(gate=gate)]) as rig:
        chat_id = await rig.start_tool("use it", gate)
        assert (await rig.interrupt(chat_id)).state == "I0"
        chat = await rig.wait_chat_task_left(chat_id)
        assert chat.state == "W"
        lines = await rig.transcript(chat_id)
        assert lines[:2] == ["user: use it", "assistant: echo(c1)"]
        assert lines[2].startswith("tool: error(c1)")


@pytest.mark.covers("T31")
@pytest.mark.stock_server
async def test_a_permanent_failure_fails_the_turn_with_its_kind(rig: EngineRig) -> None:
    rig.api.reply(401, {"error": {"message": "wrong key"}})
    chat_id = await rig.create("hi")
    chat = await rig.wait_chat_task_left(chat_id)
    assert chat.state == "E0"
    assert chat.last_error is not None
    assert chat.last_error.kind == "auth"


@pytest.mark.covers("T16")
@pytest.mark.promise("P1")
@pytest.mark.promise("P9")
@pytest.mark.stock_server
async def test_concurrent_messages_are_answered_in_queue_order(rig: EngineRig) -> None:
    """Fifty messages, more than the queue holds; the others are refused."""
    gate, texts = Gate(), [f"message {n}" for n in range(50)]
    rig.answer("busy", gate)
    for _ in range(MAX_QUEUED_MESSAGES):
        rig.answer("ok")
    chat_id = await rig.create("go")
    await gate.reached.wait()
    sends = (rig.send(chat_id, text) for text in texts)
    sent = await asyncio.gather(*sends, return_exceptions=True)
    accepted = {text for text, done in zip(texts, sent, strict=True) if isinstance(done, Chat)}
    assert {type(done) for done in sent} == {Chat, QueueFull}
    rows = await rig.pool.fetch("SELECT content FROM chat_queued_messages ORDER BY position")
    queued = [msgspec.json.decode(row["content"])[0]["text"] for row in rows]
    gate.open()
    assert (await rig.wait_chat_task_left(chat_id)).state == "W"
    lines = (await rig.transcript(chat_id))[2:]
    assert lines[0::2] == [f"user: {text}" for text in queued]
    assert lines[1::2] == ["assistant: ok"] * MAX_QUEUED_MESSAGES
    assert sorted(queued) == sorted(accepted)


@pytest.mark.covers("T28")
async def test_two_hundred_turns_leave_no_tasks_or_buffers(dsn: str) -> None:
    """Some with a tool; then ten chats at once, each with a viewer."""
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.answer("ready")
        await run_turns(rig, 1)
        before = measure_resources(rig.replica)
        for _ in range(10):
            rig.call_tools(("c1", "echo", "{}"))
            rig.answer("done")
            await rig.wait_chat_task_left(await rig.create("go"))
        for _ in range(200):
            rig.answer("done")
        await asyncio.gather(*(run_turns(rig, 20) for _ in range(10)))

        async def is_as_before() -> bool:
            return measure_resources(rig.replica).is_no_more_than(before, no_episodes=False)

        await eventually(is_as_before, within_s=WAIT_TIMEOUT_S)
        assert measure_resources(rig.replica).episode_bytes < before.episode_bytes * 60


async def run_turns(rig: EngineRig, count: int) -> None:
    chat_id = await rig.create("go")
    viewer = StreamClient(chat_id)
    async with viewer.connected(rig.replica.feeds) as view:
        for number in range(1, count + 1):
            if number > 1:
                await rig.send(chat_id, "again")
            await viewer.watch(view, lambda seen, n=number: is_answered(seen, n))


def is_answered(viewer: StreamClient, turn: int) -> bool:
    return viewer.state.status == "waiting" and len(viewer.state.messages) == 2 * turn
