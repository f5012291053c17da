"""Tool calls through the engine: every outcome becomes a result that the model can act on."""

import asyncio
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.answer.tool_calls import (
    ARGS_NOT_JSON_TEXT,
    CUT_CALL_TEXT,
)
from chatd.domain.answer.tool_output import STEP_OUTPUT_BYTES, ToolOutput
from chatd.domain.chat.call_waits import EXPIRED_CALL_TEXT
from chatd.domain.chat.messages import local_results
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.errors import InvalidInput, TransitionNotAllowed
from chatd.domain.files import FileLimits
from chatd.domain.ids import ToolCallId, WorkerId
from chatd.domain.ports import ToolContext
from chatd.engine.tool_runner import EFFECT_UNKNOWN_TEXT, UNKNOWN_OUTCOME_OUTPUT
from chatd.store.chat import messages
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.files import SavedResultTools, SaveResult, save_results
from tests.support.clock import FakeClock
from tests.support.engine_rig import SHORT_DRAIN, EngineRig, engine_rig, engine_rig_with, pass_time
from tests.support.factories import HARNESS
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate
from tests.support.store import age
from tests.support.tools import (
    BrokenTool,
    GatedTool,
    PoliteTool,
    ShowingTool,
    StubbornTool,
    Tools,
)

CLIENT_TOOLS = Raw(
    b'[{"name":"pick","description":"Ask the user.","input_schema":{"type":"object",'
    b'"properties":{}}}]'
)


async def results(rig: EngineRig, *calls: tuple[str, str, str]) -> list[str]:
    """The results that the model gets for these calls."""
    rig.call_tools(*calls)
    chat_id = await rig.ask("go", "ok")
    assert (await rig.wait_chat_task_left(chat_id)).state == "W"
    return (await rig.transcript(chat_id))[2:-1]


@pytest.mark.parametrize(
    ("tool", "name", "args", "text"),
    [
        (GatedTool(), "nope", "{}", "There is no tool named 'nope'. Tools: echo."),
        (GatedTool(), "echo", '{"say": ', ARGS_NOT_JSON_TEXT),
        (BrokenTool(), "echo", "{}", "The tool failed: ValueError: a bug"),
    ],
    ids=["unknown tool", "arguments that are not JSON", "a tool that raises"],
)
async def test_a_call_that_fails_gets_an_error_result_and_the_turn_goes_on(
    dsn: str, tool: GatedTool, name: str, args: str, text: str
) -> None:
    async with engine_rig(dsn, tools=[tool]) as rig:
        [line] = await results(rig, ("c1", name, args))
        assert line.startswith("tool: error(c1)")
        assert text in line
        assert tool.runs == []


def script_cut_call(rig: EngineRig, name: str) -> None:
    """The answer is cut before the first byte of the arguments."""
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": name}}
    rig.api.script(chunk(tool_calls=[call]), chunk(finish="length"), DONE)


async def test_a_call_of_a_cut_answer_never_runs(dsn: str) -> None:
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool]) as rig:
        script_cut_call(rig, "echo")
        rig.answer("ok")
        chat_id = await rig.create("go")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        [line] = (await rig.transcript(chat_id))[2:-1]
        assert CUT_CALL_TEXT in line
        assert tool.runs == []


async def test_a_cut_call_of_a_client_tool_is_not_sent_to_the_client(dsn: str) -> None:
    async with engine_rig(dsn) as rig:
        script_cut_call(rig, "pick")
        rig.answer("ok")
        chat_id = await rig.create("go", client_tools=CLIENT_TOOLS)
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        [line] = (await rig.transcript(chat_id))[2:-1]
        assert CUT_CALL_TEXT in line


async def test_a_tool_past_its_timeout_gets_an_error_result(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool(gate=Gate(), timeout_s=0.05)]) as rig:
        [line] = await results(rig, ("c1", "echo", "{}"))
        assert "did not finish within 0.05 seconds" in line


@pytest.mark.promise("P7")
async def test_the_outcome_of_an_effect_past_its_timeout_is_unknown(dsn: str) -> None:
    tool = GatedTool(gate=Gate(), effect="idempotent", timeout_s=0.05)
    async with engine_rig(dsn, tools=[tool]) as rig:
        [line] = await results(rig, ("c1", "echo", "{}"))
        assert EFFECT_UNKNOWN_TEXT in line


