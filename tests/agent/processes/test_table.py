"""Visibility, limits and retention of commands."""

from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.processes.process_command import SAVED_RESULT_TTL_S
from chatd.agent.processes.process_table import ProcessLimits
from tests.agent.processes.agent_fixture import AgentFixture, BlockingPipe, boot_agent

LONG_COMMAND = "echo ready; exec sleep 600"


async def start_error(agent: AgentFixture, chat_id: str, key: str = "") -> AgentError:
    with pytest.raises(AgentError) as refusal:
        await agent.start(LONG_COMMAND, chat_id=chat_id, key=key)
    return refusal.value


async def output_error(agent: AgentFixture, process_id: str, chat_id: str | None) -> AgentError:
    with pytest.raises(AgentError) as refusal:
        await agent.processes.output(process_id, chat_id=chat_id)
    return refusal.value


async def signal_error(agent: AgentFixture, process_id: str, name: str, chat_id: str) -> AgentError:
    with pytest.raises(AgentError) as refusal:
        await agent.processes.signal(process_id, name, chat_id)
    return refusal.value


def ids(agent: AgentFixture, chat_id: str | None = "chat") -> list[object]:
    return [process["id"] for process in agent.processes.list(chat_id)]


@pytest.mark.covers("processes-3")
async def test_a_chat_without_commands_has_an_empty_list(agent: AgentFixture) -> None:
    await agent.run("true", chat_id="other")
    assert ids(agent) == []


async def test_the_list_has_the_fields_of_a_command(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, now=lambda: 1234.5) as agent:
        started = await agent.processes.start("exit 3", chat_id="chat", background=True)
        await agent.wait_for_end(str(started["id"]))
        assert agent.processes.list("chat") == [
            {
                "id": started["id"],
                "command": "exit 3",
                "workdir": str(tmp_path),
                "background": True,
                "running": False,
                "exit_code": 3,
                "started_at_unix": 1234,
                "exited_at_unix": 1234,
            }
        ]


async def test_a_long_command_is_clipped_in_the_list(agent: AgentFixture) -> None:
    await agent.run("true " + "x" * 5000)
    (listed,) = agent.processes.list("chat")
    assert listed["command"] == "true " + "x" * 995 + " [...]"


@pytest.mark.covers("processes-3")
async def test_the_list_has_running_commands_first_and_at_most_ten(agent: AgentFixture) -> None:
    running = [await agent.start(LONG_COMMAND) for _ in range(2)]
    ended: list[str] = []
    for _ in range(9):
        ended.append(await agent.start("true"))
        await agent.wait_for_end(ended[-1])
    running.append(await agent.start(LONG_COMMAND))
    assert ids(agent) == [*reversed(running), *reversed(ended)][:10]


@pytest.mark.covers("processes-3", "processes-4")
async def test_the_command_of_another_chat_is_not_found(agent: AgentFixture) -> None:
    own = await agent.start(LONG_COMMAND, chat_id="mine")
    other, missing = "theirs", "0123456789abcdef"
    assert ids(agent, other) == []
    hidden = await output_error(agent, own, other)
    unknown = await output_error(agent, missing, other)
    assert hidden.status == unknown.status == 404
    assert hidden.message.replace(own, missing) == unknown.message
    assert (await signal_error(agent, own, "kill", other)).status == 404
    assert (await agent.processes.output(own, chat_id="mine"))["running"] is True
    # A request without a chat comes from the server itself.
    assert ids(agent, None) == [own]
    await agent.processes.output(own, chat_id=None)


async def test_the_key_of_another_chat_is_refused(agent: AgentFixture) -> None:
    await agent.start(LONG_COMMAND, chat_id="mine", key="k")
    assert (await start_error(agent, "theirs", key="k")).status == 404


@pytest.mark.covers("processes-5")
async def test_invalid_signals_are_refused(agent: AgentFixture) -> None:
    running = await agent.start(LONG_COMMAND)
    for name in ("", "SIGKILL", "hup"):
        assert (await signal_error(agent, running, name, "chat")).status == 400
    assert (await signal_error(agent, "feedfeedfeedfeed", "kill", "chat")).status == 404
    await agent.processes.signal(running, "kill", "chat")
    await agent.wait_for_end(running)
    over = await signal_error(agent, running, "kill", "chat")
    assert (over.status, over.code) == (409, "not_running")


async def test_a_chat_over_its_command_limit_gets_advice(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(running_per_chat=2)) as agent:
        first = await agent.start(LONG_COMMAND)
        await agent.start(LONG_COMMAND)
        refusal = await start_error(agent, "chat", key="k")
        assert (refusal.status, refusal.code) == (429, "too_many_processes")
        assert "2 commands" in refusal.message
        assert "process_signal" in refusal.message
        await agent.start(LONG_COMMAND, chat_id="other")
        await agent.processes.signal(first, "kill")
        await agent.wait_for_end(first)
        await agent.start(LONG_COMMAND, key="k")


async def test_the_commands_of_all_chats_are_limited(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(running=2)) as agent:
        await agent.start(LONG_COMMAND, chat_id="one")
        await agent.start(LONG_COMMAND, chat_id="two")
        assert (await start_error(agent, "three")).code == "too_many_processes"


async def test_ended_commands_expire_after_five_minutes_and_results_after_an_hour(
    tmp_path: Path,
) -> None:
    time = [1000.0]
    pipe = BlockingPipe(tmp_path)
    async with boot_agent(tmp_path, now=lambda: time[0]) as agent:
        running = await agent.start(f"read x <{pipe.path}")
        ended = await agent.start("echo said; exit 2")
        output = await agent.wait_for_end(ended)
        await agent.run("true", chat_id="other")
        time[0] += 300
        assert ids(agent) == [running, ended]
        time[0] += 1
        # A command is dropped only after it is saved; the end of another one triggers the check.
        await agent.run("true", chat_id="other")
        while ended in ids(agent):
            await agent.run("true", chat_id="other")
        assert ids(agent) == [running]
        assert await agent.processes.output(ended, chat_id="chat") == output
        assert (await agent.processes.output(ended, after=5))["output"] == ""
        assert (await agent.processes.output(ended, after=2))["output"] == "id\n"
        assert (await output_error(agent, ended, "other")).status == 404
        assert (await signal_error(agent, ended, "kill", "chat")).status == 409
        time[0] += SAVED_RESULT_TTL_S
        assert (await output_error(agent, ended, "chat")).status == 404


async def test_ended_commands_in_memory_are_limited(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(ended=2)) as agent:
        ended = [await agent.start(f"echo {number}") for number in range(5)]
        outputs = [await agent.wait_for_end(process_id) for process_id in ended]
        await agent.processes.close()
        assert len(ids(agent)) == 2
        assert [await agent.wait_for_end(process_id) for process_id in ended] == outputs
