"""Run one command of a workspace to its end: fill a home, run the start-up script, probe a level.

The process is a child of this server and dies with it; the next build repeats the command.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

import msgspec

from chatd.workspaces.builds.backend import BuildCancelled
from chatd.workspaces.local.supervisor import processes
from chatd.workspaces.local.supervisor.log_pipe import LogPipe
from chatd.workspaces.local.supervisor.plan import ProcessPlan

COMMAND_KILL_TIMEOUT_S: Final = 5.0
CANCEL_POLL_S: Final = 0.1


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    code: int | None
    """None if the command exceeded its timeout and was killed."""
    output: str


async def run_command(
    plan: ProcessPlan, *, log: Path, timeout_s: float, cancelled: asyncio.Event | None = None
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
                in_time = await _wait_exit(exited, cancelled or asyncio.Event(), timeout_s)
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
    if cancelled is not None and cancelled.is_set():
        raise BuildCancelled("The build was cancelled.")
    return CommandResult(code=process.returncode if in_time else None, output=output.tail())


async def _wait_exit(exited: asyncio.Event, cancelled: asyncio.Event, timeout_s: float) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not cancelled.is_set() and (left_s := deadline - loop.time()) > 0:
        if await processes.wait_event(exited, min(CANCEL_POLL_S, left_s)):
            return True
    return exited.is_set()
