"""Who outlives whom: servers, the supervisor, sandboxes. Real processes that are really killed."""

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
from chatd.workspaces.builds.backend import BuildFailed
from chatd.workspaces.local.backend import LocalConfig
from chatd.workspaces.local.supervisor.plan import (
    PathRules,
    ProcessPlan,
    SandboxOrder,
    decode_order,
    encode_json,
)
from chatd.workspaces.local.supervisor.processes import children_of, read_process_id
from chatd.workspaces.local.supervisor.saved_orders import SavedOrders
from chatd.workspaces.local.supervisor.service import (
    LOCK_FILE,
    LOG_FILE,
    MAX_FAST_RESTARTS,
    SOCKET_FILE,
    run_with_restarts,
)
from chatd.workspaces.local.supervisor_client import SupervisorClient
from tests.support.eventually import eventually
from tests.support.local_rig import (
    AS_ROOT,
    HOST,
    NO_SANDBOX,
    NOBODY,
    WITHIN_S,
    Rig,
    Running,
    data_directory,
    parent_of,
    rig_with,
    shared_kits,
    until_gone,
)
from tests.support.processes import running as server_process

pytestmark = [
    pytest.mark.skipif(NO_SANDBOX, reason="bubblewrap is not installed"),
    # Seconds on an idle host; on one that is busy ten times over a server alone takes a minute to
    # start and make its first workspace.
    pytest.mark.timeout(240),
]

SERVER = "tests.support.local_server"
WORKSPACE = WorkspaceId(uuid5(NOBODY, f"kept for {os.getpid()}"))
"""Of this process alone: control groups are named by it, and belong to the whole host."""


@pytest.fixture
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Rig]:
    with data_directory(shared_kits(tmp_path_factory)) as data_dir:
        async with rig_with(LocalConfig(data_dir=data_dir, host_id=HOST)) as rig:
            yield rig


async def everyone_in(rig: Rig, running: Running) -> list[int]:
    """The processes of a sandbox by their ids on the host, the outermost first."""
    told = (await rig.supervision.list_running())[running.name]
    found = [told.pid]
    for pid in found:
        found += children_of(pid)
    return found


async def begin_sleeping(rig: Rig, running: Running) -> None:
    """In a session of its own, so that only the sandbox holds it."""
    client = await rig.client(running)
    await client.start_process("setsid -f sleep 1000; touch begun; sleep 1000", key="sleep")

    async def begun() -> bool:
        return (rig.home(running) / "begun").exists()

    await eventually(begun, within_s=WITHIN_S)


async def test_a_killed_server_leaves_its_workspaces_running(rig: Rig) -> None:
    async with server_process(SERVER, str(rig.data_dir)) as server:
        await server.ask(f"start {WORKSPACE} 1")
        await server.ask("run sleep 1000 >/dev/null 2>&1 & echo $! > pid")
        server.kill()
    inside = (await rig.supervision.list_running())[str(WORKSPACE)]
    found = await rig.start(again=WORKSPACE)
    assert await rig.says(found, "kill -0 $(cat pid) && echo alive") == "alive"
    after = (await rig.supervision.list_running())[str(WORKSPACE)]
    assert (after.pid, after.starts) == (inside.pid, 1)
    assert (await rig.backend.inspect(found.workspace)).state == "running"


async def test_a_killed_supervisor_is_followed_by_another_with_the_same_workspaces(
    rig: Rig,
) -> None:
    """At once and by nobody's doing; only when all who keep them are gone, they are stopped."""
    started = await rig.start()
    await begin_sleeping(rig, started)
    everyone = await everyone_in(rig, started)
    assert len(everyone) > 4
    connected = await rig.connect(started)
    keeper = parent_of(first := rig.supervisor())
    os.kill(first, signal.SIGKILL)
    assert (await rig.backend.inspect(started.workspace)).state == "running"
    await until_gone(*everyone)
    await rig.reborn(started, connected.hello.boot_id)
    assert await rig.says(started, "ls begun") == "begun"
    assert parent_of(rig.supervisor()) == keeper != first
    everyone = await everyone_in(rig, started)
    await rig.kill_supervisor()
    await until_gone(*everyone)
    assert (await rig.backend.inspect(started.workspace)).state == "stopped"
    assert (rig.data_dir / "ws-supervisor" / "lock").read_text() == ""
    again = await rig.start(again=started.workspace.id, build=2)
    assert await rig.says(again, "ls begun; ls /proc | grep -c '^[0-9]'") != ""
    await rig.stop(again, build=3)
    os.kill(rig.supervisor(), signal.SIGKILL)
    assert await rig.supervision.list_running() == {}


@contextlib.contextmanager
def forked(work: Callable[[], None]) -> Generator[int]:
    """A process that does this and nothing else, and is gone afterwards with all it has begun."""
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


