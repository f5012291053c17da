"""Parents and subagents on replicas that are killed and stopped: each subagent is started once,
every parent gets every report."""

import asyncio

import pytest

from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId
from tests.chaos.test_accidents import Accident, run_accidents, run_until_dead
from tests.support.chaos.replica_process import DieAt
from tests.support.chaos.takeover_rig import TakeoverRig, takeover_rig
from tests.support.eventually import eventually
from tests.support.subagents import children_of

PARENTS = 10
CHILDREN_EACH = 5
SETTLE_TIMEOUT_S = 40.0


async def check_team(rig: TakeoverRig, chat_id: ChatId, name: str, size: int) -> None:
    """The parent has answered, with one subagent for each task."""
    children = await children_of(rig.survivor, chat_id)
    titles = sorted(child.title for child in children)
    assert titles == [f"{name}.{number} {number % 2}" for number in range(size)]
    lines = await rig.transcript(chat_id)
    assert lines[-1] == f"assistant: answer to {name}"
    reports = [line for line in lines if "report" in line]
    assert len(reports) == size


async def killed_before_a_subagent_was_written(rig: TakeoverRig) -> None:
    die_at = DieAt(event="tool_started", fields={"tool": "spawn_agent"}, nth=2)
    chat_id = await run_until_dead(rig, "team1 2", die_at)
    await check_team(rig, chat_id, "team1", 2)


@pytest.mark.covers("F39")
async def killed_before_the_result_of_the_spawn_was_written(rig: TakeoverRig) -> None:
    """The next owner runs the call again and finds the subagent."""
    chat_id = await run_until_dead(rig, "team2 2", DieAt(event="subagent_spawned", nth=2))
    await check_team(rig, chat_id, "team2", 2)
    assert rig.model.asked["team2/0"] == 1


async def killed_before_the_wait_was_written(rig: TakeoverRig) -> None:
    """A subagent that is held, so that there is something to wait for."""
    rig.model.gates.hold("team3.0/0")
    chat_id = await run_until_dead(rig, "team3 2", DieAt(event="turn_suspended"))
    await check_team(rig, chat_id, "team3", 2)


async def killed_when_the_parent_was_woken(rig: TakeoverRig) -> None:
    """On a busy machine the poll of the survivor may wake the parent first: the victim lives on."""
    victim = await rig.start_victim(die_at=DieAt(event="turn_woken"))
    chat_id = await rig.create(victim, "team4 2")
    await rig.survivor.wait_state(chat_id, "W")
    await check_team(rig, chat_id, "team4", 2)


async def suspended(rig: TakeoverRig, chat_id: ChatId) -> Chat:
    async def is_suspended() -> Chat | None:
        chat = await rig.survivor.chat(chat_id)
        return chat if chat.is_suspended else None

    return await eventually(is_suspended, within_s=SETTLE_TIMEOUT_S)


@pytest.mark.covers("F36", "F37")
async def killed_while_the_parent_waits(rig: TakeoverRig) -> None:
    """The subagent is taken over; the parent is not touched until it has ended."""
    gate = rig.model.gates.hold("team5.0/0")
    victim = await rig.start_victim()
    chat_id = await rig.create(victim, "team5 1")
    await gate.reached.wait()
    before = await suspended(rig, chat_id)
    victim.kill()
    await rig.survivor.wait_state(chat_id, "W")
    await check_team(rig, chat_id, "team5", 1)
    assert (await rig.survivor.chat(chat_id)).takeover == before.takeover


@pytest.mark.covers("F7")
async def stopped_while_the_parent_waits(rig: TakeoverRig) -> None:
    """The replica that leaves waits for the subagent's step, not for the parent."""
    gate = rig.model.gates.hold("team6.0/0")
    victim = await rig.start_victim(drain_s=0.2)
    chat_id = await rig.create(victim, "team6 1")
    await gate.reached.wait()
    before = await suspended(rig, chat_id)
    victim.terminate()
    assert await victim.wait_exited() == 0
    assert (await rig.survivor.chat(chat_id)).agent_wait in (before.agent_wait, None)
    await rig.survivor.wait_state(chat_id, "W")
    await check_team(rig, chat_id, "team6", 1)


@pytest.mark.promise("P2")
@pytest.mark.promise("P5")
@pytest.mark.parametrize(
    "accidents",
    [
        (killed_before_a_subagent_was_written, killed_before_the_wait_was_written),
        (killed_before_the_result_of_the_spawn_was_written, killed_when_the_parent_was_woken),
        (killed_while_the_parent_waits, stopped_while_the_parent_waits),
    ],
    ids=["before a write", "after a write", "during a wait"],
)
async def test_a_parent_gets_every_report_of_subagents_that_were_started_once(
    dsn: str, accidents: tuple[Accident, ...]
) -> None:
    await run_accidents(dsn, *accidents)


async def create_at_survivor(rig: TakeoverRig, text: str) -> ChatId:
    """It runs no chats itself, and lives: no request is lost."""
    sent = rig.judge.record_send(rig.survivor.command(text).id, text)
    sent.asked()
    await rig.survivor.create(text, id=sent.chat)
    sent.answered("P0")
    return sent.chat


DOOMS = (
    DieAt(event="subagent_spawned", nth=9),
    DieAt(event="tool_started", nth=12),
    DieAt(event="turn_suspended", nth=2),
    DieAt(event="step_committed", nth=30),
)
"""The first two are certain to be reached."""


@pytest.mark.promise("P1")
@pytest.mark.promise("P2")
async def test_fifty_subagents_of_ten_parents_survive_replicas_that_die_at_their_work(
    dsn: str,
) -> None:
    """Two replicas at a time; each kills itself at another point, and the next takes its place."""
    async with takeover_rig(dsn) as rig, asyncio.timeout(SETTLE_TIMEOUT_S):
        rig.survivor.replica.worker.pause()
        names = [f"team{number}" for number in range(PARENTS)]
        replicas = [await rig.start_victim(die_at=doom, slots=PARENTS // 2) for doom in DOOMS[:2]]
        parents = [await create_at_survivor(rig, f"{name} {CHILDREN_EACH}") for name in names]
        for index, doom in enumerate(DOOMS[2:]):
            assert await replicas[index].exited() == -9
            replicas.append(await rig.start_victim(die_at=doom, slots=PARENTS // 2))
        rig.survivor.replica.worker.unpause()
        await rig.judge.wait_settled(rig.survivor.pool, within_s=SETTLE_TIMEOUT_S)
        await rig.judge.check(rig.survivor.pool)
        for name, chat_id in zip(names, parents, strict=True):
            await check_team(rig, chat_id, name, CHILDREN_EACH)
