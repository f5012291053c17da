"""What a model is told when the agent of its workspace stops answering: never to try an effect
again that may have happened."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from chatd.domain.ids import ToolCallId
from chatd.domain.ports import ToolContext
from chatd.domain.workspace.agent_api import (
    ConnectFailed,
    StartedProcess,
    WorkspaceUnavailable,
)
from chatd.domain.workspace.entities import AgentRow
from chatd.tools.execute import execute, process_tools
from chatd.tools.files import file_tools
from chatd.workspaces.agents.agent_access import AccessDeps, AgentAccess
from chatd.workspaces.agents.agent_client import (
    AgentClient,
    AgentConnection,
    OutcomeUnknown,
    decode_effect_reply,
)
from tests.support import factories
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.workspaces.agent_process import Workbench, connector, new_chat_id, running_agent
from tests.workspaces.fake_agents import FIRST, HOME, FakeBindings, tool_context

WAIT_S = 40.0
REPEAT_WORDS = ("try again", "next time", "later")


class StoppableWorkspace:
    """The tools of a chat on a real agent. Timeouts of the access pass when the test says so."""

    def __init__(self, bench: Workbench, clock: FakeClock) -> None:
        self.bench = bench
        self.clock = clock
        self.chat = factories.chat(id=new_chat_id(), workspace_id=HOME)
        bindings = FakeBindings(self.chat.id)
        bindings.bind(FIRST)
        endpoint = bench.process.endpoint()

        async def connect(row: AgentRow) -> AgentConnection:
            del row
            return await connector().connect(bench.connected.agent_id, [endpoint])

        deps = AccessDeps(bindings=bindings, connect=connect, clock=clock)
        self.access = AgentAccess(deps)
        tools = (*file_tools(self), execute(self, clock), *process_tools(self))
        self.tools = {tool.spec.name: tool for tool in tools}

    async def connect(self, context: ToolContext) -> AgentClient:
        return await self.access.connect(context)

    async def call(self, name: str, **args: object) -> str:
        """The text of the result. When the agent has stopped in mid-request, all timeouts pass."""
        context = replace(tool_context(self.chat), call_id=ToolCallId(f"call-{name}"))
        work = self.tools[name].run(context, Raw(msgspec.json.encode(args)))
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            passing = group.create_task(self._pass_timeouts())
            output = await work
            passing.cancel()
        return output.text

    async def _pass_timeouts(self) -> None:
        async def is_waiting() -> bool:
            return bool(self.access.in_use()) and self._is_stopped()

        await eventually(is_waiting, within_s=WAIT_S)
        while True:
            await self.clock.advance_past("agent_timeout")

    def _is_stopped(self) -> bool:
        stat = Path(f"/proc/{self.bench.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"


@pytest.fixture
async def workspace(tmp_path: Path, clock: FakeClock) -> AsyncGenerator[StoppableWorkspace]:
    async with running_agent(tmp_path) as bench:
        yield StoppableWorkspace(bench, clock)
        with suppress(ProcessLookupError):
            os.kill(bench.process.pid, signal.SIGCONT)


def assert_unknown(text: str) -> None:
    assert "unknown" in text or "not known" in text, text
    assert not [word for word in REPEAT_WORDS if word in text.lower()], text


@pytest.mark.promise("P7")
async def test_a_command_that_stops_its_agent_is_not_told_to_run_again(
    workspace: StoppableWorkspace, tmp_path: Path
) -> None:
    path = tmp_path / "ran"
    assert_unknown(await workspace.call("execute", command=f"echo ran >> {path}; kill -STOP $PPID"))
    assert await asyncio.to_thread(path.read_text) == "ran\n"


@pytest.mark.promise("P7")
@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("execute", {"command": "true"}),
        ("execute", {"command": "true", "run_in_background": True}),
        ("write_file", {"path": "/tmp/x", "content": "x"}),
        ("edit_files", {"files": [{"path": "/x", "edits": [{"old_text": "a", "new_text": "b"}]}]}),
        ("process_signal", {"process_id": "0011223344556677", "signal": "kill"}),
    ],
)
async def test_an_effect_without_an_answer_has_an_unknown_outcome(
    workspace: StoppableWorkspace, tool: str, args: dict[str, object]
) -> None:
    await workspace.call("process_list")
    os.kill(workspace.bench.process.pid, signal.SIGSTOP)
    assert_unknown(await workspace.call(tool, **args))


def test_an_unreadable_reply_to_an_effect_leaves_its_outcome_unknown() -> None:
    with pytest.raises(OutcomeUnknown) as lost:
        decode_effect_reply(b"{", StartedProcess)
    assert_unknown(lost.value.message)


@pytest.mark.parametrize("lost", [ConnectFailed("Gone."), WorkspaceUnavailable("It is stopped.")])
async def test_a_call_that_an_earlier_worker_may_have_begun_is_not_said_to_be_without_effect(
    lost: Exception,
) -> None:
    """It ran the command and died with the agent; the next worker does not reach the agent."""

    class Gone:
        async def connect(self, context: ToolContext) -> AgentClient:
            del context
            raise lost

    access = Gone()
    write, read = execute(access, FakeClock()), process_tools(access)[0]
    for tool, attempt, is_unknown in ((write, 1, False), (write, 2, True), (read, 2, False)):
        context = tool_context(factories.chat(attempt=attempt))
        args = msgspec.json.encode({"command": "touch x", "process_id": "p"})
        output = await tool.run(context, Raw(args))
        assert output.is_error
        assert ("may have taken effect" in output.text) == is_unknown, output.text
