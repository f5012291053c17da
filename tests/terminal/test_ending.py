"""`chatd chat` as a process, on a terminal that is lost or that takes no more output."""

import ast
import asyncio
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from contextlib import suppress
from pathlib import Path

from chatd import terminal
from tests.support.eventually import eventually
from tests.support.terminal import TerminalServer

PROGRAM = "from chatd.cli.main import main; main()"
WELCOME = b"What should it do?"
BLOCKED_AFTER_S = 1.0


class Terminal:
    """The process, and our end of its terminal."""

    def __init__(self, process: asyncio.subprocess.Process, ours: int) -> None:
        self.process = process
        self.ours = ours

    def resize(self, columns: int) -> None:
        """The screen is drawn again."""
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 36, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def unread(self) -> int:
        return struct.unpack("i", fcntl.ioctl(self.ours, termios.FIONREAD, b"\0" * 4))[0]

    async def until_shown(self) -> None:
        seen = b""
        while WELCOME not in seen:
            seen += await asyncio.to_thread(os.read, self.ours, 65_536)

    async def fill(self) -> None:
        """Draw without reading, until nothing more is taken."""
        columns, before = 100, -1
        while self.unread() != before:
            before, columns = self.unread(), columns + 1
            self.resize(columns)
            await self.until_more(before)

    async def until_more(self, before: int) -> None:
        """Or until it is clear that nothing more comes."""

        async def has_more() -> bool:
            return self.unread() > before

        with suppress(TimeoutError):
            await eventually(has_more, within_s=BLOCKED_AFTER_S)


async def started(server: TerminalServer, home: Path) -> Terminal:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, "chat", "--url", server.address.url),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={"CHATD_TOKEN": server.address.token, "TERM": "xterm-256color", "HOME": str(home)},
        start_new_session=True,
    )
    os.close(theirs)
    terminal = Terminal(process, ours)
    terminal.resize(100)
    await terminal.until_shown()
    return terminal


async def test_a_terminal_that_takes_no_output_ends_by_a_signal(
    server: TerminalServer, tmp_path: Path
) -> None:
    terminal = await started(server, tmp_path)
    try:
        await terminal.fill()
        terminal.process.send_signal(signal.SIGTERM)
        assert await terminal.process.wait() != 0
    finally:
        os.close(terminal.ours)


async def test_a_terminal_that_is_gone_ends_the_process(
    server: TerminalServer, tmp_path: Path
) -> None:
    terminal = await started(server, tmp_path)
    os.close(terminal.ours)
    terminal.process.send_signal(signal.SIGHUP)
    assert await terminal.process.wait() != 0


def test_a_worker_gets_a_function_and_no_coroutine() -> None:
    """A worker that is cancelled before it began never awaits a coroutine that it was given."""
    calls = [
        (path.name, call.lineno, call.args[0])
        for path in Path(terminal.__file__).parent.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        if isinstance(call.func, ast.Attribute)
        if call.func.attr == "run_worker"
    ]
    assert len(calls) > 10
    for name, line, work in calls:
        is_partial = isinstance(work, ast.Call) and ast.unparse(work.func) == "partial"
        assert is_partial or not isinstance(work, ast.Call), f"{name}:{line}"
