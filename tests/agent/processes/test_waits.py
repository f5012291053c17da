"""Waiting for the end or the output of a command."""

import asyncio
import math
from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from tests.agent.processes.agent_fixture import TIMEOUT_S, AgentFixture, BlockingPipe, boot_agent
from tests.support.outcomes import raised


@pytest.mark.covers("processes-4")
async def test_a_read_without_wait_returns_at_once(tmp_path: Path, agent: AgentFixture) -> None:
    pipe = BlockingPipe(tmp_path)
    process_id = await agent.start(f"read x <{pipe.path}")
    assert await agent.processes.output(process_id) == {
        "output": "",
        "running": True,
        "exit_code": None,
        "truncated": None,
        "cursor": 0,
    }


@pytest.mark.covers("processes-4")
async def test_a_wait_that_times_out_returns_the_output_so_far(
    tmp_path: Path, agent: AgentFixture
) -> None:
    pipe = BlockingPipe(tmp_path)
    process_id = await agent.start(f"echo half; read x <{pipe.path}")
    await agent.wait_for_output(process_id)
    output = await agent.processes.output(process_id, wait_s=0.02)
    assert (output["output"], output["running"]) == ("half\n", True)


@pytest.mark.covers("processes-4")
async def test_the_end_wakes_all_waiting_callers(tmp_path: Path, agent: AgentFixture) -> None:
    pipe = BlockingPipe(tmp_path)
    process_id = await agent.start(f"read x <{pipe.path}; echo over")
    async with asyncio.TaskGroup() as group:
        ends = [group.create_task(agent.wait_for_end(process_id)) for _ in range(20)]
        news = [group.create_task(agent.wait_for_output(process_id)) for _ in range(20)]
        await pipe.open()
    assert {str(wait.result()["output"]) for wait in (*ends, *news)} == {"over\n"}


@pytest.mark.covers("processes-4")
async def test_a_wait_after_the_end_returns_at_once(agent: AgentFixture) -> None:
    process_id = await agent.start("echo over")
    assert await agent.wait_for_end(process_id) == await agent.wait_for_end(process_id)


async def test_output_ends_a_wait_for_output(tmp_path: Path, agent: AgentFixture) -> None:
    pipes = [BlockingPipe(tmp_path, name) for name in ("a", "b")]
    process_id = await agent.start(
        f"echo one; read x <{pipes[0].path}; echo two; read x <{pipes[1].path}; echo three"
    )
    first = await agent.wait_for_output(process_id)
    assert (first["output"], first["running"], first["cursor"]) == ("one\n", True, 4)
    second, _ = await asyncio.gather(agent.wait_for_output(process_id, 4), pipes[0].open())
    assert (second["output"], second["running"], second["cursor"]) == ("two\n", True, 8)
    await pipes[1].open()
    await agent.wait_for_end(process_id)
    third = await agent.wait_for_output(process_id, 8)
    assert (third["output"], third["running"], third["cursor"]) == ("three\n", False, 14)
    assert (await agent.processes.output(process_id))["output"] == "one\ntwo\nthree\n"


async def test_an_incomplete_character_does_not_end_a_wait(
    tmp_path: Path, agent: AgentFixture
) -> None:
    pipe = BlockingPipe(tmp_path)
    process_id = await agent.start(f"printf '\\303'; read x <{pipe.path}; printf '\\251'")
    news, _ = await asyncio.gather(agent.wait_for_output(process_id), pipe.open())
    assert (news["output"], news["cursor"]) == ("é", 2)


async def test_a_cancelled_wait_does_not_affect_the_command(tmp_path: Path) -> None:
    pipe = BlockingPipe(tmp_path)
    async with boot_agent(tmp_path) as agent, asyncio.TaskGroup() as group:
        process_id = await agent.start(f"echo ready; read x <{pipe.path}; exit 2")
        await agent.wait_for_output(process_id)
        waiter = group.create_task(agent.wait_for_end(process_id))
        waiter.cancel()
        await asyncio.wait([waiter])
        await pipe.open()
        assert (await agent.wait_for_end(process_id))["exit_code"] == 2


@pytest.mark.parametrize("wait_s", [-1, math.nan, math.inf])
async def test_an_invalid_wait_is_refused(agent: AgentFixture, wait_s: float) -> None:
    process_id = await agent.start("true")
    refusal = await raised(AgentError, agent.processes.output(process_id, wait_s=wait_s))
    assert refusal.status == 400


async def test_a_very_long_wait_is_accepted(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent, asyncio.timeout(TIMEOUT_S):
        process_id = await agent.start("echo over")
        assert (await agent.processes.output(process_id, wait_s=1e300))["running"] is False
