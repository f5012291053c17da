"""Servers, supervisors and sandboxes that are killed, stopped and restarted, as real processes."""

import asyncio
import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from uuid import uuid5

import pytest

from chatd.clock import SystemClock
from chatd.domain.errors import Unavailable
from chatd.domain.ids import WorkspaceId
from chatd.workspaces.local import isolation
from chatd.workspaces.local.local_backend import LocalConfig
from chatd.workspaces.local.supervisor import sandbox
from chatd.workspaces.local.supervisor.control import SavedOrders
from chatd.workspaces.local.supervisor.plan import (
    PathRules,
    ProcessPlan,
    SandboxOrder,
    decode_order,
    encode_json,
)
from chatd.workspaces.local.supervisor.sandbox import Sandbox
from chatd.workspaces.local.supervisor.sandbox_processes import children_of, read_process_id
from chatd.workspaces.local.supervisor.service import (
    LOCK_FILE,
    LOG_FILE,
    MAX_FAST_RESTARTS,
    SOCKET_FILE,
    run_with_restarts,
)
from chatd.workspaces.local.supervisor_client import SupervisorClient
from tests.support.backend_rig import NO_OWNER
from tests.support.eventually import eventually
from tests.support.local_rig import (
    AS_ROOT,
    HOST,
    NO_BUBBLEWRAP,
    TEST_TIMEOUT_S,
    GreetingSupervisorClient,
    LocalRig,
    RunningWorkspace,
    data_directory,
    open_rig,
    parent_of,
    shared_kits,
    wait_exited,
)
from tests.support.processes import running as server_process

pytestmark = [
    pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed"),
    # Seconds on an idle host; on a very busy one a server alone takes a minute to start and create
    # its first workspace.
    pytest.mark.timeout(240),
]

SERVER = "tests.support.local_server"
WORKSPACE = WorkspaceId(uuid5(NO_OWNER, f"workspace of {os.getpid()}"))
"""Unique to this process: control groups are named by it, and are global on the host."""


@pytest.fixture
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[LocalRig]:
    with data_directory(shared_kits(tmp_path_factory)) as data_dir:
        async with open_rig(LocalConfig(data_dir=data_dir, host_id=HOST)) as rig:
            yield rig


async def pids_of(rig: LocalRig, running: RunningWorkspace) -> list[int]:
    """The processes of a sandbox by their ids on the host, the outermost first."""
    status = (await rig.supervisor.list_running())[running.name]
    found = [status.pid]
    for pid in found:
        found += children_of(pid)
    return found


async def start_sleep(rig: LocalRig, running: RunningWorkspace) -> None:
    """In its own session, so that only the end of the sandbox kills it."""
    client = await rig.client(running)
    await client.start_process("setsid -f sleep 1000; touch begun; sleep 1000", key="sleep")

    async def is_started() -> bool:
        return (rig.home(running) / "begun").exists()

    await eventually(is_started, within_s=TEST_TIMEOUT_S)


async def test_a_killed_server_leaves_its_workspaces_running(rig: LocalRig) -> None:
    async with server_process(SERVER, str(rig.data_dir)) as server:
        await server.ask(f"start {WORKSPACE} 1")
        await server.ask("run sleep 1000 >/dev/null 2>&1 & echo $! > pid")
        server.kill()
    inside = (await rig.supervisor.list_running())[str(WORKSPACE)]
    found = await rig.start(again=WORKSPACE)
    assert await rig.output_of(found, "kill -0 $(cat pid) && echo alive") == "alive"
    after = (await rig.supervisor.list_running())[str(WORKSPACE)]
    assert (after.pid, after.starts) == (inside.pid, 1)
    assert (await rig.backend.inspect(found.workspace)).state == "running"