async def test_a_tool_that_ignores_cancellation_is_kept_by_the_task_reaper(dsn: str) -> None:
    gate = Gate()
    async with engine_rig(dsn, tools=[StubbornTool(gate, timeout_s=0.05)]) as rig:
        rig.replica.task_reaper.shorten_grace()
        [line] = await results(rig, ("c1", "echo", "{}"))
        assert "did not finish within 0.05 seconds" in line
        assert len(rig.replica.task_reaper) == 1
        gate.open()


@pytest.mark.covers("T07")
async def test_a_tool_that_takes_ten_minutes_runs_once(
    dsn: str, clock: FakeClock, api: FakeCompatible, gate: Gate
) -> None:
    tool = GatedTool(gate=gate)
    async with (
        engine_rig_with(dsn, api) as other,
        engine_rig_with(dsn, api, tools=[tool], clock=clock) as rig,
    ):
        rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.ask("go", "at last")
        await gate.reached.wait()
        await pass_time(clock, 600)
        assert (await other.chat(chat_id)).worker_id == rig.replica.worker_id
        gate.open()
        await rig.wait_chat_task_left(chat_id)
        assert tool.runs == ["c1"]


async def test_results_are_stored_in_call_order(dsn: str) -> None:
    slow = Gate()
    tools = [GatedTool("slow", gate=slow), GatedTool("fast")]
    async with engine_rig(dsn, tools=tools) as rig:
        rig.call_tools(("c1", "slow", "{}"), ("c2", "fast", "{}"))
        chat_id = await rig.ask("go", "ok")
        await rig.events.wait("tool_finished", tool="fast")
        slow.open()
        await rig.wait_chat_task_left(chat_id)
        lines = await rig.transcript(chat_id)
        assert [line[:16] for line in lines[2:4]] == ["tool: result(c1)", "tool: result(c2)"]


async def test_serial_tools_run_one_by_one_after_the_others(dsn: str, gate: Gate) -> None:
    serial, other = GatedTool("serial", serial=True), GatedTool("other", gate=gate)
    async with engine_rig(dsn, tools=[serial, other]) as rig:
        rig.call_tools(("c1", "serial", "{}"), ("c2", "other", "{}"), ("c3", "serial", "{}"))
        chat_id = await rig.ask("go", "ok")
        await gate.reached.wait()
        assert serial.runs == []
        gate.open()
        await rig.wait_chat_task_left(chat_id)
        assert serial.runs == ["c1", "c3"]
        expected = ["tool: result(c1)", "tool: result(c2)", "tool: result(c3)"]
        assert [line[:16] for line in (await rig.transcript(chat_id))[2:5]] == expected


async def test_a_tool_that_stops_the_turn_is_followed_by_no_model_call(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool(stops_turn=True)]) as rig:
        rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.create("go")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert len(rig.api.requests) == 1


@pytest.mark.promise("P4")
async def test_an_interrupted_tool_may_return_partial_output(dsn: str) -> None:
    gate, other = Gate(), Gate()
    tools = [PoliteTool("polite", gate=gate), GatedTool("other", gate=other)]
    async with engine_rig(dsn, tools=tools) as rig:
        rig.call_tools(("c1", "polite", "{}"), ("c2", "other", "{}"))
        chat_id = await rig.create("go")
        await gate.reached.wait()
        await other.reached.wait()
        await rig.interrupt(chat_id)
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        partial, cancelled = (await rig.transcript(chat_id))[2:]
        assert partial == "tool: result(c1) {'output': 'half of it'}"
        assert cancelled.startswith("tool: error(c2)")


@pytest.mark.covers("T11", "loop-35")
async def test_viewers_see_a_tools_output_while_it_runs_and_history_does_not(dsn: str) -> None:
    gate = Gate()
    async with engine_rig(dsn, tools=[ShowingTool(gate=gate)]) as rig:
        rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.create("go")
        await rig.wait_shown(chat_id, '"result_delta":"done"')
        await rig.interrupt(chat_id)
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert (await rig.transcript(chat_id))[-1].startswith("tool: error(c1)")


