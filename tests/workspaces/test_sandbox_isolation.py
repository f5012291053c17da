"""What a workspace cannot do: attempts from inside one of two real sandboxes, at every isolation
level that this machine offers."""

import asyncio
import contextlib
import ctypes
import os
import platform
import shutil
import socket
from collections.abc import Generator
from pathlib import Path
from shlex import quote

import pytest

from chatd.clock import SystemClock
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.domain.workspace.entities import DemoSeed, ResourceLimits, TemplateSpec
from chatd.workspaces.agents.agent_client import AgentClient
from chatd.workspaces.local.local_backend import LocalConfig
from chatd.workspaces.local.sandbox_command import IsolationLevel, has_namespaces
from chatd.workspaces.local.supervisor.seccomp import (
    CALLS,
    DENIED,
    DENIED_AMONG_FOREIGN_PROCESSES,
)
from tests.support.eventually import eventually
from tests.support.local_rig import (
    AS_ROOT,
    HOST,
    LocalRig,
    RunningWorkspace,
    close_supervisor_of,
    data_directory,
    offered_levels,
)

MIB = 1024 * 1024
# Under the server's own account the limit counts the processes of the tests too.
PROCESSES = 48 if AS_ROOT else 1000
SPEC = TemplateSpec(
    seed=DemoSeed(),
    env={"PROJECT": "basket"},
    limits=ResourceLimits(
        memory_bytes=256 * MIB, processes=PROCESSES, file_bytes=8 * MIB, open_files=256
    ),
)
SESSION_KEYRING, USER_KEYRING = -3, -4
SERVERS_KEY = "chatd-test-key-of-the-server"


class Pair:
    """A workspace that attacks, and another that must not notice."""

    def __init__(self, rig: LocalRig, mine: RunningWorkspace, other: RunningWorkspace) -> None:
        self.rig = rig
        self.mine = mine
        self.other = other
        self.home = "/home/dev" if self.has_namespaces else str(rig.home(mine))

    @property
    def level(self) -> str:
        return self.mine.agent.isolation

    @property
    def has_namespaces(self) -> bool:
        return self.level in ("bwrap+uid", "bwrap")

    @property
    def closes_paths(self) -> bool:
        return self.level != "none"

    async def output_of(self, command: str) -> str:
        return await self.rig.output_of(self.mine, command)

    async def run_python(self, program: str) -> str:
        """Run a program of Python in the workspace that attacks."""
        client = await self.rig.client(self.mine)
        key = os.urandom(8).hex()
        await client.write_file(f"{self.home}/{key}.py", program.encode(), key=key)
        return await self.output_of(f"python3 {self.home}/{key}.py")


@pytest.fixture(scope="module")
def kits() -> Generator[Path]:
    """Every account can enter it, as workspaces without namespaces must."""
    with data_directory() as kits:
        kits.parent.chmod(0o711)
        kits.chmod(0o755)
        yield kits


Started = tuple[LocalConfig, RunningWorkspace, RunningWorkspace]


@pytest.fixture(scope="module", params=offered_levels())
def started(kits: Path, request: pytest.FixtureRequest) -> Generator[Started]:
    """Run by the supervisor, so that each test can have its own event loop."""
    level: IsolationLevel = request.param
    with data_directory(kits) as data_dir:
        if not has_namespaces(level):
            data_dir.chmod(0o711)
            data_dir.parent.chmod(0o711)
        config = LocalConfig(data_dir=data_dir, host_id=HOST, levels=(level,), allow_unsafe=True)

        async def start() -> tuple[RunningWorkspace, RunningWorkspace]:
            rig = LocalRig(config)
            return await rig.start(SPEC), await rig.start()

        _add_server_key()
        mine, other = asyncio.run(start())
        assert mine.agent.isolation == level
        yield config, mine, other
        close_supervisor_of(data_dir)


def _add_server_key() -> None:
    """A key in the session keyring of the server, from which the workspaces descend."""
    words = (b"user", SERVERS_KEY.encode(), b"secret", ctypes.c_size_t(6))
    keyring = ctypes.c_int(SESSION_KEYRING)
    ctypes.CDLL(None).syscall(CALLS[platform.machine()]["add_key"], *words, keyring)


