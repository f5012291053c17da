"""A chat that waits for subagents: what a person is asked and says meanwhile."""

from collections.abc import AsyncGenerator

import pytest

from chatd.domain.chat.call_waits import call_deadlines, waiting_calls
from chatd.domain.chat.commands import CallAnswer
from chatd.domain.errors import CallNotWaiting
from chatd.domain.ids import ToolCallId
from chatd.domain.tool_policy.rules import ToolRule
from tests.support.providers.server import Gate, RecordedRequest, Reply, Step
from tests.support.subagents import (
    ScriptedChats,
    call,
    children_of,
    result_of,
    say,
    spawn,
    spawn_results,
    subagent_rig,
    suspended,
    wait_all,
)
from tests.support.tools import GatedTool

ASK = ToolRule(tool="echo", action="ask")
APPROVE = CallAnswer(tool_call_id=ToolCallId("e"), decision="approve")


@pytest.fixture
async def chats_api() -> AsyncGenerator[ScriptedChats]:
    async with ScriptedChats.running() as api:
        yield api


def ask_and_wait(request: RecordedRequest) -> tuple[Step, ...] | Reply:
    """In one step: a call that a person approves, one that runs at once, and a wait."""
    child = spawn_results(request)[0]["chat_id"]
    calls = call(("e", "echo", {}), ("l", "look", {}), ("w0", "wait_agent", {"chat_id": child}))
    return calls(request)


async def test_a_person_is_asked_while_the_subagents_of_the_same_step_work(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate, echo, look = Gate(), GatedTool(), GatedTool("look")
    chats_api.on("go", spawn("work"), ask_and_wait, say("done"))
    chats_api.on("work", say(gate, "ok"))
    async with subagent_rig(dsn, chats_api, others=[echo, look]) as rig:
        await rig.set_policy(ASK)
        chat_id = await rig.create("go")
        asking = await rig.wait_state(chat_id, "A0")
        assert look.runs == ["l"]
        assert {pending.id for pending in asking.pending_calls} == {"e", "w0"}
        [child] = await children_of(rig, chat_id)
        assert child.status == "running"
        await rig.answer_calls(chat_id, APPROVE)
        chat = await suspended(rig, chat_id)
        assert echo.runs == ["e"]
        assert [pending.id for pending in chat.pending_calls] == ["w0"]
        gate.open()
        await rig.wait_state(chat_id, "W")
        assert (await result_of(rig, chat_id, "w0"))["report"] == "ok"


async def test_an_answer_after_the_subagents_have_ended_brings_their_reports_at_once(
    dsn: str, chats_api: ScriptedChats
) -> None:
    echo, look = GatedTool(), GatedTool("look")
    chats_api.on("go", spawn("work"), ask_and_wait, say("done"))
    chats_api.on("work", say("ok"))
    async with subagent_rig(dsn, chats_api, others=[echo, look]) as rig:
        await rig.set_policy(ASK)
        chat_id = await rig.create("go")
        await rig.wait_state(chat_id, "A0")
        [child] = await children_of(rig, chat_id)
        await rig.wait_state(child.id, "W")
        deny = CallAnswer(tool_call_id=ToolCallId("e"), decision="deny")
        await rig.answer_calls(chat_id, deny)
        await rig.wait_state(chat_id, "W")
        assert echo.runs == []
        assert (await result_of(rig, chat_id, "w0"))["report"] == "ok"


async def test_only_calls_that_wait_for_a_person_are_shown_and_can_be_answered(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate = Gate()
    chats_api.on("go", spawn("work"), ask_and_wait, say("done"))
    chats_api.on("work", say(gate, "ok"))
    async with subagent_rig(dsn, chats_api, others=[GatedTool(), GatedTool("look")]) as rig:
        await rig.set_policy(ASK)
        chat_id = await rig.create("go")
        asking = await rig.wait_state(chat_id, "A0")
        assert [shown.id for shown in waiting_calls(asking)] == ["e"]
        assert list(call_deadlines(asking)) == ["e"]
        stray = CallAnswer(tool_call_id=ToolCallId("w0"), decision="approve")
        with pytest.raises(CallNotWaiting):
            await rig.answer_calls(chat_id, stray)
        assert (await rig.interrupt(chat_id)).state == "W"
        gate.open()


async def test_a_steering_message_is_heard_at_once_and_the_subagents_go_on(
    dsn: str, chats_api: ScriptedChats
) -> None:
    gate = Gate()
    chats_api.on("go", spawn("work"), wait_all(), say("heard"))
    chats_api.on("work", say(gate, "ok"))
    async with subagent_rig(dsn, chats_api) as rig:
        chat_id = await rig.create("go")
        await suspended(rig, chat_id)
        await rig.send(chat_id, "and that", "steer")
        await rig.wait_state(chat_id, "W")
        assert (await rig.transcript(chat_id))[-2:] == ["user: and that", "assistant: heard"]
        result = await result_of(rig, chat_id, "w0")
        assert (result["status"], result["interrupted"]) == ("running", True)
        [child] = await children_of(rig, chat_id)
        assert child.status == "running"
        gate.open()
        await rig.wait_state(child.id, "W")


async def test_a_steering_message_that_comes_before_the_wait_is_heard_instead_of_it(
    dsn: str, chats_api: ScriptedChats
) -> None:
    """It arrives while another call of the same step runs: the wait is not begun."""
    work, held = Gate(), Gate()
    look = GatedTool("look", gate=held)

    def look_and_wait(request: RecordedRequest) -> tuple[Step, ...] | Reply:
        child = spawn_results(request)[0]["chat_id"]
        return call(("l", "look", {}), ("w0", "wait_agent", {"chat_id": child}))(request)

    chats_api.on("go", spawn("work"), look_and_wait, say("heard"))
    chats_api.on("work", say(work, "ok"))
    async with subagent_rig(dsn, chats_api, others=[look]) as rig:
        chat_id = await rig.create("go")
        await held.reached.wait()
        await rig.send(chat_id, "and that", "steer")
        held.open()
        await rig.wait_state(chat_id, "W")
        assert (await rig.transcript(chat_id))[-2:] == ["user: and that", "assistant: heard"]
        assert (await result_of(rig, chat_id, "w0"))["interrupted"] is True
        work.open()