# Tools that must not run twice


async def result_after_drain(rig: EngineRig, other: EngineRig, tool: GatedTool) -> str:
    """The result on the other replica, after the first has started the tool and drained."""
    assert tool.gate is not None
    rig.call_tools(("c1", "echo", "{}"))
    chat_id = await rig.ask("go", "ok")
    await tool.gate.reached.wait()
    await rig.start_drain()
    await other.wait_chat_task_left(chat_id)
    return (await other.transcript(chat_id))[2]


@pytest.mark.promise("P7")
@pytest.mark.parametrize("known", [None, "it was done"])
async def test_a_tool_started_on_another_replica_is_recovered_and_not_run_again(
    dsn: str, known: str | None, api: FakeCompatible
) -> None:
    first, second = GatedTool(gate=Gate(), effect="once"), GatedTool(effect="once")
    second.recovers = None if known is None else ToolOutput(text=known)
    async with (
        engine_rig_with(dsn, api, tools=[first], worker=SHORT_DRAIN) as drained,
        engine_rig_with(dsn, api, tools=[second]) as other,
    ):
        line = await result_after_drain(drained, other, first)
        assert (first.runs, second.runs) == (["c1"], [])
        assert (UNKNOWN_OUTCOME_OUTPUT.text if known is None else known) in line


async def test_an_idempotent_tool_runs_again_on_another_replica(
    dsn: str, api: FakeCompatible
) -> None:
    first, second = GatedTool(gate=Gate(), effect="idempotent"), GatedTool(effect="idempotent")
    async with (
        engine_rig_with(dsn, api, tools=[first], worker=SHORT_DRAIN) as drained,
        engine_rig_with(dsn, api, tools=[second]) as other,
    ):
        line = await result_after_drain(drained, other, first)
        assert line == "tool: result(c1) {'output': 'said {}'}"
        assert second.runs == ["c1"]
        assert len(api.requests) == 2


class AwayTool(GatedTool):
    """Says what it waits for, then waits at its gate."""

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        await context.wait_for("The runner laptop is not connected.")
        return await super().run(context, args)


async def test_what_a_call_waits_for_stays_noted_when_another_worker_takes_over(
    dsn: str, api: FakeCompatible
) -> None:
    """Until the tool takes it back: viewers would see it go and come."""
    first, second = AwayTool(gate=Gate(), effect="idempotent"), GatedTool(gate=Gate())
    second.effect = "idempotent"
    async with (
        engine_rig_with(dsn, api, tools=[first], worker=SHORT_DRAIN) as drained,
        engine_rig_with(dsn, api, tools=[second]) as other,
    ):
        assert first.gate is not None
        assert second.gate is not None
        drained.call_tools(("c1", "echo", "{}"))
        chat_id = await drained.ask("go", "ok")
        await first.gate.reached.wait()
        await drained.start_drain()
        await second.gate.reached.wait()
        [call] = (await other.chat(chat_id)).pending_calls
        assert call.waits_for == "The runner laptop is not connected."
        second.gate.open()
        assert (await other.wait_chat_task_left(chat_id)).pending_calls == ()


# Client tools


async def test_a_client_tool_waits_for_the_clients_result(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()]) as rig:
        rig.call_tools(("c1", "echo", "{}"), ("c2", "pick", '{"of":2}'))
        rig.answer("thanks")
        chat_id = await rig.create("go", client_tools=CLIENT_TOOLS)
        chat = await rig.wait_chat_task_left(chat_id)
        assert chat.state == "A0"
        assert [(call.id, call.client) for call in chat.pending_calls] == [("c2", True)]
        with pytest.raises(InvalidInput):
            await rig.submit(chat_id, c1="1")
        await rig.submit(chat_id, c2='{"picked":1}')
        with pytest.raises(TransitionNotAllowed):
            await rig.submit(chat_id, c2='{"picked":2}')
        await rig.wait_state(chat_id, "W")
        assert await rig.transcript(chat_id) == [
            "user: go",
            "assistant: echo(c1) pick(c2)",
            "tool: result(c1) {'output': 'said {}'}",
            "tool: result(c2) {'picked': 1}",
            "assistant: thanks",
        ]


