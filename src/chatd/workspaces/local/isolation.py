"""Detect how well this host can isolate workspaces, by running a probe at each level.

Runs once, when the server starts. The result is stored with every agent and logged together with
advice.
"""

import logging
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from chatd.domain.workspace.entities import ResourceLimits
from chatd.log_event import LogEvent
from chatd.workspaces.local.kit import WorkspaceKit
from chatd.workspaces.local.sandbox_command import (
    ISOLATION_LEVELS,
    IsolationLevel,
    SandboxView,
    find_bubblewrap,
    has_namespaces,
    inside_paths,
    plan_process,
    run_command,
)
from chatd.workspaces.local.supervisor.sandbox_processes import children_of
from chatd.workspaces.local.supervisor.syscalls import MIN_LANDLOCK_VERSION, landlock_version
from chatd.workspaces.local.workspace_dirs import (
    UID_MAP,
    LocalLayout,
    UidRange,
    choose_uid_range,
    chown_to_workspace,
)

ISOLATION_PROBE_TIMEOUT_S: Final = 20.0
PROBE_COMMAND: Final = "true && touch ~/tried && test -r {kit}/agent/__main__.py"

OLD_SUPERVISOR_TEXT: Final = (
    "a supervisor of an earlier version of chatd runs the workspaces of this host: this one has no"
    " system call filter, and its commands can reach the agent's journal; stop all workspaces of"
    " this host, and start them again two minutes later"
)

log: Final = logging.getLogger("chatd.workspaces")


class IsolationReport(msgspec.Struct, frozen=True, kw_only=True):
    level: IsolationLevel | None
    """The best level that works and is allowed."""
    failed: tuple[tuple[str, str], ...] = ()
    """Better levels, and why they do not work."""
    advice: str = ""

    @property
    def text(self) -> str:
        result = f"isolation of local workspaces: {self.level or 'not possible'}"
        failed = "; ".join(f"{level}: {reason}" for level, reason in self.failed)
        return ". ".join(each for each in (result, failed, self.advice) if each)


class HostSupport(msgspec.Struct, frozen=True, kw_only=True):
    """`has_accounts`: the server is root and can give each workspace an account of its own."""

    is_root: bool
    has_accounts: bool
    has_bubblewrap: bool
    landlock_version: int
    allow_unsafe: bool = False


async def detect_isolation(
    layout: LocalLayout,
    kit: WorkspaceKit,
    uids: UidRange | None,
    *,
    allow_unsafe: bool,
    levels: Sequence[IsolationLevel] = ISOLATION_LEVELS,
    own_account: bool = False,
) -> IsolationReport:
    """The first of the levels that works. `own_account`: workspaces are to run under the account of
    this process, whichever it is."""
    host = HostSupport(
        is_root=os.geteuid() == 0 and not own_account,
        has_accounts=uids is not None,
        has_bubblewrap=find_bubblewrap() is not None,
        landlock_version=landlock_version(),
        allow_unsafe=allow_unsafe,
    )
    failed: list[tuple[str, str]] = []
    for level in levels:
        reason = find_obstacle(level, host)
        if reason is None:
            reason = await _probe(level, layout, kit, uids)
        if reason is None:
            advice = _advice(level) if failed else ""  # Nothing better was asked for.
            return IsolationReport(level=level, failed=tuple(failed), advice=advice)
        failed.append((level, reason))
    return IsolationReport(level=None, failed=tuple(failed), advice=_advice(None))


def log_isolation(report: IsolationReport) -> None:
    strong = report.level is not None and has_namespaces(report.level)
    line = LogEvent(event="workspace_isolation", explanation=report.text)
    log.log(logging.INFO if strong else logging.WARNING, line)


