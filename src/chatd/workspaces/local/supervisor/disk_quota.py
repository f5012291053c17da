"""Measure the disk usage of a workspace at intervals and enforce its limit.

No quota mechanism exists on every host, so this polls: between two measurements a workspace can
write more. A measurement walks over all files, so it is made only if the file system has lost so
much space since the last one that the workspace may have reached its limit, and otherwise once in a
while, because others may have freed as much.

Over the limit all processes are killed, and again only if usage has grown since, so that the user
can remove files. Files are counted too, because a disk can run out of inodes first. Standard
library only.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chatd.workspaces.local.supervisor.sandbox import Sandbox
from chatd.workspaces.local.supervisor.sandbox_processes import wait_event

MEASURE_TIMEOUT_S: Final = 120.0
DU_KILL_TIMEOUT_S: Final = 5.0
MAX_UNMEASURED_S: Final = 60.0
MEASURE_INTERVAL_FACTOR: Final = 20
"""A measurement of one second is repeated after 20 s at the earliest."""
BYTES_PER_FILE: Final = 4096
"""Most file systems have one inode per 16 KiB; a workspace may use four times that share."""
MIN_FILE_LIMIT: Final = 10_000


@dataclass(frozen=True)
class DiskUsage:
    bytes: int
    files: int

    def within(self, other: "DiskUsage") -> bool:
        return self.bytes <= other.bytes and self.files <= other.files

    def maximum(self, other: "DiskUsage") -> "DiskUsage":
        return DiskUsage(max(self.bytes, other.bytes), max(self.files, other.files))

    def __str__(self) -> str:
        return f"{self.bytes} bytes in {self.files} files"


class DiskMeter:
    """Measures the files below `paths` when they may have reached a limit."""

    def __init__(self, paths: Sequence[str], interval_s: float) -> None:
        self._paths = paths
        self._interval_s = interval_s
        self._delay_s = interval_s
        self._measured_at = 0.0
        self._used: DiskUsage | None = None
        self._free = DiskUsage(0, 0)

    async def next_usage(self, limit: DiskUsage, stopping: asyncio.Event) -> DiskUsage | None:
        """The next measurement that is needed. None if the sandbox stops."""
        loop = asyncio.get_running_loop()
        while not await wait_event(stopping, self._delay_s):
            self._delay_s = self._interval_s
            free = read_free_space(self._paths)
            is_due = loop.time() - self._measured_at >= MAX_UNMEASURED_S
            if (
                self._used is not None
                and not is_due
                and can_hold(self._used, limit, self._free, free)
            ):
                continue
            began = loop.time()
            used = await measure(self._paths, stopping)
            self._measured_at = loop.time()
            self._delay_s = max(self._interval_s, MEASURE_INTERVAL_FACTOR * (loop.time() - began))
            if used is not None:
                self._used, self._free = used, free
                return used
        return None


def can_hold(used: DiskUsage, limit: DiskUsage, before: DiskUsage, now: DiskUsage) -> bool:
    """Whether files that took `used` are still within the limit, even if they alone have taken all
    the space that the file system lost since."""
    lost = DiskUsage(max(before.bytes - now.bytes, 0), max(before.files - now.files, 0))
    return DiskUsage(used.bytes + lost.bytes, used.files + lost.files).within(limit)


def read_free_space(paths: Sequence[str]) -> DiskUsage:
    """The free space on the file system of the first path. All paths belong to one workspace."""
    try:
        found = os.statvfs(paths[0])
    except (OSError, IndexError):
        return DiskUsage(0, 0)
    return DiskUsage(found.f_bfree * found.f_frsize, found.f_ffree)


def disk_limit(disk_bytes: int) -> DiskUsage:
    return DiskUsage(disk_bytes, max(MIN_FILE_LIMIT, disk_bytes // BYTES_PER_FILE))


async def enforce_limit(sandbox: Sandbox) -> None:
    """Run until the sandbox stops."""
    order = sandbox.order
    limit = highest = disk_limit(order.disk_bytes)
    meter = DiskMeter(order.disk_paths, order.disk_interval_s)
    while (used := await meter.next_usage(limit, sandbox.stopping)) is not None:
        if used.within(limit):
            highest = limit
            sandbox.state.detail = ""
        elif not used.within(highest):
            highest = highest.maximum(used)
            sandbox.kill_processes(
                f"the files take {used} and {limit} are allowed: "
                "all processes were killed; remove files before going on"
            )


async def measure(paths: Sequence[str], stopping: asyncio.Event) -> DiskUsage | None:
    """None if `du` fails or the sandbox stops. Does not follow links or enter other disks."""
    kilobytes = await _run_du("-skxc", paths, stopping)
    if kilobytes is None:
        return None
    # Not every `du` counts inodes. The second walk is fast: the first one filled the caches.
    files = await _run_du("-sxc", paths, stopping, "--inodes")
    return DiskUsage(kilobytes * 1024, files or 0)


async def _run_du(
    flags: str, paths: Sequence[str], stopping: asyncio.Event, *more: str
) -> int | None:
    try:
        process = await asyncio.create_subprocess_exec(
            "nice", "du", flags, *more, "--", *paths,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return None
    loop = asyncio.get_running_loop()
    output = loop.create_task(process.communicate())
    stopped = loop.create_task(stopping.wait())
    try:
        await asyncio.wait(
            {output, stopped}, timeout=MEASURE_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        stopped.cancel()
        if not output.done():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.wait({output}, timeout=DU_KILL_TIMEOUT_S)
    return _parse_total(output.result()[0]) if output.done() and not stopping.is_set() else None


def _parse_total(output: bytes) -> int | None:
    lines = output.split(b"\n")
    total = lines[-2].split(b"\t")[0] if len(lines) > 1 else b""
    return int(total) if total.isdigit() else None
