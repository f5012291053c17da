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
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from chatd.clock import SystemClock
from chatd.workspaces.local.kit import agent_zip
from chatd.workspaces.local.local_backend import LocalBackend, LocalConfig
from chatd.workspaces.local.sandbox_command import ISOLATION_LEVELS, IsolationLevel
from chatd.workspaces.local.supervisor import syscalls
from chatd.workspaces.local.supervisor.sandbox_processes import read_process_id
from chatd.workspaces.local.supervisor_client import SupervisorClient, SupervisorReply
from chatd.workspaces.network.network_proxy import Dialer
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks
from tests.support.backend_rig import HOST, TEST_TIMEOUT_S, BackendRig, RunningWorkspace
from tests.support.database import scratch_space
from tests.support.eventually import eventually

AS_ROOT = os.geteuid() == 0
NO_BUBBLEWRAP = shutil.which("bwrap") is None


def offered_levels() -> list[IsolationLevel]:
    """The isolation levels that this machine offers to the account of the tests, best first."""
    missing = {"bwrap" if AS_ROOT else "bwrap+uid"}
    if NO_BUBBLEWRAP:
        missing |= {"bwrap+uid", "bwrap"}
    if syscalls.landlock_version() < syscalls.MIN_LANDLOCK_VERSION:
        missing.add("landlock+rlimit")
    return [level for level in ISOLATION_LEVELS if level not in missing]


class GreetingSupervisorClient(SupervisorClient):
    async def hello(self) -> SupervisorReply:
        """Starts a supervisor if none runs."""
        reply = await self._request({"op": "hello"})
        assert reply.ok
        return reply


class LocalRig(BackendRig):
    """One server on a data directory."""

    backend: LocalBackend

    def __init__(
        self,
        config: LocalConfig,
        dialer: Dialer | None = None,
        backend: type[LocalBackend] = LocalBackend,
    ) -> None:
        networks = WorkspaceNetworks(config.data_dir, SystemClock(), dialer)
        super().__init__(backend(config, agent=agent_zip(), clock=SystemClock(), networks=networks))
        self.data_dir = config.data_dir
        self.supervisor = GreetingSupervisorClient(
            config.data_dir / "ws-supervisor", SystemClock(), idle_s=config.supervisor_idle_s
        )

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
        await self.backend.networks.release_all()
        lock = self.data_dir / "ws-supervisor" / "lock"
        if not lock.exists():
            return
        await self.supervisor.shutdown()

        async def is_released() -> bool:
            return is_lock_free(lock)

        await eventually(is_released, within_s=TEST_TIMEOUT_S)


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
async def open_rig(config: LocalConfig, dialer: Dialer | None = None) -> AsyncGenerator[LocalRig]:
    rig = LocalRig(config, dialer)
    try:
        yield rig
    finally:
        await rig.close()
