"""Whose commands are whose, how many there may be, and how long they are remembered."""

from pathlib import Path

import pytest

from chatd.agent.errors import AgentError
from chatd.agent.processes.command import SAVED_RESULT_TTL_S
from chatd.agent.processes.table import ProcessLimits
from tests.agent.processes.agent_fixture import AgentFixture, BlockingPipe, boot_agent

WAITING = "echo ready; exec sleep 600"


async def refusal_of_start(agent: AgentFixture, chat_id: str, key: str = "") -> AgentError:
    with pytest.raises(AgentError) as refusal:
        await agent.start(WAITING, chat_id=chat_id, key=key)
    return refusal.value


async def refusal_of_look(agent: AgentFixture, process_id: str, chat_id: str | None) -> AgentError:
    with pytest.raises(AgentError) as refusal:
        await agent.processes.output(process_id, chat_id=chat_id)
    return refusal.value


async def refusal_of_signal(
    agent: AgentFixture, process_id: str, name: str, chat_id: str
) -> AgentError:
    with pytest.raises(AgentError) as refusal:
        await agent.processes.signal(process_id, name, chat_id)
    return refusal.value


def ids(agent: AgentFixture, chat_id: str | None = "chat") -> list[object]:
    return [process["id"] for process in agent.processes.list(chat_id)]


@pytest.mark.covers("processes-3")
async def test_a_chat_without_commands_has_an_empty_list(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        await agent.run("true", chat_id="other")
        assert ids(agent) == []


async def test_the_list_says_what_a_command_is_and_how_it_stands(tmp_path: Path) -> None:
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


async def test_a_very_long_command_is_listed_by_its_beginning(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        await agent.run("true " + "x" * 5000)
        (listed,) = agent.processes.list("chat")
        assert listed["command"] == "true " + "x" * 995 + " [...]"


@pytest.mark.covers("processes-3")
async def test_those_that_run_come_first_then_the_newest_and_ten_at_most(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        running = [await agent.start(WAITING) for _ in range(2)]
        ended: list[str] = []
        for _ in range(9):
            ended.append(await agent.start("true"))
            await agent.wait_for_end(ended[-1])
        running.append(await agent.start(WAITING))
        assert ids(agent) == [*reversed(running), *reversed(ended)][:10]


@pytest.mark.covers("processes-3", "processes-4")
async def test_another_chats_command_is_as_if_it_did_not_exist(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        mine = await agent.start(WAITING, chat_id="mine")
        theirs, none = "theirs", "0123456789abcdef"
        assert ids(agent, theirs) == []
        hidden = await refusal_of_look(agent, mine, theirs)
        unknown = await refusal_of_look(agent, none, theirs)
        assert hidden.status == unknown.status == 404
        assert hidden.message.replace(mine, none) == unknown.message
        assert (await refusal_of_signal(agent, mine, "kill", theirs)).status == 404
        assert (await agent.processes.output(mine, chat_id="mine"))["running"] is True
        # Who names no chat is the server itself.
        assert ids(agent, None) == [mine]
        await agent.processes.output(mine, chat_id=None)


async def test_another_chats_key_is_of_no_use(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        await agent.start(WAITING, chat_id="mine", key="k")
        assert (await refusal_of_start(agent, "theirs", key="k")).status == 404


@pytest.mark.covers("processes-5")
async def test_signals_are_refused_that_make_no_sense(tmp_path: Path) -> None:
    async with boot_agent(tmp_path) as agent:
        running = await agent.start(WAITING)
        for name in ("", "SIGKILL", "hup"):
            assert (await refusal_of_signal(agent, running, name, "chat")).status == 400
        assert (await refusal_of_signal(agent, "feedfeedfeedfeed", "kill", "chat")).status == 404
        await agent.processes.signal(running, "kill", "chat")
        await agent.wait_for_end(running)
        over = await refusal_of_signal(agent, running, "kill", "chat")
        assert (over.status, over.code) == (409, "not_running")


async def test_a_chat_may_run_so_many_commands_and_is_told_what_to_do(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(running_per_chat=2)) as agent:
        first = await agent.start(WAITING)
        await agent.start(WAITING)
        refusal = await refusal_of_start(agent, "chat", key="k")
        assert (refusal.status, refusal.code) == (429, "too_many_processes")
        assert "2 commands" in refusal.message
        assert "process_signal" in refusal.message
        await agent.start(WAITING, chat_id="other")
        await agent.processes.signal(first, "kill")
        await agent.wait_for_end(first)
        await agent.start(WAITING, key="k")


async def test_all_chats_together_may_run_so_many(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(running=2)) as agent:
        await agent.start(WAITING, chat_id="one")
        await agent.start(WAITING, chat_id="two")
        assert (await refusal_of_start(agent, "three")).code == "too_many_processes"


async def test_what_ended_is_forgotten_after_five_minutes_and_its_output_after_an_hour(
    tmp_path: Path,
) -> None:
    time = [1000.0]
    gate = BlockingPipe(tmp_path)
    async with boot_agent(tmp_path, now=lambda: time[0]) as agent:
        running = await agent.start(f"read x <{gate.path}")
        ended = await agent.start("echo said; exit 2")
        output = await agent.wait_for_end(ended)
        await agent.run("true", chat_id="other")
        time[0] += 300
        assert ids(agent) == [running, ended]
        time[0] += 1
        # Nothing is forgotten before it is on disk: another end shows that it is.
        await agent.run("true", chat_id="other")
        while ended in ids(agent):
            await agent.run("true", chat_id="other")
        assert ids(agent) == [running]
        assert await agent.processes.output(ended, chat_id="chat") == output
        assert (await agent.processes.output(ended, after=5))["output"] == ""
        assert (await agent.processes.output(ended, after=2))["output"] == "id\n"
        assert (await refusal_of_look(agent, ended, "other")).status == 404
        assert (await refusal_of_signal(agent, ended, "kill", "chat")).status == 409
        time[0] += SAVED_RESULT_TTL_S
        assert (await refusal_of_look(agent, ended, "chat")).status == 404


async def test_only_so_many_that_ended_stay_in_memory(tmp_path: Path) -> None:
    async with boot_agent(tmp_path, limits=ProcessLimits(ended=2)) as agent:
        ended = [await agent.start(f"echo {number}") for number in range(5)]
        outputs = [await agent.wait_for_end(process_id) for process_id in ended]
        await agent.processes.close()
        assert len(ids(agent)) == 2
        assert [await agent.wait_for_end(process_id) for process_id in ended] == outputs
