"""Compaction: at the threshold, on request, and after the provider rejects a prompt."""

import pytest

from chatd.domain.prompt.compaction import SUMMARY_INSTRUCTION
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.outcomes import present
from tests.support.providers.server import Gate
from tests.support.tools import GatedTool

OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 100 tokens.",
        "code": "context_length_exceeded",
    }
}


def is_summary_request(rig: EngineRig, number: int) -> bool:
    return SUMMARY_INSTRUCTION[:40].encode() in rig.api.requests[number].body


async def test_a_full_context_is_compacted_before_the_next_model_call(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.set_context_limit(100)
        rig.call_tools(("c1", "echo", "{}"), input_tokens=80)
        rig.answer("what happened so far", input_tokens=90)
        rig.answer("done", input_tokens=20)
        chat_id = await rig.create("go")
        assert (await rig.wait_runner_left(chat_id)).state == "W"
        assert [is_summary_request(rig, n) for n in range(3)] == [False, True, False]
        request = rig.api.requests[2].body
        assert b"what happened so far" in request
        assert b"said {}" not in request
        expected = [("turn", True, 80), ("compaction", True, 90), ("turn", True, 20)]
        assert await rig.recorded_usage() == expected


async def test_a_context_below_the_threshold_is_not_compacted(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.set_context_limit(100)
        rig.call_tools(("c1", "echo", "{}"), input_tokens=60)
        rig.answer("done", input_tokens=65)
        chat_id = await rig.create("go")
        assert (await rig.wait_runner_left(chat_id)).state == "W"
        assert len(rig.api.requests) == 2


async def test_a_requested_compaction_ends_the_turn(rig: EngineRig) -> None:
    chat_id = await rig.ask("hi", "hello")
    await rig.wait_runner_left(chat_id, epoch=1)
    rig.answer("they greeted each other")
    chat = await rig.compact(chat_id)
    assert (chat.state, chat.compaction_requested) == ("R0", True)
    chat = await rig.wait_runner_left(chat_id, epoch=3)
    assert (chat.state, chat.compaction_requested) == ("W", False)
    assert len(rig.api.requests) == 2
    rig.answer("again")
    await rig.send(chat_id, "hi again")
    await rig.wait_runner_left(chat_id, epoch=5)
    assert b"they greeted each other" in rig.api.requests[2].body
    assert b'"hello"' not in rig.api.requests[2].body


async def test_a_prompt_rejected_as_too_long_is_compacted_and_the_turn_continues(
    rig: EngineRig,
) -> None:
    """The provider rejects the first summary prompt too; the second is half as long."""
    chat_id = await rig.ask("hi " * 500, "hello " * 500)
    await rig.wait_runner_left(chat_id, epoch=1)
    rig.api.reply(400, OVERFLOW)
    rig.api.reply(400, OVERFLOW)
    rig.answer("a short summary")
    rig.answer("ok")
    await rig.send(chat_id, "go on")
    assert (await rig.wait_runner_left(chat_id, epoch=3)).state == "W"
    sizes = [len(request.body) for request in rig.api.requests[1:4]]
    assert sizes[0] > sizes[1] > sizes[2]
    assert (await rig.transcript(chat_id))[-1] == "assistant: ok"


async def test_a_first_message_that_is_too_long_fails_the_turn(rig: EngineRig) -> None:
    rig.api.reply(400, OVERFLOW)
    chat_id = await rig.create("hi")
    assert present((await rig.wait_runner_left(chat_id)).last_error).kind == "context_overflow"


async def test_a_failed_compaction_stores_only_the_error(rig: EngineRig) -> None:
    chat_id = await rig.ask("hi", "hello")
    await rig.wait_runner_left(chat_id, epoch=1)
    rig.answer()
    await rig.compact(chat_id)
    chat = await rig.wait_runner_left(chat_id, epoch=3)
    assert (chat.state, chat.compaction_requested) == ("E0", False)
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: hello"]
    assert await rig.recorded_usage() == [
        ("turn", True, "estimated"),
        ("compaction", False, "estimated"),
    ]


@pytest.mark.promise("P11")
async def test_an_interrupted_compaction_stores_only_its_usage(rig: EngineRig, gate: Gate) -> None:
    chat_id = await rig.ask("hi", "hello")
    await rig.wait_runner_left(chat_id, epoch=1)
    rig.answer("they gr", gate)
    await rig.compact(chat_id)
    await gate.reached.wait()
    # Viewers see that a summary is being written, but not its text until it is stored.
    await rig.wait_shown(chat_id, "chat_summarized")
    await rig.interrupt(chat_id)
    assert (await rig.wait_runner_left(chat_id, epoch=3)).state == "W"
    assert await rig.transcript(chat_id) == ["user: hi", "assistant: hello"]
    assert await rig.recorded_usage() == [
        ("turn", True, "estimated"),
        ("compaction", False, "estimated"),
    ]