@pytest.fixture
async def pair(started: Started) -> Pair:
    config, mine, other = started
    return Pair(LocalRig(config), mine, other)


async def test_only_programs_of_the_host_are_visible(pair: Pair) -> None:
    if not pair.has_namespaces:
        pytest.skip("the workspace sees the names of the host's directories")
    seen = set((await pair.output_of("ls -A /")).split())
    system = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"}
    assert seen <= system | {"dev", "etc", "home", "opt", "proc", "run", "tmp"}
    assert (
        await pair.output_of("ls -A /home /run /opt")
        == "/home:\ndev\n\n/opt:\nchatd\n\n/run:\nchatd"
    )


@pytest.mark.covers("hostile-8")
async def test_the_home_of_the_host_cannot_be_read(pair: Pair) -> None:
    secrets = [pair.rig.data_dir, pair.rig.data_dir / "ws-supervisor", Path("/etc/shadow")]
    if pair.closes_paths:
        secrets += [Path("/root"), Path(__file__).parent]
    elif not AS_ROOT:
        pytest.skip("the workspace has the server's account and all its files")
    for path in secrets:
        output = await pair.rig.run(pair.mine, f"ls {quote(str(path))}/ || cat {quote(str(path))}")
        assert output.exit_code != 0, path
        expected = "No such file" if pair.has_namespaces else "Permission denied"
        assert expected in output.output, path


@pytest.mark.covers("hostile-8")
async def test_other_workspaces_cannot_be_seen(pair: Pair) -> None:
    secret = pair.rig.home(pair.other) / "a-name-to-look-for"
    secret.write_text("secret")
    if not pair.closes_paths and not AS_ROOT:
        pytest.skip("all workspaces have the server's account")
    assert "secret" not in await pair.output_of(f"cat {secret.parent}/*for {secret}")
    if not pair.has_namespaces:
        return
    assert await pair.output_of("find / -xdev -name 'a-name-to-look*' 2>/dev/null") == ""
    assert (
        await pair.output_of("find /home /run /tmp /opt -name 'a-name-to-look*' 2>/dev/null") == ""
    )
    assert pair.other.name not in await pair.output_of("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


@pytest.mark.covers("hostile-8")
async def test_there_is_no_network(pair: Pair) -> None:
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    refused = "ConnectionRefusedError" if pair.has_namespaces else "Address family not supported"
    async with server:
        command = f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}))\""
        assert refused in await pair.output_of(command)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(0)
        send = f"sendto(b'x', ('127.0.0.1', {listener.getsockname()[1]}))"
        await pair.output_of(f'python3 -c "import socket; socket.socket(type=2).{send}"')
        with pytest.raises(BlockingIOError):
            listener.recv(1)
    if pair.has_namespaces:
        names = await pair.output_of("python3 -c 'import socket; print(socket.if_nameindex())'")
        assert names == "[(1, 'lo')]"


@pytest.mark.covers("hostile-8")
async def test_few_kinds_of_sockets_can_be_opened(pair: Pair) -> None:
    """A virtual machine's sockets, for example, know no network namespace."""
    tried = await pair.run_python(
        "import errno, socket\n"
        "for family in range(46):\n"
        "    for protocol in (0, 15) if family == socket.AF_NETLINK else (0,):\n"
        "        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):\n"
        "            try: socket.socket(family, kind, protocol).close()\n"
        "            except OSError as error:\n"
        "                if error.errno == errno.EAFNOSUPPORT: continue\n"
        "            print(family, protocol)\n"
    )
    internet = {("2", "0"), ("10", "0")} if pair.has_namespaces else set[tuple[str, str]]()
    assert {tuple(line.split()) for line in tried.splitlines()} <= {
        *(("1", "0"), ("16", "0")), *internet
    }  # fmt: skip


