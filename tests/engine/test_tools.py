"""Tools, through the engine: whatever one does becomes an answer the model can act on."""

import asyncio

import pytest
from msgspec import Raw

from chatd.domain.answer.tool_calls import (
    ARGS_NOT_JSON_TEXT,
    EXCLUSIVE_TOOL_TEXT,
    SKIPPED_CALL_TEXT,
)
from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat
from chatd.domain.chat.worker_transitions import EXPIRED_CALL_TEXT
from chatd.domain.errors import InvalidInput, TransitionNotAllowed
from chatd.domain.ids import ToolCallId
from chatd.engine.tool_runner import UNKNOWN_OUTCOME_OUTPUT
from chatd.engine.worker import WorkerConfig
from tests.support.clock import FakeClock
from tests.support.house import House, a_house, a_house_with, let_pass
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.store import age
from tests.support.tools import BrokenTool, GatedTool, PoliteTool, ShowingTool, StubbornTool

HASTY = WorkerConfig(heartbeat_interval_s=0.2, drain_timeout_s=0.05)
CLIENTS = Raw(
    b'[{"name":"pick","description":"Ask the user.","input_schema":{"type":"object",'
    b'"properties":{}}}]'
)


async def results(house: House, *calls: tuple[str, str, str]) -> list[str]:
    """What the model is told of these calls."""
    house.calls(*calls)
    house.says("ok")
    chat_id = await house.create("go")
    assert (await house.rests(chat_id)).state == "W"
    return (await house.transcript(chat_id))[2:-1]


async def test_a_tool_there_is_not_is_an_answer(dsn: str) -> None:
    async with a_house(dsn, tools=[GatedTool()]) as house:
        [line] = await results(house, ("c1", "nope", "{}"))
        assert line.startswith("tool: error(c1)")
        assert "There is no tool named 'nope'. Tools: echo." in line


async def test_arguments_that_are_not_json_are_sent_back(dsn: str) -> None:
    tool = GatedTool()
    async with a_house(dsn, tools=[tool]) as house:
        [line] = await results(house, ("c1", "echo", '{"say": '))
        assert ARGS_NOT_JSON_TEXT in line
        assert tool.runs == []


async def test_a_tool_with_a_bug_does_not_end_the_turn(dsn: str) -> None:
    async with a_house(dsn, tools=[BrokenTool()]) as house:
        [line] = await results(house, ("c1", "echo", "{}"))
        assert "The tool failed: ValueError: a bug" in line
        assert line.startswith("tool: error(c1)")


async def test_a_tool_that_takes_too_long_is_given_up(dsn: str) -> None:
    async with a_house(dsn, tools=[GatedTool(gate=Gate(), timeout_s=0.05)]) as house:
        [line] = await results(house, ("c1", "echo", "{}"))
        assert "did not finish within 0.05 seconds" in line


async def test_a_tool_that_does_not_listen_is_given_up_and_left_behind(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn, tools=[StubbornTool(gate, timeout_s=0.05)]) as house:
        house.replica.task_reaper.shorten_grace()
        [line] = await results(house, ("c1", "echo", "{}"))
        assert "did not finish within 0.05 seconds" in line
        assert len(house.replica.task_reaper) == 1
        gate.open()


@pytest.mark.covers("T07")
async def test_a_tool_that_takes_ten_minutes_is_run_once(dsn: str, clock: FakeClock) -> None:
    gate = Gate()
    tool = GatedTool(gate=gate)
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api) as other,
        a_house_with(dsn, api, tools=[tool], clock=clock) as house,
    ):
        house.calls(("c1", "echo", "{}"))
        house.says("at last")
        chat_id = await house.create("go")
        await gate.reached.wait()
        await let_pass(clock, 600)
        assert (await other.chat(chat_id)).worker_id == house.replica.me
        gate.open()
        await house.rests(chat_id)
        assert tool.runs == ["c1"]


async def test_results_stand_in_the_order_of_their_calls(dsn: str) -> None:
    slow = Gate()
    tools = [GatedTool("slow", gate=slow), GatedTool("fast")]
    async with a_house(dsn, tools=tools) as house:
        house.calls(("c1", "slow", "{}"), ("c2", "fast", "{}"))
        house.says("ok")
        chat_id = await house.create("go")
        await house.events.wait("tool_finished", tool="fast")
        slow.open()
        await house.rests(chat_id)
        lines = await house.transcript(chat_id)
        assert [line[:16] for line in lines[2:4]] == ["tool: result(c1)", "tool: result(c2)"]


