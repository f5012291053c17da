"""Calls that a person approves, and questions that a person answers, through whole turns."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.call_waits import EXPIRED_APPROVAL_TEXT, EXPIRED_QUESTION_TEXT, QuestionReply
from chatd.domain.chat.commands import CallAnswer
from chatd.domain.chat.row import Chat
from chatd.domain.errors import CallNotWaiting, TransitionNotAllowed
from chatd.domain.ids import ToolCallId
from chatd.domain.ports import Tool
from chatd.domain.tool_policy.rules import ToolRule
from chatd.engine.model.attempt import POLICY_MAX_AGE_S
from chatd.tools.plans import QuestionTools
from tests.support.clock import FakeClock
from tests.support.engine_rig import NO_SLOTS, EngineRig, engine_rig, engine_rig_with
from tests.support.eventually import eventually
from tests.support.factories import chat as make_chat
from tests.support.providers.openai_chat import FakeCompatible
from tests.support.providers.server import Gate
from tests.support.seeds import QUESTIONS
from tests.support.store import age
from tests.support.tools import GatedTool, Tools

ASK = ToolRule(tool="echo", action="ask")
DENY = ToolRule(tool="echo", action="deny", reason="Not today.")


def approve(call_id: str = "c1", *, always: bool = False) -> CallAnswer:
    return CallAnswer(tool_call_id=ToolCallId(call_id), decision="approve", always=always)


def deny(call_id: str = "c1", reason: str = "") -> CallAnswer:
    return CallAnswer(tool_call_id=ToolCallId(call_id), decision="deny", reason=reason)


async def wait_asked(rig: EngineRig, *calls: tuple[str, str, str]) -> Chat:
    """A chat that waits for these calls."""
    rig.call_tools(*calls)
    chat_id = await rig.create("go")
    chat = await rig.wait_chat_task_left(chat_id)
    assert chat.state == "A0"
    return chat


async def test_an_approved_call_runs_and_the_turn_goes_on(dsn: str) -> None:
    asked, free = GatedTool(), GatedTool("look")
    async with engine_rig(dsn, tools=[asked, free]) as rig:
        await rig.set_policy(ASK)
        chat = await wait_asked(rig, ("c1", "echo", '{"say":"a"}'), ("c2", "look", "{}"))
        assert (asked.runs, free.runs) == ([], ["c2"])
        (call,) = chat.pending_calls
        assert (call.asks, call.timeout_s, call.args) == ("approval", 3600.0, Raw(b'{"say":"a"}'))
        rig.answer("done")
        await rig.answer_calls(chat.id, approve())
        await rig.wait_state(chat.id, "W")
        assert asked.runs == ["c1"]
        assert await rig.transcript(chat.id) == [
            "user: go",
            "assistant: echo(c1) look(c2)",
            "tool: result(c2) {'output': 'said {}'}",
            "tool: result(c1) {'output': 'said {\"say\":\"a\"}'}",
            "assistant: done",
        ]


async def test_a_denied_call_does_not_run_and_the_model_is_told_why(dsn: str) -> None:
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool]) as rig:
        await rig.set_policy(ASK)
        chat = await wait_asked(rig, ("c1", "echo", "{}"))
        rig.answer("as you wish")
        await rig.answer_calls(chat.id, deny(reason="Too early."))
        await rig.wait_state(chat.id, "W")
        assert tool.runs == []
        assert "The reason: Too early." in (await rig.transcript(chat.id))[2]


async def test_a_policy_that_denies_is_a_result_without_asking(dsn: str) -> None:
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool]) as rig:
        await rig.set_policy(DENY)
        rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.ask("go", "ok")
        await rig.wait_state(chat_id, "W")
        assert tool.runs == []
        assert (
            "the tool policy of the user denies this call. Not today."
            in (await rig.transcript(chat_id))[2]
        )


def offered(rig: EngineRig) -> list[str]:
    """The tools of the newest request."""
    body = msgspec.convert(rig.api.requests[-1].json, type=_Offer)
    return [tool.function.name for tool in body.tools]


class _Function(msgspec.Struct):
    name: str


class _OfferedTool(msgspec.Struct):
    function: _Function


class _Offer(msgspec.Struct):
    tools: list[_OfferedTool] = []


async def test_a_tool_that_a_policy_denies_whatever_its_arguments_is_not_offered(dsn: str) -> None:
    """Neither the first request of a chat nor one after a read of its history has it. The list
    changes when a person changes the policy, also between two steps; a call gets its denial."""
    denied, page = GatedTool(), Raw(b'[{"name":"open_page","description":"","input_schema":{}}]')
    async with engine_rig(dsn, tools=[denied, GatedTool("look")]) as rig:
        await rig.set_policy(DENY, ToolRule(tool="open_*", action="deny"))
        rig.call_tools(("c1", "echo", "{}"))
        rig.answer("ok")
        chat_id = await rig.create("go", client_tools=page)
        await rig.wait_chat_task_left(chat_id)
        assert offered(rig) == ["look"]
        assert "denies this call. Not today." in (await rig.transcript(chat_id))[2]
        for rules, expected in (
            ((DENY,), ["look", "open_page"]),
            (
                (ToolRule(tool="echo", action="deny", args={"a": "*"}),),
                ["echo", "look", "open_page"],
            ),
        ):
            await rig.set_policy(*rules)
            rig.answer("again")
            chat = await rig.send(chat_id, "again")
            await rig.wait_chat_task_left(chat_id, epoch=chat.epoch)
            assert sorted(offered(rig)) == expected
        assert denied.runs == []


async def test_the_rules_that_a_chat_is_created_with_take_tools_away(dsn: str) -> None:
    async with engine_rig(dsn, tools=[GatedTool(), GatedTool("look")]) as rig:
        rig.answer("ok")
        chat_id = await rig.create("go", rules=(DENY,))
        await rig.wait_chat_task_left(chat_id)
        assert offered(rig) == ["look"]


async def test_a_policy_that_denies_after_the_approval_wins(dsn: str, api: FakeCompatible) -> None:
    tool = GatedTool()
    async with engine_rig_with(dsn, api, tools=[tool], worker=NO_SLOTS) as idle:
        async with engine_rig_with(dsn, api, tools=[tool]) as rig:
            await rig.set_policy(ASK)
            chat = await wait_asked(rig, ("c1", "echo", "{}"))
        assert (await idle.answer_calls(chat.id, approve())).state == "P0"
        await idle.set_policy(DENY)
        async with engine_rig_with(dsn, api, tools=[tool]) as rig:
            rig.answer("ok")
            await rig.wait_state(chat.id, "W")
            assert tool.runs == []


class LateTools(Tools):
    """Slow to be found for a chat with calls: they wait at the gate."""

    def __init__(self, tool: GatedTool, gate: Gate) -> None:
        super().__init__([tool])
        self._gate = gate

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        if chat.pending_calls:
            await self._gate.pass_through()
        return await super().tools(chat)


async def test_calls_that_waited_for_their_tools_obey_a_policy_that_came_meanwhile(
    dsn: str,
) -> None:
    clock, gate, tool = FakeClock(), Gate(), GatedTool()
    async with engine_rig(dsn, clock=clock, source=LateTools(tool, gate)) as rig:
        rig.call_tools(("c1", "echo", "{}"))
        chat_id = await rig.ask("go", "ok")
        await gate.reached.wait()
        await rig.set_policy(DENY)
        clock.advance(POLICY_MAX_AGE_S + 0.1)
        gate.open()
        await rig.wait_state(chat_id, "W")
        assert tool.runs == []


async def test_a_denial_counts_for_the_next_step_of_a_turn_that_runs(dsn: str) -> None:
    gate = Gate()
    tool = GatedTool(gate=gate)
    async with engine_rig(dsn, tools=[tool]) as rig:
        rig.call_tools(("c1", "echo", "{}"))
        rig.call_tools(("c2", "echo", "{}"))
        chat_id = await rig.ask("go", "ok")
        await gate.reached.wait()
        await rig.set_policy(DENY)
        gate.open()
        await rig.wait_state(chat_id, "W")
        assert tool.runs == ["c1"]


async def test_a_policy_that_cannot_be_read_asks_for_calls_that_would_run_at_once(dsn: str) -> None:
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool]) as rig:
        await rig.set_policy(ToolRule(tool="echo", action="auto"))
        await rig.pool.execute(
            """UPDATE tool_policies SET policy = '{"rules":[{"tool":"x","action":"ask_twice"}]}'"""
        )
        await wait_asked(rig, ("c1", "echo", "{}"))
        assert tool.runs == []


@pytest.mark.covers("T40")
async def test_an_approval_outlives_the_replicas_and_the_call_runs_once(
    dsn: str, api: FakeCompatible
) -> None:
    """The approval is in the row: the replica that took it stops before any worker has the chat."""
    tool = GatedTool(effect="once")
    async with engine_rig_with(dsn, api, tools=[tool]) as first:
        await first.set_policy(ASK)
        chat = await wait_asked(first, ("c1", "echo", "{}"))
    async with engine_rig_with(dsn, api, tools=[tool], worker=NO_SLOTS) as second:
        await second.answer_calls(chat.id, approve())
    async with engine_rig_with(dsn, api, tools=[tool]) as third:
        third.answer("done")
        await third.wait_state(chat.id, "W")
        assert tool.runs == ["c1"]
        assert sum(line.startswith("tool:") for line in await third.transcript(chat.id)) == 1


@pytest.mark.covers("T16")
async def test_of_fifty_answers_on_two_replicas_one_counts(dsn: str, api: FakeCompatible) -> None:
    tool = GatedTool(effect="once")
    async with (
        engine_rig_with(dsn, api, tools=[tool]) as rig,
        engine_rig_with(dsn, api, tools=[tool]) as other,
    ):
        await rig.set_policy(ASK)
        chat = await wait_asked(rig, ("c1", "echo", "{}"))
        rig.answer("done")
        tries = await asyncio.gather(
            *(
                (rig, other)[n % 2].answer_calls(chat.id, approve() if n % 3 else deny())
                for n in range(50)
            ),
            return_exceptions=True,
        )
        counted = [outcome for outcome in tries if isinstance(outcome, Chat)]
        refused = (Chat, CallNotWaiting, TransitionNotAllowed)
        assert len(counted) == 1, [it for it in tries if not isinstance(it, refused)]
        assert all(isinstance(outcome, refused) for outcome in tries)
        await rig.wait_state(chat.id, "W")
        assert len(tool.runs) <= 1
        assert sum(line.startswith("tool:") for line in await rig.transcript(chat.id)) == 1
        assert await rig.pool.fetchval("SELECT count(*) FROM chat_call_answers") == 1


async def test_approving_always_ends_the_asking_in_this_chat_only(dsn: str) -> None:
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool]) as rig:
        await rig.set_policy(ASK)
        chat = await wait_asked(rig, ("c1", "echo", "{}"))
        rig.call_tools(("c2", "echo", "{}"))
        rig.answer("done")
        await rig.answer_calls(chat.id, approve(always=True))
        await rig.wait_state(chat.id, "W")
        assert tool.runs == ["c1", "c2"]
        stored = await rig.pool.fetchval(
            "SELECT policy FROM tool_policies WHERE chat_id = $1", chat.id
        )
        assert msgspec.json.decode(stored) == {"rules": [{"tool": "echo", "action": "auto"}]}
        await wait_asked(rig, ("c3", "echo", "{}"))


async def test_calls_are_approved_one_by_one_and_run_together(dsn: str) -> None:
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool]) as rig:
        await rig.set_policy(ASK)
        chat = await wait_asked(rig, *((f"c{n}", "echo", "{}") for n in (1, 2, 3)))
        rig.answer("done")
        assert (await rig.answer_calls(chat.id, approve("c2"))).state == "A0"
        assert (await rig.answer_calls(chat.id, deny("c1"))).state == "A0"
        assert tool.runs == []
        await rig.answer_calls(chat.id, approve("c3"))
        await rig.wait_state(chat.id, "W")
        assert sorted(tool.runs) == ["c2", "c3"]


async def test_an_approval_expires_and_the_call_does_not_run(dsn: str) -> None:
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool]) as rig:
        await rig.set_policy(ASK)
        chat = await wait_asked(rig, ("c1", "echo", "{}"))
        rig.answer("never mind")
        await age(rig.pool, [chat.id], seconds=3601)
        await rig.wait_state(chat.id, "W")
        assert EXPIRED_APPROVAL_TEXT in (await rig.transcript(chat.id))[2]
        assert tool.runs == []


@pytest.mark.covers("F41")
async def test_each_call_has_its_own_deadline(dsn: str) -> None:
    """The client tool gives up after its declared time; the approval goes on waiting."""
    tool = GatedTool()
    client_tools = Raw(
        b'[{"name":"pick","description":"","input_schema":{"type":"object"},"timeout_s":60}]'
    )
    async with engine_rig(dsn, tools=[tool]) as rig:
        await rig.set_policy(ASK)
        rig.call_tools(("c1", "echo", "{}"), ("c2", "pick", "{}"))
        chat_id = await rig.create("go", client_tools=client_tools)
        assert (await rig.wait_chat_task_left(chat_id)).state == "A0"
        await age(rig.pool, [chat_id], seconds=61)

        async def only_the_approval_waits() -> bool:
            return [call.id for call in (await rig.chat(chat_id)).pending_calls] == ["c1"]

        await eventually(only_the_approval_waits)
        rig.answer("done")
        await rig.answer_calls(chat_id, approve())
        await rig.wait_state(chat_id, "W")
        assert tool.runs == ["c1"]


@pytest.mark.parametrize("how", ["interrupt", "send", "edit", "archive"])
async def test_what_a_user_does_instead_ends_the_wait(dsn: str, how: str) -> None:
    tool = GatedTool()
    async with engine_rig(dsn, tools=[tool]) as rig:
        await rig.set_policy(ASK)
        chat = await wait_asked(rig, ("c1", "echo", "{}"))
        rig.answer("something else")
        match how:
            case "interrupt":
                await rig.interrupt(chat.id)
            case "send":
                await rig.send(chat.id, "stop", "interrupt")
            case "edit":
                await rig.edit(chat.id, "other")
            case _:
                await rig.archive(chat.id)
        await rig.wait_state(chat.id, "W", "XW0")
        assert tool.runs == []
        with pytest.raises(TransitionNotAllowed):
            await rig.answer_calls(chat.id, approve())


async def test_a_steering_message_waits_for_the_answer(dsn: str, gate: Gate) -> None:
    tool = GatedTool(gate=gate)
    async with engine_rig(dsn, tools=[tool]) as rig:
        await rig.set_policy(ASK)
        chat = await wait_asked(rig, ("c1", "echo", "{}"))
        await rig.send(chat.id, "and be quick", "steer")
        rig.answer("done")
        await rig.answer_calls(chat.id, approve())
        await gate.reached.wait()
        gate.open()
        await rig.wait_state(chat.id, "W")
        assert [line.split(":")[0] for line in await rig.transcript(chat.id)] == [
            *("user", "assistant", "tool", "user", "assistant"),
        ]


# Questions


async def asking_rig_chat(rig: EngineRig, args: str) -> Chat:
    rig.call_tools(("q1", "ask_user_question", args))
    return await rig.wait_chat_task_left(await rig.create("go"))


async def test_the_answer_to_a_question_is_the_result_of_the_call(dsn: str) -> None:
    tools = await QuestionTools().tools(make_chat())
    async with engine_rig(dsn, tools=tools) as rig:
        chat = await asking_rig_chat(rig, QUESTIONS)
        assert chat.state == "A0"
        assert chat.pending_calls[0].timeout_s == 7200.0
        rig.answer("thanks")
        reply = QuestionReply(labels=("B",), text="for now")
        answer = CallAnswer(tool_call_id=ToolCallId("q1"), decision="answer", replies=(reply,))
        await rig.answer_calls(chat.id, answer)
        await rig.wait_state(chat.id, "W")
        line = (await rig.transcript(chat.id))[2]
        assert "'chosen': ['B'], 'text': 'for now'" in line
        assert line.startswith("tool: result(q1)")


async def test_a_question_that_cannot_be_asked_is_an_error_result(dsn: str) -> None:
    tools = await QuestionTools().tools(make_chat())
    async with engine_rig(dsn, tools=tools) as rig:
        rig.call_tools(("q1", "ask_user_question", '{"questions":[]}'))
        chat_id = await rig.ask("go", "ok")
        await rig.wait_state(chat_id, "W")
        assert "questions must be a list" in (await rig.transcript(chat_id))[2]


async def test_a_question_expires(dsn: str) -> None:
    tools = await QuestionTools().tools(make_chat())
    async with engine_rig(dsn, tools=tools) as rig:
        chat = await asking_rig_chat(rig, QUESTIONS)
        rig.answer("ok")
        await age(rig.pool, [chat.id], seconds=7201)
        await rig.wait_state(chat.id, "W")
        assert EXPIRED_QUESTION_TEXT in (await rig.transcript(chat.id))[2]
