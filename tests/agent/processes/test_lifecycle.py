"""A command from its start to its end: what it sees, what is seen of it, what ends it."""

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
from chatd.agent.processes.child import signal_group
from chatd.agent.processes.output_buffer import HEAD_BYTES, TAIL_BYTES
from chatd.agent.processes.table import ProcessLimits
from tests.agent.processes.agent_fixture import TIMEOUT_S, BlockingPipe, boot_agent

# Said by an orphan when its shell has exited: the shell is then a zombie.
WHEN_SHELL_IS_GONE = "while ! grep -q '^State:.Z' /proc/$$/status; do :; done"


def is_buried(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def pipes_and_pidfds() -> list[str]:
    """Not files: those that are written beside the loop come and go."""
    links: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(link for link in links if link.startswith("pipe:") or "pidfd" in link)


@pytest.mark.covers("processes-1", "processes-6")
async def test_a_command_is_started_awaited_and_read(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
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
async def test_the_exit_code_is_the_shells_and_minus_one_after_a_signal(
    tmp_path: Path, command: str, code: int
) -> None:
    async with boot_agent(tmp_path) as agent:
        assert (await agent.run(command))["exit_code"] == code


async def test_a_command_leads_its_own_session_has_no_input_and_inherits_nothing(
    tmp_path: Path,
) -> None:
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
async def test_an_empty_command_is_refused(tmp_path: Path, command: str) -> None:
    async with boot_agent(tmp_path) as agent:
        with pytest.raises(AgentError) as refusal:
            await agent.start(command)
        assert refusal.value.status == 400


@pytest.mark.parametrize("command", ["echo \0", "echo \ud800", "echo " + "x" * 200_000])
async def test_a_command_that_cannot_be_executed_is_refused(tmp_path: Path, command: str) -> None:
    async with boot_agent(tmp_path) as agent:
        with pytest.raises(AgentError) as refusal:
            await agent.start(command)
        assert refusal.value.status == 400
        assert agent.processes.list("chat") == []


@pytest.mark.covers("processes-6")
async def test_more_output_than_is_kept_is_truncated(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
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
async def test_an_endless_printer_is_read_and_can_be_killed(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start("yes")
        cursor = 0
        while cursor < 10_000_000:
            cursor = int(str((await agent.wait_for_output(process_id, cursor))["cursor"]))
        await agent.processes.signal(process_id, "kill")
        assert (await agent.wait_for_end(process_id))["exit_code"] == -1


async def test_a_command_that_closes_its_output_runs_on_until_it_ends(tmp_path: Path) -> None:
    gate = BlockingPipe(tmp_path)
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start(
            f"echo said; exec >/dev/null 2>&1; read x <{gate.path}; exit 5"
        )
        await agent.wait_for_output(process_id)
        assert (await agent.processes.output(process_id))["running"] is True
        await gate.open()
        output = await agent.wait_for_end(process_id)
        assert (output["output"], output["exit_code"]) == ("said\n", 5)


async def test_an_orphan_gets_time_to_say_its_last_words(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(grace_s=TIMEOUT_S)) as agent:
        output = await agent.run(f"({WHEN_SHELL_IS_GONE}; echo late) & echo first; exit 4")
        assert (output["output"], output["exit_code"]) == ("first\nlate\n", 4)


async def test_an_orphan_that_holds_the_pipe_is_left_alone_after_the_grace(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(grace_s=0.05)) as agent:
        output = await agent.run("sleep 600 & echo $!; exit 4")
        orphan = int(str(output["output"]))
        os.kill(orphan, signal.SIGKILL)  # would raise if it had been killed with its shell
        assert (output["running"], output["exit_code"]) == (False, 4)


async def test_an_orphan_that_prints_for_ever_ends_with_the_grace(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(grace_s=0.05)) as agent:
        output = await agent.run("yes & exit 6")
        assert (output["running"], output["exit_code"]) == (False, 6)


async def test_a_signal_in_the_grace_reaches_the_orphans_and_keeps_the_exit_code(
    tmp_path: Path,
) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(grace_s=600)) as agent:
        process_id = await agent.start(f"({WHEN_SHELL_IS_GONE}; echo gone; sleep 600) & exit 7")
        await agent.wait_for_output(process_id)
        await agent.processes.signal(process_id, "kill")
        assert (await agent.wait_for_end(process_id))["exit_code"] == 7


async def test_what_was_left_in_the_background_can_still_be_signalled(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start("sleep 600 >/dev/null 2>&1 & echo $!; exit 3")
        output = await agent.wait_for_end(process_id)
        orphan = os.pidfd_open(int(str(output["output"])))
        await agent.processes.signal(process_id, "terminate")
        assert await asyncio.to_thread(select.select, [orphan], [], [], TIMEOUT_S) != ([], [], [])
        os.close(orphan)
        assert await agent.wait_for_end(process_id) == output


async def test_the_group_of_a_stranger_is_left_alone(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start("echo $$; sleep 600")
        stranger = int(str((await agent.wait_for_output(process_id))["output"]))
        # Its number is in use, so it cannot be that of a group whose leader was buried.
        assert signal_group(stranger, signal.SIGKILL) is False
        assert (await agent.processes.output(process_id))["running"] is True


@pytest.mark.covers("processes-5")
async def test_the_whole_group_is_signalled(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start("sleep 600 | cat & echo ready; wait")
        await agent.wait_for_output(process_id)
        await agent.processes.signal(process_id, "terminate")
        # The end is told only when nobody in the group holds the pipe any more.
        output = await agent.wait_for_end(process_id)
        assert (output["output"], output["exit_code"]) == ("ready\n", -1)


@pytest.mark.covers("processes-5")
async def test_who_ignores_a_request_to_end_can_be_killed(tmp_path: Path) -> None:
    gate = BlockingPipe(tmp_path)
    async with boot_agent(tmp_path) as agent:
        process_id = await agent.start(
            f"trap '' TERM; echo ready; read x <{gate.path}; echo alive; sleep 600"
        )
        await agent.wait_for_output(process_id)
        await agent.processes.signal(process_id, "terminate")
        alive, _ = await asyncio.gather(
            agent.wait_for_output(process_id, len("ready\n")), gate.open()
        )
        assert (alive["output"], alive["running"]) == ("alive\n", True)
        await agent.processes.signal(process_id, "kill")
        assert (await agent.wait_for_end(process_id))["exit_code"] == -1


async def test_a_child_is_buried_and_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(grace_s=0.05)) as agent:
        await agent.run("true")
        before = pipes_and_pidfds()
        outputs = await asyncio.gather(*(agent.run("echo $$; yes & exit 1") for _ in range(8)))
        for output in outputs:
            assert is_buried(int(str(output["output"]).split()[0]))
        assert pipes_and_pidfds() == before


async def test_no_thread_has_to_be_made_when_a_command_is_started(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        before = set(threading.enumerate())
        started = (agent.start("true", key=f"k{number}") for number in range(12))
        for process_id in await asyncio.gather(*started):
            await agent.wait_for_end(process_id)
        assert set(threading.enumerate()) <= before


@pytest.mark.covers("processes-6")
async def test_whoever_listens_is_told_of_the_end(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        started = await agent.processes.start("true", chat_id="chat", ancestors=("parent", "root"))
        await agent.wait_for_end(str(started["id"]))
        await agent.run("true", chat_id=None)
    assert agent.ended == [(("chat", "parent", "root"), str(tmp_path)), ((), str(tmp_path))]