@pytest.mark.covers("hostile-8")
async def test_the_keys_of_the_server_cannot_be_read(pair: Pair) -> None:
    if pair.has_namespaces or AS_ROOT:  # The kernel tells an account the names of its keys.
        assert SERVERS_KEY not in await pair.output_of("cat /proc/keys")
    calls = CALLS[platform.machine()]
    found = await pair.run_python(
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for ring in ({SESSION_KEYRING}, {USER_KEYRING}):\n"
        f"    words = b'user', b'{SERVERS_KEY}', ctypes.c_int(0)\n"
        f"    key = libc.syscall({calls['keyctl']}, 10, ctypes.c_int(ring), *words)\n"
        "    print(key, os.strerror(ctypes.get_errno()))\n"
        f"    key = libc.syscall({calls['add_key']}, *words[:2], b'x', 1, ctypes.c_int(ring))\n"
        "    print(key, os.strerror(ctypes.get_errno()))\n"
    )
    assert found.splitlines() == ["-1 Operation not permitted"] * 4


@pytest.mark.covers("hostile-8")
async def test_the_kernel_denies_each_call_of_the_filter(pair: Pair) -> None:
    """With arguments that the kernel itself would find invalid, not forbidden."""
    calls = CALLS[platform.machine()]
    denied = DENIED if pair.has_namespaces else (*DENIED, *DENIED_AMONG_FOREIGN_PROCESSES)
    answers = await pair.run_python(
        "import ctypes, errno\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for name, number in {[(name, calls[name]) for name in denied]!r}:\n"
        "    code = libc.syscall(number, *[ctypes.c_long(-1)] * 6)\n"
        "    print(name, code, errno.errorcode[ctypes.get_errno()])\n"
    )
    assert answers.splitlines() == [f"{name} -1 EPERM" for name in denied]
    status = await pair.output_of("grep -h '^Seccomp:' /proc/self/status")
    assert status == "Seccomp:\t2"
    if pair.has_namespaces:  # Its first process is not a way around the filter either.
        assert await pair.output_of("grep -h '^Seccomp:' /proc/1/status") == status


async def test_processes_outside_cannot_be_traced(pair: Pair) -> None:
    program = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"print(libc.ptrace(16, {os.getpid()}, 0, 0), ctypes.get_errno())\n"
    )
    assert await pair.run_python(program) == ("-1 3" if pair.has_namespaces else "-1 1")


async def test_the_log_of_the_agent_cannot_be_forged(pair: Pair) -> None:
    """Neither through the descriptors of another process nor by a debugger."""
    if not AS_ROOT and not pair.has_namespaces:
        pytest.skip("the workspace shares the account of the server")
    program = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    if int(pid) in (os.getpid(), os.getppid()): continue\n"
        "    for fd in range(16):\n"
        "        try: open(f'/proc/{pid}/fd/{fd}', 'a').write('forged\\n')\n"
        "        except OSError: pass\n"
        "        else: print('opened', pid, fd)\n"
        "    if libc.ptrace(16, int(pid), 0, 0) == 0: print('traced', pid)\n"
    )
    assert await pair.run_python(program) == ""
    log = pair.rig.home(pair.mine).parent / "log" / "agent.log"
    assert "listens" in log.read_text()
    assert "forged" not in log.read_text()


@pytest.mark.parametrize(
    "damage",
    ["rm {socket}", "rm {socket}; mkdir {socket} {run}/new; touch {socket}/file; chmod 0 {run}"],
)
async def test_an_agent_is_reached_again_after_its_socket_was_removed(
    pair: Pair, damage: str
) -> None:
    run = "/run/chatd" if pair.has_namespaces else str(pair.rig.home(pair.mine).parent / "run")
    before = (await pair.rig.connect(pair.mine)).hello.boot_id
    with contextlib.suppress(AgentUnreachable):  # while it waits for the end of the command
        await pair.output_of(damage.format(socket=f"{run}/agent.sock", run=run))

    async def boot_id() -> str | None:
        with contextlib.suppress(AgentUnreachable):
            return (await pair.rig.connect(pair.mine)).hello.boot_id
        return None

    assert await eventually(boot_id) == before  # the same agent, with its processes
    assert await pair.output_of("echo here") == "here"


