"""A command from its start to its end: output, exit code, signals, background processes."""

import asyncio
import fcntl
import os
import select
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.processes.process_child import signal_group
from chatd.agent.processes.process_output import HEAD_BYTES, TAIL_BYTES
from chatd.agent.processes.process_table import ProcessLimits
from tests.agent.processes.agent_fixture import TIMEOUT_S, AgentFixture, BlockingPipe, boot_agent
from tests.support.outcomes import raised

# Run by a background process to wait until its shell has exited and is a zombie.
WHEN_SHELL_IS_GONE = "while ! grep -q '^State:.Z' /proc/$$/status; do :; done"


def is_reaped(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def pipes_and_pidfds() -> list[str]:
    """Without regular files, which other threads open and close."""
    links: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(link for link in links if link.startswith("pipe:") or "pidfd" in link)


@pytest.mark.covers("processes-1", "processes-6")
async def test_a_command_runs_and_its_output_is_read(agent: AgentFixture) -> None:
    started = await agent.processes.start("echo out; echo err >&2", chat_id="chat")
    assert set(started) == {"id", "started"}
    assert await agent.wait_for_end(str(started["id"])) == {
        "output": "out\nerr\n",
        "running": False,
        "exit_code": 0,
        "truncated": None,
        "cursor": 8,
    }


@pytest.mark.covers("processes-6")
@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 3", 3), ("false", 1), ("kill -9 $$", -1), ("no-such-program", 127), ("-x", 127)],
)
async def test_the_exit_code_is_that_of_the_shell_or_minus_one_after_a_signal(
    agent: AgentFixture, command: str, code: int
) -> None:
    assert (await agent.run(command))["exit_code"] == code


async def test_a_command_has_its_own_session_and_inherits_no_descriptor(tmp_path: Path) -> None:
    leaked = os.open(tmp_path, os.O_RDONLY)
    fcntl.fcntl(leaked, fcntl.F_SETFD, 0)
    try:
        async with boot_agent(tmp_path) as agent:
            output = await agent.run(
                "cat; set -- $(cat /proc/$$/stat); "
                f'[ "$5 $6" = "$$ $$" ] && echo leads; [ -e /proc/$$/fd/{leaked} ] || echo sealed'
            )
    finally:
        os.close(leaked)
    assert output["output"] == "leads\nsealed\n"


@pytest.mark.covers("processes-1")
@pytest.mark.parametrize("command", ["", "  \n"])
async def test_an_empty_command_is_refused(agent: AgentFixture, command: str) -> None:
    assert (await raised(AgentError, agent.start(command))).status == 400


@pytest.mark.parametrize("command", ["echo \0", "echo \ud800", "echo " + "x" * 200_000])
async def test_a_command_that_cannot_be_executed_is_refused(
    agent: AgentFixture, command: str
) -> None:
    assert (await raised(AgentError, agent.start(command))).status == 400
    assert agent.processes.list("chat") == []


@pytest.mark.covers("processes-6")
async def test_output_over_the_limit_is_truncated(agent: AgentFixture) -> None:
    output = await agent.run("head -c 1000000 /dev/zero | tr '\\0' '\\n'")
    kept = HEAD_BYTES + TAIL_BYTES
    assert output["cursor"] == 1_000_000
    assert output["truncated"] == {
        "original_bytes": 1_000_000,
        "retained_bytes": kept,
        "omitted_bytes": 1_000_000 - kept,
        "strategy": "head_tail",
    }


@pytest.mark.covers("hostile-1")
async def test_endless_output_is_read_and_the_command_can_be_killed(agent: AgentFixture) -> None:
    process_id = await agent.start("yes")
    cursor = 0
    while cursor < 10_000_000:
        cursor = int(str((await agent.wait_for_output(process_id, cursor))["cursor"]))
    await agent.processes.signal(process_id, "kill")
    assert (await agent.wait_for_end(process_id))["exit_code"] == -1


async def test_a_command_with_closed_output_runs_until_it_exits(
    tmp_path: Path, agent: AgentFixture
) -> None:
    pipe = BlockingPipe(tmp_path)
    process_id = await agent.start(f"echo said; exec >/dev/null 2>&1; read x <{pipe.path}; exit 5")
    await agent.wait_for_output(process_id)
    assert (await agent.processes.output(process_id))["running"] is True
    await pipe.open()
    output = await agent.wait_for_end(process_id)
    assert (output["output"], output["exit_code"]) == ("said\n", 5)


