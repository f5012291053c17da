"""`chatd` as a process of its own that imports nothing: a fork of one that has imported the server.

Starting Python and importing the server takes most of a second of the processor, and the tests
start hundreds of processes. While `forking_chatd` is open, a process that this one starts with the
program `chatd`, or as a module of the chaos tests, and no unusual options is forked by a helper,
`python -m tests.support.chatd_forks`. It is a child of the process that asked for it all the same,
with the arguments, variables, working directory and standard streams that it was given. A test of
the start itself asks for `real_start` (tests/conftest.py).

A request is one packet with three file descriptors; the reply is the process id.
"""

import ctypes
import gc
import importlib
import io
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

ROOT: Final = Path(__file__).parents[2]
CHATD: Final = os.fsencode(Path(sys.executable).with_name("chatd"))
TEST_MODULES: Final = b"tests.support.chaos."
PACKET_BYTES: Final = 1 << 17
SPAWN_FUNCTION: Final = "_fork_exec"
# Read when Python starts or when a module is imported.
EARLY_VARIABLES: Final = ("PYTHON", "SSL_CERT_", "OPENSSL_", "LD_", "AIOHTTP_", "UV_", "TEXTUAL_")
HARMLESS_VARIABLES: Final = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")

# What commands import only when they run. `typer` loads pydantic then, a tenth of a second.
LATE_MODULES: Final = (
    "chatd.cli.admin",
    "chatd.cli.api_session",
    "chatd.cli.output",
    "chatd.cli.process",
    "chatd.client.connection",
    "chatd.workspaces.kubernetes.pod_link",
    "typer._adapters",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "uvloop",
)

CLONE_SYSTEM_CALLS: Final = {"x86_64": 56, "aarch64": 220}
CLONE_PARENT: Final = 0x8000


class ForkRequest(Struct, frozen=True, array_like=True):
    arguments: list[bytes]
    variables: list[bytes]
    directory: bytes
    new_session: bool


# The process of the tests


class ChatdForks:
    """Starts the helper with the first process."""

    def __init__(self, spawn: Callable[..., int]) -> None:
        self._spawn = spawn
        self._line: socket.socket | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()
        self._is_paused = platform.machine() not in CLONE_SYSTEM_CALLS

    @contextmanager
    def paused(self) -> Generator[None]:
        before, self._is_paused = self._is_paused, True
        yield
        self._is_paused = before

    def spawn(self, *options: Any) -> int:
        """What `subprocess` calls to start a process."""
        request = None if self._is_paused else _read_request(options)
        if request is None:
            return self._spawn(*options)
        streams = [
            given if given >= 0 else own for own, given in enumerate((options[6], *options[9:12:2]))
        ]
        with self._turn:
            line = self._line or self._start_helper()
            socket.send_fds(line, [msgspec.msgpack.encode(request)], streams)
            return int(line.recv(PACKET_BYTES))

    def close(self) -> None:
        if self._line is not None and self._helper is not None:
            self._line.close()
            self._helper.wait()

    def _start_helper(self) -> socket.socket:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = (sys.executable, "-m", __name__)
            self._helper = subprocess.Popen(command, cwd=ROOT, stdin=theirs.fileno())
        assert self._line.recv(PACKET_BYTES) == b"ready"
        return self._line


def _read_request(options: tuple[Any, ...]) -> ForkRequest | None:
    """None if the helper cannot start it as `subprocess` would."""
    arguments, programs, _, kept, directory, variables = options[:6]
    errors_to, (new_session, process_group, *accounts) = options[13], options[15:22]
    is_plain = (kept, process_group) == ((errors_to,), -1)
    if accounts != [None, None, None, -1, None]:
        return None
    if not is_plain or not _is_known(tuple(programs), [os.fsencode(word) for word in arguments]):
        return None
    if variables is None:
        variables = [b"%s=%s" % pair for pair in os.environb.items()]
    if any(_is_read_early(*each.partition(b"=")[::2]) for each in variables):
        return None
    return ForkRequest(
        arguments=[os.fsencode(word) for word in arguments],
        variables=variables,
        directory=os.fsencode(directory or Path.cwd()),
        new_session=bool(new_session),
    )


def _is_read_early(name: bytes, value: bytes) -> bool:
    """And the helper has been started with another value."""
    text = os.fsdecode(name)
    is_early = text.startswith(EARLY_VARIABLES) and text not in HARMLESS_VARIABLES
    return is_early and value != os.environb.get(name, b"")


def _is_known(programs: tuple[bytes, ...], arguments: list[bytes]) -> bool:
    if programs == (CHATD,):
        return True
    is_python = programs == (os.fsencode(sys.executable),)
    return is_python and arguments[1:2] == [b"-m"] and arguments[2].startswith(TEST_MODULES)


@contextmanager
def forking_chatd() -> Generator[ChatdForks]:
    spawn = cast("Callable[..., int]", getattr(subprocess, SPAWN_FUNCTION))
    forks = ChatdForks(spawn)
    setattr(subprocess, SPAWN_FUNCTION, forks.spawn)
    try:
        yield forks
    finally:
        setattr(subprocess, SPAWN_FUNCTION, spawn)
        forks.close()


# The helper


def main() -> None:
    importlib.import_module("chatd.app.process")
    command_line = importlib.import_module("chatd.cli.main")
    for module in LATE_MODULES:
        importlib.import_module(module)
    line = socket.socket(fileno=os.dup(0))
    gc.collect()
    gc.freeze()
    line.send(b"ready")
    while True:
        packet, descriptors, _, _ = socket.recv_fds(line, PACKET_BYTES, 3)
        if not packet:
            return
        pid = _fork_sibling()
        if pid == 0:
            _become(msgspec.msgpack.decode(packet, type=ForkRequest), descriptors)
            break
        for descriptor in descriptors:
            os.close(descriptor)
        line.send(str(pid).encode())
    if sys.argv[1:2] == ["-m"]:
        module = sys.argv[2]
        sys.argv = sys.argv[2:]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        command_line.main()


def _fork_sibling() -> int:
    """A fork whose parent is the parent of this process, which waits for it."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    number = CLONE_SYSTEM_CALLS[platform.machine()]
    flags = ctypes.c_long(CLONE_PARENT | signal.SIGCHLD)
    zero = ctypes.c_long(0)
    # With the lock of the interpreter held, as os.fork has it.
    pid = ctypes.PyDLL(None).syscall(ctypes.c_long(number), flags, zero, zero, zero, zero)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid


def _become(request: ForkRequest, descriptors: list[int]) -> None:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, 256)
    if request.new_session:
        os.setsid()
    os.chdir(request.directory)
    os.environb.clear()
    for variable in request.variables:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    sys.argv = [os.fsdecode(word) for word in request.arguments]
    sys.stdin = sys.__stdin__ = _stream(0, "r", "strict")
    sys.stdout = sys.__stdout__ = _stream(1, "w", "strict")
    sys.stderr = sys.__stderr__ = _stream(2, "w", "backslashreplace")


def _stream(number: int, mode: str, errors: str) -> io.TextIOWrapper:
    raw = io.FileIO(number, mode, closefd=False)
    buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    is_by_line = number == 2 or os.isatty(number)
    made = io.TextIOWrapper(buffered, encoding="utf-8", errors=errors, line_buffering=is_by_line)
    if "PYTHONUNBUFFERED" in os.environ:
        made.reconfigure(write_through=True)
    return made


if __name__ == "__main__":
    main()
