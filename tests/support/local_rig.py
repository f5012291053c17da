"""Local workspaces for tests: a data directory, a backend on it, commands inside a workspace.

The data directory is closed to everybody else, as a careful operator's would be. The kit, which
takes a second to make, is shared by all data directories of a test process.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4, uuid5

import pytest
from msgspec import Struct

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
from chatd.workspaces.agents.client import ConnectedAgent, HttpAgentClient
from chatd.workspaces.agents.identity import derive_agent_key
from chatd.workspaces.agents.resolver import AgentConnector
from chatd.workspaces.builds.backend import BuildContext
from chatd.workspaces.local.backend import LocalBackend, LocalConfig
from chatd.workspaces.local.kit import agent_zip
from chatd.workspaces.local.supervisor.processes import read_process_id
from chatd.workspaces.local.supervisor_client import SupervisorClient
from tests.support.database import scratch_space
from tests.support.eventually import eventually

SECRET = b"a secret of the server, 32 bytes"
HOST = "this-host"
WITHIN_S = 40.0
AS_ROOT = os.geteuid() == 0
NO_SANDBOX = shutil.which("bwrap") is None
NOBODY = UUID(int=0)


class Running(Struct, frozen=True, kw_only=True):
    workspace: Workspace
    agent: AgentSpec

    @property
    def name(self) -> str:
        return str(self.workspace.id)


class Rig:
    """One server's view of a data directory."""

    def __init__(self, config: LocalConfig) -> None:
        self.data_dir = config.data_dir
        self.log: list[str] = []
        self.backend = LocalBackend(
            config,
            agent=agent_zip(),
            dial_key=lambda agent_id: derive_agent_key(SECRET, agent_id),
            clock=SystemClock(),
        )
        self.supervision = SupervisorClient(
            config.data_dir / "ws-supervisor", SystemClock(), idle_s=config.supervisor_idle_s
        )
        self._connector = AgentConnector(secret=SECRET, host_id=HOST, clock=SystemClock())

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
        )

    async def start(
        self, spec: TemplateSpec | None = None, *, again: WorkspaceId | None = None, build: int = 1
    ) -> Running:
        context = self.context(spec or TemplateSpec(), workspace=again, build=build)
        (agent,) = await self.backend.start(context)
        return Running(workspace=context.workspace, agent=agent)

    async def stop(self, running: Running, *, build: int) -> None:
        await self.backend.stop(
            self.context(
                TemplateSpec(), workspace=running.workspace.id, build=build, transition="stop"
            )
        )

    async def delete(self, workspace: WorkspaceId, *, build: int) -> None:
        await self.backend.delete(
            self.context(TemplateSpec(), workspace=workspace, build=build, transition="delete")
        )

    async def client(self, running: Running) -> HttpAgentClient:
        return HttpAgentClient(await self.connect(running), SystemClock())

    async def connect(self, running: Running) -> ConnectedAgent:
        return await self._connector.connect(
            running.agent.id, running.agent.endpoints, timeout_s=WITHIN_S
        )

    async def reborn(self, running: Running, boot_id: str) -> None:
        """Wait for another agent than the one of that boot."""

        async def look() -> bool:
            try:
                return (await self.connect(running)).hello.boot_id != boot_id
            except AgentUnreachable:
                return False

        await eventually(look, within_s=WITHIN_S)

    async def run(self, running: Running, command: str) -> ProcessOutput:
        """To its end."""
        async with asyncio.timeout(WITHIN_S):
            client = await self.client(running)
            started = await client.start_process(command, key=uuid4().hex)
            while (output := await client.output(started.id, wait_s=10)).running:
                pass
            return output

    async def says(self, running: Running, command: str) -> str:
        return (await self.run(running, command)).output.strip()

    def home(self, running: Running) -> Path:
        return self.data_dir / "ws" / running.name / "home"

    def supervisor(self) -> int:
        return int((self.data_dir / "ws-supervisor" / "lock").read_text())

    async def kill_supervisor(self) -> None:
        """With the process above it, which would start another."""
        pid = self.supervisor()
        keeper = parent_of(pid)
        for each in (keeper, pid):
            os.kill(each, signal.SIGKILL)
        await until_gone(keeper, pid)

    async def end(self) -> None:
        """The supervisor, all it owns and the process above it."""
        lock = self.data_dir / "ws-supervisor" / "lock"
        if not lock.exists():
            return
        await self.supervision.shutdown()

        async def dropped() -> bool:
            return is_free(lock)

        await eventually(dropped, within_s=WITHIN_S)

    def _note(self, stage: str, level: LogLevel, text: str) -> None:
        self.log.append(f"{stage} {level} {text}")


def is_free(lock: Path) -> bool:
    """Whether nobody holds it: neither a supervisor nor who would start another."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def until_gone(*pids: int) -> None:
    async def gone() -> bool:
        return not any(read_process_id(pid) for pid in pids)

    await eventually(gone, within_s=WITHIN_S)


@contextlib.contextmanager
def data_directory(kits: Path | None = None) -> Generator[Path]:
    """A short path, in a directory of our own that nobody else can enter."""
    top = Path(tempfile.mkdtemp(prefix="chatd-local-", dir=scratch_space()))
    data = top / "data"
    data.mkdir(mode=0o700)
    if kits is not None:
        (data / "ws-toolbox").symlink_to(kits)
    try:
        yield data
    finally:
        shutil.rmtree(top, ignore_errors=True)


def end_all_in(data_dir: Path) -> None:
    """For fixtures that are shared, and so have no loop."""
    asyncio.run(Rig(LocalConfig(data_dir=data_dir, host_id=HOST)).end())


def shared_kits(factory: pytest.TempPathFactory) -> Path:
    path = factory.getbasetemp() / "kits"
    path.mkdir(exist_ok=True)
    return path


@contextlib.asynccontextmanager
async def rig_with(config: LocalConfig) -> AsyncGenerator[Rig]:
    rig = Rig(config)
    try:
        yield rig
    finally:
        await rig.end()


def _workspace(workspace: WorkspaceId) -> Workspace:
    now = datetime.now(UTC)
    return Workspace(
        id=workspace,
        owner_id=UserId(NOBODY),
        template_id=TemplateId(NOBODY),
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
        template_version_id=VersionId(NOBODY),
        status="running",
        initiator_id=UserId(NOBODY),
        created_at=datetime.now(UTC),
    )
