"""The close of an agent and the next boot: killed commands, saved results, repeated keys."""

import asyncio
import os
import select
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.processes.process_command import SavedResults
from tests.agent.processes.agent_fixture import TIMEOUT_S, AgentFixture, boot_agent
from tests.support.outcomes import raised


class BlockingEnvironment(Mapping[str, str]):
    """An environment that blocks the start of a command until `open`."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def __getitem__(self, name: str) -> str:
        raise KeyError(name)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        self._reached.set()
        assert self._opened.wait(TIMEOUT_S)
        return iter(())

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, TIMEOUT_S)

    def open(self) -> None:
        self._opened.set()


async def test_close_kills_whole_groups_and_refuses_new_commands(agent: AgentFixture) -> None:
    stubborn = await agent.start("trap '' TERM; sleep 600 & echo $!; wait; sleep 600")
    child = os.pidfd_open(int(str((await agent.wait_for_output(stubborn))["output"])))
    await agent.processes.close()
    output = await agent.processes.output(stubborn)
    assert (output["running"], output["exit_code"]) == (False, -1)
    assert await asyncio.to_thread(select.select, [child], [], [], TIMEOUT_S) != ([], [], [])
    os.close(child)
    assert (await raised(AgentError, agent.start("true"))).status == 503
    await agent.processes.close()


async def test_close_kills_background_processes(agent: AgentFixture) -> None:
    output = await agent.run("sleep 600 >/dev/null 2>&1 & echo $!")
    background = os.pidfd_open(int(str(output["output"])))
    await agent.processes.close()
    assert await asyncio.to_thread(select.select, [background], [], [], TIMEOUT_S) != ([], [], [])
    os.close(background)


async def test_close_does_not_wait_for_processes_outside_the_group(agent: AgentFixture) -> None:
    process_id = await agent.start("setsid sh -c 'echo $$; exec sleep 600' & wait")
    escaped = int(str((await agent.wait_for_output(process_id))["output"]))
    try:
        await agent.processes.close()
        assert (await agent.processes.output(process_id))["running"] is False
    finally:
        os.kill(escaped, 9)


async def test_a_command_started_during_the_close_is_killed(tmp_path: Path) -> None:
    environment = BlockingEnvironment()
    async with boot_agent(tmp_path, template=environment) as agent, asyncio.TaskGroup() as group:
        starting = group.create_task(refused(agent.start("sleep 600")))
        await environment.reached()
        closing = group.create_task(agent.processes.close())
        environment.open()
        await closing
        assert "killed" in (await starting).message
        assert [process["running"] for process in agent.processes.list()] == [False]


async def test_a_cancelled_caller_does_not_undo_the_start(tmp_path: Path) -> None:
    environment = BlockingEnvironment()
    async with boot_agent(tmp_path, template=environment) as agent, asyncio.TaskGroup() as group:
        starting = group.create_task(agent.start("echo ready; sleep 600", key="k"))
        await environment.reached()
        starting.cancel()
        environment.open()
        again = await agent.processes.start("echo ready; sleep 600", chat_id="chat", key="k")
        assert again["again"] is True
        assert [process["id"] for process in agent.processes.list("chat")] == [again["id"]]


async def test_a_repeated_key_returns_the_running_command(agent: AgentFixture) -> None:
    first = await agent.processes.start("echo x >>runs; sleep 600", chat_id="chat", key="k")
    again = await agent.processes.start("echo x >>runs; sleep 600", chat_id="chat", key="k")
    assert again == {**first, "again": True}
    assert len(agent.processes.list("chat")) == 1


async def test_the_result_of_an_ended_command_survives_a_restart(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as before:
        process_id = await before.start("echo x >>runs; echo said; exit 3", key="k")
        output = await before.wait_for_end(process_id)
    async with boot_agent(tmp_path) as after:
        again = await after.processes.start("echo x >>runs", chat_id="chat", key="k")
        assert again == {"id": process_id, "started": True, "again": True}
        assert await after.processes.output(process_id, chat_id="chat", wait_s=5) == output
        assert after.processes.list("chat") == []
    assert (tmp_path / "runs").read_text() == "x\n"


async def test_a_command_of_a_dead_agent_is_unknown_and_not_run_again(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as died:
        running = await died.start("echo x >>runs; echo ready; sleep 600", key="k")
        await died.wait_for_output(running)
        async with boot_agent(tmp_path) as after:
            refusal = await raised(AgentError, after.start("echo x >>runs", key="k"))
            assert (refusal.status, refusal.code) == (409, "outcome_unknown")
            with pytest.raises(AgentError) as lost:
                await after.processes.output(running, chat_id="chat")
            assert lost.value.status == 404
    assert (tmp_path / "runs").read_text() == "x\n"


async def test_a_failed_start_is_repeated_as_a_failure(tmp_path: Path) -> None:
    for _ in range(2):
        async with boot_agent(tmp_path) as agent:
            with pytest.raises(AgentError) as refusal:
                await agent.processes.start("true", chat_id="chat", key="k", workdir="/missing")
            assert refusal.value.code == "no_such_workdir"


def test_invalid_saved_results_are_ignored(tmp_path: Path) -> None:
    finished = SavedResults(str(tmp_path), now=lambda: 1000)
    finished.save("feed0001", {"output": "x"})
    assert finished.load("feed0001") == {"output": "x", "saved_at": 1000}
    os.mkfifo(tmp_path / "finished" / "feed0002.json")
    (tmp_path / "finished" / "feed0003.json").write_bytes(b"[1]")
    (tmp_path / "finished" / "feed0004.json").symlink_to(tmp_path / "finished" / "feed0001.json")
    (tmp_path / "finished" / "feed0005.json").write_bytes(b'{"saved_at":"now"}')
    for name in ("feed0002", "feed0003", "feed0004", "feed0005", "feed0006"):
        assert finished.load(name) is None
    assert finished.load("../finished/feed0001") is None


def test_saved_results_are_limited_by_number_and_age(tmp_path: Path) -> None:
    time = [1000.0]
    finished = SavedResults(str(tmp_path), now=lambda: time[0], max_files=8)
    for number in range(11):
        time[0] += 1
        finished.save(f"{number:08x}", {})
    assert len(os.listdir(tmp_path / "finished")) == 8
    assert finished.load(f"{2:08x}") is None
    assert finished.load(f"{3:08x}") is not None
    time[0] += 7200
    finished.save("feedfeed", {})
    assert os.listdir(tmp_path / "finished") == ["feedfeed.json"]


async def refused(start: object) -> AgentError:
    assert asyncio.iscoroutine(start)
    with pytest.raises(AgentError) as refusal:
        await start
    return refusal.value