async def test_ordinary_tools_still_work(pair: Pair) -> None:
    work = (
        "import socket, subprocess, threading\n"
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n"
        "print(subprocess.check_output(['echo', 'child'], text=True), end='')\n"
        "left, right = socket.socketpair(); left.send(b'pair'); print(right.recv(4).decode())\n"
        "print(bool(socket.if_nameindex()))\n"
    )
    assert await pair.run_python(work) == "thread\nchild\npair\nTrue"
    if pair.has_namespaces:
        pool = "import multiprocessing as m; print(sum(m.Pool(2).map(abs, [-1, -2])))"
        assert await pair.run_python(pool) == "3"
    git = "git init -q r && cd r && git commit -q --allow-empty -m first && git gc -q && git log"
    assert "first" in await pair.output_of(git)
    if shutil.which("node", path="/usr/bin"):
        limits = "ulimit -v unlimited"
        node = (
            "const os=require('os'); os.networkInterfaces(); fs.promises.readFile('/proc/version')"
        )
        node = f"const fs=require('fs'); {node}.then(() => console.log('read'))"
        assert await pair.output_of(f'{limits}; node -e "{node}"') == "read"


async def test_there_are_no_privileges_and_none_can_be_gained(pair: Pair) -> None:
    status = await pair.output_of("grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    words = dict(line.split(":\t") for line in status.splitlines())
    assert int(words.pop("NoNewPrivs")) == 1
    assert AS_ROOT or pair.has_namespaces or int(words.pop("CapBnd"), 16) >= 0
    assert {int(value, 16) for value in words.values()} == {0}
    assert (await pair.rig.run(pair.mine, "unshare --user true")).exit_code != 0
    assert (await pair.rig.run(pair.mine, "mount -t tmpfs none /tmp")).exit_code != 0


async def test_only_the_home_and_temporary_directories_are_writable(pair: Pair) -> None:
    kit = "/opt/chatd" if pair.has_namespaces else str(pair.rig.data_dir / "ws-toolbox")
    for path in ("/x", "/dev/x", "/etc/x", "/usr/x", f"{kit}/x", "/proc/sys/kernel/hostname"):
        if AS_ROOT or pair.closes_paths or not os.access(Path(path).parent, os.W_OK):
            assert (await pair.rig.run(pair.mine, f"echo x > {path}")).exit_code != 0, path
    assert await pair.output_of("echo x > ~/x && echo x > $TMPDIR/x && echo yes") == "yes"
    shared = "echo x > /tmp/x && echo x > /dev/shm/x && echo yes"
    if pair.closes_paths:
        assert (await pair.output_of(shared) == "yes") is pair.has_namespaces


@pytest.mark.covers("hostile-8")
@pytest.mark.promise("P13")
async def test_processes_inherit_nothing_from_the_server(pair: Pair) -> None:
    names = await pair.output_of("cat /proc/self/environ | tr '\\0' '\\n' | cut -d= -f1")
    assert set(names.split()) <= {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "PWD", "PROJECT"),
        *("CHATD_WORKSPACE_ID", "PYTHONPATH", "GIT_CONFIG_SYSTEM"),
    }
    if pair.has_namespaces:
        assert (await pair.rig.run(pair.mine, "cat /proc/1/environ")).exit_code != 0
    list_fds = "for n in 0 1 2 3 4 5 6 7 8 9; do test -e /proc/self/fd/$n && echo $n; done; true"
    assert (await pair.output_of(list_fds)).split() == ["0", "1", "2"]
    assert await pair.output_of("echo $PROJECT") == "basket"


@pytest.mark.skipif(not AS_ROOT, reason="only root assigns accounts to workspaces")
async def test_each_workspace_has_an_account_of_its_own(pair: Pair) -> None:
    await pair.output_of("touch mine")
    await pair.rig.run(pair.other, "touch mine")
    owners = {(pair.rig.home(each) / "mine").stat().st_uid for each in (pair.mine, pair.other)}
    assert len(owners) == 2
    assert min(owners) > 1000
    inside = (
        "1000" if pair.has_namespaces else str((pair.rig.home(pair.mine) / "mine").stat().st_uid)
    )
    assert await pair.output_of("id -u") == inside


