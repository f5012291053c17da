"""What a workspace cannot do: attempts from inside one of two real sandboxes."""

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path

import pytest

from chatd.clock import SystemClock
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.domain.workspace.entities import DemoSeed, ResourceLimits, TemplateSpec
from chatd.workspaces.agents.client import HttpAgentClient
from chatd.workspaces.local.backend import LocalConfig
from tests.support.local_rig import (
    AS_ROOT,
    HOST,
    NO_BUBBLEWRAP,
    LocalRig,
    RunningWorkspace,
    close_supervisor_of,
    data_directory,
    shared_kits,
)

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")

MIB = 1024 * 1024
SPEC = TemplateSpec(
    seed=DemoSeed(),
    env={"PROJECT": "basket"},
    limits=ResourceLimits(memory_bytes=256 * MIB, processes=48, file_bytes=8 * MIB, open_files=256),
)


class Pair:
    """A workspace that attacks, and another that must not notice."""

    def __init__(self, rig: LocalRig, mine: RunningWorkspace, other: RunningWorkspace) -> None:
        self.rig = rig
        self.mine = mine
        self.other = other

    async def output_of(self, command: str) -> str:
        return await self.rig.output_of(self.mine, command)


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[tuple[LocalConfig, RunningWorkspace, RunningWorkspace]]:
    """Run by the supervisor, so that each test can have its own event loop."""
    with data_directory(shared_kits(tmp_path_factory)) as data_dir:
        config = LocalConfig(data_dir=data_dir, host_id=HOST)

        async def start() -> tuple[RunningWorkspace, RunningWorkspace]:
            rig = LocalRig(config)
            return await rig.start(SPEC), await rig.start()

        mine, other = asyncio.run(start())
        yield config, mine, other
        close_supervisor_of(data_dir)


@pytest.fixture
async def pair(started: tuple[LocalConfig, RunningWorkspace, RunningWorkspace]) -> Pair:
    config, mine, other = started
    return Pair(LocalRig(config), mine, other)


async def test_only_programs_of_the_host_are_visible(pair: Pair) -> None:
    seen = set((await pair.output_of("ls -A /")).split())
    system = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"}
    assert seen <= system | {"dev", "etc", "home", "opt", "proc", "run", "tmp"}
    assert (
        await pair.output_of("ls -A /home /run /opt")
        == "/home:\ndev\n\n/opt:\nchatd\n\n/run:\nchatd"
    )


@pytest.mark.covers("hostile-8")
async def test_the_home_of_the_host_cannot_be_read(pair: Pair) -> None:
    for path in (Path.home(), pair.rig.data_dir, Path(__file__), Path("/etc/shadow")):
        output = await pair.rig.run(pair.mine, f"ls -d {path}")
        assert output.exit_code == 2, path
        assert "No such file" in output.output


@pytest.mark.covers("hostile-8")
async def test_other_workspaces_cannot_be_seen(pair: Pair) -> None:
    (pair.rig.home(pair.other) / "a-name-to-look-for").write_text("secret")
    assert await pair.output_of("find / -xdev -name 'a-name-to-look*' 2>/dev/null") == ""
    assert (
        await pair.output_of("find /home /run /tmp /opt -name 'a-name-to-look*' 2>/dev/null") == ""
    )
    assert pair.other.name not in await pair.output_of("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


@pytest.mark.covers("hostile-8")
async def test_there_is_no_network(pair: Pair) -> None:
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        command = f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}))\""
        assert "ConnectionRefusedError" in await pair.output_of(command)
    names = await pair.output_of("python3 -c 'import socket; print(socket.if_nameindex())'")
    assert names == "[(1, 'lo')]"


async def test_there_are_no_privileges_and_none_can_be_gained(pair: Pair) -> None:
    status = await pair.output_of("grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    words = dict(line.split(":\t") for line in status.splitlines())
    assert int(words.pop("NoNewPrivs")) == 1
    assert [int(value, 16) for value in words.values()] == [0] * 5
    assert (await pair.rig.run(pair.mine, "unshare --user true")).exit_code != 0
    assert (await pair.rig.run(pair.mine, "mount -t tmpfs none /tmp")).exit_code != 0


async def test_only_the_home_and_temporary_directories_are_writable(pair: Pair) -> None:
    for path in ("/x", "/dev/x", "/etc/x", "/usr/x", "/opt/chatd/x", "/proc/sys/kernel/hostname"):
        assert (await pair.rig.run(pair.mine, f"echo x > {path}")).exit_code != 0, path
    assert (
        await pair.output_of("echo x > ~/x && echo x > /tmp/x && echo x > /dev/shm/x && echo yes")
        == "yes"
    )


@pytest.mark.covers("hostile-8")
@pytest.mark.promise("P13")
async def test_processes_inherit_nothing_from_the_server(pair: Pair) -> None:
    names = await pair.output_of("cat /proc/self/environ | tr '\\0' '\\n' | cut -d= -f1")
    assert set(names.split()) <= {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "PWD", "PROJECT"),
        *("CHATD_WORKSPACE_ID", "PYTHONPATH"),
    }
    assert await pair.output_of("cat /proc/1/environ | tr '\\0' '\\n' | cut -d= -f1") == "PATH"
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
    assert pair.mine.agent.isolation == "bwrap+uid"
    assert await pair.output_of("id -u") == "1000"


@pytest.mark.covers("hostile-2")
async def test_a_fork_bomb_is_bounded_and_does_not_affect_other_workspaces(pair: Pair) -> None:
    # It reaps its children itself: later tests need free process slots.
    bomb = (
        "import os, signal\nchildren = []\n"
        "try:\n"
        "    while len(children) < 500:\n"
        "        child = os.fork()\n"
        "        if child == 0: signal.pause()\n"
        "        children.append(child)\n"
        "except BlockingIOError: print('refused')\n"
        "print(len(children))\n"
        "for child in children: os.kill(child, signal.SIGKILL)\n"
        "for child in children: os.waitpid(child, 0)\n"
    )
    client = await pair.rig.client(pair.mine)
    await client.write_file("/home/dev/bomb.py", bomb.encode(), key="bomb")
    refused, count = (await pair.output_of("python3 -u bomb.py")).split()[:2]
    assert refused == "refused"
    assert int(count) < 48
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
    before = await pair.rig.connect(pair.other)
    (pair.rig.home(pair.other) / "stored").write_text("")
    with contextlib.suppress(AgentUnreachable):
        await HttpAgentClient(before, SystemClock()).start_process("kill -9 -1", key="all")

    await pair.rig.wait_new_agent(pair.other, before.hello.boot_id)
    assert await pair.rig.output_of(pair.other, "ls stored") == "stored"
    assert (await pair.rig.supervisor.list_running())[pair.other.name].starts > 1
