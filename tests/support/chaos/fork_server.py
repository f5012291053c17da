"""A program that imports the server once and forks a process for each request.

Starting Python and importing the server costs half a second each time; a fork costs nothing. A
request is one packet with a setup and two pipes for input and output; the reply is the process id.
The fork server sends the id and exit code of each process that exits. When its client closes the
socket, it kills all forked processes, frozen ones included.
"""

import asyncio
import os
import selectors
import signal
import socket
import sys
import traceback
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from types import FrameType
from typing import Final

import msgspec
from msgspec import Struct

from tests.support.processes import ROOT

PACKET_BYTES: Final = 1 << 16
MAX_LINE_BYTES: Final = 1 << 24
START_TIMEOUT_S: Final = 60.0


class ProcessStarted(Struct, frozen=True, kw_only=True, tag=True):
    pid: int


class ProcessExited(Struct, frozen=True, kw_only=True, tag=True):
    pid: int
    code: int


_NOTICE: Final = msgspec.json.Decoder(ProcessStarted | ProcessExited)


# The fork server's process


def serve(run_child: Callable[[bytes], None]) -> None:
    """Run the fork server. `run_child` runs in each forked process, with the request, and does
    not return."""
    line = socket.socket(fileno=os.dup(0))
    wakes, wake = socket.socketpair()
    wakes.settimeout(0)
    wake.settimeout(0)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, _wake_up)
    line.send(b"ready")
    children: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        selector.register(wakes, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is wakes:
                    with suppress(BlockingIOError):
                        wakes.recv(PACKET_BYTES)
                elif not _fork(line, children, run_child):
                    for pid in children:
                        os.kill(pid, signal.SIGKILL)
                    return
            _reap(line, children)


def _wake_up(number: int, frame: FrameType | None) -> None:
    """The wake-up file descriptor does the work; without a handler SIGCHLD would be ignored."""


def _fork(line: socket.socket, children: set[int], run_child: Callable[[bytes], None]) -> bool:
    asked, fds, _, _ = socket.recv_fds(line, PACKET_BYTES, 2)
    if not asked:
        return False
    if (pid := os.fork()) == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        os.closerange(3, 256)
        try:
            run_child(asked)
        finally:
            traceback.print_exception(sys.exception())
            os._exit(1)
    for fd in fds:
        os.close(fd)
    children.add(pid)
    line.send(msgspec.json.encode(ProcessStarted(pid=pid)))
    return True


def _reap(line: socket.socket, children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        with suppress(OSError):
            line.send(
                msgspec.json.encode(ProcessExited(pid=pid, code=os.waitstatus_to_exitcode(status)))
            )


# The test's process


class ForkedProcess:
    """The part of a process's interface that tests need."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, pipe: int) -> None:
        self.pid = pid
        self.stdout = reader
        self.returncode: int | None = None
        self._pipe = pipe
        self._ended = asyncio.Event()

    def write(self, data: bytes) -> None:
        """Write to its input. Data that an exited or frozen process does not read is lost."""
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._pipe, data)

    def send_signal(self, number: signal.Signals) -> None:
        """The process may have exited, and the message that says so not have arrived yet."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def set_exited(self, code: int) -> None:
        self.returncode = code
        os.close(self._pipe)
        self._ended.set()


class ForkServer:
    def __init__(self, process: Process, line: socket.socket) -> None:
        self._process = process
        self._line = line
        self._turn = asyncio.Lock()
        self._started: asyncio.Queue[int] = asyncio.Queue()
        self._alive: dict[int, ForkedProcess] = {}
        self._early: dict[int, int] = {}

    async def fork(self, asked: bytes) -> ForkedProcess:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        async with self._turn:
            socket.send_fds(self._line, [asked], [theirs_in, theirs_out])
            async with asyncio.timeout(START_TIMEOUT_S):
                pid = await self._started.get()
        os.close(theirs_in)
        os.close(theirs_out)
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours_out, "rb", 0)
        )
        os.set_blocking(ours_in, False)
        child = ForkedProcess(pid, reader, ours_in)
        if (code := self._early.pop(pid, None)) is not None:
            child.set_exited(code)
        else:
            self._alive[pid] = child
        return child

    async def read_notices(self) -> None:
        """Read notices until the fork server is closed."""
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            while packet := await loop.sock_recv(self._line, PACKET_BYTES):
                self._on_notice(_NOTICE.decode(packet))

    def _on_notice(self, news: ProcessStarted | ProcessExited) -> None:
        match news:
            case ProcessStarted(pid=pid):
                self._started.put_nowait(pid)
            case ProcessExited(pid=pid, code=code):
                if (child := self._alive.pop(pid, None)) is not None:
                    child.set_exited(code)
                else:
                    self._early[pid] = code

    async def close(self) -> None:
        self._line.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._process.wait()


@asynccontextmanager
async def fork_server(module: str) -> AsyncGenerator[ForkServer]:
    """A fork server for processes that run what `module` passes to `serve`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(0)
    with ours:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, cwd=ROOT, stdin=theirs.fileno()
            )
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(START_TIMEOUT_S):
            assert await loop.sock_recv(ours, PACKET_BYTES) == b"ready"
        made = ForkServer(process, ours)
        listening = loop.create_task(made.read_notices(), name="nursery")
        try:
            yield made
        finally:
            await made.close()
            await listening
