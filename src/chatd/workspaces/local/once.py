"""Running one command of a workspace to its end: to fill a home, to start up, to try a level.

The process is a child of this server and dies with it: whoever comes after does it again.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

import msgspec

from chatd.workspaces.backend import BuildCancelled
from chatd.workspaces.local.bounded_log import BoundedLog
from chatd.workspaces.local.plan import Plan
from chatd.workspaces.local.spawning import end_inside, kill_group, spawn
from chatd.workspaces.local.waiting import ended, pause

KILL_S: Final = 5.0
LOOK_S: Final = 0.1


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    code: int | None
    """None if it took too long and was ended."""
    said: str


async def run_once(
    plan: Plan, *, log: Path, within_s: float, cancelled: asyncio.Event | None = None
) -> Ran:
    output = BoundedLog(log)
    done = asyncio.Event()
    writer = output.listen()
    try:
        process = spawn(plan, writer)
    finally:
        os.close(writer)
    try:
        async with ended(process.pid, done):
            try:
                in_time = await _until(done, cancelled or asyncio.Event(), within_s)
            finally:
                end_inside(process)
                if not await pause(done, KILL_S):
                    kill_group(process)
                    await pause(done, KILL_S)
    finally:
        # One that even now does not end, because a disk does not answer, is left to itself: to
        # wait for it here would hold up the whole server.
        kill_group(process)
        process.poll()
        output.close()
    if cancelled is not None and cancelled.is_set():
        raise BuildCancelled("The build was cancelled.")
    return Ran(code=process.returncode if in_time else None, said=output.tail())


async def _until(done: asyncio.Event, cancelled: asyncio.Event, within_s: float) -> bool:
    loop = asyncio.get_running_loop()
    latest = loop.time() + within_s
    while not cancelled.is_set() and (left := latest - loop.time()) > 0:
        if await pause(done, min(LOOK_S, left)):
            return True
    return done.is_set()
