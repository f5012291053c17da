"""Commands in the sandbox of a workspace: how a process starts at each isolation level (paths,
environment, limits, the command line of bubblewrap), and how one command runs to its end. `enter`
carries out a plan.

The levels, best first:
  bwrap+uid        namespaces for files, processes, network and users, and an account per workspace
  bwrap            the same, under the server's account, which is not root
  landlock+rlimit  closed paths; other processes are visible and Unix sockets stay open: only with
                   an account per workspace, or if the settings allow it
  none             no closed paths: only if the settings allow it

At every level a process has no capabilities and cannot gain any, has limits, a new keyring and a
system call filter (`seccomp`), and never runs as root. Without the network namespace of bubblewrap
the filter denies IP sockets to a workspace without a network. With bubblewrap, a read-only root in
memory contains only the named paths.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from chatd.domain.workspace.entities import Mount, ResourceLimits
from chatd.workspaces.build_backend import BuildCancelled, BuildFailed
from chatd.workspaces.local.here import (
    HERE_HOME,
    HERE_KIT,
    HereView,
    directory_words,
    root_words,
)
from chatd.workspaces.local.kit import WorkspaceKit
from chatd.workspaces.local.supervisor import cgroups, disk_quota, sandbox_processes
from chatd.workspaces.local.supervisor.plan import CONFIG_FD, PathRules, ProcessPlan
from chatd.workspaces.local.supervisor.sandbox_processes import LogPipe
from chatd.workspaces.local.supervisor.seccomp import FilterRules
from chatd.workspaces.network.inside import INSIDE_NETWORK, proxy_variables, trust_variables

IsolationLevel = Literal["bwrap+uid", "bwrap", "landlock+rlimit", "none"]
ISOLATION_LEVELS: Final[tuple[IsolationLevel, ...]] = get_args(IsolationLevel)

INSIDE_HOME: Final = "/home/dev"
INSIDE_RUN: Final = "/run/chatd"
INSIDE_KIT: Final = "/opt/chatd"
INSIDE_UID: Final = "1000"
STAGES: Final = ("/tmp", "/mnt", "/media")
BWRAP: Final = ("/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap")
TMP_BYTES: Final = 512 * 1024 * 1024
SHM_BYTES: Final = 64 * 1024 * 1024

HIDDEN_FILES: Final = ("/proc/keys", "/proc/key-users")
"""They list the keys of the account, including those from outside of the sandbox."""
PATH: Final = "/usr/local/bin:/usr/bin:/bin"
MERGED_DIRS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
ETC: Final = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/pki/ca-trust",
    "/etc/pki/tls",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/terminfo",
    "/etc/timezone",
)
ETC_NETWORK: Final = ("/etc/resolv.conf", "/etc/nsswitch.conf")


class SandboxView(msgspec.Struct, frozen=True, kw_only=True):
    """What a process may see and use, as host paths."""

    name: str
    home: Path
    run: Path
    kit: WorkspaceKit
    uid: int | None
    limits: ResourceLimits
    network: bool = False
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = {}
    here: HereView | None = None
    """Set if it works in a directory of the person who started the runner."""
    proxy: Path | None = None
    """The directory of the proxy's socket, if it may reach named hosts."""


class InsidePaths(msgspec.Struct, frozen=True, kw_only=True):
    """The same paths as the process sees them."""

    home: str
    run: str
    kit: str


class VisiblePath(msgspec.Struct, frozen=True, kw_only=True):
    source: Path
    target: str
    writable: bool = False


def has_namespaces(level: IsolationLevel) -> bool:
    return level in ("bwrap+uid", "bwrap")


def find_bubblewrap() -> str | None:
    return next((path for path in BWRAP if os.access(path, os.X_OK)), None)


def inside_paths(level: IsolationLevel, view: SandboxView) -> InsidePaths:
    if has_namespaces(level):
        if view.here is not None:
            return InsidePaths(home=HERE_HOME, run=INSIDE_RUN, kit=HERE_KIT)
        return InsidePaths(home=INSIDE_HOME, run=INSIDE_RUN, kit=INSIDE_KIT)
    return InsidePaths(home=str(view.home), run=str(view.run), kit=str(view.kit.path))


