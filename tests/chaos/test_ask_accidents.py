"""Replicas are killed while their chats wait for a person, and between the approval and the run.

As in `test_accidents`, the accidents run concurrently, and a judge checks the database at the end.
"""

from contextlib import suppress

import pytest

from chatd.domain.chat.commands import CallAnswer
from chatd.domain.errors import Conflict
from chatd.domain.ids import ChatId, ToolCallId
from chatd.domain.tool_policy.rules import ToolPolicy, ToolRule
from chatd.engine.tool_runner import UNKNOWN_OUTCOME_OUTPUT
from chatd.store.deployment import tool_policies
from tests.chaos.test_accidents import run_accidents
from tests.support.chaos.replica_orders import OWNER
from tests.support.chaos.replica_process import DieAt
from tests.support.chaos.replicas import ReplicaProcess
from tests.support.chaos.takeover_rig import TakeoverRig
from tests.support.eventually import eventually
from tests.support.factories import member

ASK = ToolPolicy(rules=(ToolRule(tool="*", action="ask"),))


async def ask_for_all_calls(rig: TakeoverRig) -> None:
    """The first accident sets the policy of all."""
    with suppress(Conflict):
        await tool_policies.save_user(rig.survivor.pool, member(OWNER), ASK, version=0)


async def has_free_slot(victim: ReplicaProcess) -> bool:
    """Its runner has left the chat that waits, so that the next order gets the only slot."""
    return (await victim.resources()).running == 0


async def approve(rig: TakeoverRig, chat_id: ChatId, call_id: str) -> None:
    answer = CallAnswer(tool_call_id=ToolCallId(call_id), decision="approve")
    await rig.survivor.answer_calls(chat_id, answer)


async def killed_before_it_asked(rig: TakeoverRig) -> None:
    """The call is in history, but nobody was asked yet: the survivor asks."""
    await ask_for_all_calls(rig)
    die_at = DieAt(event="action", fields={"task": "RequireAction"})
    victim = await rig.start_victim(die_at=die_at)
    chat_id = await rig.create(victim, "once20 1")
    assert await victim.wait_exited() == -9
    await rig.survivor.wait_state(chat_id, "A0")
    await approve(rig, chat_id, "once20-0")
    await rig.survivor.wait_state(chat_id, "W")
    assert rig.tool_server.runs["once20-0"] == 1
    assert rig.model.asked["once20/0"] == 1


async def killed_while_it_was_asked(rig: TakeoverRig) -> None:
    await ask_for_all_calls(rig)
    victim = await rig.start_victim()
    chat_id = await rig.create(victim, "once21 1")
    await rig.survivor.wait_state(chat_id, "A0")
    victim.kill()
    await victim.wait_exited()
    await approve(rig, chat_id, "once21-0")
    await rig.survivor.wait_state(chat_id, "W")
    assert (await rig.transcript(chat_id))[-1] == "assistant: answer to once21"
    assert rig.tool_server.runs["once21-0"] == 1


async def killed_between_the_approval_and_the_run(rig: TakeoverRig) -> None:
    """The approval is in the row: the survivor runs the call once, and asks nobody again."""
    await ask_for_all_calls(rig)
    victim = await rig.start_victim(die_at=DieAt(event="action", fields={"task": "RunTools"}))
    chat_id = await rig.create(victim, "once22 1")
    await rig.survivor.wait_state(chat_id, "A0")
    await eventually(lambda: has_free_slot(victim), within_s=30)
    assert (await victim.order("approve", chat_id, text="once22-0")).state == "R0"
    assert await victim.wait_exited() == -9
    await rig.survivor.wait_state(chat_id, "W")
    assert (await rig.transcript(chat_id))[-1] == "assistant: answer to once22"
    assert rig.tool_server.runs["once22-0"] == 1


async def killed_while_the_approved_call_ran(rig: TakeoverRig) -> None:
    """A call that must not run twice is not repeated because it was approved."""
    await ask_for_all_calls(rig)
    gate = rig.tool_server.gates.hold("once23-0")
    victim = await rig.start_victim()
    chat_id = await rig.create(victim, "once23 1")
    await rig.survivor.wait_state(chat_id, "A0")
    await eventually(lambda: has_free_slot(victim), within_s=30)
    await victim.order("approve", chat_id, text="once23-0")
    await gate.reached.wait()
    victim.kill()
    await rig.survivor.wait_state(chat_id, "W")
    assert UNKNOWN_OUTCOME_OUTPUT.text in (await rig.transcript(chat_id))[2]
    assert rig.tool_server.runs["once23-0"] == 1


@pytest.mark.covers("F3", "T40")
@pytest.mark.promise("P1", "P2", "P6", "P7")
@pytest.mark.timeout(240)
async def test_a_killed_replica_loses_no_question_and_no_approval(dsn: str) -> None:
    await run_accidents(
        dsn,
        killed_before_it_asked,
        killed_while_it_was_asked,
        killed_between_the_approval_and_the_run,
        killed_while_the_approved_call_ran,
    )
