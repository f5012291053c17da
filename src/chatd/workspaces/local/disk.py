"""How much disk a workspace takes, asked again and again, and what follows from it.

There is no quota that every host offers, so this is a watch and not a wall: between two looks more
can be written. Over the limit all processes are ended, and again whenever it has grown since, so
that files can still be removed. Files are counted too, because a disk can run out of those while
it has room. Standard library only.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chatd.workspaces.local.sandbox import Sandbox
from chatd.workspaces.local.waiting import pause

PATIENCE_S: Final = 120.0
KILL_S: Final = 5.0
SHARE: Final = 20
"""A look that takes a second is repeated after twenty at the earliest."""
BYTES_PER_FILE: Final = 4096
"""Most disks are made with room for one file in 16 KiB; nobody's share is that small."""
LEAST_FILES: Final = 10_000


@dataclass(frozen=True)
class Use:
    bytes: int
    files: int

    def within(self, other: "Use") -> bool:
        return self.bytes <= other.bytes and self.files <= other.files

    def grown(self, other: "Use") -> "Use":
        return Use(max(self.bytes, other.bytes), max(self.files, other.files))

    def __str__(self) -> str:
        return f"{self.bytes} bytes in {self.files} files"


def allowed(disk_bytes: int) -> Use:
    return Use(disk_bytes, max(LEAST_FILES, disk_bytes // BYTES_PER_FILE))


async def watch(sandbox: Sandbox) -> None:
    order = sandbox.order
    loop = asyncio.get_running_loop()
    limit = most = allowed(order.disk_bytes)
    delay = order.disk_interval_s
    while not await pause(sandbox.stopping, delay):
        began = loop.time()
        used = await measure(order.disk_paths, sandbox.stopping)
        delay = max(order.disk_interval_s, SHARE * (loop.time() - began))
        if used is None:
            continue
        if used.within(limit):
            most = limit
            sandbox.status.detail = ""
        elif not used.within(most):
            most = most.grown(used)
            sandbox.end_processes(
                f"the files take {used} and {limit} are allowed: "
                "everything that ran was ended; remove files before going on"
            )


async def measure(paths: Sequence[str], stopping: asyncio.Event) -> Use | None:
    """None if that cannot be told, or nobody wants to know any more. Links are not followed, nor
    other disks."""
    kilobytes = await _total("-skxc", paths, stopping)
    if kilobytes is None:
        return None
    # Not every host's program can count; where it walks a second time, the way is known by now.
    files = await _total("-sxc", paths, stopping, "--inodes")
    return Use(kilobytes * 1024, files or 0)


async def _total(how: str, paths: Sequence[str], stopping: asyncio.Event, *more: str) -> int | None:
    try:
        process = await asyncio.create_subprocess_exec(
            "nice", "du", how, *more, "--", *paths,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return None
    loop = asyncio.get_running_loop()
    answer = loop.create_task(process.communicate())
    stopped = loop.create_task(stopping.wait())
    try:
        await asyncio.wait(
            {answer, stopped}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        stopped.cancel()
        if not answer.done():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.wait({answer}, timeout=KILL_S)
    return _last_number(answer.result()[0]) if answer.done() and not stopping.is_set() else None


def _last_number(output: bytes) -> int | None:
    lines = output.split(b"\n")
    total = lines[-2].split(b"\t")[0] if len(lines) > 1 else b""
    return int(total) if total.isdigit() else None