async def test_a_killed_supervisor_is_replaced_by_another_with_the_same_workspaces(
    rig: LocalRig,
) -> None:
    """Without a request. Workspaces stop only when the parent of the supervisor is killed too."""
    started = await rig.start()
    await start_sleep(rig, started)
    pids = await pids_of(rig, started)
    assert len(pids) > 4
    connected = await rig.connect(started)
    parent = parent_of(first := rig.supervisor_pid())
    os.kill(first, signal.SIGKILL)
    assert (await rig.backend.inspect(started.workspace)).state == "running"
    await wait_exited(*pids)
    await rig.wait_new_agent(started, connected.hello.boot_id)
    assert await rig.output_of(started, "ls begun") == "begun"
    assert parent_of(rig.supervisor_pid()) == parent != first
    pids = await pids_of(rig, started)
    await rig.kill_supervisor()
    await wait_exited(*pids)
    assert (await rig.backend.inspect(started.workspace)).state == "stopped"
    assert (rig.data_dir / "ws-supervisor" / "lock").read_text() == ""
    again = await rig.start(again=started.workspace.id, build=2)
    assert await rig.output_of(again, "ls begun; ls /proc | grep -c '^[0-9]'") != ""
    await rig.stop(again, build=3)
    os.kill(rig.supervisor_pid(), signal.SIGKILL)
    assert await rig.supervisor.list_running() == {}


@contextlib.contextmanager
def forked(work: Callable[[], None]) -> Generator[int]:
    """A child process that runs this; at the end its process group is killed."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            os.setsid()
            work()
            code = 0
        finally:
            os._exit(code)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def test_a_killed_service_is_restarted_until_a_stop_signal() -> None:
    reader, writer = os.pipe()
    ready = os.dup(writer)

    def run_service(first: int | None) -> None:
        os.write(writer, b"again" if first is None else b"first")
        if first is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    def run_parent() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # As a parent may have set it.
        run_with_restarts(
            run_service, ready, should_restart=lambda reason: reason == "ended with -9"
        )

    with forked(run_parent) as parent:
        os.close(ready)
        os.close(writer)
        assert os.read(reader, 5) == b"first"
        assert os.read(reader, 5) == b"again"
        os.kill(parent, signal.SIGTERM)
        assert os.waitpid(parent, 0)[1] == 0
    os.close(reader)


@pytest.mark.parametrize(
    ("number", "runs"), [(signal.SIGKILL, MAX_FAST_RESTARTS + 1), (signal.SIGTERM, 1)]
)
def test_a_service_that_keeps_failing_at_its_start_is_given_up(
    number: signal.Signals, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that gets a stop signal at once is not restarted."""
    monkeypatch.setattr(
        "chatd.workspaces.local.supervisor.service.FIRST_SERVICE_RESTART_DELAY_S", 0.001
    )
    reader, writer = os.pipe()
    ready = os.dup(writer)

    def run_service(first: int | None) -> None:
        del first
        os.write(writer, b".")
        os.kill(os.getpid(), number)

    with forked(
        lambda: run_with_restarts(run_service, ready, should_restart=lambda _: True)
    ) as parent:
        os.close(ready)
        os.close(writer)
        assert os.waitpid(parent, 0)[1] == 0
    with open(reader, "rb") as seen:
        assert seen.read() == b"." * runs


def test_saved_orders_are_read_back_complete() -> None:
    saved = SavedOrders()
    assert (saved.is_started, saved.read()) == (False, [])
    for lines in ([], [b"a", b"b" * 100_000], [b"c"], []):
        saved.write(lines)
        assert (saved.is_started, saved.read()) == (True, lines)


def test_a_failed_write_leaves_no_saved_orders() -> None:
    """In a process with a file size limit."""
    saved = SavedOrders()
    saved.write([b"a"])

    def write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        saved.write([b"b" * 100])

    with forked(write) as child:
        assert os.waitpid(child, 0)[1] == 0
    assert (saved.is_started, saved.read()) == (True, [])


@pytest.mark.covers("T47")
async def test_a_stray_process_of_a_killed_supervisor_is_killed_by_the_next(rig: LocalRig) -> None:
    """A kill between two system calls of the supervisor leaves a stray; here it is simulated."""
    await rig.supervisor.hello()
    stray = await asyncio.create_subprocess_exec("sleep", "1000")
    await rig.kill_supervisor()
    processes_dir = rig.data_dir / "ws-supervisor" / "births"
    (processes_dir / "lost").write_text(str(read_process_id(stray.pid)))
    (processes_dir / "long-gone").write_text(f"{os.getpid()} 1")
    await rig.supervisor.hello()
    async with asyncio.timeout(TEST_TIMEOUT_S):
        assert await stray.wait() == -signal.SIGKILL
    assert list(processes_dir.iterdir()) == []