@pytest.mark.covers("hostile-2")
async def test_a_fork_bomb_is_bounded_and_does_not_affect_other_workspaces(pair: Pair) -> None:
    # It reaps its children itself: later tests need free process slots.
    bomb = (
        "import os, signal\nchildren = []\n"
        "try:\n"
        f"    while len(children) < {10 * PROCESSES}:\n"
        "        child = os.fork()\n"
        "        if child == 0: signal.pause()\n"
        "        children.append(child)\n"
        "except BlockingIOError: print('refused')\n"
        "print(len(children))\n"
        "for child in children: os.kill(child, signal.SIGKILL)\n"
        "for child in children: os.waitpid(child, 0)\n"
    )
    refused, count = (await pair.run_python(bomb)).split()[:2]
    assert refused == "refused"
    assert int(count) < PROCESSES
    assert await pair.rig.output_of(pair.other, "echo fine") == "fine"


@pytest.mark.covers("hostile-3")
async def test_a_file_cannot_grow_over_the_limit(pair: Pair) -> None:
    output = await pair.rig.run(pair.mine, "head -c 100M /dev/zero > big; echo $?; stat -c %s big")
    code, size = output.output.split()[-2:]
    assert code != "0"
    assert int(size) == 8 * MIB


@pytest.mark.covers("hostile-2")
async def test_memory_is_bounded(pair: Pair) -> None:
    greedy = "python3 -c 'x = bytearray(600 * 1024 * 1024); print(len(x))'"
    output = await pair.rig.run(pair.mine, greedy)
    assert output.exit_code != 0
    assert str(600 * MIB) not in output.output


@pytest.mark.covers("hostile-2")
async def test_commands_are_killed_before_the_agent_when_memory_is_short(pair: Pair) -> None:
    """Even if each of them is smaller than the agent."""
    if not pair.mine.agent.limits or "memory_bytes" in pair.mine.agent.limits.per_process:
        pytest.skip("without control groups each process has its own limit")
    before = await pair.rig.connect(pair.mine)
    crowd = (
        "import os, signal\n"
        "children = []\n"
        "for _ in range(24):\n"
        "    children.append(os.fork())\n"
        "    if not children[-1]:\n"
        "        kept = os.urandom(12 * 1024 * 1024)\n"
        "        signal.pause()\n"
        "first, status = os.wait()\n"
        "for child in children:\n"
        "    if child != first: os.kill(child, signal.SIGKILL), os.waitpid(child, 0)\n"
        "print(os.WTERMSIG(status))\n"
    )
    assert await pair.run_python(crowd) == "9"
    assert (await pair.rig.connect(pair.mine)).hello.boot_id == before.hello.boot_id


async def test_the_demo_project_fails_its_tests_until_it_is_repaired(pair: Pair) -> None:
    """pytest runs in a workspace, and git shows the change."""
    before = await pair.rig.run(pair.mine, "python3 -m pytest -q -p no:cacheprovider")
    assert (before.exit_code, "1 failed, 2 passed" in before.output) == (1, True)
    repair = (
        "sed -i 's/amount - discount_percent/amount * (100 - discount_percent) \\/ 100/' basket.py"
    )
    after = await pair.rig.run(pair.mine, f"{repair} && pytest -q -p no:cacheprovider")
    assert (after.exit_code, "3 passed" in after.output) == (0, True)
    assert "+    return amount * (100" in await pair.output_of("git diff")


async def test_the_agent_restarts_after_all_processes_were_killed(pair: Pair) -> None:
    if not pair.has_namespaces and not AS_ROOT:
        pytest.skip("the workspace has the server's account, with the tests' own processes")
    before = await pair.rig.connect(pair.other)
    (pair.rig.home(pair.other) / "stored").write_text("")
    with contextlib.suppress(AgentUnreachable):
        await AgentClient(before, SystemClock()).start_process("kill -9 -1", key="all")

    await pair.rig.wait_new_agent(pair.other, before.hello.boot_id)
    assert await pair.rig.output_of(pair.other, "ls stored") == "stored"
    assert (await pair.rig.supervisor.list_running())[pair.other.name].starts > 1
