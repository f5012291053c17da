"""An answer with many tool calls: how many run, how many at once, and what is stored of it."""

from chatd.domain.answer.tool_calls import StepLimits, refuse_surplus
from chatd.domain.chat.messages import local_calls, local_results
from chatd.domain.chat.parts import NoticePart
from chatd.store.chat import messages
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.eventually import eventually
from tests.support.factories import HARNESS, call
from tests.support.providers.server import Gate
from tests.support.tools import GatedTool

FEW = StepLimits(calls=4, concurrent_calls=2)


def make_calls(rig: EngineRig, count: int) -> None:
    rig.call_tools(*((f"c{number}", "echo", "{}") for number in range(count)))


async def test_calls_beyond_the_limit_get_an_error_result_and_still_later_ones_are_dropped(
    dsn: str,
) -> None:
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool], limits=FEW) as rig:
        make_calls(rig, 11)
        chat_id = await rig.ask("go", "ok")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert tool.runs == ["c0", "c1", "c2", "c3"]
        history = await messages.load_history(rig.pool, HARNESS, chat_id)
        stored = [part.tool_call_id for row in history for part in local_calls(row.content)]
        results = [part for row in history for part in local_results(row.content)]
        assert stored == [f"c{number}" for number in range(8)]
        assert [part.tool_call_id for part in results] == stored
        assert [part.is_error for part in results] == [False] * 4 + [True] * 4
        refused = refuse_surplus([call(name) for name in stored], 4)[stored[-1]]
        assert refused.encode() in bytes(results[-1].result or b"")
        [notice] = [part for row in history for part in row.content if isinstance(part, NoticePart)]
        assert (notice.code, notice.detail) == ("calls_over_limit", {"calls": "11", "limit": "4"})


async def test_a_turn_is_told_once_that_its_answers_make_too_many_calls(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool()], limits=FEW) as rig:
        make_calls(rig, 5)
        make_calls(rig, 6)
        chat_id = await rig.ask("go", "ok")
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        history = await messages.load_history(rig.pool, HARNESS, chat_id)
        notices = [row for row in history if row.is_notice]
        assert len(notices) == 1


async def test_a_bounded_number_of_calls_runs_at_once(dsn: str) -> None:
    gate = Gate()
    tool = GatedTool(gate=gate)
    async with engine_rig(dsn, tools=[tool], limits=FEW) as rig:
        make_calls(rig, 4)
        chat_id = await rig.ask("go", "ok")

        async def are_two_started() -> bool:
            return len(tool.runs) >= 2

        await eventually(are_two_started)
        assert tool.runs == ["c0", "c1"]
        gate.open()
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        assert tool.runs == ["c0", "c1", "c2", "c3"]


async def test_an_interrupt_of_many_calls_answers_all_of_them(dsn: str) -> None:
    gate = Gate()
    async with engine_rig(dsn, tools=[GatedTool(gate=gate)]) as rig:
        make_calls(rig, 256)
        chat_id = await rig.create("go")
        await gate.reached.wait()
        await rig.interrupt(chat_id)
        assert (await rig.wait_chat_task_left(chat_id)).state == "W"
        lines = await rig.transcript(chat_id)
        assert sum(line.startswith("tool: ") for line in lines) == 256
