"""Set up a workspace: fill its home, run the start-up script, build the order for its agent.

Another server may repeat each step after a crash. The backend decides which steps are needed and
sends the order to the supervisor.
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

import msgspec

from chatd.domain.workspace.entities import AgentId, GitSeed, TemplateSpec, screen_size
from chatd.workspaces.build_backend import BuildCancelled, BuildContext, BuildFailed
from chatd.workspaces.local.sandbox_command import (
    CommandLimits,
    CommandResult,
    IsolationLevel,
    SandboxView,
    base_environment,
    has_namespaces,
    inside_paths,
    plan_process,
    run_command,
)
from chatd.workspaces.local.seeds import AllowedPaths, SandboxHome, SeedRequest, fill_from_seed
from chatd.workspaces.local.supervisor.cgroups import GroupLimits
from chatd.workspaces.local.supervisor.plan import (
    CONFIG_FD,
    FIRST_FILE_FD,
    ProcessPlan,
    SandboxOrder,
)
from chatd.workspaces.local.supervisor.sandbox_processes import wait_event
from chatd.workspaces.local.workspace_dirs import AGENT_SOCKET, WorkspacePaths, move_to_trash
from chatd.workspaces.network.inside import INSIDE_NETWORK, agent_proxy_config, forward_words
from chatd.workspaces.network.network_proxy import NetworkProxy

LOCK_POLL_S: Final = 0.1


class WorkspaceSetup(msgspec.Struct, frozen=True, kw_only=True):
    """`directory` is the working directory of commands, as seen inside."""

    context: BuildContext
    spec: TemplateSpec
    level: IsolationLevel
    view: SandboxView
    paths: WorkspacePaths
    directory: str
    disk_interval_s: float
    clone_timeout_s: float


class AgentStart(msgspec.Struct, frozen=True, kw_only=True):
    """`socket` is a path on the host that is short enough for a socket address."""

    id: AgentId
    key: bytes
    socket: str

    def __repr__(self) -> str:
        return f"AgentStart(id={self.id})"


@contextlib.asynccontextmanager
async def exclusive_lock(paths: WorkspacePaths, context: BuildContext) -> AsyncGenerator[None]:
    """Wait for a server that lost its lease and still works on this workspace.

    The kernel releases the lock when that server dies.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(paths.lock, flags, 0o600)
    try:
        while not _try_lock(lock):
            await wait_event(context.cancelled, LOCK_POLL_S)
            check_cancelled(context)
        yield
    finally:
        os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def fill_home(
    setup: WorkspaceSetup,
    *,
    trash: Path,
    allowed: AllowedPaths,
    proxy: Callable[[GitSeed], NetworkProxy],
) -> None:
    """Fill the home, which is renamed into place when complete; never fills an existing home
    again."""
    paths, context = setup.paths, setup.context
    if await asyncio.to_thread(paths.home.exists):
        return
    context.log("files", "Creating the home directory")
    await asyncio.to_thread(move_to_trash, paths.new_home, trash)
    target = SandboxHome(
        level=setup.level,
        view=msgspec.structs.replace(setup.view, home=paths.new_home, mounts=()),
        directory=setup.spec.directory,
        proxy_dir=paths.clone_proxy,
        timeout_s=setup.clone_timeout_s,
        limits=_command_limits(setup, paths.new_home),
        log=paths.log / "seed.log",
        cancelled=context.cancelled,
    )
    await fill_from_seed(
        SeedRequest(
            seed=setup.spec.seed,
            target=target,
            proxy=proxy,
            allowed=allowed,
            timeout_s=setup.clone_timeout_s,
            report=lambda text: context.log("files", text),
        )
    )
    check_cancelled(context)
    await asyncio.to_thread(paths.new_home.rename, paths.home)


async def run_startup(setup: WorkspaceSetup) -> None:
    context, spec = setup.context, setup.spec
    if not spec.startup_script:
        return
    context.log("startup", "Running the start-up script")
    words = ["/bin/sh", "-c", spec.startup_script]
    if setup.view.proxy is not None:
        words = [*forward_words((setup.view.kit.python.path,), INSIDE_NETWORK), *words]
    result = await run_command(
        plan_process(setup.level, setup.view, words, directory=setup.directory),
        log=setup.paths.log / "startup.log",
        timeout_s=spec.startup_timeout_s,
        limits=_command_limits(setup, setup.paths.home),
        cancelled=context.cancelled,
    )
    report_startup(context, spec, result)


PROGRAMS_CHECK_TIMEOUT_S: Final = 20.0
FIND_DESKTOP_WORDS: Final = ("/bin/sh", "-c", "command -v Xvnc")
MISSING_DESKTOP_TEXT: Final = (
    "The template has a desktop, but the workspace has no Xvnc. Install the Debian packages"
    " tigervnc-standalone-server and openbox where the workspace finds its programs. It starts"
    " without a desktop."
)


