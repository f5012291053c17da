"""What only containers do: images, engines that fail, and what the engine is asked to create.

The conformance suite has the rest.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from aiohttp import web

from chatd.clock import SystemClock
from chatd.domain.errors import Unavailable
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import DemoSeed, Mount, ResourceLimits, TemplateSpec
from chatd.workspaces.build_backend import BuildFailed
from chatd.workspaces.container.container_backend import ContainerBackend, ContainerConfig
from chatd.workspaces.container.container_kit import ContainerKit, find_loader
from chatd.workspaces.container.container_plan import ContainerNames, ContainerPlan
from chatd.workspaces.container.engine_api import EngineClient, EngineInfo, split_image, split_log
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks
from tests.support.backend_kinds import BackendPlace, link_kits
from tests.support.backend_rig import HOST, SECRET, TEST_TIMEOUT_S, BackendRig
from tests.support.container_engines import Engine
from tests.support.local_rig import data_directory, shared_kits

WORKSPACE = WorkspaceId(UUID(int=7))
SPEC = TemplateSpec(image="debian:12")


@pytest.fixture
async def rig(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[BackendRig]:
    with data_directory() as data_dir:
        link_kits(data_dir, shared_kits(tmp_path_factory))
        place = BackendPlace(kind="container", data_dir=str(data_dir), engine=str(engine.socket))
        async with place.opened() as rig:
            yield rig


# On a real engine


async def test_a_missing_image_is_named_with_the_reason(rig: BackendRig) -> None:
    """Takes seconds: Podman asks the registry several times."""
    context = rig.context(rig.template(image="localhost:1/absent:2"))
    with pytest.raises(BuildFailed) as failed:
        await rig.backend.start(context)
    assert "The image localhost:1/absent:2 is not on this host and cannot be pulled" in str(
        failed.value
    )
    assert "load the image" in str(failed.value)


async def test_a_runtime_that_the_engine_would_not_use_is_refused(
    rig: BackendRig, engine: Engine
) -> None:
    """Podman ignores the runtime of a container: the workspace would be isolated less."""
    uses = "Podman uses runc for every" if engine.name == "Podman" else "Docker has the runtimes"
    with pytest.raises(BuildFailed, match=rf"runsc.*{uses}"):
        await rig.start(rig.template(runtime="runsc"))
    await rig.start(rig.template(runtime="runc"))


async def test_the_engine_shows_no_secret_and_commands_have_no_privilege(
    rig: BackendRig, engine: Engine
) -> None:
    running = await rig.start(rig.template(env={"TOKEN": "hidden-in-the-template"}))
    context = rig.context(rig.spec, workspace=running.workspace.id)
    key = context.agent_key(running.agent.id).hex()
    shown = engine.run("inspect", f"chatd-{running.name}")
    assert "chatd.build" in shown
    assert key not in shown
    assert "hidden-in-the-template" not in shown
    script = (
        "grep -E '^(CapPrm|CapEff|NoNewPrivs)' /proc/self/status;"
        " cat /run/chatd/private/* /proc/1/environ 2>&1 | grep -c -i denied;"
        " ls -A /sys/class/net; echo $TOKEN $GREETING"
    )
    assert (await rig.output_of(running, script)).split() == [
        *("CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1"),
        *("2", "lo", "hidden-in-the-template", "from-the-image"),
    ]
    places = "/run /home /etc /tmp /proc/[0-9]*/environ /proc/[0-9]*/cmdline"
    pattern = f"{key[:20]}[{key[20]}]{key[21:]}"  # Does not match the command itself.
    found = await rig.output_of(running, f"grep -rls '{pattern}' {places} 2>/dev/null")
    assert found == ""


async def test_a_container_that_died_is_started_again(rig: BackendRig, engine: Engine) -> None:
    """By a repeated start of the same build, without its seed and its start-up script."""
    spec = rig.template(seed=DemoSeed(), startup_script="echo started >> log")
    running = await rig.start(spec)
    engine.run("kill", f"chatd-{running.name}")
    engine.run("wait", f"chatd-{running.name}")
    assert (await rig.backend.inspect(running.workspace)).state == "stopped"
    again = await rig.start(spec, again=running.workspace.id)
    assert again.agent == running.agent
    assert await rig.output_of(again, "cat log") == "started"


async def test_a_home_that_an_operator_removed_is_filled_again(
    rig: BackendRig, engine: Engine
) -> None:
    spec = rig.template(seed=DemoSeed())
    running = await rig.start(spec)
    await rig.stop(running, build=2)
    engine.run("rm", f"chatd-{running.name}")
    engine.run("volume", "rm", f"chatd-{running.name}-home")
    again = await rig.start(spec, again=running.workspace.id, build=3)
    assert "basket.py" in await rig.output_of(again, "ls")


async def test_a_build_goes_on_when_the_engine_is_restarted(
    rig: BackendRig, engine: Engine
) -> None:
    await rig.start()  # So that the restart is in the middle of the build, not of the preparation.

    def restart(line: str) -> None:
        if line.startswith("files info Creating"):
            engine.kill()
            loop.call_later(0.3, engine.start)

    loop = asyncio.get_running_loop()
    rig.on_log = restart
    async with asyncio.timeout(TEST_TIMEOUT_S):
        running = await rig.start(rig.template(seed=DemoSeed()))
        assert "basket.py" in await rig.output_of(running, "ls")


@pytest.mark.promise("P7")
async def test_a_command_goes_on_and_is_reached_while_the_engine_is_away(
    rig: BackendRig, engine: Engine
) -> None:
    running = await rig.start()
    client = await rig.client(running)
    command = "echo ran >> log; until test -e go; do sleep 0.1; done; cat log"
    started = await client.start_process(command, key="once")
    engine.kill()
    try:
        assert (await rig.backend.inspect(running.workspace)).state == "unknown"
        assert await rig.output_of(running, "touch go; echo here") == "here"
        output = await client.output(started.id, wait_s=TEST_TIMEOUT_S)
        assert (output.running, output.output) == (False, "ran\n")
    finally:
        await asyncio.to_thread(engine.start)
    assert (await rig.backend.inspect(running.workspace)).state == "running"
    assert (await rig.start(again=running.workspace.id)).agent == running.agent


async def test_the_agent_runs_in_an_image_without_python(rig: BackendRig) -> None:
    running = await rig.start()
    assert await rig.output_of(running, "command -v python3 || echo none") == "none"


# Without a real engine


@pytest.mark.parametrize(
    ("info", "own_users", "limits"),
    [
        ({"CgroupVersion": "2"}, False, {"memory", "processes"}),
        ({"SecurityOptions": ["name=userns"]}, True, {"memory", "processes"}),
        ({"Rootless": True, "CgroupVersion": "2"}, True, {"memory", "processes"}),
        ({"Rootless": True, "CgroupVersion": "1"}, True, set[str]()),
        ({"SecurityOptions": ["name=rootless"], "CgroupVersion": "1"}, True, set[str]()),
    ],
)
async def test_only_what_the_engine_enforces_is_believed(
    tmp_path: Path, info: dict[str, object], own_users: object, limits: set[str]
) -> None:
    """A rootless Podman with old control groups claims limits that it ignores."""

    async def answer(request: web.Request) -> web.Response:
        claimed = {"MemoryLimit": True, "PidsLimit": True, "CPUShares": False, **info}
        return web.json_response(claimed if request.path.endswith("/info") else {})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(tmp_path / "engine")).start()
        found = await EngineClient(tmp_path / "engine", SystemClock()).info()
    finally:
        await runner.cleanup()
    assert (found.own_users, found.limits) == (own_users, frozenset(limits))


async def test_an_engine_that_does_not_run_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class NoWait(SystemClock):
        async def sleep(self, seconds: float, tag: str = "") -> None:
            slept.append(seconds)

    slept: list[float] = []
    config = ContainerConfig(socket_path=tmp_path / "none", data_dir=tmp_path, host_id=HOST)
    backend = ContainerBackend(
        config, agent=b"", clock=NoWait(), networks=WorkspaceNetworks(tmp_path, NoWait())
    )
    rig = BackendRig(backend, SPEC)
    assert await backend.detect() is None
    assert "it does not run" in caplog.text
    assert slept == []
    with pytest.raises(BuildFailed, match=r"it does not run. Start it .*systemctl start docker"):
        await rig.start()
    assert sum(slept) > 10
    workspace = rig.context(SPEC).workspace
    assert (await backend.inspect(workspace)).state == "unknown"
    with pytest.raises(Unavailable):
        await backend.workspaces()


async def test_a_template_needs_an_image_and_its_mounts_leave_our_paths_alone(
    tmp_path: Path,
) -> None:
    config = ContainerConfig(socket_path=tmp_path, data_dir=tmp_path / "data", host_id=HOST)
    backend = ContainerBackend(
        config,
        agent=b"",
        clock=SystemClock(),
        networks=WorkspaceNetworks(tmp_path, SystemClock()),
    )
    (tmp_path / "data").mkdir()
    mounts = (Mount(source="/etc", target="/run/chatd-socket/d"),)
    problems = await backend.validate(TemplateSpec(mounts=mounts), {})
    assert [problem.field for problem in problems] == ["mounts", "image", "mounts"]


# What is created: pure


def plan(spec: TemplateSpec = SPEC, **changes: object) -> ContainerPlan:
    engine = EngineInfo(
        name="Docker",
        version="27",
        own_users=False,
        limits=frozenset(("memory", "processes", "cpu")),
        runtimes=frozenset(("runc", "runsc")),
        default_runtime="runc",
    )
    return ContainerPlan(
        names=ContainerNames(workspace=WORKSPACE),
        host_id=HOST,
        build=3,
        spec=spec,
        engine=msgspec.structs.replace(engine, **changes),
        kit=ContainerKit(path=Path("/data/kit"), python=("/opt/chatd/python",)),
        run=Path("/data/run"),
        uid=1000,
        network="",
        ceilings={"nofile": 1000, "nproc": 900},
    )


def test_a_container_gets_no_more_than_it_needs() -> None:
    body = plan().main_container()
    host = body["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["Privileged"], host["NetworkMode"]) == (False, "none")
    assert (host["Memory"], host["MemorySwap"]) == (2 * 1024**3, 2 * 1024**3)
    assert (host["PidsLimit"], host["CpuShares"]) == (512, 1024)
    writable = [mount["Target"] for mount in host["Mounts"] if not mount.get("ReadOnly")]
    assert writable == ["/home/dev", "/run/chatd", "/run/chatd-socket/d"]
    assert "Env" not in body
    assert "Runtime" not in host
    assert SECRET.decode() not in json.dumps(body)
    assert (
        plan().setup_container(network=False, mounts=())["HostConfig"].get("RestartPolicy") is None
    )


@pytest.mark.parametrize(
    ("spec", "changes", "isolation"),
    [
        (SPEC, {}, "container"),
        (SPEC, {"own_users": True}, "container+userns"),
        (msgspec.structs.replace(SPEC, runtime="runsc"), {}, "container+runsc"),
    ],
)
def test_the_isolation_is_named(
    spec: TemplateSpec, changes: dict[str, object], isolation: str
) -> None:
    made = plan(spec, **changes)
    assert made.isolation() == isolation
    assert made.main_container()["HostConfig"].get("Runtime", "") == spec.runtime


def test_only_limits_that_the_engine_enforces_are_set_and_shown() -> None:
    made = plan(limits=frozenset(("processes",)))
    host = made.main_container()["HostConfig"]
    assert "Memory" not in host
    assert host["PidsLimit"] == 512
    shown = made.effective_limits()
    assert (shown.memory_bytes, shown.processes, shown.cpu_weight) == (0, 512, 0)
    free = plan(TemplateSpec(image="x", limits=ResourceLimits(memory_bytes=0, cpu_weight=0)))
    assert not {"Memory", "CpuShares"} & set(free.main_container()["HostConfig"])


@pytest.mark.parametrize(
    ("engine", "runtime", "problem"),
    [
        ("Docker", "", ""),
        ("Docker", "runsc", ""),
        ("Docker", "kata", "has the runtimes runc, runsc"),
        ("Podman", "runc", ""),
        ("Podman", "runsc", "uses runc for every container"),
    ],
)
def test_a_runtime_must_be_one_that_the_engine_uses(
    engine: str, runtime: str, problem: str
) -> None:
    found = plan(msgspec.structs.replace(SPEC, runtime=runtime), name=engine).runtime_problem()
    assert (problem in found) if problem else (found == "")


@pytest.mark.parametrize(
    ("engine", "limits"),
    [
        ("Docker", {"core": 0, "fsize": 1024**3, "nofile": 1000}),
        ("Podman", {"core": 0, "fsize": 1024**3, "nofile": 1000, "nproc": 900}),
    ],
)
def test_limits_of_processes_are_not_above_those_of_the_host(
    engine: str, limits: dict[str, int]
) -> None:
    given = plan(name=engine).main_container()["HostConfig"]["Ulimits"]
    assert {each["Name"]: each["Hard"] for each in given} == limits


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("debian", ("debian", "latest")),
        ("debian:12", ("debian", "12")),
        ("host:5000/team/app", ("host:5000/team/app", "latest")),
        ("host:5000/team/app:v1", ("host:5000/team/app", "v1")),
        ("app@sha256:abc", ("app@sha256:abc", "")),
    ],
)
def test_the_tag_of_an_image_is_found(image: str, parts: tuple[str, str]) -> None:
    assert split_image(image) == parts


def test_the_pieces_of_a_log_are_joined() -> None:
    pieces = b"\1\0\0\0\0\0\0\3one" + b"\2\0\0\0\0\0\0\4 two" + b"\1\0\0\0\0\0\0\x09cut"
    assert split_log(pieces) == b"one twocut"
    assert split_log(b"plain text") == b"plain text"


def test_a_program_that_is_no_program_has_no_loader(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    with pytest.raises(BuildFailed, match="is not a 64-bit program"):
        find_loader(tmp_path / "script")
