"""Workspaces of any backend for tests: builds, commands inside, what the build logged."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID, uuid4, uuid5

from msgspec import Struct
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.ids import UserId, WorkspaceId
from chatd.domain.workspace.agent_api import AgentUnreachable, ProcessOutput
from chatd.domain.workspace.entities import (
    AgentSpec,
    Build,
    BuildId,
    BuildTransition,
    LogLevel,
    TemplateId,
    TemplateSpec,
    VersionId,
    Workspace,
)
from chatd.domain.workspace.host_credentials import HostCredential
from chatd.workspaces.agents.agent_client import AgentClient, ConnectedAgent
from chatd.workspaces.agents.agent_resolver import AgentConnector
from chatd.workspaces.agents.agent_session import OpenStream, derive_agent_key
from chatd.workspaces.build_backend import Backend, BuildContext
from tests.support.eventually import eventually
from tests.support.workspaces import no_other_host

SECRET = b"a secret of the server, 32 bytes"
HOST = "this-host"
TEST_TIMEOUT_S = 40.0
NO_OWNER = UUID(int=0)


class RunningWorkspace(Struct, frozen=True, kw_only=True):
    workspace: Workspace
    agent: AgentSpec

    @property
    def name(self) -> str:
        return str(self.workspace.id)


class BackendRig:
    """One server or runner with a backend. `spec` is what every template of it needs,
    `open_stream` the way to agents that are not on this host."""

    def __init__(
        self,
        backend: Backend,
        spec: TemplateSpec | None = None,
        open_stream: OpenStream = no_other_host,
    ) -> None:
        self.backend = backend
        self.open_stream = open_stream
        self.spec = spec or TemplateSpec()
        self.log: list[str] = []
        self.on_log: Callable[[str], None] = lambda _line: None
        self.credentials: Sequence[HostCredential] = ()
        self._connector = AgentConnector(
            secret=SECRET, host_id=HOST, clock=SystemClock(), open_stream=open_stream
        )

    def template(self, **changes: object) -> TemplateSpec:
        return replace(self.spec, **changes)

    def context(
        self,
        spec: TemplateSpec,
        *,
        workspace: WorkspaceId | None = None,
        build: int = 1,
        transition: BuildTransition = "start",
        params: Mapping[str, str] | None = None,
    ) -> BuildContext:
        chosen = workspace or WorkspaceId(uuid4())
        return BuildContext(
            workspace=_workspace(chosen),
            build=_build(chosen, build, transition),
            spec=spec,
            params=params or {},
            log=self._note,
            agent_key=lambda agent_id: derive_agent_key(SECRET, agent_id),
            credentials=self.credentials,
        )

    async def start(
        self, spec: TemplateSpec | None = None, *, again: WorkspaceId | None = None, build: int = 1
    ) -> RunningWorkspace:
        context = self.context(spec or self.spec, workspace=again, build=build)
        (agent,) = await self.backend.start(context)
        return RunningWorkspace(workspace=context.workspace, agent=agent)

    async def stop(self, running: RunningWorkspace, *, build: int) -> None:
        await self.backend.stop(
            self.context(self.spec, workspace=running.workspace.id, build=build, transition="stop")
        )

    async def delete(self, workspace: WorkspaceId, *, build: int) -> None:
        await self.backend.delete(
            self.context(self.spec, workspace=workspace, build=build, transition="delete")
        )

    async def client(self, running: RunningWorkspace) -> AgentClient:
        return AgentClient(await self.connect(running), SystemClock())

    async def connect(self, running: RunningWorkspace) -> ConnectedAgent:
        return await self._connector.connect(
            running.agent.id, running.agent.endpoints, timeout_s=TEST_TIMEOUT_S
        )

    async def boot_id(self, running: RunningWorkspace) -> str:
        return (await self.connect(running)).hello.boot_id

    async def wait_new_agent(self, running: RunningWorkspace, boot_id: str) -> None:
        """Wait for an agent with another boot id."""

        async def has_new_agent() -> bool:
            try:
                return await self.boot_id(running) != boot_id
            except AgentUnreachable:
                return False

        await eventually(has_new_agent, within_s=TEST_TIMEOUT_S)

    async def run(self, running: RunningWorkspace, command: str) -> ProcessOutput:
        """Run a command to its end."""
        async with asyncio.timeout(TEST_TIMEOUT_S):
            client = await self.client(running)
            started = await client.start_process(command, key=uuid4().hex)
            while (output := await client.output(started.id, wait_s=10)).running:
                pass
            return output

    async def output_of(self, running: RunningWorkspace, command: str) -> str:
        return (await self.run(running, command)).output.strip()

    def _note(self, stage: str, level: LogLevel, text: str) -> None:
        line = f"{stage} {level} {text}"
        self.log.append(line)
        self.on_log(line)


def _workspace(workspace: WorkspaceId) -> Workspace:
    now = datetime.now(UTC)
    return Workspace(
        id=workspace,
        owner_id=UserId(NO_OWNER),
        template_id=TemplateId(NO_OWNER),
        name="test",
        number=1,
        host_id=HOST,
        last_used_at=now,
        created_at=now,
    )


def _build(workspace: WorkspaceId, number: int, transition: BuildTransition) -> Build:
    return Build(
        id=BuildId(uuid5(workspace, str(number))),
        workspace_id=workspace,
        build_number=number,
        transition=transition,
        template_version_id=VersionId(NO_OWNER),
        status="running",
        initiator_id=UserId(NO_OWNER),
        created_at=datetime.now(UTC),
    )