FIND_RECORDER_WORDS: Final = ("/bin/sh", "-c", "command -v ffmpeg || ! command -v Xvnc")
MISSING_RECORDER_TEXT: Final = (
    "The workspace has no ffmpeg: what subagents do at its desktop is not recorded. Install the"
    " Debian package ffmpeg where the workspace finds its programs."
)
_FIND_BROWSER: Final = (
    "for each in chromium-headless-shell chromium chromium-browser google-chrome; do"
    " command -v $each && exit; done; exit 1"
)
FIND_BROWSER_WORDS: Final = ("/bin/sh", "-c", _FIND_BROWSER)
MISSING_BROWSER_TEXT: Final = (
    "The template has a browser, but the workspace has no Chromium. Install the Debian package"
    " chromium-headless-shell or chromium where the workspace finds its programs. It starts without"
    " a browser."
)


def wanted_programs(spec: TemplateSpec) -> list[tuple[str, tuple[str, ...], str]]:
    """For each part of the template that needs programs: its name, the words that find them, and
    what the log of the build says if they are missing: the part is started much later."""
    desktop = ("desktop", FIND_DESKTOP_WORDS, MISSING_DESKTOP_TEXT)
    browser = ("browser", FIND_BROWSER_WORDS, MISSING_BROWSER_TEXT)
    recorder = ("recorder", FIND_RECORDER_WORDS, MISSING_RECORDER_TEXT)
    return [*([desktop, recorder] if spec.desktop else []), *([browser] if spec.browser else [])]


async def check_programs(setup: WorkspaceSetup) -> None:
    for name, words, missing in wanted_programs(setup.spec):
        result = await run_command(
            plan_process(setup.level, setup.view, words, directory=setup.directory),
            log=setup.paths.log / f"{name}.log",
            timeout_s=PROGRAMS_CHECK_TIMEOUT_S,
            limits=_command_limits(setup, setup.paths.home),
            cancelled=setup.context.cancelled,
        )
        if result.code != 0:
            setup.context.log(name, missing)


def agent_screen_config(spec: TemplateSpec) -> dict[str, object]:
    """Fields of the agent's configuration."""
    screen = screen_size(spec)
    fields: dict[str, object] = {"browser": True} if spec.browser else {}
    if screen is not None:
        fields |= {"desktop_width": screen[0], "desktop_height": screen[1]}
    return fields


def report_startup(context: BuildContext, spec: TemplateSpec, result: CommandResult) -> None:
    """Log the script's output. Raises BuildFailed unless it succeeded."""
    for line in result.output.splitlines()[-100:]:
        context.log("startup", line)
    if result.code is None:
        raise BuildFailed(f"The start-up script took longer than {spec.startup_timeout_s:.0f} s.")
    if result.code != 0:
        raise BuildFailed(f"The start-up script ended with exit code {result.code}.")


def _command_limits(setup: WorkspaceSetup, home: Path) -> CommandLimits:
    limits = setup.view.limits
    return CommandLimits(
        name=setup.view.name,
        group=GroupLimits(limits.memory_bytes, limits.processes, limits.cpu_weight),
        disk_bytes=limits.disk_bytes,
        disk_paths=(str(home), str(setup.paths.run)),
        disk_interval_s=setup.disk_interval_s,
    )


def build_order(setup: WorkspaceSetup, agent: AgentStart) -> SandboxOrder:
    paths, limits = setup.paths, setup.view.limits
    return SandboxOrder(
        workspace=setup.view.name,
        build=setup.context.build.build_number,
        plan=_plan_agent(setup, agent),
        socket=str(paths.run / AGENT_SOCKET),
        log=str(paths.log / "agent.log"),
        namespaced=has_namespaces(setup.level),
        memory_bytes=limits.memory_bytes,
        processes=limits.processes,
        cpu_weight=limits.cpu_weight,
        disk_bytes=limits.disk_bytes,
        disk_interval_s=setup.disk_interval_s,
        disk_paths=[str(paths.home), str(paths.run)],
    )


def check_cancelled(context: BuildContext) -> None:
    if context.cancelled.is_set():
        raise BuildCancelled("The build was cancelled.")


def _plan_agent(setup: WorkspaceSetup, agent: AgentStart) -> ProcessPlan:
    level, view = setup.level, setup.view
    inside = inside_paths(level, view)
    bare = msgspec.structs.replace(view, env={})
    config = {
        "agent_id": str(agent.id),
        "dial_key": agent.key.hex(),
        "socket": f"{inside.run}/{AGENT_SOCKET}" if has_namespaces(level) else agent.socket,
        "directory": setup.directory,
        "run_dir": inside.run,
        "home": inside.home,
        "journal_fd": FIRST_FILE_FD,
        "env": base_environment(level, view),
        **agent_screen_config(setup.spec),
    }
    if view.proxy is not None:
        config |= agent_proxy_config()
    words = [view.kit.python.path, "-I", "-B", f"{inside.kit}/agent"]
    words += ["--config-fd", str(CONFIG_FD)]
    plan = plan_process(level, bare, words, directory=inside.home, config=json.dumps(config))
    return dataclasses.replace(plan, files=[str(path) for path in setup.paths.journal])