def find_obstacle(level: IsolationLevel, host: HostSupport) -> str | None:
    """Why a level must not be tried. None if only a probe can tell whether it works."""
    if level == "bwrap+uid" and not host.is_root:
        return "only as root"
    if level == "bwrap" and host.is_root:
        # Files and kernel settings of the host belong to root: one gap would be enough.
        return "not as root, which workspaces must not be"
    if host.is_root and not host.has_accounts:
        return "there are not enough accounts in this container, and workspaces must not be root"
    if has_namespaces(level) and not host.has_bubblewrap:
        return "bubblewrap is not installed"
    if level == "landlock+rlimit" and host.landlock_version < MIN_LANDLOCK_VERSION:
        return "this kernel has no Landlock, or an old one"
    if level == "landlock+rlimit" and not host.has_accounts and not host.allow_unsafe:
        # Landlock does not restrict sockets with a path: a workspace with the server's own account
        # could connect to the database and the supervisor.
        return "not under the server's own account, unless the settings allow it"
    if level == "none" and not host.allow_unsafe:
        return "not allowed by the settings"
    return None


async def _probe(
    level: IsolationLevel, layout: LocalLayout, kit: WorkspaceKit, uids: UidRange | None
) -> str | None:
    """Run a command as in a workspace. None if it succeeds, else the reason."""
    with tempfile.TemporaryDirectory(prefix=".try-", dir=layout.workspaces) as directory:
        top = Path(directory)
        try:
            view = _probe_view(top, level, kit, uids)
            command = PROBE_COMMAND.format(kit=inside_paths(level, view).kit)
            plan = plan_process(level, view, ["/bin/sh", "-c", command])
            result = await run_command(plan, log=top / "log", timeout_s=ISOLATION_PROBE_TIMEOUT_S)
        except OSError as error:
            return str(error)
        if result.code == 0:
            return None
        return result.output.strip()[-300:] or f"the probe exited with code {result.code}"


def _probe_view(
    top: Path, level: IsolationLevel, kit: WorkspaceKit, uids: UidRange | None
) -> SandboxView:
    uid = probe_uid(level, uids)
    home, run = top / "home", top / "run"
    for path in (home, run):
        path.mkdir()
        chown_to_workspace(path, uid)
    if not has_namespaces(level):
        top.chmod(0o711)
        top.parent.chmod(0o711)
    return SandboxView(name="try", home=home, run=run, kit=kit, uid=uid, limits=ResourceLimits())


def probe_uid(level: IsolationLevel, uids: UidRange | None) -> int | None:
    """The uid after the range, which is never assigned to a workspace."""
    return None if level == "bwrap" or uids is None else uids.base + uids.size


def host_uid_range(data_dir: Path) -> UidRange | None:
    return choose_uid_range(data_dir, UID_MAP.read_text()) if os.geteuid() == 0 else None


def _advice(level: IsolationLevel | None) -> str:
    if level is not None and has_namespaces(level):
        return ""
    install = "Install bubblewrap (Debian and Ubuntu: apt install bubblewrap)"
    if find_bubblewrap() is not None:
        install = (
            "Allow user namespaces (sysctl user.max_user_namespaces, "
            "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
        )
    effect = "workspaces are weakly isolated" if level else "this host cannot run workspaces"
    return f"{install} and start chatd again: without it {effect}."


def log_old_supervisor(workspace: str) -> None:
    fields = {"workspace_id": workspace}
    line = LogEvent(event="supervisor_old", fields=fields, explanation=OLD_SUPERVISOR_TEXT)
    log.warning(line)


def lacks_filter(pid: int, level: IsolationLevel) -> bool:
    """Whether a sandbox runs without its system call filter: a supervisor of an earlier version
    ignores the parts of a plan that it does not know. False if the kernel does not tell.

    `pid` is that of the program that the supervisor started: with namespaces its children are
    inside. The server's own filters, those of a container for example, do not count.
    """
    inside = children_of(pid) if has_namespaces(level) else [pid]
    counts = [found for each in inside if (found := _count_filters(each)) is not None]
    own = _count_filters(os.getpid())
    return own is not None and bool(counts) and max(counts) <= own


def _count_filters(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = re.search(r"^Seccomp_filters:\s*([0-9]+)$", status, re.MULTILINE)
    return None if found is None else int(found[1])