async def test_serial_tools_wait_for_the_others_and_go_one_by_one(dsn: str) -> None:
    gate = Gate()
    serial, other = GatedTool("serial", serial=True), GatedTool("other", gate=gate)
    async with a_house(dsn, tools=[serial, other]) as house:
        house.calls(("c1", "serial", "{}"), ("c2", "other", "{}"), ("c3", "serial", "{}"))
        house.says("ok")
        chat_id = await house.create("go")
        await gate.reached.wait()
        assert serial.runs == []
        gate.open()
        await house.rests(chat_id)
        assert serial.runs == ["c1", "c3"]
        assert [line[:16] for line in (await house.transcript(chat_id))[2:5]] == [
            "tool: result(c1)",
            "tool: result(c2)",
            "tool: result(c3)",
        ]


async def test_a_tool_that_must_be_alone_runs_alone_or_not_at_all(dsn: str) -> None:
    alone, other = GatedTool("alone", exclusive=True), GatedTool("other")
    async with a_house(dsn, tools=[alone, other]) as house:
        lines = await results(house, ("c1", "alone", "{}"), ("c2", "other", "{}"))
        assert EXCLUSIVE_TOOL_TEXT in lines[0]
        assert SKIPPED_CALL_TEXT in lines[1]
        assert (alone.runs, other.runs) == ([], [])


async def test_after_a_tool_that_stops_the_turn_no_model_is_called(dsn: str) -> None:
    async with a_house(dsn, tools=[GatedTool(stops_turn=True)]) as house:
        house.calls(("c1", "echo", "{}"))
        chat_id = await house.create("go")
        assert (await house.rests(chat_id)).state == "W"
        assert len(house.api.requests) == 1


@pytest.mark.promise("P4")
async def test_a_tool_that_is_stopped_may_say_how_far_it_has_come(dsn: str) -> None:
    gate, other = Gate(), Gate()
    tools = [PoliteTool("polite", gate=gate), GatedTool("other", gate=other)]
    async with a_house(dsn, tools=tools) as house:
        house.calls(("c1", "polite", "{}"), ("c2", "other", "{}"))
        chat_id = await house.create("go")
        await gate.reached.wait()
        await other.reached.wait()
        await house.interrupt(chat_id)
        assert (await house.rests(chat_id)).state == "W"
        said, silent = (await house.transcript(chat_id))[2:]
        assert said == "tool: result(c1) {'output': 'half of it'}"
        assert silent.startswith("tool: error(c2)")


@pytest.mark.covers("T11", "loop-35")
async def test_viewers_see_a_tools_output_while_it_runs_and_history_does_not(dsn: str) -> None:
    gate = Gate()
    async with a_house(dsn, tools=[ShowingTool(gate=gate)]) as house:
        house.calls(("c1", "echo", "{}"))
        chat_id = await house.create("go")
        await house.shown(chat_id, '"result_delta":"done"')
        await house.interrupt(chat_id)
        assert (await house.rests(chat_id)).state == "W"
        assert (await house.transcript(chat_id))[-1].startswith("tool: error(c1)")


# Tools that must not run twice


async def lost_in(house: House, other: House, tool: GatedTool) -> str:
    """A tool is begun in one replica, which lets go of the chat; what the other one answers."""
    assert tool.gate is not None
    house.calls(("c1", "echo", "{}"))
    house.says("ok")
    chat_id = await house.create("go")
    await tool.gate.reached.wait()
    await house.leaves()
    await other.rests(chat_id)
    return (await other.transcript(chat_id))[2]


@pytest.mark.promise("P7")
@pytest.mark.parametrize("known", [None, "it was done"])
async def test_a_tool_that_was_begun_elsewhere_is_asked_after_and_not_run_again(
    dsn: str, known: str | None
) -> None:
    first, second = GatedTool(gate=Gate(), effect="once"), GatedTool(effect="once")
    second.recovers = None if known is None else ToolOutput(text=known)
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api, tools=[first], worker=HASTY) as leaves,
        a_house_with(dsn, api, tools=[second]) as stays,
    ):
        line = await lost_in(leaves, stays, first)
        assert (first.runs, second.runs) == (["c1"], [])
        assert (UNKNOWN_OUTCOME_OUTPUT.text if known is None else known) in line


