"""Python programs of tests, as processes that reply to a line with a line."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPLY_TIMEOUT_S = 120.0
"""Only for a process that never replies: on a busy host it is slow to start."""


class LineProcess:
    def __init__(self, process: Process) -> None:
        self._process = process

    async def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n".encode())
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            answer = await self._process.stdout.readline()
        assert answer, f"the process ended instead of answering {line!r}"
        return answer.decode()

    def kill(self) -> None:
        self._process.kill()


@asynccontextmanager
async def running(module: str, *args: str) -> AsyncGenerator[LineProcess]:
    """The process exits at the end of its input, or is killed after a timeout."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *args, cwd=ROOT, stdin=PIPE, stdout=PIPE
    )
    try:
        yield LineProcess(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