@pytest.mark.covers("T47")
async def test_a_stop_kills_all_processes_and_leaves_the_files(rig: LocalRig) -> None:
    started = await rig.start()
    await start_sleep(rig, started)
    pids = await pids_of(rig, started)
    kits = [path.name for path in (rig.data_dir / "ws-toolbox").iterdir() if path.is_dir()]
    assert await rig.supervisor.words_in_use([*kits, "another"]) == set(kits) != set()
    await rig.stop(started, build=2)
    assert await rig.supervisor.words_in_use(kits) == set()
    assert [pid for pid in pids if read_process_id(pid)] == []
    assert (rig.home(started) / "begun").exists()
    await rig.stop(started, build=2)
    assert (await rig.backend.inspect(started.workspace)).state == "stopped"
    await rig.delete(started.workspace.id, build=3)
    assert (await rig.backend.inspect(started.workspace)).state == "gone"
    assert await rig.backend.workspaces() == []


async def test_an_agent_without_a_namespace_ends_at_a_stop_while_it_runs_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its children are its commands: to kill these does not end it."""
    for constant in ("STOP_GRACE_S", "SANDBOX_KILL_TIMEOUT_S"):
        monkeypatch.setattr(sandbox, constant, 10 * TEST_TIMEOUT_S)
    name = f"stop-{os.getpid()}"
    script = "sleep 1000 & echo $! > command; touch begun; while :; do wait; done"
    plan = ProcessPlan(
        argv=["/bin/sh", "-c", script],
        env={"PATH": os.defpath, "CHATD_WORKSPACE_ID": name},
        cwd=str(tmp_path),
    )
    order = SandboxOrder(
        workspace=name, build=1, plan=plan, socket=str(tmp_path / "socket"),
        log=str(tmp_path / "log"), namespaced=False,
    )  # fmt: skip
    events: list[str] = []
    made = Sandbox(order, processes_dir=tmp_path, log_event=events.append)

    async def is_begun() -> bool:
        return (tmp_path / "begun").exists()

    async with asyncio.timeout(TEST_TIMEOUT_S), asyncio.TaskGroup() as group:
        group.create_task(made.run())
        await eventually(is_begun, within_s=TEST_TIMEOUT_S)
        command = int((tmp_path / "command").read_text())
        made.kill_processes("too large")

        async def is_new() -> bool:
            return made.state.starts == 2

        await eventually(is_new, within_s=TEST_TIMEOUT_S)
        assert read_process_id(command) is None
        await made.stop()
    assert events == [f"workspace {name}: too large"]


async def test_two_servers_share_one_supervisor(rig: LocalRig) -> None:
    """Both start one, and the second exits. They do not set up one workspace at the same time."""
    other = LocalRig(LocalConfig(data_dir=rig.data_dir, host_id=HOST))
    for each in (rig, other):
        await each.backend.prepare()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(rig.start())
        second = tasks.create_task(other.start())
        third = tasks.create_task(other.start(again=WORKSPACE))
        same = tasks.create_task(rig.start(again=WORKSPACE))
    assert third.result().agent == same.result().agent
    names = {first.result().name, second.result().name, str(WORKSPACE)}
    assert (
        set(await rig.supervisor.list_running())
        == set(await other.supervisor.list_running())
        == names
    )
    log = (rig.data_dir / "ws-supervisor" / "supervisor.log").read_text()
    assert log.count("ready") == 1


async def test_an_idle_supervisor_exits(tmp_path: Path) -> None:
    with data_directory() as data_dir:
        rig = LocalRig(LocalConfig(data_dir=data_dir, host_id=HOST, supervisor_idle_s=0.2))
        pid = (await rig.supervisor.hello()).pid
        await wait_exited(pid, parent_of(pid))
        assert not (data_dir / "ws-supervisor" / "socket").exists()
        assert (await rig.supervisor.hello()).pid != pid
        await rig.close()


async def send_raw(rig: LocalRig, line: bytes) -> dict[str, object]:
    path = rig.data_dir / "ws-supervisor" / "socket"
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(line)
    writer.write_eof()
    async with asyncio.timeout(TEST_TIMEOUT_S):
        answer = await reader.read()
    writer.close()
    return json.loads(answer)


async def test_invalid_requests_are_refused_and_harmless(rig: LocalRig) -> None:
    pid = (await rig.supervisor.hello()).pid
    for line in (
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b'{"protocol": 1}\n',
        b"x" * 600_000,
    ):
        assert (await send_raw(rig, line))["code"] == "bad_question", line[:20]
    order = SandboxOrder(
        workspace="../x",
        build=1,
        plan=ProcessPlan(argv=[], env={}),
        socket="",
        log="",
        namespaced=True,
    )
    request: dict[str, object] = {"op": "start", "order": encode_json(order)}
    for fields, code in (
        ({"protocol": 99, "op": "hello"}, "protocol"),
        ({"protocol": 1, "op": "dance"}, "bad_question"),
        ({"protocol": 1, **request}, "bad_question"),
    ):
        assert (await send_raw(rig, json.dumps(fields).encode() + b"\n"))["code"] == code
    assert (await rig.supervisor.hello()).pid == pid


@pytest.mark.skipif(not AS_ROOT, reason="only root can act under another account")
async def test_another_account_is_refused_even_if_it_reaches_the_socket(rig: LocalRig) -> None:
    await rig.supervisor.hello()
    directory = rig.data_dir / "ws-supervisor"
    for path in (directory, *directory.parents[:2]):
        path.chmod(0o755)
    (directory / "socket").chmod(0o666)
    script = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        " print(s.makefile().read())"
    )
    client = await asyncio.create_subprocess_exec(
        "/usr/bin/python3", "-c", script, directory / "socket",
        user=65534, stdout=asyncio.subprocess.PIPE, cwd="/",
    )  # fmt: skip
    async with asyncio.timeout(TEST_TIMEOUT_S):
        output, _ = await client.communicate()
    assert json.loads(output)["code"] == "forbidden"


def test_unknown_fields_of_an_order_are_ignored() -> None:
    """A newer server may send them to an older supervisor."""
    order = SandboxOrder(
        workspace="w",
        build=1,
        plan=ProcessPlan(
            argv=["x"], env={}, fence=PathRules(readable=["/usr"], writable=[], network=False)
        ),
        socket="s",
        log="l",
        namespaced=True,
    )
    fields = json.loads(json.dumps(encode_json(order)))
    fields["colour"] = fields["plan"]["colour"] = fields["plan"]["fence"]["colour"] = "blue"
    assert decode_order(fields) == order


async def test_an_unreachable_supervisor_does_not_count_as_stopped(tmp_path: Path) -> None:
    """A stopped workspace may be removed, and a full connection queue proves nothing."""
    client = SupervisorClient(tmp_path, SystemClock())
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(tmp_path / SOCKET_FILE))
        listener.listen(0)
        first.connect(str(tmp_path / SOCKET_FILE))
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client.inspect("some")
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client.stop("some", 1)
    assert await client.inspect("some") is None


class CountedSleeps(SystemClock):
    """Sleeps return at once; the sleep of this number calls `last`."""

    def __init__(self, number: int, last: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._left = number
        self._last = last

    async def sleep(self, seconds: float, tag: str) -> None:
        del seconds, tag
        self._left -= 1
        if self._left == 0:
            await self._last()


async def test_a_held_lock_is_waited_for_and_no_supervisor_is_started(tmp_path: Path) -> None:
    """Its holder may have to kill stray processes before it listens."""
    async with contextlib.AsyncExitStack() as stack:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(b'{"protocol": 1, "ok": true, "pid": 7}\n')
            writer.close()

        async def start_listening() -> None:
            path = tmp_path / SOCKET_FILE
            await stack.enter_async_context(await asyncio.start_unix_server(answer, path))

        client = GreetingSupervisorClient(tmp_path, CountedSleeps(30, start_listening))
        with (tmp_path / LOCK_FILE).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert (await client.hello()).pid == 7
    assert not (tmp_path / LOG_FILE).exists()


async def test_a_sandbox_without_its_system_call_filter_is_reported(
    rig: LocalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a supervisor of an earlier version starts it: no process in it has a filter of its own."""

    def list_unfiltered(_pid: int) -> list[int]:
        return [os.getpid()]

    filtered = await rig.start()
    assert not any("earlier version" in line for line in rig.log)
    monkeypatch.setattr(isolation, "children_of", list_unfiltered)
    unfiltered = await rig.start()
    assert any(line.startswith("agent warning a supervisor of an earlier") for line in rig.log)
    assert set(await rig.supervisor.list_running()) >= {filtered.name, unfiltered.name}