def base_environment(level: IsolationLevel, view: SandboxView) -> dict[str, str]:
    """The environment of every process. Contains nothing of the server's."""
    inside = inside_paths(level, view)
    proxied: dict[str, str] = {}
    if view.proxy is not None:
        proxied = {**proxy_variables(), **trust_variables(view.proxy)}
    if view.here is not None:
        # The tools, and without a sandbox the home, of the person whose directory it is.
        home = inside.home if has_namespaces(level) else str(view.here.home)
        workspace = {"HOME": home, "CHATD_WORKSPACE_ID": view.name}
        return {"PATH": PATH, "SHELL": "/bin/sh", **view.here.env, **workspace, **view.env}
    env = {
        "PATH": f"{inside.kit}/bin:{PATH}",
        "HOME": inside.home,
        "USER": "dev",
        "LOGNAME": "dev",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp" if has_namespaces(level) else f"{inside.run}/tmp",
        "CHATD_WORKSPACE_ID": view.name,
    }
    if not has_namespaces(level):
        env["GIT_CONFIG_SYSTEM"] = f"{inside.kit}/etc/gitconfig"
    if not has_namespaces(level) or view.kit.python.sitecustomize is None:
        env["PYTHONPATH"] = f"{inside.kit}/lib"
    return {**env, **proxied, **view.env}


def plan_process(
    level: IsolationLevel,
    view: SandboxView,
    argv: Sequence[str],
    *,
    directory: str = "",
    config: str = "",
) -> ProcessPlan:
    """`directory` is the working directory as seen inside; the default is the home."""
    if has_namespaces(level):
        home = inside_paths(level, view).home
        return _plan_bubblewrap(level, view, argv, directory or home, config)
    inside = inside_paths(level, view)
    return ProcessPlan(
        argv=list(argv),
        env=base_environment(level, view),
        cwd=directory or inside.home,
        uid=view.uid,
        limits=_process_limits(view.limits),
        config=config,
        fence=_path_rules(view, inside) if level == "landlock+rlimit" else None,
        filter=FilterRules(internet=view.network, own_processes=False),
    )


def _plan_bubblewrap(
    level: IsolationLevel, view: SandboxView, argv: Sequence[str], directory: str, config: str
) -> ProcessPlan:
    """A workspace's own account may not reach the data directory, so binds are staged for it."""
    inside = inside_paths(level, view)
    sources = [
        VisiblePath(source=view.home, target=inside.home, writable=True),
        VisiblePath(source=view.run, target=inside.run, writable=True),
        VisiblePath(source=view.kit.path, target=inside.kit),
        *(VisiblePath(source=Path(m.source).resolve(), target=m.target) for m in view.mounts),
    ]
    if view.proxy is not None:
        sources.append(VisiblePath(source=view.proxy, target=INSIDE_NETWORK))
    stage = ""
    binds: list[list[str]] = []
    if level == "bwrap+uid":
        stage = next((path for path in STAGES if Path(path).is_dir()), STAGES[0])
        binds = [[str(number), str(each.source)] for number, each in enumerate(sources)]
        sources = [
            msgspec.structs.replace(each, source=Path(stage, str(number)))
            for number, each in enumerate(sources)
        ]
    kit = sources[2].source
    visible = sources
    if view.here is None:
        visible = [*_kit_files(kit, view), *_host_files(network=view.network), *sources]
    # The template's environment may contain secrets: an agent gets it in its configuration.
    assert not (view.env and config)
    env = base_environment(level, msgspec.structs.replace(view, env={}))
    args_fd = CONFIG_FD if view.env else None
    words = bubblewrap_command(
        visible, env, directory, network=view.network, args_fd=args_fd, here=view.here
    )
    if config:
        # The agent is the first process itself. That of bubblewrap would keep the agent's log open,
        # and commands could write to it through /proc or with a debugger.
        words.insert(-1, "--as-pid-1")
    return ProcessPlan(
        argv=words + list(argv),
        env={"PATH": PATH},
        uid=view.uid if level == "bwrap+uid" else None,
        stage=stage,
        binds=binds,
        limits=_process_limits(view.limits),
        config=config or encode_env_args(view.env),
    )


