"""Waiting for a command: until it ends, until it says something, or for a while."""

import asyncio
import math
from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from tests.agent.processes.agent_fixture import TIMEOUT_S, BlockingPipe, boot_agent


@pytest.mark.covers("processes-4")
async def test_a_look_does_not_wait(tmp_path: Path) -> None:
    gate = BlockingPipe(tmp_path)
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start(f"read x <{gate.path}")
        assert await agent.processes.output(process_id) == {
            "output": "",
            "running": True,
            "exit_code": None,
            "truncated": None,
            "cursor": 0,
        }


@pytest.mark.covers("processes-4")
async def test_a_wait_that_is_over_shows_what_there_is(tmp_path: Path) -> None:
    gate = BlockingPipe(tmp_path)
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start(f"echo half; read x <{gate.path}")
        await agent.wait_for_output(process_id)
        output = await agent.processes.output(process_id, wait_s=0.02)
        assert (output["output"], output["running"]) == ("half\n", True)


@pytest.mark.covers("processes-4")
async def test_the_end_wakes_everybody_who_waits(tmp_path: Path) -> None:
    gate = BlockingPipe(tmp_path)
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start(f"read x <{gate.path}; echo over")
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(agent.wait_for_end(process_id)) for _ in range(20)]
            news = [group.create_task(agent.wait_for_output(process_id)) for _ in range(20)]
            await gate.open()
        assert {str(wait.result()["output"]) for wait in (*ends, *news)} == {"over\n"}


@pytest.mark.covers("processes-4")
async def test_who_waits_after_the_end_is_answered_at_once(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start("echo over")
        assert await agent.wait_for_end(process_id) == await agent.wait_for_end(process_id)


async def test_output_wakes_who_waits_for_news_and_comes_piece_by_piece(tmp_path: Path) -> None:
    gates = [BlockingPipe(tmp_path, name) for name in ("a", "b")]
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start(
            f"echo one; read x <{gates[0].path}; echo two; read x <{gates[1].path}; echo three"
        )
        first = await agent.wait_for_output(process_id)
        assert (first["output"], first["running"], first["cursor"]) == ("one\n", True, 4)
        second, _ = await asyncio.gather(agent.wait_for_output(process_id, 4), gates[0].open())
        assert (second["output"], second["running"], second["cursor"]) == ("two\n", True, 8)
        await gates[1].open()
        await agent.wait_for_end(process_id)
        third = await agent.wait_for_output(process_id, 8)
        assert (third["output"], third["running"], third["cursor"]) == ("three\n", False, 14)
        assert (await agent.processes.output(process_id))["output"] == "one\ntwo\nthree\n"


async def test_half_a_character_is_no_news(tmp_path: Path) -> None:
    gate = BlockingPipe(tmp_path)
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start(f"printf '\\303'; read x <{gate.path}; printf '\\251'")
        news, _ = await asyncio.gather(agent.wait_for_output(process_id), gate.open())
        assert (news["output"], news["cursor"]) == ("é", 2)


async def test_a_waiter_who_is_cancelled_leaves_the_command_alone(tmp_path: Path) -> None:
    gate = BlockingPipe(tmp_path)
    async with boot_agent(tmp_path) as agent, asyncio.TaskGroup() as group:
        process_id = await agent.start(f"echo ready; read x <{gate.path}; exit 2")
        await agent.wait_for_output(process_id)
        waiter = group.create_task(agent.wait_for_end(process_id))
        waiter.cancel()
        await asyncio.wait([waiter])
        await gate.open()
        assert (await agent.wait_for_end(process_id))["exit_code"] == 2


@pytest.mark.parametrize("wait_s", [-1, math.nan, math.inf])
async def test_a_wait_must_be_a_sensible_number(tmp_path: Path, wait_s: float) -> None:
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start("true")
        with pytest.raises(AgentError) as refusal:
            await agent.processes.output(process_id, wait_s=wait_s)
        assert refusal.value.status == 400


async def test_a_wait_of_any_length_may_be_asked_for(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent, asyncio.timeout(TIMEOUT_S):
        process_id = await agent.start("echo over")
        assert (await agent.processes.output(process_id, wait_s=1e300))["running"] is False
