"""Programs that the bench starts and stops.

A bench program prints its port and runs until its standard input closes, so that no program
outlives the bench. `chatd serve` gets SIGTERM, then SIGKILL.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from chatd.domain.errors import Unavailable

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 15.0

CHECKOUT: Final = Path(__file__).parents[1]
"""Where `python -m bench...` finds the programs."""

_CHATD: Final = "from chatd.cli.main import main; main()"
_LAST_LINE: Final = b"Ctrl-C stops."


class BenchProgram(Struct, frozen=True, kw_only=True):
    pid: int
    port: int


class ChatdProcess(Struct, frozen=True, kw_only=True):
    """A `chatd serve`."""

    process: Process
    port: int

    @property
    def pid(self) -> int:
        return self.process.pid


async def serve_until_input_ends(port: int) -> None:
    """Run in the program: print its port, then wait until standard input closes."""
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    await reader.read()


@asynccontextmanager
async def start_program(module: str, *arguments: str) -> AsyncGenerator[BenchProgram]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments), stdin=PIPE, stdout=PIPE, cwd=CHECKOUT
    )
    try:
        yield BenchProgram(pid=process.pid, port=int(await _first_line(process)))
    finally:
        await _end(process, signal.SIGKILL)


async def _first_line(process: Process) -> bytes:
    assert process.stdout is not None, "it was started with a pipe"
    async with asyncio.timeout(START_TIMEOUT_S):
        line = await process.stdout.readline()
    if not line:
        raise Unavailable(
            f"The bench program did not start (exit code {process.returncode}).", code="bench_child"
        )
    return line


@asynccontextmanager
async def start_chatd(
    home: Path, environment: Mapping[str, str], *flags: str
) -> AsyncGenerator[ChatdProcess]:
    """`chatd serve` on a free port, once it answers. It does not inherit CHATD_ variables."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("CHATD_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _CHATD, "serve", "--port", "0", *flags),
        stdout=PIPE,
        cwd=home,
        env={**inherited, "HOME": str(home), **environment},
    )
    try:
        yield ChatdProcess(process=process, port=await _port(process))
    finally:
        await _end(process, signal.SIGTERM)


async def _port(process: Process) -> int:
    assert process.stdout is not None, "it was started with a pipe"
    port = 0
    async with asyncio.timeout(START_TIMEOUT_S):
        async for line in process.stdout:
            words = line.split()
            if words[:1] == [b"API"]:
                port = int(words[1].partition(b"/api/")[0].rpartition(b":")[2])
            if line.strip() == _LAST_LINE:
                return port
    raise Unavailable("chatd serve did not start.", code="bench_child")


async def _end(process: Process, first: signal.Signals) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(first)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.communicate()
    if process.returncode is None:
        process.kill()
    await process.wait()
