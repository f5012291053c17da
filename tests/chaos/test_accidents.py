"""Replicas are killed, frozen and stopped at named points of their code.

The accidents of one test run concurrently, each with its own process and chat. At the end a judge
checks the database.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chatd.domain.ids import ChatId
from chatd.engine.tool_runner import UNKNOWN_OUTCOME_OUTPUT
from chatd.store.chat import chats
from tests.support.chaos.replica_process import DieAt
from tests.support.chaos.replicas import ReplicaProcess
from tests.support.chaos.takeover_rig import TakeoverRig, takeover_rig
from tests.support.factories import HARNESS
from tests.support.providers.server import Gate
from tests.support.proxy import proxy_to

SETTLE_TIMEOUT_S = 60.0
ACCIDENT_TIMEOUT_S = 150.0

Accident = Callable[[TakeoverRig], Awaitable[None]]


async def run_accidents(dsn: str, *accidents: Accident) -> None:
    """Run all concurrently. An error names its accident."""
    async with takeover_rig(dsn) as rig, asyncio.TaskGroup() as group:

        async def one(accident: Accident) -> None:
            try:
                async with asyncio.timeout(ACCIDENT_TIMEOUT_S):
                    await accident(rig)
            except BaseException as error:
                error.add_note(f"in the accident: {accident.__name__}")
                raise

        running = [group.create_task(one(accident)) for accident in accidents]
        await asyncio.gather(*running)
        await rig.judge.wait_settled(rig.survivor.pool, within_s=SETTLE_TIMEOUT_S)
        await rig.judge.check(rig.survivor.pool)
        await check_all_chats_continue(rig)
        assert rig.model.refused == []


@pytest.mark.covers("T18")
async def check_all_chats_continue(rig: TakeoverRig) -> None:
    """The model accepts every history and answers the next message."""
    for number, chat_id in enumerate(sorted({sent.chat for sent in rig.judge.sent})):
        if await chats.get(rig.survivor.pool, HARNESS, chat_id) is not None:
            rig.judge.stopped.discard(chat_id)
            rig.judge.record_hurry(chat_id)  # an interrupted message stays unanswered
            sent = rig.judge.record_send(chat_id, f"next{number} 0")
            await rig.survivor.send(chat_id, sent.text)
            sent.acked = True
    await rig.judge.wait_settled(rig.survivor.pool, within_s=SETTLE_TIMEOUT_S)
    await rig.judge.check(rig.survivor.pool)


def at_commit(version: int) -> DieAt:
    return DieAt(event="step_committed", fields={"snapshot_version": version})


async def run_until_dead(rig: TakeoverRig, text: str, die_at: DieAt) -> ChatId:
    """A victim creates the chat and kills itself at the event; the survivor finishes the turn."""
    victim = await rig.start_victim(die_at=die_at)
    chat_id = await rig.create(victim, text)
    assert await victim.wait_exited() == -9
    await rig.survivor.wait_state(chat_id, "W")
    return chat_id


async def run_until_held(
    rig: TakeoverRig, text: str, gate: Gate, **options: Any
) -> tuple[ReplicaProcess, ChatId]:
    """A victim creates the chat and runs it up to the gate."""
    victim = await rig.start_victim(**options)
    chat_id = await rig.create(victim, text)
    await gate.reached.wait()
    return victim, chat_id


# kill -9


@pytest.mark.covers("F1")
async def killed_during_an_answer(rig: TakeoverRig) -> None:
    gate = rig.model.gates.hold("m1/0")
    victim, chat_id = await run_until_held(rig, "m1 0", gate)
    victim.kill()
    await rig.survivor.wait_state(chat_id, "W")
    assert await rig.transcript(chat_id) == ["user: m1 0", "assistant: answer to m1"]
    assert rig.model.asked["m1/0"] == 2


@pytest.mark.covers("F2")
async def killed_during_a_tool(rig: TakeoverRig) -> None:
    """The tool runs again; the model call is not repeated."""
    gate = rig.tool_server.gates.hold("m2-0")
    victim, chat_id = await run_until_held(rig, "m2 1", gate)
    victim.kill()
    await rig.survivor.wait_state(chat_id, "W")
    assert await rig.transcript(chat_id) == [
        "user: m2 1",
        "assistant: work(m2-0)",
        "tool: result(m2-0) {'output': 'did m2-0'}",
        "assistant: answer to m2",
    ]
    assert rig.model.asked == rig.model.asked | {"m2/0": 1, "m2/1": 1}
    assert rig.tool_server.runs["m2-0"] == 2


@pytest.mark.covers("F2")
async def killed_during_a_tool_that_must_not_run_twice(rig: TakeoverRig) -> None:
    gate = rig.tool_server.gates.hold("once3-0")
    victim, chat_id = await run_until_held(rig, "once3 1", gate)
    victim.kill()
    await rig.survivor.wait_state(chat_id, "W")
    lines = await rig.transcript(chat_id)
    assert UNKNOWN_OUTCOME_OUTPUT.text in lines[2]
    assert rig.tool_server.runs["once3-0"] == 1


@pytest.mark.covers("F3")
async def killed_before_its_answer_was_published(rig: TakeoverRig) -> None:
    """The commit was written, but no hint was sent."""
    chat_id = await run_until_dead(rig, "m4 0", at_commit(2))
    assert await rig.transcript(chat_id) == ["user: m4 0", "assistant: answer to m4"]
    assert rig.model.asked["m4/0"] == 1


@pytest.mark.covers("F3")
async def killed_before_its_call_was_published(rig: TakeoverRig) -> None:
    chat_id = await run_until_dead(rig, "m5 1", at_commit(2))
    assert (await rig.transcript(chat_id))[-1] == "assistant: answer to m5"
    assert rig.model.asked["m5/0"] == 1
    assert rig.tool_server.runs["m5-0"] == 1


@pytest.mark.covers("T09")
async def killed_right_after_accepting_a_message(rig: TakeoverRig) -> None:
    chat_id = await run_until_dead(rig, "m6 0", at_commit(1))
    assert await rig.transcript(chat_id) == ["user: m6 0", "assistant: answer to m6"]


@pytest.mark.covers("F5")
async def killed_during_an_interrupt(rig: TakeoverRig) -> None:
    gate = rig.model.gates.hold("m7/0")
    die_at = DieAt(event="task_started", fields={"task": "interrupt"})
    victim, chat_id = await run_until_held(rig, "m7 0", gate, die_at=die_at)
    rig.judge.record_interrupt(chat_id)
    await rig.survivor.interrupt(chat_id)
    assert await victim.wait_exited() == -9
    chat = await rig.survivor.wait_state(chat_id, "W")
    assert chat.worker_id is None
    lines = await rig.transcript(chat_id)
    assert lines[0] == "user: m7 0"
    assert lines[1:] in ([], ["assistant: answer "])


async def killed_before_the_model_call(rig: TakeoverRig) -> None:
    chat_id = await run_until_dead(rig, "m8 0", DieAt(event="action"))
    assert await rig.transcript(chat_id) == ["user: m8 0", "assistant: answer to m8"]
    assert rig.model.asked["m8/0"] == 1


async def killed_when_a_tool_had_its_effect(rig: TakeoverRig) -> None:
    chat_id = await run_until_dead(rig, "m9 1", DieAt(event="tool_finished"))
    assert (await rig.transcript(chat_id))[-1] == "assistant: answer to m9"
    assert rig.tool_server.runs["m9-0"] == 2
    assert rig.model.asked["m9/0"] == 1


@pytest.mark.covers("T05")
async def killed_when_a_tool_had_its_only_effect(rig: TakeoverRig) -> None:
    chat_id = await run_until_dead(rig, "once10 1", DieAt(event="tool_finished"))
    assert UNKNOWN_OUTCOME_OUTPUT.text in (await rig.transcript(chat_id))[2]
    assert rig.tool_server.runs["once10-0"] == 1


@pytest.mark.covers("F3")
async def killed_before_its_results_were_published(rig: TakeoverRig) -> None:
    chat_id = await run_until_dead(rig, "m11 1", at_commit(3))
    assert (await rig.transcript(chat_id))[-1] == "assistant: answer to m11"
    assert rig.tool_server.runs["m11-0"] == 1
    assert rig.model.asked == rig.model.asked | {"m11/0": 1, "m11/1": 1}


@pytest.mark.covers("F7")
async def killed_during_its_drain(rig: TakeoverRig) -> None:
    gate = rig.model.gates.hold("m12/0")
    victim, chat_id = await run_until_held(rig, "m12 0", gate, die_at=DieAt(event="drain_started"))
    victim.terminate()
    assert await victim.wait_exited() == -9
    await rig.survivor.wait_state(chat_id, "W")
    assert await rig.transcript(chat_id) == ["user: m12 0", "assistant: answer to m12"]


@pytest.mark.covers("T01", "T14")
@pytest.mark.timeout(240)
@pytest.mark.promise("P1", "P2", "P6", "P7", "P10")
async def test_a_killed_replica_is_replaced_at_every_point(dsn: str) -> None:
    await run_accidents(
        dsn,
        killed_during_an_answer,
        killed_during_a_tool,
        killed_during_a_tool_that_must_not_run_twice,
        killed_before_its_answer_was_published,
        killed_before_its_call_was_published,
        killed_right_after_accepting_a_message,
        killed_during_an_interrupt,
        killed_before_the_model_call,
        killed_when_a_tool_had_its_effect,
        killed_when_a_tool_had_its_only_effect,
        killed_before_its_results_were_published,
        killed_during_its_drain,
    )


# SIGTERM


@pytest.mark.covers("F7")
async def stopped_during_an_answer(rig: TakeoverRig) -> None:
    gate = rig.model.gates.hold("t1/0")
    victim, chat_id = await run_until_held(rig, "t1 0", gate)
    victim.terminate()
    await victim.events.wait("drain_started")
    gate.open()
    assert await victim.wait_exited() == 0
    assert (await rig.survivor.chat(chat_id)).state == "W"
    assert await rig.transcript(chat_id) == ["user: t1 0", "assistant: answer to t1"]
    assert rig.model.asked["t1/0"] == 1


@pytest.mark.covers("F7")
async def stopped_during_a_tool(rig: TakeoverRig) -> None:
    """Its result is committed, and another worker continues."""
    gate = rig.tool_server.gates.hold("t2-0")
    victim, chat_id = await run_until_held(rig, "t2 1", gate)
    victim.terminate()
    await victim.events.wait("drain_started")
    gate.open()
    assert await victim.wait_exited() == 0
    await rig.survivor.wait_state(chat_id, "W")
    assert rig.tool_server.runs["t2-0"] == 1
    assert rig.model.asked == rig.model.asked | {"t2/0": 1, "t2/1": 1}


@pytest.mark.covers("F7")
async def stopped_with_a_tool_that_does_not_end(rig: TakeoverRig) -> None:
    gate = rig.tool_server.gates.hold("t3-0")
    victim, chat_id = await run_until_held(rig, "t3 1", gate, drain_s=0.2)
    victim.terminate()
    assert await victim.wait_exited() == 0
    await rig.survivor.wait_state(chat_id, "W")
    assert (await rig.transcript(chat_id))[-1] == "assistant: answer to t3"
    assert rig.tool_server.runs["t3-0"] == 2
    assert rig.model.asked["t3/0"] == 1


@pytest.mark.covers("F7")
async def stopped_with_nothing_to_do(rig: TakeoverRig) -> None:
    victim = await rig.start_victim()
    victim.terminate()
    assert await victim.wait_exited() == 0
    left = await victim.events.wait("drain_finished")
    assert left["released"] == "0"


# SIGSTOP


@pytest.mark.covers("F22", "T13", "T19")
async def frozen_during_an_answer(rig: TakeoverRig) -> None:
    """After it resumes, its writes are refused."""
    gate = rig.model.gates.hold("s1/0")
    victim, chat_id = await run_until_held(rig, "s1 0", gate)
    victim.freeze()
    await rig.end_sessions(victim)
    chat = await rig.survivor.wait_state(chat_id, "W")
    victim.resume()
    gate.open()
    await victim.events.wait("chat_task_left", chat_id=str(chat_id))
    assert (await rig.survivor.chat(chat_id)).snapshot_version == chat.snapshot_version
    assert await rig.transcript(chat_id) == ["user: s1 0", "assistant: answer to s1"]


# No connection to the database


@pytest.mark.covers("F12", "F20")
async def cut_off_during_an_answer(rig: TakeoverRig) -> None:
    """It receives the rest of the answer and cannot write it."""
    gate = rig.model.gates.hold("c1/0")
    async with proxy_to(rig.dsn) as line:
        victim = await rig.start_victim(dsn=line.dsn)
        chat_id = await rig.create(victim, "c1 0")
        await gate.reached.wait()
        line.refuse(new=True)
        line.cut()
        chat = await rig.survivor.wait_state(chat_id, "W")
        gate.open()
        line.refuse(new=False)
        await victim.events.wait("chat_task_left", chat_id=str(chat_id))
        assert (await rig.survivor.chat(chat_id)).snapshot_version == chat.snapshot_version
        # Not killed: its slot is free again, and it may run a chat of another accident.
        victim.terminate()
        assert await victim.wait_exited() == 0
    assert await rig.transcript(chat_id) == ["user: c1 0", "assistant: answer to c1"]


@pytest.mark.covers("T01")
@pytest.mark.timeout(240)
@pytest.mark.promise("P3", "P5", "P10")
async def test_a_stopped_or_frozen_replica_loses_nothing_and_repeats_nothing(
    dsn: str,
) -> None:
    await run_accidents(
        dsn,
        stopped_during_an_answer,
        stopped_during_a_tool,
        stopped_with_a_tool_that_does_not_end,
        stopped_with_nothing_to_do,
        frozen_during_an_answer,
        cut_off_during_an_answer,
    )