async def test_output_of_a_background_process_is_read_during_the_grace(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(grace_s=TIMEOUT_S)) as agent:
        output = await agent.run(f"({WHEN_SHELL_IS_GONE}; echo late) & echo first; exit 4")
        assert (output["output"], output["exit_code"]) == ("first\nlate\n", 4)


async def test_a_background_process_survives_the_grace(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(grace_s=0.05)) as agent:
        output = await agent.run("sleep 600 & echo $!; exit 4")
        background = int(str(output["output"]))
        os.kill(background, signal.SIGKILL)  # would raise if it had been killed with its shell
        assert (output["running"], output["exit_code"]) == (False, 4)


async def test_endless_background_output_ends_with_the_grace(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(grace_s=0.05)) as agent:
        output = await agent.run("yes & exit 6")
        assert (output["running"], output["exit_code"]) == (False, 6)


async def test_a_signal_during_the_grace_reaches_background_processes(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(grace_s=600)) as agent:
        process_id = await agent.start(f"({WHEN_SHELL_IS_GONE}; echo gone; sleep 600) & exit 7")
        await agent.wait_for_output(process_id)
        await agent.processes.signal(process_id, "kill")
        assert (await agent.wait_for_end(process_id))["exit_code"] == 7


async def test_background_processes_can_be_signalled_after_the_end(agent: AgentFixture) -> None:
    process_id = await agent.start("sleep 600 >/dev/null 2>&1 & echo $!; exit 3")
    output = await agent.wait_for_end(process_id)
    background = os.pidfd_open(int(str(output["output"])))
    await agent.processes.signal(process_id, "terminate")
    assert await asyncio.to_thread(select.select, [background], [], [], TIMEOUT_S) != ([], [], [])
    os.close(background)
    assert await agent.wait_for_end(process_id) == output


async def test_the_group_of_another_program_is_not_signalled(agent: AgentFixture) -> None:
    process_id = await agent.start("echo $$; sleep 600")
    pid = int(str((await agent.wait_for_output(process_id))["output"]))
    # A process has this pid, so it cannot be the group of a reaped shell.
    assert signal_group(pid, signal.SIGKILL) is False
    assert (await agent.processes.output(process_id))["running"] is True


@pytest.mark.covers("processes-5")
async def test_the_whole_group_is_signalled(agent: AgentFixture) -> None:
    process_id = await agent.start("sleep 600 | cat & echo ready; wait")
    await agent.wait_for_output(process_id)
    await agent.processes.signal(process_id, "terminate")
    # The command ends only when no process of the group holds the pipe.
    output = await agent.wait_for_end(process_id)
    assert (output["output"], output["exit_code"]) == ("ready\n", -1)


@pytest.mark.covers("processes-5")
async def test_a_command_that_ignores_terminate_can_be_killed(
    tmp_path: Path, agent: AgentFixture
) -> None:
    pipe = BlockingPipe(tmp_path)
    process_id = await agent.start(
        f"trap '' TERM; echo ready; read x <{pipe.path}; echo alive; sleep 600"
    )
    await agent.wait_for_output(process_id)
    await agent.processes.signal(process_id, "terminate")
    alive, _ = await asyncio.gather(agent.wait_for_output(process_id, len("ready\n")), pipe.open())
    assert (alive["output"], alive["running"]) == ("alive\n", True)
    await agent.processes.signal(process_id, "kill")
    assert (await agent.wait_for_end(process_id))["exit_code"] == -1


async def test_a_child_is_reaped_and_its_descriptors_are_closed(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(grace_s=0.05)) as agent:
        await agent.run("true")
        before = pipes_and_pidfds()
        outputs = await asyncio.gather(*(agent.run("echo $$; yes & exit 1") for _ in range(8)))
        for output in outputs:
            assert is_reaped(int(str(output["output"]).split()[0]))
        assert pipes_and_pidfds() == before


async def test_starting_a_command_creates_no_thread(agent: AgentFixture) -> None:
    before = set(threading.enumerate())
    started = (agent.start("true", key=f"k{number}") for number in range(12))
    for process_id in await asyncio.gather(*started):
        await agent.wait_for_end(process_id)
    assert set(threading.enumerate()) <= before


@pytest.mark.covers("processes-6")
async def test_on_end_is_called_with_the_chat_and_its_ancestors(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        started = await agent.processes.start("true", chat_id="chat", ancestors=("parent", "root"))
        await agent.wait_for_end(str(started["id"]))
        await agent.run("true", chat_id=None)
    assert agent.ended == [(("chat", "parent", "root"), str(tmp_path)), ((), str(tmp_path))]