@pytest.mark.covers("F41")
async def test_a_client_tool_call_expires(rig: EngineRig) -> None:
    rig.call_tools(("c1", "pick", "{}"))
    rig.answer("never mind")
    chat_id = await rig.create("go", client_tools=CLIENT_TOOLS)
    await rig.wait_chat_task_left(chat_id)
    await age(rig.pool, [chat_id], seconds=301)
    await rig.wait_state(chat_id, "W")
    assert await rig.transcript(chat_id) == [
        "user: go",
        "assistant: pick(c1)",
        f"tool: error(c1) {{'error': {EXPIRED_CALL_TEXT!r}}}",
        "assistant: never mind",
    ]


@pytest.mark.covers("T40")
async def test_a_client_may_submit_results_to_another_replica(
    dsn: str, api: FakeCompatible
) -> None:
    """The replica that ran the turn has stopped; there is one call and one result."""
    async with engine_rig_with(dsn, api) as first:
        first.call_tools(("c1", "pick", "{}"))
        chat_id = await first.create("go", client_tools=CLIENT_TOOLS)
        assert (await first.wait_chat_task_left(chat_id)).state == "A0"
    async with engine_rig_with(dsn, api) as second:
        second.answer("thanks")
        await second.submit(chat_id, c1="1")
        await second.wait_state(chat_id, "W")
        assert await second.transcript(chat_id) == [
            "user: go",
            "assistant: pick(c1)",
            "tool: result(c1) 1",
            "assistant: thanks",
        ]


async def test_an_interrupt_answers_pending_calls_of_client_tools(rig: EngineRig) -> None:
    rig.call_tools(("c1", "pick", "{}"))
    chat_id = await rig.create("go", client_tools=CLIENT_TOOLS)
    await rig.wait_chat_task_left(chat_id)
    assert (await rig.interrupt(chat_id)).state == "W"
    assert (await rig.transcript(chat_id))[-1].startswith("tool: error(c1)")


@pytest.mark.covers("F41", "T16", "T40")
async def test_of_fifty_results_for_one_call_one_is_accepted(rig: EngineRig) -> None:
    rig.call_tools(("c1", "pick", "{}"))
    rig.answer("thanks")
    chat_id = await rig.create("go", client_tools=CLIENT_TOOLS)
    await rig.wait_chat_task_left(chat_id)
    tries = await asyncio.gather(
        *(rig.submit(chat_id, c1=str(n)) for n in range(50)), return_exceptions=True
    )
    assert sum(isinstance(outcome, Chat) for outcome in tries) == 1
    assert all(isinstance(outcome, Chat | TransitionNotAllowed) for outcome in tries)
    await rig.wait_state(chat_id, "W")
    lines = await rig.transcript(chat_id)
    assert sum(line.startswith("tool:") for line in lines) == 1
    assert len(rig.api.requests) == 2
    assert ToolCallId("c1") not in [c.id for c in (await rig.chat(chat_id)).pending_calls]


@pytest.mark.promise("P7")
async def test_a_finished_call_keeps_its_result_when_the_step_drains_while_another_runs(
    dsn: str, api: FakeCompatible
) -> None:
    gate = Gate()
    slow, quick = GatedTool("slow", gate=gate, effect="once"), GatedTool("quick", effect="once")
    async with engine_rig_with(dsn, api, tools=[GatedTool("slow"), quick]) as other:
        async with engine_rig_with(dsn, api, tools=[slow, quick], worker=SHORT_DRAIN) as drained:
            drained.call_tools(("c1", "slow", "{}"), ("c2", "quick", '{"say":"x"}'))
            other.answer("ok")
            chat_id = await drained.create("go")
            await gate.reached.wait()
            await drained.events.wait("tool_finished", tool="quick")
        await other.wait_chat_task_left(chat_id)
        assert quick.runs == ["c2"]
        lines = await other.transcript(chat_id)
        assert lines[3] == "tool: result(c2) {'output': 'said {\"say\":\"x\"}'}"


