"""Seeds of a workspace, start-up scripts, and invalid templates."""

import asyncio
import os
import re
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from chatd.domain.workspace.entities import (
    DirectorySeed,
    EmptySeed,
    GitSeed,
    Mount,
    ResourceLimits,
    Seed,
    TemplateSpec,
)
from chatd.workspaces.build_backend import BuildFailed
from chatd.workspaces.local.local_backend import LocalConfig, effective_limits, expand_parameters
from chatd.workspaces.local.supervisor.sandbox_processes import processes_of_uid
from chatd.workspaces.templates import BUILT_IN_TEMPLATES
from tests.support.local_rig import (
    AS_ROOT,
    HOST,
    NO_BUBBLEWRAP,
    LocalRig,
    close_supervisor_of,
    data_directory,
    shared_kits,
)

MIB = 1024 * 1024

needs_sandbox = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    with data_directory(shared_kits(tmp_path_factory)) as data_dir:
        yield data_dir
        close_supervisor_of(data_dir)


@pytest.fixture
async def rig(data_dir: Path, tmp_path: Path) -> LocalRig:
    """Templates may use what is below `tmp_path / "allowed"`."""
    (tmp_path / "allowed").mkdir()
    return LocalRig(LocalConfig(data_dir=data_dir, host_id=HOST, roots=(tmp_path / "allowed",)))


@pytest.fixture
def project(tmp_path: Path, rig: LocalRig) -> Path:
    project = tmp_path / "allowed" / "project"
    (project / "src").mkdir(parents=True)
    (project / "src" / "run.sh").write_text("echo it runs\n")
    (project / "src" / "run.sh").chmod(0o755)
    (project / "link").symlink_to("/etc/hostname")
    return project