def _kit_files(kit: Path, view: SandboxView) -> list[VisiblePath]:
    names = ["passwd", "group", "gitconfig", *([] if view.network else ["hosts"])]
    files = [VisiblePath(source=kit / "etc" / name, target=f"/etc/{name}") for name in names]
    custom = view.kit.python.sitecustomize
    if custom is not None:
        files.append(VisiblePath(source=kit / "etc" / "sitecustomize.py", target=str(custom)))
    return files


def _host_files(*, network: bool) -> list[VisiblePath]:
    names = [*ETC, *(("/etc/hosts", *ETC_NETWORK) if network else ())]
    return [VisiblePath(source=Path(name), target=name) for name in names if os.path.exists(name)]


def _path_rules(view: SandboxView, inside: InsidePaths) -> PathRules:
    mounts = [mount.source for mount in view.mounts]
    hosts = ["/etc/hosts", "/etc/passwd", "/etc/group", *ETC_NETWORK]
    return PathRules(
        readable=["/usr", *MERGED_DIRS, "/proc", *ETC, *hosts, inside.kit, *mounts],
        writable=[inside.home, inside.run, *DEVICES],
        network=view.network,
        # Processes adjust themselves there. An account of its own can write nothing else in it.
        updatable=["/proc"] if view.uid is not None else [],
    )


def _process_limits(limits: ResourceLimits) -> dict[str, int]:
    """Limits per process; `nproc` is per account. The supervisor adds memory, because it knows
    whether control groups limit that already."""
    values = {
        "nproc": limits.processes,
        "nofile": limits.open_files,
        "fsize": limits.file_bytes,
    }
    return {"core": 0, **{name: value for name, value in values.items() if value}}


def bubblewrap_command(
    visible: Sequence[VisiblePath],
    env: Mapping[str, str],
    directory: str,
    *,
    network: bool,
    args_fd: int | None = None,
    here: HereView | None = None,
) -> list[str]:
    """The command line up to the command. Every account of the host can read it; bubblewrap reads
    further arguments, which may be secret, from the descriptor `args_fd`."""
    words = [find_bubblewrap() or BWRAP[0], "--unshare-all"]
    if network:
        words.append("--share-net")
    uid, gid = _inside_ids(here)
    words += ["--unshare-user", "--disable-userns", "--uid", uid, "--gid", gid]
    words += ["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv"]
    words += ["--hostname", "workspace"]
    words += (
        root_words(here) if here is not None else ["--ro-bind", "/usr", "/usr", *_merged_dirs()]
    )
    words += ["--proc", "/proc", "--dev", "/dev"]
    for path in HIDDEN_FILES:
        if os.path.exists(path):
            words += ["--ro-bind", "/dev/null", path]
    words += ["--perms", "1777", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"]
    words += ["--remount-ro", "/dev"]
    words += ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"]
    for parent in ("/run",) if here is not None else ("/etc", "/home", "/run", "/opt"):
        words += ["--perms", "0755", "--dir", parent]
    for each in visible:
        words += ["--bind" if each.writable else "--ro-bind", str(each.source), each.target]
    words += [] if here is None else directory_words(here)
    words += ["--remount-ro", "/", *_env_args(env)]
    if args_fd is not None:
        words += ["--args", str(args_fd)]
    return [*words, "--chdir", directory, "--"]


def _inside_ids(here: HereView | None) -> tuple[str, str]:
    """A person finds their own account inside. Root is an ordinary one there: programs would try
    what it may not do without its capabilities."""
    if here is None or os.geteuid() == 0:
        return INSIDE_UID, INSIDE_UID
    return str(os.geteuid()), str(os.getegid())


def encode_env_args(env: Mapping[str, str]) -> str:
    """The text for `args_fd`."""
    return "".join(f"{word}\0" for word in _env_args(env))


def _env_args(env: Mapping[str, str]) -> list[str]:
    return [word for name, value in env.items() for word in ("--setenv", name, value)]


def _merged_dirs() -> list[str]:
    """Links to /usr on most systems, directories on some."""
    words: list[str] = []
    for path in MERGED_DIRS:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path).lstrip("/"), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    return words


# One command run to its end: to fill a home, run the start-up script or probe a level.
#
# The process is a child of this server and dies with it; the next build repeats the command. It has
# the limits of the finished workspace.

