"""Calls the tools of a chat on a real agent, with connections that may break."""

import asyncio
from typing import Any, cast

import msgspec
from msgspec import Raw

from chatd.clock import SystemClock
from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Fence
from chatd.domain.ids import ToolCallId
from chatd.domain.ports import ToolContext
from chatd.domain.workspace.agent_api import (
    AgentUnreachable,
    ProcessOutput,
    StartedProcess,
)
from chatd.tools.execute import execute, process_tools
from chatd.tools.files import file_tools
from chatd.workspaces.agents.agent_client import AgentClient
from tests.support.factories import WORKER, chat
from tests.workspaces.agent_process import Workbench


class ToolCaller:
    """Satisfies `domain.hands.Hands`. Every call has an id of its own unless a test gives one."""

    def __init__(self, bench: Workbench, agent: AgentClient | None = None) -> None:
        self.bench = bench
        self.agent: AgentClient | Exception = agent or bench.conn
        tools = (*file_tools(self), execute(self, SystemClock()), *process_tools(self))
        self.tools = {tool.spec.name: tool for tool in tools}
        self.shown: list[str] = []
        self._calls = 0

    async def connect(self, context: ToolContext) -> AgentClient:
        del context
        if isinstance(self.agent, Exception):
            raise self.agent
        return self.agent

    def context(self, call: str | None = None) -> ToolContext:
        self._calls += 1
        row = chat(id=self.bench.chat_id, status="running", worker_id=WORKER, epoch=1)
        return ToolContext(
            chat=row,
            call_id=ToolCallId(call or f"call-{self._calls}"),
            fence=Fence.of(row),
            show=self.shown.append,
        )

    async def call(self, name: str, call: str | None = None, **args: object) -> ToolOutput:
        async with asyncio.timeout(50):
            raw = Raw(msgspec.json.encode(args))
            return await self.tools[name].run(self.context(call), raw)

    async def result_of(self, name: str, call: str | None = None, **args: object) -> dict[str, Any]:
        """The JSON result of a call that must not fail."""
        output = await self.call(name, call, **args)
        assert not output.is_error, output.text
        return msgspec.json.decode(output.text, type=dict[str, Any])


class LossyAgent:
    """An agent that loses its first replies about output, which the reply to a start does not
    have."""

    def __init__(self, conn: AgentClient, losses: int) -> None:
        self._conn = conn
        self._losses = losses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    async def start_process(self, command: str, **fields: Any) -> StartedProcess:
        fields["wait_s"] = 0
        return await self._conn.start_process(command, **fields)

    async def output(self, process_id: str, *, wait_s: float = 0, after: int = 0) -> ProcessOutput:
        if wait_s:
            # Only the reply is lost: the request takes effect.
            found = await self._conn.output(process_id, wait_s=wait_s, after=after)
        else:
            found = await self._conn.output(process_id, after=after)
        if self._losses:
            self._losses -= 1
            raise AgentUnreachable("The connection broke.")
        return found


def lossy_agent(conn: AgentClient, losses: int) -> AgentClient:
    return cast("AgentClient", LossyAgent(conn, losses))
