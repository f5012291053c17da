"""Run one command of a workspace to its end: fill a home, run the start-up script, probe a level.

The process is a child of this server and dies with it; the next build repeats the command. It has
the same limits as the commands of the finished workspace.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Final

import msgspec

from chatd.workspaces.builds.backend import BuildCancelled, BuildFailed
from chatd.workspaces.local.supervisor import cgroups, disk_quota, processes
from chatd.workspaces.local.supervisor.log_pipe import LogPipe
from chatd.workspaces.local.supervisor.plan import ProcessPlan

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
        process = processes.spawn(plan, writer)
    finally:
        os.close(writer)
    try:
        async with processes.exit_event(process.pid, exited):
            try:
                in_time = await _wait_exit(exited, (cancelled, full), timeout_s)
            finally:
                processes.kill_sandbox_init(process)
                if not await processes.wait_event(exited, COMMAND_KILL_TIMEOUT_S):
                    processes.kill_group(process)
                    await processes.wait_event(exited, COMMAND_KILL_TIMEOUT_S)
    finally:
        # A process that still does not exit, for example on a hanging disk, is abandoned: waiting
        # for it would block the server.
        processes.kill_group(process)
        process.poll()
        output.close()
    return CommandResult(code=process.returncode if in_time else None, output=output.tail())


async def _wait_exit(
    exited: asyncio.Event, stops: tuple[asyncio.Event, ...], timeout_s: float
) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not any(stop.is_set() for stop in stops) and (left_s := deadline - loop.time()) > 0:
        if await processes.wait_event(exited, min(CANCEL_POLL_S, left_s)):
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
    """Once more at the end: a command may write much between two measurements."""
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
        await processes.wait_event(asyncio.Event(), EXIT_POLL_S)
