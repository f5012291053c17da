"""Calls the workspace tools of a chat: real rows and build worker, fake backend and agents."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Fence
from chatd.domain.chat.states import State
from chatd.domain.ids import ChatId, ToolCallId, WorkspaceId
from chatd.domain.ports import ToolContext
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.domain.workspace.entities import AgentHealth, AgentLifecycle, AgentRow
from chatd.store.chat import chats
from chatd.store.database.pool import Pool
from chatd.store.workspace import workspaces
from chatd.tools.workspaces import workspace_tools
from chatd.workspaces.build_requests import (
    BuildRequests,
    BuildWaits,
    Ping,
    WaitTimeouts,
)
from chatd.workspaces.build_worker import BuildWorker
from chatd.workspaces.provisioner import WorkspaceProvisioner
from chatd.workspaces.templates import TemplateCatalog
from tests.support.build_rig import FakeBackend, building
from tests.support.factories import CHAT, HARNESS
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.stream_replica import env_with
from tests.support.workspaces import HOST, TEMPLATE, OwnHost, agents_of, insert_template

PATIENT = WaitTimeouts(build_s=30, agent_s=30, scripts_s=30)
BRIEF_BUILD = replace(PATIENT, build_s=0.3)
BRIEF_AGENT = replace(PATIENT, agent_s=0.3)
BRIEF_SCRIPTS = replace(PATIENT, scripts_s=0.3)


class FakeAgents:
    """The first `unanswered` pings get no reply."""

    def __init__(self) -> None:
        self.lifecycles: list[AgentLifecycle] = ["ready"]
        self.silent = False
        self.instead: Ping | None = None
        self.unanswered = 0
        self.pings = 0

    async def ping(self, agent: AgentRow) -> AgentHealth:
        self.pings += 1
        if self.instead is not None:
            return await self.instead(agent)
        if self.silent or self.pings <= self.unanswered:
            raise AgentUnreachable("The agent does not answer.")
        first = self.lifecycles[0]
        if len(self.lifecycles) > 1:
            del self.lifecycles[0]
        return AgentHealth(boot_id="boot", lifecycle=first, directory="/home/dev")


class WorkspaceToolCaller:
    def __init__(
        self,
        pool: Pool,
        backend: FakeBackend,
        builder: BuildWorker,
        fence: Fence,
        waits: WaitTimeouts,
    ) -> None:
        self.pool = pool
        self.backend = backend
        self.agents = FakeAgents()
        self.bound: list[tuple[ChatId, WorkspaceId]] = []
        self._fence = fence
        self._calls = 0
        env = env_with(SystemClock())
        making = BuildRequests(
            pool,
            BuildWaits(pool, self.agents.ping, env.clock, waits),
            OwnHost(HOST, backend),
            env,
            ttl_s=None,
            wake_worker=builder.wake,
            on_bound=self._was_bound,
        )
        provisioning = WorkspaceProvisioner(pool, TemplateCatalog(pool, env.clock), making)
        self.tools = {tool.spec.name: tool for tool in workspace_tools(provisioning)}

    async def _was_bound(self, chat_id: ChatId, workspace_id: WorkspaceId) -> None:
        self.bound.append((chat_id, workspace_id))

    async def call(self, name: str, call: str | None = None, /, **args: object) -> ToolOutput:
        row = await chats.get(self.pool, HARNESS, CHAT)
        assert row is not None
        self._calls += 1
        context = ToolContext(
            chat=row, call_id=ToolCallId(call or f"call-{self._calls}"), fence=self._fence
        )
        return await self.tools[name].run(context, Raw(msgspec.json.encode(args)))

    async def result_of(
        self, name: str, call: str | None = None, /, **args: object
    ) -> dict[str, Any]:
        output = await self.call(name, call, **args)
        assert not output.is_error, output.text
        return msgspec.json.decode(output.text, type=dict[str, Any])

    async def create(self, call: str | None = None, /, **args: object) -> dict[str, Any]:
        return await self.result_of("create_workspace", call, template_id=str(TEMPLATE), **args)

    async def record_heartbeat(self, workspace_id: str) -> None:
        """Record a heartbeat of this workspace's agents."""
        which = WorkspaceId(UUID(workspace_id))
        found = await agents_of(self.pool, which)
        await workspaces.record_agent_healthy(
            self.pool, {each.id: AgentHealth(boot_id="boot") for each in found}
        )


@asynccontextmanager
async def open_workspace_tools(
    pool: Pool, *, waits: WaitTimeouts = PATIENT, **template: object
) -> AsyncGenerator[WorkspaceToolCaller]:
    await insert_template(pool, **template)
    fence = Fence.of(await insert_seed(pool, Seed(state=State.R0, calls="local")))
    backend = FakeBackend()
    async with building(pool, SystemClock(), backend) as builder:
        yield WorkspaceToolCaller(pool, backend, builder, fence, waits)