async def test_a_tool_that_may_run_again_does(dsn: str) -> None:
    first, second = GatedTool(gate=Gate(), effect="idempotent"), GatedTool(effect="idempotent")
    async with (
        FakeCompatible.running() as api,
        a_house_with(dsn, api, tools=[first], worker=HASTY) as leaves,
        a_house_with(dsn, api, tools=[second]) as stays,
    ):
        line = await lost_in(leaves, stays, first)
        assert line == "tool: result(c1) {'output': 'said {}'}"
        assert second.runs == ["c1"]
        assert len(api.requests) == 2


# The client's own tools


async def test_the_client_is_asked_and_its_results_go_to_the_model(dsn: str) -> None:
    async with a_house(dsn, tools=[GatedTool()]) as house:
        house.calls(("c1", "echo", "{}"), ("c2", "pick", '{"of":2}'))
        house.says("thanks")
        chat_id = await house.create("go", client_tools=CLIENTS)
        chat = await house.rests(chat_id)
        assert chat.state == "A0"
        assert [(call.id, call.client) for call in chat.pending_calls] == [("c2", True)]
        with pytest.raises(InvalidInput):
            await house.submit(chat_id, c1="1")
        await house.submit(chat_id, c2='{"picked":1}')
        with pytest.raises(TransitionNotAllowed):
            await house.submit(chat_id, c2='{"picked":2}')
        await house.until(chat_id, "W")
        assert await house.transcript(chat_id) == [
            "user: go",
            "assistant: echo(c1) pick(c2)",
            "tool: result(c1) {'output': 'said {}'}",
            "tool: result(c2) {'picked': 1}",
            "assistant: thanks",
        ]


@pytest.mark.covers("F41")
async def test_results_that_never_come_are_not_waited_for_for_ever(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.calls(("c1", "pick", "{}"))
        house.says("never mind")
        chat_id = await house.create("go", client_tools=CLIENTS)
        await house.rests(chat_id)
        await age(house.pool, [chat_id], seconds=301)
        await house.until(chat_id, "W")
        assert await house.transcript(chat_id) == [
            "user: go",
            "assistant: pick(c1)",
            f"tool: error(c1) {{'error': {EXPIRED_CALL_TEXT!r}}}",
            "assistant: never mind",
        ]


@pytest.mark.covers("T40")
async def test_a_client_that_is_asked_may_answer_another_replica(dsn: str) -> None:
    """The one that asked is long gone; there is one call and one result."""
    async with FakeCompatible.running() as api:
        async with a_house_with(dsn, api) as asks:
            asks.calls(("c1", "pick", "{}"))
            chat_id = await asks.create("go", client_tools=CLIENTS)
            assert (await asks.rests(chat_id)).state == "A0"
        async with a_house_with(dsn, api) as hears:
            hears.says("thanks")
            await hears.submit(chat_id, c1="1")
            await hears.until(chat_id, "W")
            assert await hears.transcript(chat_id) == [
                "user: go",
                "assistant: pick(c1)",
                "tool: result(c1) 1",
                "assistant: thanks",
            ]


async def test_a_stop_while_the_client_is_asked_answers_its_calls(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.calls(("c1", "pick", "{}"))
        chat_id = await house.create("go", client_tools=CLIENTS)
        await house.rests(chat_id)
        assert (await house.interrupt(chat_id)).state == "W"
        assert (await house.transcript(chat_id))[-1].startswith("tool: error(c1)")


@pytest.mark.covers("F41", "T16", "T40")
async def test_fifty_results_for_one_call_are_one_result(dsn: str) -> None:
    async with a_house(dsn) as house:
        house.calls(("c1", "pick", "{}"))
        house.says("thanks")
        chat_id = await house.create("go", client_tools=CLIENTS)
        await house.rests(chat_id)
        tries = await asyncio.gather(
            *(house.submit(chat_id, c1=str(n)) for n in range(50)), return_exceptions=True
        )
        assert sum(isinstance(outcome, Chat) for outcome in tries) == 1
        assert all(isinstance(outcome, Chat | TransitionNotAllowed) for outcome in tries)
        await house.until(chat_id, "W")
        lines = await house.transcript(chat_id)
        assert sum(line.startswith("tool:") for line in lines) == 1
        assert len(house.api.requests) == 2
        assert ToolCallId("c1") not in [c.id for c in (await house.chat(chat_id)).pending_calls]