def test_whoever_keeps_the_supervisor_starts_another_until_it_is_told_to_end() -> None:
    reader, writer = os.pipe()
    ready = os.dup(writer)

    def live(first: int | None) -> None:
        os.write(writer, b"again" if first is None else b"first")
        if first is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    def keeping() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # As it may have been inherited.
        run_with_restarts(live, ready, should_restart=lambda how: how == "ended with -9")

    with forked(keeping) as keeper:
        os.close(ready)
        os.close(writer)
        assert os.read(reader, 5) == b"first"
        assert os.read(reader, 5) == b"again"
        os.kill(keeper, signal.SIGTERM)
        assert os.waitpid(keeper, 0)[1] == 0
    os.close(reader)


@pytest.mark.parametrize(
    ("number", "lives"), [(signal.SIGKILL, MAX_FAST_RESTARTS + 1), (signal.SIGTERM, 1)]
)
def test_supervisors_that_all_die_young_are_given_up(
    number: signal.Signals, lives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is told to end as soon as it is there has no follower."""
    monkeypatch.setattr(
        "chatd.workspaces.local.supervisor.service.FIRST_SERVICE_RESTART_DELAY_S", 0.001
    )
    reader, writer = os.pipe()
    ready = os.dup(writer)

    def live(first: int | None) -> None:
        del first
        os.write(writer, b".")
        os.kill(os.getpid(), number)

    with forked(lambda: run_with_restarts(live, ready, should_restart=lambda _: True)) as keeper:
        os.close(ready)
        os.close(writer)
        assert os.waitpid(keeper, 0)[1] == 0
    with open(reader, "rb") as seen:
        assert seen.read() == b"." * lives


def test_what_is_remembered_is_whole_or_nothing() -> None:
    memory = SavedOrders()
    assert (memory.is_started, memory.read()) == (False, [])
    for lines in ([], [b"a", b"b" * 100_000], [b"c"], []):
        memory.write(lines)
        assert (memory.is_started, memory.read()) == (True, lines)


def test_what_cannot_be_remembered_is_forgotten() -> None:
    """In a process that may not write so much."""
    memory = SavedOrders()
    memory.write([b"a"])

    def write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        memory.write([b"b" * 100])

    with forked(write) as child:
        assert os.waitpid(child, 0)[1] == 0
    assert (memory.is_started, memory.read()) == (True, [])


@pytest.mark.covers("T47")
async def test_a_sandbox_that_a_killed_supervisor_lost_is_ended_by_the_next(rig: Rig) -> None:
    """A gap that only a kill between two system calls can open; here it is held open."""
    await rig.supervision.hello()
    orphan = await asyncio.create_subprocess_exec("sleep", "1000")
    await rig.kill_supervisor()
    births = rig.data_dir / "ws-supervisor" / "births"
    (births / "lost").write_text(str(read_process_id(orphan.pid)))
    (births / "long-gone").write_text(f"{os.getpid()} 1")
    await rig.supervision.hello()
    async with asyncio.timeout(WITHIN_S):
        assert await orphan.wait() == -signal.SIGKILL
    assert list(births.iterdir()) == []


@pytest.mark.covers("T47")
async def test_stopping_ends_everything_and_keeps_the_files(rig: Rig) -> None:
    started = await rig.start()
    await begin_sleeping(rig, started)
    everyone = await everyone_in(rig, started)
    kits = [path.name for path in (rig.data_dir / "ws-toolbox").iterdir() if path.is_dir()]
    assert await rig.supervision.words_in_use([*kits, "another"]) == set(kits) != set()
    await rig.stop(started, build=2)
    assert await rig.supervision.words_in_use(kits) == set()
    assert [pid for pid in everyone if read_process_id(pid)] == []
    assert (rig.home(started) / "begun").exists()
    await rig.stop(started, build=2)
    assert (await rig.backend.inspect(started.workspace)).state == "stopped"
    await rig.delete(started.workspace.id, build=3)
    assert (await rig.backend.inspect(started.workspace)).state == "gone"
    assert await rig.backend.workspaces() == []


async def test_two_servers_share_one_supervisor(rig: Rig) -> None:
    """Both find none and start one; one of the two gives way. Nor do they make one workspace at
    the same time."""
    other = Rig(LocalConfig(data_dir=rig.data_dir, host_id=HOST))
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
        set(await rig.supervision.list_running())
        == set(await other.supervision.list_running())
        == names
    )
    log = (rig.data_dir / "ws-supervisor" / "supervisor.log").read_text()
    assert log.count("ready") == 1


async def test_a_build_that_is_asked_for_twice_is_done_once(rig: Rig) -> None:
    started = await rig.start()
    first = (await rig.supervision.list_running())[started.name]
    assert (await rig.start(again=started.workspace.id)).agent == started.agent
    assert (await rig.supervision.list_running())[started.name] == first
    later = await rig.start(again=started.workspace.id, build=3)
    assert later.agent.id != started.agent.id
    with pytest.raises(BuildFailed, match="has replaced it"):
        await rig.start(again=started.workspace.id, build=2)
    assert (await rig.supervision.list_running())[started.name].build == 3


async def test_a_supervisor_that_nobody_needs_leaves(tmp_path: Path) -> None:
    with data_directory() as data_dir:
        rig = Rig(LocalConfig(data_dir=data_dir, host_id=HOST, supervisor_idle_s=0.2))
        pid = (await rig.supervision.hello()).pid
        await until_gone(pid, parent_of(pid))
        assert not (data_dir / "ws-supervisor" / "socket").exists()
        assert (await rig.supervision.hello()).pid != pid
        await rig.end()


async def ask_raw(rig: Rig, line: bytes) -> dict[str, object]:
    path = rig.data_dir / "ws-supervisor" / "socket"
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(line)
    writer.write_eof()
    async with asyncio.timeout(WITHIN_S):
        answer = await reader.read()
    writer.close()
    return json.loads(answer)


async def test_bad_questions_are_refused_and_harm_nobody(rig: Rig) -> None:
    pid = (await rig.supervision.hello()).pid
    for line in (
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b'{"protocol": 1}\n',
        b"x" * 600_000,
    ):
        assert (await ask_raw(rig, line))["code"] == "bad_question", line[:20]
    order = SandboxOrder(
        workspace="../x",
        build=1,
        plan=ProcessPlan(argv=[], env={}),
        socket="",
        log="",
        namespaced=True,
    )
    question: dict[str, object] = {"op": "start", "order": encode_json(order)}
    for fields, code in (
        ({"protocol": 99, "op": "hello"}, "protocol"),
        ({"protocol": 1, "op": "dance"}, "bad_question"),
        ({"protocol": 1, **question}, "bad_question"),
    ):
        assert (await ask_raw(rig, json.dumps(fields).encode() + b"\n"))["code"] == code
    assert (await rig.supervision.hello()).pid == pid


@pytest.mark.skipif(not AS_ROOT, reason="only root can act under another account")
async def test_another_account_is_refused_even_if_it_reaches_the_socket(rig: Rig) -> None:
    await rig.supervision.hello()
    place = rig.data_dir / "ws-supervisor"
    for path in (place, *place.parents[:2]):
        path.chmod(0o755)
    (place / "socket").chmod(0o666)
    script = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        " print(s.makefile().read())"
    )
    asking = await asyncio.create_subprocess_exec(
        "/usr/bin/python3", "-c", script, place / "socket",
        user=65534, stdout=asyncio.subprocess.PIPE, cwd="/",
    )  # fmt: skip
    async with asyncio.timeout(WITHIN_S):
        said, _ = await asking.communicate()
    assert json.loads(said)["code"] == "forbidden"


def test_an_order_of_a_newer_server_is_understood() -> None:
    """What an older supervisor does not know it does not need."""
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


async def test_a_supervisor_that_cannot_be_asked_is_not_taken_for_gone(tmp_path: Path) -> None:
    """What is believed to be stopped may be removed: a full queue proves nothing."""
    supervision = SupervisorClient(tmp_path, SystemClock())
    with socket.socket(socket.AF_UNIX) as deaf, socket.socket(socket.AF_UNIX) as first:
        deaf.bind(str(tmp_path / SOCKET_FILE))
        deaf.listen(0)
        first.connect(str(tmp_path / SOCKET_FILE))
        with pytest.raises(Unavailable, match="cannot be reached"):
            await supervision.inspect("some")
        with pytest.raises(Unavailable, match="cannot be reached"):
            await supervision.stop("some", 1)
    assert await supervision.inspect("some") is None


class Looks(SystemClock):
    """Without waiting; `last` is done at the look of this number."""

    def __init__(self, number: int, last: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._left = number
        self._last = last

    async def sleep(self, seconds: float, tag: str) -> None:
        del seconds, tag
        self._left -= 1
        if self._left == 0:
            await self._last()


async def test_whoever_holds_the_lock_is_waited_for_and_no_other_is_started(tmp_path: Path) -> None:
    """It may have to end what another has left before it can answer."""
    async with contextlib.AsyncExitStack() as stack:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(b'{"protocol": 1, "ok": true, "pid": 7}\n')
            writer.close()

        async def listen() -> None:
            path = tmp_path / SOCKET_FILE
            await stack.enter_async_context(await asyncio.start_unix_server(answer, path))

        supervision = SupervisorClient(tmp_path, Looks(30, listen))
        with (tmp_path / LOCK_FILE).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert (await supervision.hello()).pid == 7
    assert not (tmp_path / LOG_FILE).exists()