def git(project: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    ran = subprocess.run(
        ["git", *identity, *words], cwd=project, check=True, capture_output=True, text=True
    )
    return ran.stdout.strip()


@needs_sandbox
async def test_a_template_can_enable_the_network(rig: LocalRig) -> None:
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    running = await rig.start(TemplateSpec(network="full"))
    connect = f"import socket; socket.create_connection(('127.0.0.1', {port})); print('yes')"
    async with server:
        assert await rig.output_of(running, f'python3 -c "{connect}"') == "yes"
    assert await rig.output_of(running, "stat -c %i /etc/hosts") == str(
        os.stat("/etc/hosts").st_ino
    )


@needs_sandbox
async def test_a_partly_filled_home_is_filled_again(rig: LocalRig, project: Path) -> None:
    """A server may die while it fills a home. A complete home is never filled again."""
    context = rig.context(TemplateSpec(seed=DirectorySeed(path=str(project))))
    half = rig.data_dir / "ws" / str(context.workspace.id) / "home.new"
    half.mkdir(parents=True)
    (half / "half").write_text("")
    running = await rig.start(context.spec, again=context.workspace.id)
    assert await rig.output_of(running, "ls") == "link\nsrc"
    await rig.output_of(running, "rm -r src")
    await rig.stop(running, build=2)
    again = await rig.start(context.spec, again=context.workspace.id, build=3)
    assert await rig.output_of(again, "ls") == "link"


@needs_sandbox
async def test_the_startup_script_runs_before_the_agent(rig: LocalRig) -> None:
    """The process list does not show the template's environment to other accounts."""
    script = 'echo $WHO ${#LONG} "<$NONE>" > who; cat /proc/1/cmdline > seen; echo said'
    env = {"WHO": "${name}", "LONG": "\u00e4" * 20_000, "NONE": ""}
    context = rig.context(TemplateSpec(startup_script=script, env=env), params={"name": "me"})
    await rig.backend.start(context)
    home = rig.data_dir / "ws" / str(context.workspace.id) / "home"
    assert (home / "who").read_text() in ("me 20000 <>\n", "me 40000 <>\n")
    words = (home / "seen").read_text().split("\0")
    assert "--setenv" in words
    assert "me" not in words
    assert "startup info said" in rig.log
    with pytest.raises(BuildFailed, match="exit code 3"):
        await rig.start(TemplateSpec(startup_script="exit 3"))
    with pytest.raises(BuildFailed, match="took longer"):
        await rig.start(TemplateSpec(startup_script="sleep 1000", startup_timeout_s=0.2))


@needs_sandbox
async def test_the_startup_script_has_the_limits_of_commands(rig: LocalRig) -> None:
    def spec(script: str, **limits: int) -> TemplateSpec:
        return TemplateSpec(startup_script=script, limits=ResourceLimits(**limits))

    greedy = "python3 -c 'x = bytearray(600 * 1024 * 1024)'"
    with pytest.raises(BuildFailed, match="exit code"):
        await rig.start(spec(greedy, memory_bytes=256 * MIB))
    with pytest.raises(BuildFailed, match="and 4194304 bytes in 10000 files are allowed"):
        await rig.start(spec("head -c 8M /dev/zero > big", disk_bytes=4 * MIB))
    fork = "python3 -c 'import os, time\nfor _ in range(50): os.fork() or time.sleep(1000)'"
    with pytest.raises(BuildFailed, match="exit code"):
        await rig.start(spec(fork, processes=20))


@needs_sandbox
@pytest.mark.skipif(not AS_ROOT, reason="only root can create control groups")
async def test_a_workspace_weighs_as_much_as_one_process_of_the_host(rig: LocalRig) -> None:
    """However many processes it starts."""
    plain = await rig.start()
    heavy = await rig.start(TemplateSpec(limits=ResourceLimits(cpu_weight=200)))
    assert plain.agent.limits is not None
    if not plain.agent.limits.cpu_weight:
        pytest.skip("this host allows no control group for the processor")
    for each, weights in ((plain, {"1024", "100"}), (heavy, {"2048", "200"})):
        for pid in processes_of_uid(rig.home(each).stat().st_uid):
            assert set(cpu_weights(pid, each.name)) & weights


def cpu_weights(pid: int, name: str) -> list[str]:
    """Of the control groups with this name that the process is in, in either version."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    paths = [line.split(":", 2)[2] for line in lines if name in line]
    files = ("/sys/fs/cgroup/cpu{}/cpu.shares", "/sys/fs/cgroup{}/cpu.weight")
    found = [Path(file.format(path)) for file in files for path in paths]
    return [path.read_text().strip() for path in found if path.exists()]


@pytest.mark.parametrize(
    ("controllers", "cpu_weight", "per_process"),
    [
        (("cpu", "memory", "pids"), 100, ("file_bytes", "open_files")),
        (("memory", "pids"), 0, ("file_bytes", "open_files")),
        ((), 0, ("file_bytes", "open_files", "memory_bytes")),
    ],
)
def test_effective_limits_are_those_that_the_host_enforces(
    controllers: tuple[str, ...], cpu_weight: int, per_process: tuple[str, ...]
) -> None:
    found = effective_limits(ResourceLimits(), controllers)
    assert (found.cpu_weight, found.per_process) == (cpu_weight, per_process)
    assert (found.memory_bytes, found.disk_bytes) == (2 * 1024**3, 10 * 1024**3)


@pytest.mark.parametrize(
    ("seed", "field"),
    [
        (DirectorySeed(path="/etc"), "seed"),
        (DirectorySeed(path="{allowed}/../secret"), "seed"),
        (DirectorySeed(path="{allowed}/way-out"), "seed"),
        (DirectorySeed(path="{allowed}/missing"), "seed"),
        (GitSeed(url="/etc"), "seed"),
        (GitSeed(url="file:///etc"), "seed"),
        (GitSeed(url="ext::sh -c id"), "seed.url"),
        (GitSeed(url="ssh://host/repo"), "seed.url"),
        (GitSeed(url="--upload-pack=id"), "seed.url"),
    ],
)
async def test_a_seed_outside_the_roots_is_a_problem(
    rig: LocalRig, tmp_path: Path, seed: Seed, field: str
) -> None:
    (tmp_path / "secret").mkdir()
    allowed = tmp_path / "allowed"
    (allowed / "way-out").symlink_to(tmp_path / "secret")
    spec = TemplateSpec(seed=_below(seed, allowed))
    assert [each.field for each in await rig.backend.validate(spec, {})] == [field]


async def test_the_servers_own_files_are_never_allowed(data_dir: Path) -> None:
    """Even if a root contains them: the secret of all agents is there."""
    backend = LocalRig(
        LocalConfig(data_dir=data_dir, host_id=HOST, roots=(data_dir.parent,))
    ).backend
    (data_dir / "inside").mkdir()
    (data_dir.parent / "beside").mkdir()
    for path in (data_dir, data_dir / "inside", data_dir.parent):
        seeds = (DirectorySeed(path=str(path)), GitSeed(url=f"file://{path}"))
        specs = [TemplateSpec(seed=seed) for seed in seeds]
        specs.append(TemplateSpec(mounts=(Mount(source=str(path), target="/mnt/own"),)))
        for spec in specs:
            (problem,) = await backend.validate(spec, {})
            assert "chatd's own files" in problem.detail
    beside = TemplateSpec(seed=DirectorySeed(path=str(data_dir.parent / "beside")))
    assert await backend.validate(beside, {}) == ()


async def test_an_unusable_data_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    rig = LocalRig(LocalConfig(data_dir=tmp_path / "file" / "data", host_id=HOST))
    with pytest.raises(BuildFailed, match=r"This host cannot run workspaces: .*Not a directory"):
        await rig.backend.prepare()


def _below(seed: Seed, allowed: Path) -> Seed:
    if isinstance(seed, DirectorySeed):
        return DirectorySeed(path=seed.path.replace("{allowed}", str(allowed)))
    return seed


async def test_problems_of_a_template_are_named(rig: LocalRig, tmp_path: Path) -> None:
    allowed = str(tmp_path / "allowed")
    spec = TemplateSpec(
        directory="../up",
        env={"A=B": "x", "C": "\0"},
        mounts=(
            Mount(source=allowed, target="/usr/bin"),
            Mount(source=allowed, target="relative"),
            Mount(source="/root", target="/mnt/root"),
        ),
    )
    found = await rig.backend.validate(spec, {})
    assert [each.field for each in found] == ["directory", *["mounts"] * 3, "env", "env"]
    assert await rig.backend.validate(TemplateSpec(), {}) == ()
    with pytest.raises(BuildFailed, match="directory must be inside"):
        await rig.start(spec)


def test_parameters_are_expanded_in_seeds_and_environment() -> None:
    spec = TemplateSpec(
        seed=GitSeed(url="${url}", ref="v${major}"), env={"A": "${url}/$HOME/${unknown}"}
    )
    assert expand_parameters(spec, {"url": "u", "major": "2"}) == TemplateSpec(
        seed=GitSeed(url="u", ref="v2"), env={"A": "u/$HOME/${unknown}"}
    )
    assert expand_parameters(TemplateSpec(), {"url": "u"}) == TemplateSpec(seed=EmptySeed())


@pytest.mark.parametrize(
    ("url", "is_accepted"),
    [
        ("", True),
        ("https://git.example.org/x", True),
        ("http://git.example.org/x", True),
        ("git://git.example.org/x", False),
        ("file:///srv/projects/x", False),
        ("/srv/projects/x", False),
        ("ext::sh -c id", False),
        ("ssh://git.example.org/x", False),
    ],
)
def test_a_model_can_name_only_web_addresses(url: str, is_accepted: object) -> None:
    scratch = next(file for file in BUILT_IN_TEMPLATES if file.name == "scratch")
    repository = next(each for each in scratch.parameters if each.name == "repository")
    assert (re.search(repository.regex, url) is not None) is is_accepted
