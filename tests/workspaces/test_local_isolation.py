"""The weaker isolation levels, a server without root, and limits over time."""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from pathlib import Path
from pwd import getpwuid
from shlex import quote
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.workspace.entities import GitSeed, TemplateSpec
from chatd.workspaces.build_backend import BuildFailed
from chatd.workspaces.local.isolation import HostSupport, find_obstacle
from chatd.workspaces.local.local_backend import LocalConfig
from chatd.workspaces.local.sandbox_command import ISOLATION_LEVELS, IsolationLevel
from chatd.workspaces.local.supervisor import syscalls
from chatd.workspaces.local.supervisor.sandbox_processes import processes_of_uid, read_process_id
from tests.support.local_rig import (
    AS_ROOT,
    HOST,
    NO_BUBBLEWRAP,
    TEST_TIMEOUT_S,
    LocalRig,
    data_directory,
    open_rig,
    shared_kits,
)

ROOT = Path(__file__).parents[2]
SITE = Path(pytest.__file__).parents[1]
MIB = 1024 * 1024
ESCAPE = (
    "setsid -f sh -c 'echo $$ > pid; exec sleep 1000' >/dev/null 2>&1; "
    "until test -s pid; do sleep 0.02; done; cat pid"
)

needs_landlock = pytest.mark.skipif(
    syscalls.landlock_version() < syscalls.MIN_LANDLOCK_VERSION,
    reason="the kernel has no Landlock, or an old one",
)
needs_sandbox = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")
needs_root = pytest.mark.skipif(not AS_ROOT, reason="only root can act under another account")


@pytest.fixture(scope="module")
def open_kits() -> Generator[Path]:
    with data_directory() as kits:
        kits.parent.chmod(0o711)
        kits.chmod(0o755)
        yield kits


@pytest.fixture
def data_dir(open_kits: Path) -> Generator[Path]:
    """Every account can enter it, as workspaces without namespaces must."""
    with data_directory(open_kits) as data_dir:
        data_dir.chmod(0o711)
        data_dir.parent.chmod(0o711)
        yield data_dir


@pytest.fixture
def users_data_dir() -> Generator[Path]:
    """Owned by an ordinary account."""
    with data_directory() as data_dir:
        data_dir.parent.chmod(0o711)
        os.chown(data_dir, 65534, 65534)
        yield data_dir


@pytest.fixture
async def private_rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[LocalRig]:
    with data_directory(shared_kits(tmp_path_factory)) as data_dir:
        config = LocalConfig(data_dir=data_dir, host_id=HOST, disk_interval_s=0.1)
        async with open_rig(config) as rig:
            yield rig


def without_namespaces(data_dir: Path) -> LocalConfig:
    """An ordinary account can give workspaces no account but its own, which must be allowed."""
    levels: tuple[IsolationLevel, ...] = ("landlock+rlimit",)
    return LocalConfig(data_dir=data_dir, host_id=HOST, levels=levels, allow_unsafe=not AS_ROOT)


@needs_landlock
async def test_without_namespaces_paths_are_still_closed(data_dir: Path) -> None:
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = without_namespaces(data_dir)
    async with open_rig(config) as rig, server:
        running = await rig.start()
        other = await rig.start()
        assert running.agent.isolation == "landlock+rlimit"
        home = getpwuid(os.geteuid()).pw_dir
        for path in (home, rig.home(other), "/tmp", "/etc", data_dir / "ws-supervisor"):
            output = await rig.run(running, f"ls {quote(str(path))}")
            assert "Permission denied" in output.output, path
        assert await rig.output_of(running, "echo x > x && cat x") == "x"
        assert "1 passed" in await rig.output_of(
            running, "echo 'def test_it(): pass' > test_it.py && python3 -m pytest -q"
        )
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
        assert "not supported" in await rig.output_of(running, f'python3 -c "{connect}"')
        with pytest.raises(BuildFailed, match="cannot clone for a template without a network"):
            await rig.start(TemplateSpec(seed=GitSeed(url="https://example.org/x")))


@pytest.mark.parametrize("level", ["landlock+rlimit", "none"])
async def test_without_namespaces_no_process_escapes_a_stop(
    data_dir: Path, level: IsolationLevel
) -> None:
    if level == "landlock+rlimit" and syscalls.landlock_version() < syscalls.MIN_LANDLOCK_VERSION:
        pytest.skip("the kernel has no Landlock, or an old one")
    config = LocalConfig(data_dir=data_dir, host_id=HOST, levels=(level,), allow_unsafe=True)
    async with open_rig(config) as rig:
        running = await rig.start()
        escaped = int(await rig.output_of(running, ESCAPE))
        assert read_process_id(escaped)
        await rig.stop(running, build=2)
        assert read_process_id(escaped) is None


@needs_landlock
async def test_without_namespaces_the_next_supervisor_kills_strays(data_dir: Path) -> None:
    config = without_namespaces(data_dir)
    async with open_rig(config) as rig:
        running = await rig.start()
        stray = int(await rig.output_of(running, ESCAPE))
        await rig.kill_supervisor()
        assert read_process_id(stray)
        await rig.supervisor.hello()
        assert read_process_id(stray) is None


