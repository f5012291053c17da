"""Local workspaces for tests: a data directory, its backend, commands inside a workspace.

Other accounts cannot enter the data directory, as in a careful installation. All data directories
of a test process share the kit, which takes a second to build.
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
from chatd.workspaces.agents.agent_client import ConnectedAgent, HttpAgentClient
from chatd.workspaces.agents.agent_resolver import AgentConnector
from chatd.workspaces.agents.agent_session import derive_agent_key
from chatd.workspaces.build_backend import BuildContext
from chatd.workspaces.local.kit import agent_zip
from chatd.workspaces.local.local_backend import LocalBackend, LocalConfig
from chatd.workspaces.local.sandbox_command import ISOLATION_LEVELS, IsolationLevel
from chatd.workspaces.local.supervisor import syscalls
from chatd.workspaces.local.supervisor.sandbox_processes import read_process_id
from chatd.workspaces.local.supervisor_client import SupervisorClient, SupervisorReply
from tests.support.database import scratch_space
from tests.support.eventually import eventually
from tests.support.workspaces import no_other_host

SECRET = b"a secret of the server, 32 bytes"
HOST = "this-host"
TEST_TIMEOUT_S = 40.0
AS_ROOT = os.geteuid() == 0
NO_BUBBLEWRAP = shutil.which("bwrap") is None
NO_OWNER = UUID(int=0)


def offered_levels() -> list[IsolationLevel]:
    """The isolation levels that this machine offers to the account of the tests, best first."""
    missing = {"bwrap" if AS_ROOT else "bwrap+uid"}
    if NO_BUBBLEWRAP:
        missing |= {"bwrap+uid", "bwrap"}
    if syscalls.landlock_version() < syscalls.MIN_LANDLOCK_VERSION:
        missing.add("landlock+rlimit")
    return [level for level in ISOLATION_LEVELS if level not in missing]


class RunningWorkspace(Struct, frozen=True, kw_only=True):
    workspace: Workspace
    agent: AgentSpec

    @property
    def name(self) -> str:
        return str(self.workspace.id)


class GreetingSupervisorClient(SupervisorClient):
    async def hello(self) -> SupervisorReply:
        """Starts a supervisor if none runs."""
        reply = await self._request({"op": "hello"})
        assert reply.ok
        return reply


class LocalRig:
    """One server on a data directory."""

    def __init__(self, config: LocalConfig) -> None:
        self.data_dir = config.data_dir
        self.log: list[str] = []
        self.backend = LocalBackend(
            config,
            agent=agent_zip(),
            clock=SystemClock(),
        )
        self.supervisor = GreetingSupervisorClient(
            config.data_dir / "ws-supervisor", SystemClock(), idle_s=config.supervisor_idle_s
        )
        self._connector = AgentConnector(
            secret=SECRET, host_id=HOST, clock=SystemClock(), open_stream=no_other_host
        )

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
        )

    async def start(
        self, spec: TemplateSpec | None = None, *, again: WorkspaceId | None = None, build: int = 1
    ) -> RunningWorkspace:
        context = self.context(spec or TemplateSpec(), workspace=again, build=build)
        (agent,) = await self.backend.start(context)
        return RunningWorkspace(workspace=context.workspace, agent=agent)

    async def stop(self, running: RunningWorkspace, *, build: int) -> None:
        await self.backend.stop(
            self.context(
                TemplateSpec(), workspace=running.workspace.id, build=build, transition="stop"
            )
        )

    async def delete(self, workspace: WorkspaceId, *, build: int) -> None:
        await self.backend.delete(
            self.context(TemplateSpec(), workspace=workspace, build=build, transition="delete")
        )

    async def client(self, running: RunningWorkspace) -> HttpAgentClient:
        return HttpAgentClient(await self.connect(running), SystemClock())

    async def connect(self, running: RunningWorkspace) -> ConnectedAgent:
        return await self._connector.connect(
            running.agent.id, running.agent.endpoints, timeout_s=TEST_TIMEOUT_S
        )

    async def wait_new_agent(self, running: RunningWorkspace, boot_id: str) -> None:
        """Wait for an agent with another boot id."""

        async def has_new_agent() -> bool:
            try:
                return (await self.connect(running)).hello.boot_id != boot_id
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

    def home(self, running: RunningWorkspace) -> Path:
        return self.data_dir / "ws" / running.name / "home"

    def supervisor_pid(self) -> int:
        return int((self.data_dir / "ws-supervisor" / "lock").read_text())

    async def kill_supervisor(self) -> None:
        """Kill the supervisor and its parent, which would start another one."""
        pid = self.supervisor_pid()
        parent = parent_of(pid)
        for each in (parent, pid):
            os.kill(each, signal.SIGKILL)
        await wait_exited(parent, pid)

    async def close(self) -> None:
        """Stop the supervisor with its sandboxes and its parent."""
        lock = self.data_dir / "ws-supervisor" / "lock"
        if not lock.exists():
            return
        await self.supervisor.shutdown()

        async def is_released() -> bool:
            return is_lock_free(lock)

        await eventually(is_released, within_s=TEST_TIMEOUT_S)

    def _note(self, stage: str, level: LogLevel, text: str) -> None:
        self.log.append(f"{stage} {level} {text}")


def is_lock_free(lock: Path) -> bool:
    """Whether neither a supervisor nor its parent holds the lock."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def wait_exited(*pids: int) -> None:
    async def are_gone() -> bool:
        return not any(read_process_id(pid) for pid in pids)

    await eventually(are_gone, within_s=TEST_TIMEOUT_S)


@contextlib.contextmanager
def data_directory(kits: Path | None = None) -> Generator[Path]:
    """A short path, in a directory that other accounts cannot enter."""
    top = Path(tempfile.mkdtemp(prefix="chatd-local-", dir=scratch_space()))
    data = top / "data"
    data.mkdir(mode=0o700)
    if kits is not None:
        (data / "ws-toolbox").symlink_to(kits)
    try:
        yield data
    finally:
        shutil.rmtree(top, ignore_errors=True)


def close_supervisor_of(data_dir: Path) -> None:
    """For module fixtures, which have no event loop."""
    asyncio.run(LocalRig(LocalConfig(data_dir=data_dir, host_id=HOST)).close())


def shared_kits(factory: pytest.TempPathFactory) -> Path:
    path = factory.getbasetemp() / "kits"
    path.mkdir(exist_ok=True)
    return path


@contextlib.asynccontextmanager
async def open_rig(config: LocalConfig) -> AsyncGenerator[LocalRig]:
    rig = LocalRig(config)
    try:
        yield rig
    finally:
        await rig.close()


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
