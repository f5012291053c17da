"""The turn loop: requests, stored answers, recorded usage, and drain during a tool."""

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from chatd.domain.chat.change import UNSENT_CALL_TEXT
from chatd.domain.chat.messages import Draft
from chatd.domain.chat.parts import TextPart, ToolCallPart
from chatd.domain.prompt.instructions import Instructions
from chatd.store.chat import messages, runs
from tests.support.clock import FakeClock
from tests.support.engine_rig import SHORT_DRAIN, EngineRig, engine_rig, engine_rig_with
from tests.support.factories import HARNESS
from tests.support.providers.anthropic import FakeAnthropic, event
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate
from tests.support.tools import GatedTool, Tools


def system(text: str) -> Draft:
    return Draft(role="system", content=(TextPart(text=text),))


@pytest.mark.covers("loop-30")
async def test_a_request_offers_the_tools_and_marks_the_cache(dsn: str) -> None:
    """Marked are the last system message, the end of the previous request and of this one."""
    async with (
        FakeAnthropic.running() as api,
        engine_rig_with(dsn, api, kind="anthropic", tools=[GatedTool("read_file")]) as rig,
    ):
        rig.set_context_limit(4096)
        api.script_text("working")
        api.script_text("done")
        chat_id = await rig.create("hello", before=(system("one"), system("two")))
        await rig.wait_chat_task_left(chat_id, epoch=1)
        await rig.send(chat_id, "continue")
        await rig.wait_chat_task_left(chat_id, epoch=3)
        request = api.requests[-1].json
        assert [tool["name"] for tool in _list(request["tools"])] == ["read_file"]
        assert [_marked(block) for block in _list(request["system"])] == [False, True]
        turns = _list(request["messages"])
        assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
        assert [_marked(_list(turn["content"])[-1]) for turn in turns] == [True, False, True]
        answer = (await messages.load_history(rig.pool, HARNESS, chat_id))[-1]
        assert answer.usage is not None
        assert answer.usage.context_limit == 4096


async def test_a_request_contains_the_instructions_of_the_workspace(dsn: str) -> None:
    instructions = Instructions(workspace="You work in /home/user.")
    async with engine_rig(dsn, source=Tools((), instructions)) as rig:
        rig.answer("fine")
        await rig.wait_chat_task_left(await rig.create("hi"))
        first = _list(rig.api.requests[-1].json["messages"])[0]
        assert first["role"] == "system"
        assert "You work in /home/user." in str(first["content"])


async def test_a_provider_executed_call_without_a_result_is_not_stored(dsn: str) -> None:
    """The provider would reject every later request that contains it."""
    search: dict[str, object] = {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {},
    }
    begin = event("content_block_start", index=0, content_block=search)
    async with FakeAnthropic.running() as api, engine_rig_with(dsn, api, kind="anthropic") as rig:
        api.script(
            event(
                "message_start", message={"id": "msg_1", "model": "m", "usage": {"input_tokens": 1}}
            ),
            begin + event("content_block_stop", index=0),
            event("content_block_start", index=1, content_block={"type": "text", "text": "So."}),
            event("content_block_stop", index=1),
            event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
            event("message_stop"),
        )
        chat_id = await rig.create("look it up")
        await rig.wait_chat_task_left(chat_id, epoch=1)
        answer = (await messages.load_history(rig.pool, HARNESS, chat_id))[-1]
        assert [type(part) for part in answer.content] == [TextPart]


@pytest.mark.promise("P4")
async def test_an_interrupt_keeps_partial_text_and_the_arguments_of_a_call_that_never_ran(
    dsn: str,
) -> None:
    gate = Gate()
    start = {"index": 0, "id": "c1", "type": "function"}
    call = {**start, "function": {"name": "echo", "arguments": '{"say":"m'}}
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.answer("partial output", chunk(tool_calls=[call]), gate)
        chat_id = await rig.create("hello")
        await rig.wait_shown(chat_id, "c1")
        await rig.interrupt(chat_id)
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert await rig.transcript(chat_id) == [
            "user: hello",
            "assistant: partial output echo(c1)",
            f"tool: error(c1) {{'error': {UNSENT_CALL_TEXT!r}}}",
        ]
        answer = (await messages.load_history(rig.pool, HARNESS, chat_id))[1]
        cut = answer.content[1]
        assert isinstance(cut, ToolCallPart)
        assert (cut.cut, cut.args_text, cut.args) == (True, '{"say":"m', UNSET)


