"""How much disk a workspace takes, asked again and again, and what follows from it.

There is no quota that every host offers, so this is a watch and not a wall: between two looks more
can be written. Over the limit all processes are ended, and again whenever it has grown since, so
that files can still be removed. Standard library only.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Final

from chatd.workspaces.local.sandbox import Sandbox
from chatd.workspaces.local.waiting import pause

PATIENCE_S: Final = 120.0
SHARE: Final = 20
"""A look that takes a second is repeated after twenty at the earliest."""


async def watch(sandbox: Sandbox) -> None:
    order = sandbox.order
    loop = asyncio.get_running_loop()
    most = order.disk_bytes
    delay = order.disk_interval_s
    while not await pause(sandbox.stopping, delay):
        began = loop.time()
        used = await _unless_stopped(sandbox, measure(order.disk_paths))
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


async def _unless_stopped(
    sandbox: Sandbox, measuring: Coroutine[None, None, int | None]
) -> int | None:
    """A large home takes a while to look through; whoever stops it does not wait for that."""
    loop = asyncio.get_running_loop()
    look = loop.create_task(measuring)
    stopping = loop.create_task(sandbox.stopping.wait())
    try:
        await asyncio.wait({look, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return look.result() if look.done() else None
    finally:
        look.cancel()
        stopping.cancel()


async def measure(paths: Sequence[str]) -> int | None:
    """Bytes on disk; None if that cannot be told. Links are not followed, nor other disks."""
    try:
        process = await asyncio.create_subprocess_exec(
            "nice", "du", "-skxc", "--", *paths,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return None
    try:
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    lines = output.split(b"\n")
    total = lines[-2].split(b"\t")[0] if len(lines) > 1 else b""
    return int(total) * 1024 if total.isdigit() else None
