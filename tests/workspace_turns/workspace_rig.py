"""Chats with workspaces in a whole replica: real rows, a real build worker and real tools, with
agents that a test controls. Handshakes and reads of rows are counted."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager

import msgspec
from msgspec import Struct

from chatd.clock import SystemClock
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChatId, ToolCallId, WorkspaceId
from chatd.domain.ports import Clock, ToolContext
from chatd.domain.workspace.agent_api import (
    AgentUnreachable,
    ContextResource,
    FileLines,
    WorkspaceBinding,
    WorkspaceContext,
)
from chatd.domain.workspace.entities import AgentHealth, AgentId, AgentRow
from chatd.store.database.pool import Pool
from chatd.tools.chat_tools import ChatTools, WorkspaceTools
from chatd.workspaces.agents.agent_access import AccessDeps, AgentAccess
from chatd.workspaces.agents.agent_client import AgentClient, AgentConnection
from chatd.workspaces.agents.agent_monitor import ContextSync
from chatd.workspaces.agents.agent_resolver import AgentObservation, StoredBindings
from chatd.workspaces.agents.agent_session import AgentRequest
from chatd.workspaces.build_requests import (
    BuildRequests,
    BuildWaits,
    WaitTimeouts,
)
from chatd.workspaces.build_worker import BuildWorker
from chatd.workspaces.instructions import WorkspaceInstructions
from chatd.workspaces.provisioner import WorkspaceProvisioner
from chatd.workspaces.templates import TemplateCatalog
from tests.support.build_rig import FakeBackend, building
from tests.support.engine_rig import EngineRig, engine_rig
from tests.support.stream_replica import env_with
from tests.support.workspaces import HOST, OwnHost, insert_template

SHORT_CHECK_AFTER_S = 0.05
"""For tests with an agent that never answers."""
LONG_CHECK_AFTER_S = 20.0
"""For tests that count: an agent that answers at once is never checked against the latest build."""


class FakeAgent:
    """Satisfies `AgentConnection`, for the two requests that the tests make."""

    asks_for_owner = False

    def __init__(self, row: AgentRow, words: str) -> None:
        self._row = row
        self._words = words

    async def send(self, request: AgentRequest) -> bytes:
        if "/read-file-lines?" in request.target:
            text = f"1\ta file of {self._row.id}"
            return msgspec.json.encode(
                FileLines(content=text, file_size=1, total_lines=1, lines_read=1)
            )
        assert "/context?" in request.target
        file = ContextResource(
            kind="instruction_file", source="/home/dev/AGENTS.md", status="ok", content=self._words
        )
        where = {"directory": "/home/dev", "os": "linux"}
        context = WorkspaceContext(version=1, hash=self._words, resources=(file,), **where)
        return msgspec.json.encode(context)


class FakeConnector:
    """Answers handshakes: `silent` agents never, `refusing` ones refuse, others once `hold` is
    done."""

    def __init__(self) -> None:
        self.handshakes: list[AgentId] = []
        self.silent: set[AgentId] = set()
        self.refusing: set[AgentId] = set()
        self.hold: Awaitable[object] | None = None
        self.words = "Use tabs."

    async def connect(self, row: AgentRow) -> AgentConnection:
        self.handshakes.append(row.id)
        if row.id in self.refusing:
            raise AgentUnreachable("The agent does not listen.")
        if row.id in self.silent:
            await asyncio.Event().wait()
        if self.hold is not None:
            await self.hold
        return FakeAgent(row, self.words)

    async def ping(self, row: AgentRow) -> AgentHealth:
        del row
        return AgentHealth(boot_id="boot", lifecycle="ready", directory="/home/dev")


class CountedBindings:
    """Satisfies `BindingStore` and counts its calls. Methods in `broken` fail."""

    def __init__(self, rows: StoredBindings) -> None:
        self._rows = rows
        self.asked: Counter[str] = Counter()
        self.broken: set[str] = set()
        self.failed = asyncio.Event()

    async def binding(self, chat_id: ChatId) -> WorkspaceBinding | None:
        self._ask("binding")
        return await self._rows.binding(chat_id)

    async def agent(self, agent_id: AgentId) -> AgentObservation | None:
        self._ask("agent")
        return await self._rows.agent(agent_id)

    async def latest_agent(self, workspace_id: WorkspaceId) -> AgentObservation:
        self._ask("latest")
        return await self._rows.latest_agent(workspace_id)

    async def is_owner(self, chat_id: ChatId, fence: Fence) -> bool:
        return await self._rows.is_owner(chat_id, fence)

    async def remember(self, binding: WorkspaceBinding) -> bool:
        self._ask("remember")
        return await self._rows.remember(binding)

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        if what in self.broken:
            self.failed.set()
            raise Unavailable("no database")


class RequestCounts(Struct, frozen=True, kw_only=True):
    handshakes: int
    latest: int
    agent: int


class FakeWorkspaceServices:
    """The workspace services of a replica with fake agents. Satisfies `WorkspaceAccess`."""

    def __init__(
        self,
        pool: Pool,
        builder: BuildWorker,
        backend: FakeBackend,
        *,
        delay_s: float,
        clock: Clock,
    ) -> None:
        env = env_with(SystemClock())
        self.connector = FakeConnector()
        self.rows = CountedBindings(StoredBindings(pool))
        deps = AccessDeps(
            bindings=self.rows,
            connect=self.connector.connect,
            clock=clock,
            check_after_s=delay_s,
        )
        self.access = AgentAccess(deps)
        self.instructions = WorkspaceInstructions(
            self.rows, ContextSync(pool, env), self._connect, env
        )
        making = BuildRequests(
            pool,
            BuildWaits(pool, self.connector.ping, env.clock, WaitTimeouts()),
            OwnHost(HOST, backend),
            env,
            ttl_s=None,
            wake_worker=builder.wake,
            on_bound=self._bound,
        )
        provisioning = WorkspaceProvisioner(pool, TemplateCatalog(pool, env.clock), making)
        family = WorkspaceTools(self, provisioning, env.clock)
        self.tools = ChatTools([family], self.instructions.instructions)

    async def connect(self, context: ToolContext) -> AgentClient:
        return await self.access.connect(context)

    async def _connect(self, chat: Chat) -> AgentClient:
        context = ToolContext(chat=chat, call_id=ToolCallId("briefing"), fence=Fence.of(chat))
        return await self.connect(context)

    async def _bound(self, chat_id: ChatId, workspace_id: WorkspaceId) -> None:
        self.access.on_bound(chat_id, workspace_id)
        self.instructions.on_bound(chat_id)

    def counts(self) -> RequestCounts:
        asked = self.rows.asked
        handshakes = len(self.connector.handshakes)
        return RequestCounts(handshakes=handshakes, latest=asked["latest"], agent=asked["agent"])

    def since(self, before: RequestCounts) -> RequestCounts:
        now = self.counts()
        return RequestCounts(
            handshakes=now.handshakes - before.handshakes,
            latest=now.latest - before.latest,
            agent=now.agent - before.agent,
        )


class WorkspaceRig(Struct, frozen=True, kw_only=True):
    engine: EngineRig
    services: FakeWorkspaceServices


@asynccontextmanager
async def workspace_rig(
    dsn: str, pool: Pool, *, delay_s: float = LONG_CHECK_AFTER_S, clock: Clock | None = None
) -> AsyncGenerator[WorkspaceRig]:
    """`clock` is used by the access to agents; all else has a real clock."""
    await insert_template(pool)
    backend = FakeBackend()
    async with building(pool, SystemClock(), backend) as builder:
        services = FakeWorkspaceServices(
            pool, builder, backend, delay_s=delay_s, clock=clock or SystemClock()
        )
        async with engine_rig(dsn, source=services.tools) as engine:
            yield WorkspaceRig(engine=engine, services=services)