COMMAND_KILL_TIMEOUT_S: Final = 5.0
CANCEL_POLL_S: Final = 0.1
EXIT_POLL_S: Final = 0.01


class CommandLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is that of the control group. Files below `disk_paths` count for the disk limit."""

    name: str
    group: cgroups.GroupLimits
    disk_bytes: int
    disk_paths: tuple[str, ...]
    disk_interval_s: float


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    code: int | None
    """None if the command exceeded its timeout and was killed."""
    output: str


async def run_command(
    plan: ProcessPlan,
    *,
    log: Path,
    timeout_s: float,
    limits: CommandLimits | None = None,
    cancelled: asyncio.Event | None = None,
) -> CommandResult:
    """Raises BuildFailed if the files take more than the disk limit."""
    groups = cgroups.CgroupSet()
    if limits is not None:
        groups = cgroups.create(limits.name, limits.group)
        plan = cgroups.join(plan, groups, limits.group)
    full, ended = asyncio.Event(), asyncio.Event()
    watch = asyncio.get_running_loop().create_task(_watch_disk(limits, full, ended))
    try:
        result = await _run(plan, log, timeout_s, cancelled or asyncio.Event(), full)
    finally:
        ended.set()
        await watch
        await _empty(groups)
        cgroups.remove(groups)
    if cancelled is not None and cancelled.is_set():
        raise BuildCancelled("The build was cancelled.")
    if limits is not None and limits.disk_bytes:
        await _check_disk(limits)
    return result


async def _run(
    plan: ProcessPlan, log: Path, timeout_s: float, cancelled: asyncio.Event, full: asyncio.Event
) -> CommandResult:
    output = LogPipe(log)
    exited = asyncio.Event()
    writer = output.open_pipe()
    try:
        process = sandbox_processes.spawn(plan, writer)
    finally:
        os.close(writer)
    try:
        async with sandbox_processes.exit_event(process.pid, exited):
            try:
                in_time = await _wait_exit(exited, (cancelled, full), timeout_s)
            finally:
                sandbox_processes.kill_sandbox_init(process)
                if not await sandbox_processes.wait_event(exited, COMMAND_KILL_TIMEOUT_S):
                    sandbox_processes.kill_group(process)
                    await sandbox_processes.wait_event(exited, COMMAND_KILL_TIMEOUT_S)
    finally:
        # A process that still does not exit, for example on a hanging disk, is abandoned: waiting
        # for it would block the server.
        sandbox_processes.kill_group(process)
        process.poll()
        output.close()
    return CommandResult(code=process.returncode if in_time else None, output=output.tail())


async def _wait_exit(
    exited: asyncio.Event, stops: tuple[asyncio.Event, ...], timeout_s: float
) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not any(stop.is_set() for stop in stops) and (left_s := deadline - loop.time()) > 0:
        if await sandbox_processes.wait_event(exited, min(CANCEL_POLL_S, left_s)):
            return True
    return exited.is_set()


async def _watch_disk(
    limits: CommandLimits | None, full: asyncio.Event, ended: asyncio.Event
) -> None:
    """Set `full` when the files take more than the limit; return then, or when `ended` is set."""
    if limits is None or not limits.disk_bytes:
        return
    limit = disk_quota.disk_limit(limits.disk_bytes)
    meter = disk_quota.DiskMeter(limits.disk_paths, limits.disk_interval_s)
    while (used := await meter.next_usage(limit, ended)) is not None:
        if not used.within(limit):
            full.set()
            return


async def _check_disk(limits: CommandLimits) -> None:
    """Measure once more at the end: a command may write much between two measurements."""
    used = await disk_quota.measure(limits.disk_paths, asyncio.Event())
    limit = disk_quota.disk_limit(limits.disk_bytes)
    if used is not None and not used.within(limit):
        raise BuildFailed(f"The files of the workspace take {used}, and {limit} are allowed.")


async def _empty(groups: cgroups.CgroupSet) -> None:
    """Kill what the command left in the background, where no process namespace has done so."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + COMMAND_KILL_TIMEOUT_S
    while (pids := set(cgroups.list_pids(groups))) and loop.time() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        await sandbox_processes.wait_event(asyncio.Event(), EXIT_POLL_S)