@pytest.mark.promise("P7")
async def test_a_long_result_is_kept_before_it_is_saved_in_a_file(
    dsn: str, api: FakeCompatible
) -> None:
    class LongTool(GatedTool):
        async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
            await super().run(context, args)
            return ToolOutput(text="a line\n" * 9000)

    class StalledSave(Tools):
        gate = Gate()

        async def save_result(self, context: ToolContext, output: ToolOutput) -> ToolOutput:
            await self.gate.pass_through()
            return await super().save_result(context, output)

    first, second = LongTool(effect="once"), GatedTool(effect="once")
    source = StalledSave([first])
    async with engine_rig_with(dsn, api, tools=[second]) as other:
        async with engine_rig_with(dsn, api, source=source, worker=SHORT_DRAIN) as drained:
            drained.call_tools(("c1", "echo", "{}"))
            other.answer("ok")
            chat_id = await drained.create("go")
            await source.gate.reached.wait()
        await other.wait_chat_task_left(chat_id)
        line = (await other.transcript(chat_id))[2]
        assert (first.runs, second.runs) == (["c1"], [])
        assert "a line" in line
        assert UNKNOWN_OUTCOME_OUTPUT.text not in line


async def test_six_commands_with_long_output_keep_their_exit_codes(dsn: str) -> None:
    class Command(GatedTool):
        async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
            report = {"success": False, "exit_code": 3, "output": 'a "line"\n' * 4096}
            return ToolOutput(text=msgspec.json.encode(report).decode())

    async with engine_rig(dsn, tools=[Command()]) as rig:
        rig.set_context_limit(1_000_000)
        rig.call_tools(*((f"c{number}", "echo", "{}") for number in range(6)))
        chat_id = await rig.ask("go", "ok")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        rows = await messages.load_history(rig.pool, HARNESS, chat_id)
        found = [bytes(part.result or b"") for row in rows for part in local_results(row.content)]
        assert len(found) == 6
        assert sum(map(len, found)) <= STEP_OUTPUT_BYTES
        for raw in found:
            report = msgspec.json.decode(raw, type=dict[str, Any])
            assert report["exit_code"] == 3
            assert "bytes left out here" in report["output"]
            assert report["truncated"]["original_bytes"] == 9 * 4096


class SavingTools(Tools):
    """Saves long results in files of the chat."""

    save: SaveResult | None = None

    async def save_result(self, context: ToolContext, output: ToolOutput) -> ToolOutput:
        assert self.save is not None
        return await self.save(context, output)


async def test_every_result_that_a_step_with_many_calls_cuts_is_a_file_that_the_model_can_read(
    dsn: str,
) -> None:
    class Lister(GatedTool):
        async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
            del args
            return ToolOutput(text=f"{context.call_id}\n" * 4000)  # under 16 KiB

    source = SavingTools([Lister()])
    async with engine_rig(dsn, source=source) as rig:
        files = ChatFileWriter(rig.pool, rig.replica.files, FileLimits(), rig.replica.env)
        source.save = save_results(None, files)
        rig.set_context_limit(1_000_000)
        rig.call_tools(*((f"c{number}", "echo", "{}") for number in range(10, 20)))
        chat_id = await rig.ask("go", "ok")
        chat = await rig.wait_chat_task_left(chat_id)
        rows = await messages.load_history(rig.pool, HARNESS, chat_id)
        cut = [part for row in rows for part in local_results(row.content)]
        assert len(cut) == 10
        fence = Fence(worker_id=WorkerId(UUID(int=1)), epoch=1, status="running", history_version=1)
        context = ToolContext(chat=chat, call_id=ToolCallId("r"), fence=fence)
        [reader] = await SavedResultTools(None, files).tools(chat)
        for part in cut:
            said = bytes(part.result or b"").decode()
            assert "bytes left out here" in said
            path = said.partition(" is in ")[2].partition(": read")[0]
            args = Raw(msgspec.json.encode({"path": path, "offset": 3999}))
            page = msgspec.json.decode((await reader.run(context, args)).text)
            assert page["content"] == f"3999\t{part.tool_call_id}\n4000\t{part.tool_call_id}"