async def test_a_tool_result_is_in_the_next_request(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.call_tools(("tc-1", "echo", '{"say":"x"}'))
        chat_id = await rig.ask("please", "all done")
        before = await rig.chat(chat_id)
        after = await rig.wait_chat_task_left(chat_id)
        assert len(rig.api.requests) == 2
        # The answer with its call, the result, the last answer: three commits.
        assert after.snapshot_version == before.snapshot_version + 3
        sent = _list(rig.api.requests[1].json["messages"])
        assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
        assert [call["id"] for call in _list(sent[1]["tool_calls"])] == ["tc-1"]
        assert sent[2]["tool_call_id"] == "tc-1"


@pytest.mark.covers("F43", "loop-31")
async def test_an_answer_that_cannot_be_stored_fails_the_turn(rig: EngineRig) -> None:
    rig.answer("hello")
    await rig.pool.execute(
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE EXCEPTION 'database write failed'; END $$"""
    )
    try:
        await rig.pool.execute(
            """CREATE TRIGGER refuse BEFORE INSERT ON chat_messages FOR EACH ROW
               WHEN (NEW.role = 'assistant') EXECUTE FUNCTION refuse()"""
        )
        chat_id = await rig.create("hi")
        chat = await rig.wait_chat_task_left(chat_id)
    finally:
        await rig.pool.execute("DROP FUNCTION refuse CASCADE")
    assert chat.state == "E0"
    assert chat.last_error is not None
    assert chat.last_error.kind == "internal"
    failed = await rig.events.wait("chat_task_failed", chat_id=chat_id)
    assert "database write failed" in str(failed["error"])
    # The next message continues the chat.
    rig.answer("now")
    await rig.send(chat_id, "again")
    await rig.wait_chat_task_left(chat_id, epoch=3)
    assert (await rig.transcript(chat_id))[-1] == "assistant: now"


@pytest.mark.covers("loop-33")
@pytest.mark.promise("P5")
async def test_a_drain_during_a_tool_leaves_the_call_pending(dsn: str, api: FakeCompatible) -> None:
    """The chat is pending with its call, and another replica runs the tool."""
    gate = Gate()
    async with engine_rig_with(
        dsn, api, tools=[GatedTool(gate=gate)], worker=SHORT_DRAIN
    ) as drained:
        drained.call_tools(("tc", "echo", "{}"))
        chat_id = await drained.create("run the tool")
        await gate.reached.wait()
        await drained.start_drain()
        chat = await drained.chat(chat_id)
        assert chat.state == "P0"
        assert [call.id for call in chat.pending_calls] == ["tc"]
        expected = ["user: run the tool", "assistant: echo(tc)"]
        assert await drained.transcript(chat_id) == expected
    tool = GatedTool()
    async with engine_rig_with(dsn, api, tools=[tool]) as other:
        other.answer("done")
        assert (await other.wait_chat_task_left(chat_id)).state == "W"
        assert tool.runs == ["tc"]
        assert (await other.transcript(chat_id))[-1] == "assistant: done"


async def test_a_repeated_call_id_is_replaced(dsn: str) -> None:
    """Some providers number calls from 0 in every answer."""
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool]) as rig:
        rig.call_tools(("call_0", "echo", "{}"))
        rig.call_tools(("call_0", "echo", "{}"))
        chat_id = await rig.ask("twice", "done")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        first, second = tool.runs
        assert first != second


async def test_an_empty_answer_ends_the_turn_with_a_notice(rig: EngineRig) -> None:
    rig.answer()
    chat_id = await rig.create("hi")
    assert (await rig.wait_chat_task_left(chat_id)).state == "W"
    assert await rig.transcript(chat_id) == ["user: hi", "system: notice(empty_answer)"]
    [run] = await runs.list_runs(rig.pool, HARNESS, chat_id)
    assert (run.outcome, run.detail.error_kind) == ("finished", "empty_answer")
    assert await rig.recorded_usage() == [("turn", True, "estimated")]


async def test_reasoning_without_an_answer_is_told_too(rig: EngineRig) -> None:
    rig.api.script(chunk(reasoning_content="hm"), chunk(finish="stop"), DONE)
    chat_id = await rig.create("hi")
    assert (await rig.wait_chat_task_left(chat_id)).state == "W"
    assert await rig.transcript(chat_id) == [
        "user: hi",
        "assistant: hm",
        "system: notice(empty_answer)",
    ]


async def test_the_limit_of_steps_ends_the_turn_with_a_notice_and_a_message_goes_on(
    dsn: str,
) -> None:
    async with engine_rig(dsn, tools=[GatedTool()], max_steps=2) as rig:
        for number in range(2):
            rig.call_tools((f"c{number}", "echo", "{}"))
        chat_id = await rig.create("go")
        await rig.wait_chat_task_left(chat_id, epoch=1)
        assert (await rig.transcript(chat_id))[-1] == "system: notice(step_limit)"
        [run] = await runs.list_runs(rig.pool, HARNESS, chat_id)
        assert (run.outcome, run.detail.error_kind) == ("finished", "step_limit")
        rig.answer("done")
        await rig.send(chat_id, "Continue where you stopped.")
        await rig.wait_chat_task_left(chat_id, epoch=3)
        assert (await rig.transcript(chat_id))[-1] == "assistant: done"
        assert b"its limit" not in rig.api.requests[-1].body


async def test_an_unknown_model_fails_the_turn_with_a_config_error(rig: EngineRig) -> None:
    rig.model.config = replace(rig.model.config, provider="elsewhere")
    rig.api.reply(404, {"error": {"message": "model not found", "code": "model_not_found"}})
    chat_id = await rig.create("hi")
    chat = await rig.wait_chat_task_left(chat_id)
    assert chat.last_error is not None
    assert (chat.last_error.kind, chat.last_error.provider) == ("config", "elsewhere")


@pytest.mark.promise("P11")
async def test_the_usage_of_every_call_is_recorded_by_the_next_commit(
    dsn: str, clock: FakeClock
) -> None:
    async with engine_rig(dsn, clock=clock) as rig:
        rig.cut_answer("half")
        rig.answer("whole", input_tokens=7)
        chat_id = await rig.create("hi")
        await clock.wait_for_sleeper("retry_backoff")
        assert await rig.recorded_usage() == [("turn", False, "estimated")]
        await rig.pool.execute("UPDATE chats SET runnable_at = now()")
        clock.advance(1)
        await rig.wait_state(chat_id, "W")
        assert await rig.recorded_usage() == [("turn", False, "estimated"), ("turn", True, 7)]


async def test_an_answer_past_its_timeout_fails_the_turn_and_keeps_the_partial_answer(
    dsn: str, gate: Gate
) -> None:
    async with engine_rig(dsn, model_call_timeout_s=0.3) as rig:
        rig.answer("and so on ", gate)
        chat_id = await rig.create("tell me everything")
        chat = await rig.wait_chat_task_left(chat_id)
        assert chat.last_error is not None
        assert (chat.last_error.kind, chat.last_error.retryable) == ("timeout", True)
        expected = ["user: tell me everything", "assistant: and so on "]
        assert await rig.transcript(chat_id) == expected
        assert await rig.recorded_usage() == [("turn", False, "estimated")]


@pytest.mark.promise("P11")
async def test_the_usage_of_an_interrupted_call_is_recorded(rig: EngineRig, gate: Gate) -> None:
    chat_id = await rig.ask("hi", "half", gate)
    await rig.interrupt(chat_id)
    await rig.wait_chat_task_left(chat_id)
    assert await rig.recorded_usage() == [("turn", False, "estimated")]


async def test_a_call_that_was_not_opened_records_no_usage(rig: EngineRig) -> None:
    rig.api.reply(401, {"error": {"message": "wrong key"}})
    chat_id = await rig.create("hi")
    await rig.wait_chat_task_left(chat_id)
    assert await rig.recorded_usage() == []


@pytest.mark.covers("F43")
async def test_text_that_the_database_cannot_store_is_replaced(dsn: str) -> None:
    """JSON can contain a NUL and half of a surrogate pair."""
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        spelled = chunk(content="NUL?").replace(b"NUL?", b"a\\u0000b \\ud83d!")
        chat_id = await rig.ask("hi", spelled)
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert (await rig.transcript(chat_id))[-1] in (
            "assistant: a\x00b \ufffd!",
            "assistant: a\ufffdb \ufffd!",
        )


def _list(value: object) -> list[dict[str, object]]:
    return msgspec.convert(value, list[dict[str, object]])


def _marked(block: dict[str, object]) -> bool:
    return "cache_control" in block