async def test_no_isolation_needs_permission_by_the_settings(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = LocalConfig(data_dir=data_dir, host_id=HOST, levels=("none",))
    async with open_rig(config) as rig:
        with (
            caplog.at_level(logging.WARNING, "chatd.workspaces"),
            pytest.raises(BuildFailed, match="none: not allowed by the settings"),
        ):
            await rig.start()
    assert "not possible" in caplog.text
    assert "start chatd again" in caplog.text


ROOT_HOST = HostSupport(is_root=True, has_accounts=True, has_bubblewrap=True, landlock_version=7)
USER_HOST = replace(ROOT_HOST, is_root=False, has_accounts=False)


@pytest.mark.parametrize(
    ("host", "possible"),
    [
        (ROOT_HOST, ["bwrap+uid", "landlock+rlimit"]),
        (replace(ROOT_HOST, allow_unsafe=True), ["bwrap+uid", "landlock+rlimit", "none"]),
        (replace(ROOT_HOST, landlock_version=2), ["bwrap+uid"]),
        (replace(ROOT_HOST, has_bubblewrap=False), ["landlock+rlimit"]),
        # A container with one account, which is root.
        (replace(ROOT_HOST, has_accounts=False), []),
        (replace(ROOT_HOST, has_accounts=False, allow_unsafe=True), []),
        # Landlock leaves sockets with a path open, and the server's sockets trust its account.
        (USER_HOST, ["bwrap"]),
        (replace(USER_HOST, allow_unsafe=True), ["bwrap", "landlock+rlimit", "none"]),
        (replace(USER_HOST, has_bubblewrap=False), []),
    ],
)
def test_a_level_is_tried_only_where_it_keeps_its_promise(
    host: HostSupport, possible: list[IsolationLevel]
) -> None:
    found = [level for level in ISOLATION_LEVELS if find_obstacle(level, host) is None]
    assert found == possible


@needs_landlock
@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
async def test_root_without_its_capabilities_gives_workspaces_another_account(
    data_dir: Path,
) -> None:
    """As in most containers: the server cannot mount, and workspaces still are not root."""
    words = ["setpriv", "--bounding-set", "-sys_admin", sys.executable]
    async with run_server(data_dir, *words) as ask:
        assert await ask(f"start {UUID(int=1)} 1") == "landlock+rlimit"
        assert int(await ask("run id -u")) > 1000
        assert "0" * 16 in await ask("run grep CapBnd /proc/self/status")
        assert "Permission denied" in await ask("run ls /root 2>&1")


@needs_sandbox
@needs_root
@pytest.mark.skipif(
    not os.access("/usr/bin/python3", os.X_OK) or sys.version_info[:2] != (3, 11),
    reason="the system's Python cannot use our packages",
)
async def test_a_server_without_root_runs_workspaces(users_data_dir: Path) -> None:
    """The server as `nobody`: no accounts for workspaces, the same isolation."""
    for path in (ROOT, SITE):
        if not await _readable_to_all(path):
            pytest.skip(f"{path} cannot be read by other accounts")
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}:{SITE}", "PATH": os.defpath}
    async with run_server(users_data_dir, "/usr/bin/python3", account=65534, env=env) as ask:
        assert await ask(f"start {UUID(int=1)} 1") == "bwrap"
        assert (await ask("run grep CapEff /proc/self/status")).split() == ["CapEff:", "0" * 16]
        assert "No such file" in await ask(f"run ls {users_data_dir} 2>&1")
        assert "1 failed, 2 passed" in await ask("run python3 -m pytest -q")
        assert "Read-only" in await ask("run touch /usr/x 2>&1")


@contextlib.asynccontextmanager
async def run_server(
    data_dir: Path, *words: str, account: int = 0, env: Mapping[str, str] | None = None
) -> AsyncGenerator[Callable[[str], Awaitable[str]]]:
    """A server as another process, and a function that sends it a line and returns its reply."""
    process = await asyncio.create_subprocess_exec(
        *words, "-B", "-m", "tests.support.local_server", data_dir,
        user=account, group=account, extra_groups=[], cwd="/" if env else ROOT, env=env,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def ask(line: str) -> str:
        stdin.write(f"{line}\n".encode())
        async with asyncio.timeout(TEST_TIMEOUT_S):
            return json.loads(await stdout.readline())

    try:
        yield ask
        await ask("delete")
        await ask("end")
        stdin.close()
        async with asyncio.timeout(TEST_TIMEOUT_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _readable_to_all(path: Path) -> bool:
    listing = await asyncio.create_subprocess_exec("ls", path, user=65534, stdout=-3, stderr=-3)
    return await listing.wait() == 0


@needs_sandbox
@needs_root
async def test_no_process_of_the_account_is_left_after_a_stop(private_rig: LocalRig) -> None:
    running = await private_rig.start()
    await private_rig.run(running, "for i in 1 2 3; do setsid -f sleep 1000 >/dev/null 2>&1; done")
    uid = private_rig.home(running).stat().st_uid
    assert len(processes_of_uid(uid)) >= 5
    await private_rig.stop(running, build=2)
    assert processes_of_uid(uid) == set()
