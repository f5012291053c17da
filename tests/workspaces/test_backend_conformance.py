"""What every backend does, each with real workspaces and their real agents.

A test of a container takes a second or two: the engine starts it.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import uuid4  # noqa: TID251 - control groups and containers are global on the host

import msgspec
import pytest

from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.domain.workspace.entities import (
    DemoSeed,
    DirectorySeed,
    GitSeed,
    Mount,
    ResourceLimits,
)
from chatd.workspaces.build_backend import BuildCancelled, BuildFailed
from chatd.workspaces.container.container_backend import ContainerBackend
from chatd.workspaces.kubernetes.kubernetes_backend import KubernetesBackend
from chatd.workspaces.local.local_backend import LocalBackend
from tests.support.backend_kinds import (
    ALL_OF_PODS,
    OPENERS,
    SKIPPED,
    BackendPlace,
    cluster_place,
    link_kits,
)
from tests.support.backend_rig import TEST_TIMEOUT_S, BackendRig, RunningWorkspace
from tests.support.chaos.small_disk import small_disk
from tests.support.container_engines import Engine, EngineNotStarted, engine_service
from tests.support.eventually import eventually
from tests.support.local_rig import data_directory, shared_kits
from tests.support.processes import running as line_process
from tests.workspaces.test_clone_proxy import RepositoryServer

pytestmark = pytest.mark.timeout(240)  # Seconds on an idle host.

MIB = 1024 * 1024
COUNT_SLEEPS = "cat /proc/[0-9]*/comm | grep -c '^sleep'"


NOT_OF_PODS = {
    "test_a_directory_is_copied_with_links_as_links": "a pod sees no directory of a host",
    "test_a_directory_that_is_too_large_is_not_copied": "a pod sees no directory of a host",
    "test_a_repository_of_the_host_is_cloned_inside": "a pod sees no directory of a host",
    "test_a_mounted_directory_can_be_read_and_not_written": "a pod sees no directory of a host",
    "test_a_clone_without_a_network_reaches_public_addresses_only": "a NetworkPolicy limits it",
    "test_a_workspace_reaches_the_hosts_that_its_template_names": "templates cannot ask for it",
    "test_memory_and_processes_are_limited": "the node limits them",
    "test_a_full_disk_is_reported": "the storage of the cluster reports it",
}


# There is nothing that could keep a command from these, or that could show it something else.
NOT_OF_MACHINES = {
    "test_a_clone_without_a_network_reaches_public_addresses_only": "a clone needs bubblewrap",
    "test_a_workspace_reaches_the_hosts_that_its_template_names": "templates cannot ask for it",
    "test_a_mounted_directory_can_be_read_and_not_written": "templates cannot ask for it",
    "test_a_workspace_that_replaces_its_socket_leads_to_no_other": "its account is the runner's",
}


# What a pod's first process has in common with a container's. `make test-kubernetes` runs them.
RARELY_OF_PODS = (
    "test_a_start_that_was_cut_off_is_completed_by_the_next[kubernetes-files]",
    "test_a_start_that_was_cut_off_is_completed_by_the_next[kubernetes-agent]",
    "test_a_workspace_without_a_row_is_listed_and_can_be_removed[kubernetes]",
    "test_a_clone_that_hangs_is_given_up[kubernetes]",
    "test_a_startup_script_has_the_limits_of_commands[kubernetes]",
    "test_a_workspace_over_its_disk_limit_is_killed_and_can_clean_up[kubernetes]",
    "test_a_workspace_that_replaces_its_socket_leads_to_no_other[kubernetes]",
)


@pytest.fixture(params=sorted(OPENERS))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if SKIPPED[name]:
        pytest.skip(SKIPPED[name])
    if name == "kubernetes" and (reason := NOT_OF_PODS.get(request.function.__name__)):
        pytest.skip(reason)
    if name == "machine" and (reason := NOT_OF_MACHINES.get(request.function.__name__)):
        pytest.skip(reason)
    if request.node.name in RARELY_OF_PODS and not ALL_OF_PODS:
        pytest.skip("make test-kubernetes runs it")
    return name


@pytest.fixture
async def place(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[BackendPlace]:  # fmt: skip
    """Templates may use what is below `tmp_path / "allowed"`."""
    engine = ""
    if kind == "container":
        service: Engine = request.getfixturevalue("engine")
        engine = str(service.socket)
    (tmp_path / "allowed").mkdir()
    async with contextlib.AsyncExitStack() as stack:
        data_dir = stack.enter_context(data_directory())
        link_kits(data_dir, shared_kits(tmp_path_factory))
        place = BackendPlace(
            kind=kind,
            data_dir=str(data_dir),
            engine=engine,
            roots=(str(tmp_path / "allowed"),),
        )
        if kind == "kubernetes":
            place = await stack.enter_async_context(cluster_place(place))
        await stack.enter_async_context(place.opened())
        yield place


@pytest.fixture
async def rig(place: BackendPlace) -> BackendRig:
    return place.open()


@pytest.fixture
def project(tmp_path: Path, place: BackendPlace) -> Path:
    project = tmp_path / "allowed" / "project"
    (project / "src").mkdir(parents=True)
    (project / "src" / "run.sh").write_text("echo it runs\n")
    (project / "src" / "run.sh").chmod(0o755)
    (project / "link").symlink_to("/etc/hostname")
    return project


async def begin(rig: BackendRig, running: RunningWorkspace, command: str) -> None:
    """Start a command and wait until it has created the file `begun`."""
    client = await rig.client(running)
    await client.start_process(f"({command})", key=uuid4().hex)

    async def is_begun() -> bool:
        return await rig.output_of(running, "ls begun 2>/dev/null") == "begun"

    await eventually(is_begun, within_s=TEST_TIMEOUT_S)


# Life


async def test_a_command_runs_in_a_new_workspace(rig: BackendRig) -> None:
    running = await rig.start(rig.template(env={"WHO": "me"}, directory="work"))
    output = await rig.run(running, "pwd; echo $WHO $USER; id -u; echo late >&2; exit 3")
    assert output.exit_code == 3
    directory, names, uid, *rest = output.output.splitlines()
    assert directory == running.agent.directory
    assert (names, rest) == ("me dev", ["late"])
    if rig.backend.kind == "machine":
        assert int(uid) == os.geteuid()  # There is no account but the runner's.
    else:
        assert int(uid) > 0
    assert (await rig.backend.inspect(running.workspace)).state == "running"
    assert await rig.backend.workspaces() == [running.workspace.id]
    assert isinstance(rig.backend, LocalBackend | ContainerBackend | KubernetesBackend)
    assert await rig.backend.running() == 1
    (endpoint,) = running.agent.endpoints
    if isinstance(rig.backend, KubernetesBackend):
        assert not rig.backend.is_agent_socket(endpoint.path)  # The pod reaches it, no runner.
        return
    assert rig.backend.is_agent_socket(endpoint.path)
    assert not rig.backend.is_agent_socket(str(Path(endpoint.path).parent / "other"))


@pytest.mark.promise("P7")
async def test_a_killed_runner_leaves_workspaces_and_commands_running(
    place: BackendPlace, rig: BackendRig
) -> None:
    """Takes seconds: the runner is a process of its own."""
    workspace = WorkspaceId(uuid4())
    argument = msgspec.json.encode(place).decode()
    async with line_process("tests.support.backend_kinds", argument) as runner:
        await runner.ask(f"start {workspace} 1")
        await runner.ask("run sleep 1000 >/dev/null 2>&1 & echo $! > pid")
        runner.kill()
    found = await rig.start(again=workspace)
    assert await rig.output_of(found, "kill -0 $(cat pid) && echo alive") == "alive"


@pytest.mark.promise("P7")
async def test_a_killed_agent_comes_back_and_knows_which_calls_have_run(rig: BackendRig) -> None:
    running = await rig.start()
    boot_id = await rig.boot_id(running)
    client = await rig.client(running)
    first = await client.start_process("echo ran >> log", key="once")
    await client.output(first.id, wait_s=TEST_TIMEOUT_S)
    await begin(rig, running, "touch begun; exec sleep 1000")
    forge = "rm -rf /run/chatd/once* /run/chatd/*/once* 2>/dev/null; kill -9 -1"
    if rig.backend.kind == "machine":  # -1 is everything that the runner has started, below.
        forge = "kill -9 $PPID"
    with contextlib.suppress(AgentUnreachable):  # It may be killed before it replies.
        await client.start_process(forge, key="kill")
    await rig.wait_new_agent(running, boot_id)
    client = await rig.client(running)
    again = await client.start_process("echo ran >> log", key="once")
    assert (again.id, again.again) == (first.id, True)
    assert await rig.output_of(running, f"cat log; {COUNT_SLEEPS}") == "ran\n0"


async def test_a_command_that_ends_every_process_it_may_end_leaves_the_files(
    kind: str, rig: BackendRig
) -> None:
    """Without isolation the supervisor is among them: then the workspace must be started again."""
    if kind != "machine":
        pytest.skip("a command ends processes of its own workspace only")
    running = await rig.start()
    await begin(rig, running, "touch begun; exec sleep 1000")
    with contextlib.suppress(AgentUnreachable):
        await (await rig.client(running)).start_process("kill -9 -1", key="kill")

    async def is_shown() -> bool:
        return (await rig.backend.inspect(running.workspace)).state == "stopped"

    await eventually(is_shown, within_s=TEST_TIMEOUT_S)
    with pytest.raises(AgentUnreachable):
        await rig.connect(running)
    again = await rig.start(again=running.workspace.id, build=2)
    assert await rig.output_of(again, f"ls; {COUNT_SLEEPS}") == "begun\n0"


async def test_a_repeated_start_changes_nothing(place: BackendPlace, rig: BackendRig) -> None:
    """Also by another process, and at the same time."""
    workspace = WorkspaceId(uuid4())
    other = place.open()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(rig.start(again=workspace))
        second = tasks.create_task(other.start(again=workspace))
    running = first.result()
    assert second.result().agent == running.agent
    boot_id = await rig.boot_id(running)
    assert (await other.start(again=workspace)).agent == running.agent
    assert await rig.boot_id(running) == boot_id


@pytest.mark.parametrize("stage", ["files", "startup", "agent"])
async def test_a_start_that_was_cut_off_is_completed_by_the_next(
    place: BackendPlace, rig: BackendRig, stage: str
) -> None:
    """The reply is lost with the process that would have got it."""
    spec = rig.template(startup_script="echo started >> log", seed=DemoSeed())
    context = rig.context(spec)
    reached = asyncio.Event()
    rig.on_log = lambda line: reached.set() if line.startswith(stage) else None
    async with asyncio.timeout(TEST_TIMEOUT_S):
        start = asyncio.ensure_future(rig.backend.start(context))  # noqa: TID251 - cut off below
        await reached.wait()
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await start
    running = await place.open().start(spec, again=context.workspace.id)
    assert await rig.output_of(running, "tail -n 1 log; git log --oneline | wc -l") == "started\n1"
    assert await rig.backend.workspaces() == [context.workspace.id]


async def test_a_stop_ends_commands_and_keeps_files(rig: BackendRig) -> None:
    running = await rig.start()
    await begin(rig, running, "touch begun; setsid sleep 1000")
    client = await rig.client(running)
    waiting = await client.start_process("sleep 1000", key="wait")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.stop(running, build=2))
        with pytest.raises(AgentUnreachable):
            await client.output(waiting.id, wait_s=TEST_TIMEOUT_S)
    assert (await rig.backend.inspect(running.workspace)).state == "stopped"
    with pytest.raises(AgentUnreachable):
        await rig.connect(running)
    await rig.stop(running, build=2)
    again = await rig.start(again=running.workspace.id, build=3)
    assert again.agent.id != running.agent.id
    assert await rig.output_of(again, f"ls; {COUNT_SLEEPS}") == "begun\n0"


async def test_a_rebuild_replaces_a_running_workspace_and_no_older_one_returns(
    rig: BackendRig,
) -> None:
    running = await rig.start()
    await begin(rig, running, "touch begun; exec sleep 1000")
    later = await rig.start(rig.template(env={"NEW": "yes"}), again=running.workspace.id, build=3)
    assert later.agent.id != running.agent.id
    assert await rig.output_of(later, f"ls; echo $NEW; {COUNT_SLEEPS}") == "begun\nyes\n0"
    with pytest.raises(BuildFailed, match="has replaced"):
        await rig.start(again=running.workspace.id, build=2)
    assert await rig.output_of(later, "echo $NEW") == "yes"


async def test_a_delete_removes_everything(rig: BackendRig) -> None:
    running = await rig.start()
    kept = await rig.start()
    await rig.delete(running.workspace.id, build=2)
    assert (await rig.backend.inspect(running.workspace)).state == "gone"
    assert await rig.backend.workspaces() == [kept.workspace.id]
    await rig.delete(running.workspace.id, build=2)
    assert await rig.output_of(kept, "echo here") == "here"


async def test_a_workspace_without_a_row_is_listed_and_can_be_removed(
    place: BackendPlace, rig: BackendRig
) -> None:
    orphan = await rig.start()
    later = place.open()
    assert await later.backend.workspaces() == [orphan.workspace.id]
    await later.backend.remove(orphan.workspace.id)
    assert await later.backend.workspaces() == []
    assert (await later.backend.inspect(orphan.workspace)).state == "gone"
    await later.backend.remove(orphan.workspace.id)


# Seeds and start-up scripts


@pytest.mark.covers("hostile-4")
async def test_a_directory_is_copied_with_links_as_links(rig: BackendRig, project: Path) -> None:
    """Once: a complete home is never filled again, even if its seed is gone."""
    os.mkfifo(project / "pipe")
    spec = rig.template(seed=DirectorySeed(path=str(project)), directory="work/here")
    running = await rig.start(spec)
    assert running.agent.directory.endswith("/work/here")
    assert await rig.output_of(running, "./src/run.sh; readlink link; ls") == (
        "it runs\n/etc/hostname\nlink\nsrc"
    )
    assert await rig.output_of(running, "rm link && echo x > src/new && echo mine") == "mine"
    assert not (project / "src" / "new").exists()
    await rig.stop(running, build=2)
    shutil.rmtree(project)
    again = await rig.start(spec, again=running.workspace.id, build=3)
    assert await rig.output_of(again, "ls; cat src/new") == "src\nx"


async def test_a_directory_that_is_too_large_is_not_copied(rig: BackendRig, project: Path) -> None:
    (project / "big").write_bytes(b"x" * 100_000)
    limits = ResourceLimits(disk_bytes=50_000)
    with pytest.raises(BuildFailed, match="larger than the 50000 bytes"):
        await rig.start(rig.template(seed=DirectorySeed(path=str(project)), limits=limits))


def git(project: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    ran = subprocess.run(
        ["git", *identity, *words], cwd=project, check=True, capture_output=True, text=True
    )
    return ran.stdout.strip()


def commit(project: Path) -> str:
    git(project, "init")
    git(project, "add", "src")
    git(project, "commit", "-m", "first")
    git(project, "update-server-info")
    return git(project, "rev-parse", "HEAD")


async def test_a_repository_of_the_host_is_cloned_inside(rig: BackendRig, project: Path) -> None:
    with pytest.raises(BuildFailed, match="Git failed"):
        await rig.start(rig.template(seed=GitSeed(url=f"file://{project}")))
    first = commit(project)
    git(project, "commit", "--allow-empty", "-m", "second")
    spec = rig.template(seed=GitSeed(url="${repository}", ref="${commit}"))
    context = rig.context(spec, params={"repository": str(project), "commit": first})
    (agent,) = await rig.backend.start(context)
    running = RunningWorkspace(workspace=context.workspace, agent=agent)
    assert await rig.output_of(running, "git rev-parse HEAD; ls") == f"{first}\nsrc"
    assert any("Cloning" in line for line in rig.log)


async def test_a_clone_without_a_network_reaches_public_addresses_only(
    rig: BackendRig, project: Path
) -> None:
    """A model may have chosen the address. Takes seconds: three workspaces are built."""
    commit(project)
    async with RepositoryServer(project).running() as server:
        url = f"http://127.0.0.1:{server.port}/.git"
        with pytest.raises(BuildFailed, match=r"127.0.0.1 is not on the public internet"):
            await rig.start(rig.template(seed=GitSeed(url=url)))
        assert server.requests == []
        running = await rig.start(rig.template(seed=GitSeed(url=url, allow_private=True)))
        assert await rig.output_of(running, "ls; ls /mnt/clone 2>/dev/null || echo closed") == (
            "src\nclosed"
        )
        asked = len(server.requests)
        assert (await rig.run(running, f"git ls-remote {url}")).exit_code != 0
        assert len(server.requests) == asked
        open_template = rig.template(seed=GitSeed(url=url), network="full")
        assert await rig.output_of(await rig.start(open_template), "ls") == "src"
    with pytest.raises(BuildFailed, match="only http"):
        await rig.start(rig.template(seed=GitSeed(url="git://example.org/x")))


async def test_a_workspace_reaches_the_hosts_that_its_template_names(
    rig: BackendRig, project: Path
) -> None:
    """Takes seconds: a workspace is built, with a start-up script."""
    commit(project)
    async with RepositoryServer(project).running() as server:
        host = f"127.0.0.1:{server.port}"
        fetch = f"git -c http.proxy=$http_proxy ls-remote http://{host}/.git"
        spec = rig.template(
            network="allow",
            allow=(f"private:{host}",),
            startup_script=f"no_proxy= {fetch} > at-start",
        )
        running = await rig.start(spec)
        assert running.agent.network == "allow"
        assert "refs/heads" in await rig.output_of(running, "cat at-start")
        assert "refs/heads" in await rig.output_of(running, f"no_proxy= {fetch}")
        asked = len(server.requests)
        straight = await rig.run(running, f"env -u http_proxy -u all_proxy git ls-remote {host}")
        assert straight.exit_code != 0
        other = f"no_proxy= git ls-remote http://127.0.0.2:{server.port}/.git 2>&1"
        assert "403" in await rig.output_of(running, other)
        assert len(server.requests) == asked


async def test_a_clone_that_hangs_is_given_up(place: BackendPlace) -> None:
    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    rig = msgspec.structs.replace(place, clone_timeout_s=0.5).open()
    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
    # Without bubblewrap a template without a network clones nothing.
    network = "full" if place.kind == "machine" else "none"
    spec = rig.template(seed=GitSeed(url=url, allow_private=True), network=network)
    async with asyncio.timeout(TEST_TIMEOUT_S), server:
        with pytest.raises(BuildFailed, match=r"Git did not finish within 0.5 s"):
            await rig.start(spec)


async def test_a_startup_script_is_part_of_the_build(rig: BackendRig) -> None:
    env = {"WHO": "${name}", "LONG": "\u00e4" * 20_000, "NONE": ""}
    spec = rig.template(startup_script='echo $WHO ${#LONG} "<$NONE>" > who; echo said', env=env)
    context = rig.context(spec, params={"name": "me"})
    (agent,) = await rig.backend.start(context)
    running = RunningWorkspace(workspace=context.workspace, agent=agent)
    assert await rig.output_of(running, "cat who") in ("me 20000 <>", "me 40000 <>")
    assert "startup info said" in rig.log
    with pytest.raises(BuildFailed, match="exit code 3"):
        await rig.start(rig.template(startup_script="exit 3"))
    with pytest.raises(BuildFailed, match="took longer"):
        await rig.start(rig.template(startup_script="sleep 1000", startup_timeout_s=0.2))


async def test_a_startup_script_has_the_limits_of_commands(rig: BackendRig) -> None:
    limits = ResourceLimits(disk_bytes=4 * MIB)
    for script in (
        "head -c 8000000 /dev/zero > big; sleep 1000",
        "head -c 8000000 /dev/zero > big",
    ):
        with pytest.raises(BuildFailed, match="and 4194304 bytes in 10000 files are allowed"):
            await rig.start(rig.template(startup_script=script, limits=limits))


async def test_a_cancelled_build_stops(rig: BackendRig) -> None:
    context = rig.context(rig.template(startup_script="sleep 1000"))
    rig.on_log = lambda line: context.cancelled.set() if line.startswith("startup") else None
    async with asyncio.timeout(TEST_TIMEOUT_S):
        with pytest.raises(BuildCancelled):
            await rig.backend.start(context)
    assert (await rig.backend.inspect(context.workspace)).state == "stopped"


async def test_a_mounted_directory_can_be_read_and_not_written(
    rig: BackendRig, project: Path
) -> None:
    mount = Mount(source=str(project), target="/mnt/project")
    running = await rig.start(rig.template(mounts=(mount,)))
    assert await rig.output_of(running, "sh /mnt/project/src/run.sh") == "it runs"
    assert (await rig.run(running, "touch /mnt/project/x")).exit_code == 1


# Limits and hostile workspaces


@pytest.mark.covers("hostile-2")
async def test_memory_and_processes_are_limited(rig: BackendRig) -> None:
    """The kernel kills commands before the agent."""
    limits = ResourceLimits(memory_bytes=192 * MIB, processes=60)
    running = await rig.start(rig.template(limits=limits))
    assert running.agent.limits is not None
    if {"memory_bytes", "processes"} & set(running.agent.limits.per_process):
        pytest.skip("without control groups each process has its own limits")
    if not running.agent.limits.memory_bytes:
        pytest.skip("a rootless engine needs control groups of version 2 for limits")
    boot_id = await rig.boot_id(running)
    greedy = "head -c 400000000 /dev/zero | tail -c 400000000 | wc -c"
    assert "400000000" not in await rig.output_of(running, greedy)
    # Counted without another process, which the shell could not start. Then its group is killed.
    bomb = "(for i in $(seq 100); do sleep 1000 >/dev/null 2>&1 & done); set -- /proc/[0-9]*"
    counted = (await rig.output_of(running, f"{bomb}; echo $#; kill -9 0")).splitlines()[-1]
    assert 30 < int(counted) <= 60
    assert await rig.output_of(running, "echo on") == "on"
    assert await rig.boot_id(running) == boot_id


@pytest.mark.covers("hostile-3")
async def test_a_workspace_over_its_disk_limit_is_killed_and_can_clean_up(rig: BackendRig) -> None:
    running = await rig.start(rig.template(limits=ResourceLimits(disk_bytes=4 * MIB)))
    boot_id = await rig.boot_id(running)
    client = await rig.client(running)
    hidden = "mkdir -m 0 -p deep && chmod 700 deep && head -c 8000000 /dev/zero > deep/big"
    # A pod measures without privileges: what it cannot read only the claim's size limits.
    hide = "" if isinstance(rig.backend, KubernetesBackend) else "chmod 0 deep;"
    await client.start_process(f"{hidden}; {hide} sleep 1000", key="fill")
    await rig.wait_new_agent(running, boot_id)
    detail = (await rig.backend.inspect(running.workspace)).detail
    if not isinstance(rig.backend, KubernetesBackend):  # Only the pod itself knows it.
        assert "and 4194304 bytes in 10000 files are allowed" in detail
    assert await rig.output_of(running, "chmod 700 deep; rm deep/big && ls deep") == ""


async def test_a_workspace_that_replaces_its_socket_leads_to_no_other(
    rig: BackendRig, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "other"))
        other.listen()
        running = await rig.start()
        boot_id = await rig.boot_id(running)
        sockets = "/run/chatd/agent.sock /run/chatd-socket/d/agent.sock"
        hostile = f"for s in {sockets}; do ln -sf {tmp_path}/other $s; rm -f $s; done 2>&1"
        await (await rig.client(running)).start_process(hostile, key="hostile")

        async def is_reached() -> bool:
            with contextlib.suppress(AgentUnreachable):
                return await rig.boot_id(running) == boot_id
            return False

        await eventually(is_reached, within_s=TEST_TIMEOUT_S)
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.accept()


async def test_a_full_disk_is_reported(
    kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On a small disk, which holds the data directory and the storage of the engine."""
    async with contextlib.AsyncExitStack() as stack:
        disk = await stack.enter_async_context(small_disk(is_wanted=True))
        if not disk.is_limited:
            pytest.skip("only root can mount a small disk")
        data_dir = disk.path / "data"
        data_dir.mkdir(mode=0o700)
        link_kits(data_dir, shared_kits(tmp_path_factory))
        engine = ""
        if kind == "container":
            try:
                engine = str(stack.enter_context(engine_service(disk.path / "engine")).socket)
            except EngineNotStarted as error:
                pytest.skip(str(error))
        place = BackendPlace(kind=kind, data_dir=str(data_dir), engine=engine)
        rig = await stack.enter_async_context(place.opened())
        await rig.start()
        await disk.fill()
        with pytest.raises(BuildFailed, match=r"(?i)no space left|full"):
            await rig.start(rig.template(seed=DemoSeed()))
        disk.free()
        await rig.start(rig.template(seed=DemoSeed()))
