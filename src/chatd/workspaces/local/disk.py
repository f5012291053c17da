"""How much disk a workspace takes, asked again and again, and what follows from it.

There is no quota that every host offers, so this is a watch and not a wall: between two looks more
can be written. Over the limit all processes are ended, and again whenever it has grown since, so
that files can still be removed. Standard library only.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

from chatd.workspaces.local.sandbox import Sandbox
from chatd.workspaces.local.waiting import pause

PATIENCE_S: Final = 120.0
KILL_S: Final = 5.0
SHARE: Final = 20
"""A look that takes a second is repeated after twenty at the earliest."""


async def watch(sandbox: Sandbox) -> None:
    order = sandbox.order
    loop = asyncio.get_running_loop()
    most = order.disk_bytes
    delay = order.disk_interval_s
    while not await pause(sandbox.stopping, delay):
        began = loop.time()
        used = await measure(order.disk_paths, sandbox.stopping)
        delay = max(order.disk_interval_s, SHARE * (loop.time() - began))
        if used is None:
            continue
        if used <= order.disk_bytes:
            most = order.disk_bytes
            sandbox.status.detail = ""
        elif used > most:
            most = used
            sandbox.end_processes(
                f"the files take {used} bytes and {order.disk_bytes} are allowed: "
                "everything that ran was ended; remove files before going on"
            )


async def measure(paths: Sequence[str], stopping: asyncio.Event) -> int | None:
    """Bytes on disk; None if that cannot be told, or nobody wants to know any more. Links are not
    followed, nor other disks."""
    try:
        process = await asyncio.create_subprocess_exec(
            "nice", "du", "-skxc", "--", *paths,
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
    return _total(answer.result()[0]) if answer.done() and not stopping.is_set() else None


def _total(output: bytes) -> int | None:
    lines = output.split(b"\n")
    total = lines[-2].split(b"\t")[0] if len(lines) > 1 else b""
    return int(total) * 1024 if total.isdigit() else None
