"""One terminal: its shell on a pseudoterminal, the last of its output, and the one viewer that it
may have."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from chatd.agent.errors import AgentError
from chatd.agent.processes.process_child import ChildProcess, SpawnedShell
from chatd.agent.processes.process_command import Waiters, wait, wake


class OutputRing:
    """Positions count all bytes ever written. The oldest bytes are dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self.end = 0

    @property
    def start(self) -> int:
        return self.end - len(self._kept)

    def write(self, data: bytes) -> None:
        self._kept += data
        self.end += len(data)
        # In steps, so that not every write moves all bytes.
        if len(self._kept) > 2 * self._max_bytes:
            del self._kept[: len(self._kept) - self._max_bytes]

    def replay_start(self) -> int:
        """Where a new viewer begins: the oldest byte, or the first whole line of the rest."""
        if self.start == 0:
            return 0
        first = max(len(self._kept) - self._max_bytes, 0)
        newline = self._kept.find(b"\n", first)
        return self.start + (first if newline < 0 else newline + 1)

    def read(self, position: int, limit: int) -> bytes:
        """From the position on, or from the oldest byte if that is dropped."""
        first = max(position - self.start, 0)
        return bytes(self._kept[first : first + limit])


# The shell, with the limits and the environment of commands.

_SH = "/bin/sh"
# A session's first process gets the terminal that it opens as its controlling terminal.
_OPEN_TERMINAL = (
    '{ echo 1000 >>/proc/self/oom_score_adj; } 2>/dev/null; exec <"$1" >"$1" 2>&1 && exec "$2" -i'
)
TERMINAL_VARIABLES = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
MAX_SIDE = 1000


@dataclass(frozen=True)
class TerminalSize:
    cols: int
    rows: int

    def __post_init__(self) -> None:
        if not (1 <= self.cols <= MAX_SIDE and 1 <= self.rows <= MAX_SIDE):
            raise AgentError(400, f"cols and rows must be from 1 to {MAX_SIDE}")


@dataclass(frozen=True)
class TerminalShell:
    """`write_fd` is for input. The other end, `slave_fd`, stays open, so that reading does not fail
    before the shell has opened it and after it has closed it."""

    spawned: SpawnedShell
    write_fd: int
    slave_fd: int

    def close(self) -> None:
        for fd in (self.write_fd, self.slave_fd):
            with suppress(OSError):
                os.close(fd)


def spawn_shell(workdir: str, env: Mapping[str, str], size: TerminalSize) -> TerminalShell:
    """Blocks until `exec` has succeeded: call it in a thread."""
    try:
        master, slave = os.openpty()
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        text = f"This workspace has no pseudoterminals ({reason})."
        raise AgentError(503, text, code="no_terminal") from error
    try:
        os.set_blocking(master, False)
        set_size(master, size)
        popen = subprocess.Popen(
            [_SH, "-c", _OPEN_TERMINAL, _SH, os.ttyname(slave), find_shell(env)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=workdir,
            env={**env, **TERMINAL_VARIABLES},
            start_new_session=True,
            close_fds=True,
            preexec_fn=_restore_signals,  # noqa: PLW1509  it takes no lock
        )
        write_fd = os.dup(master)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        os.close(master)
        os.close(slave)
        text = f"The workspace cannot start a shell: {error}."
        raise AgentError(503, text, code="no_terminal") from error
    return TerminalShell(SpawnedShell(popen, master), write_fd, slave)


def _restore_signals() -> None:
    """Called in the child. A process that was started in the background ignores the signals of the
    keyboard, and so would all that it starts: a shell cannot undo that."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)


def find_shell(env: Mapping[str, str]) -> str:
    """The user's shell if it is installed, else bash, else sh."""
    wanted = env.get("SHELL", "")
    names = (wanted if wanted not in ("", _SH) else "bash", "bash")
    found = (shutil.which(name, path=env.get("PATH")) for name in names)
    return next((path for path in found if path), _SH)


def set_size(fd: int, size: TerminalSize) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.cols, 0, 0))


def signal_session(session: int, number: int) -> None:
    """Signal every process of a terminal's session: jobs have process groups of their own."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:
                # The program's name, in parentheses, may contain any character.
                fields = file.read().rpartition(b")")[2].split()
            if int(fields[3]) == session:
                os.kill(int(name), number)


def hang_up(session: int) -> None:
    signal_session(session, signal.SIGHUP)
    signal_session(session, signal.SIGCONT)


# The terminal

SCROLLBACK_BYTES = 256 * 1024
MAX_UNREAD_BYTES = 128 * 1024
"""A shell whose viewer has this many unread bytes must wait."""
MAX_CHUNK_BYTES = 32 * 1024
READ_BUDGET_BYTES = 64 * 1024
READ_PAUSE_S = 0.01
"""At most the budget is read, then nothing for the pause: endless output must not take the agent's
whole time."""
KEEPALIVE_INTERVAL_S = 15.0
MAX_PENDING_INPUT_BYTES = 256 * 1024
INPUT_TIMEOUT_S = 10.0
HANGUP_GRACE_S = 2.0
_INTERRUPTS = (b"\x03", b"\x1c")

Event = dict[str, object]


class Terminal:
    """Create it inside the event loop. `on_end` is called once, when the shell has ended."""

    def __init__(
        self,
        shell: TerminalShell,
        *,
        chat_id: str,
        size: TerminalSize,
        on_end: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.chat_id = chat_id
        self.exit_code: int | None = None
        self.unused_since = now()
        self._shell = shell
        self._size = size
        self._on_end = on_end
        self._now = now
        self._ring = OutputRing(SCROLLBACK_BYTES)
        self._viewer: object | None = None
        self._seen = 0
        self._waiters: Waiters = Waiters()
        self._input = bytearray()
        self._input_waiters: Waiters = Waiters()
        self._budget = READ_BUDGET_BYTES
        self._is_paused = False
        self._resume: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._child = ChildProcess(
            shell.spawned, grace_s=0, on_output=self._on_output, on_end=self._on_exit
        )

    @property
    def is_running(self) -> bool:
        return self.exit_code is None

    @property
    def is_viewed(self) -> bool:
        return self._viewer is not None

    @property
    def unread_bytes(self) -> int:
        """How many bytes the viewer has not been sent."""
        return self._ring.end - self._seen

    # --- output -----------------------------------------------------------------------------

    async def follow(self) -> AsyncGenerator[Event, None]:
        """The kept output, then what follows. Ends with the shell, or when another viewer comes."""
        viewer = self._viewer = object()
        wake(self._waiters)
        self._seen = position = self._ring.replay_start()
        try:
            while True:
                data = self._ring.read(position, MAX_CHUNK_BYTES)
                if self._viewer is not viewer:
                    yield {"type": "taken"}
                    return
                if data:
                    position = max(position, self._ring.start) + len(data)
                    yield {"type": "output", "data": base64.b64encode(data).decode()}
                    if self._viewer is viewer:
                        self._seen = position
                        self._set_reading()
                elif not self.is_running:
                    yield {"type": "exit", "exit_code": self.exit_code}
                    return
                elif not await self._wait_for_output(position):
                    yield {"type": "alive"}
        finally:
            if self._viewer is viewer:
                self._viewer = None
                self.unused_since = self._now()
                self._set_reading()

    async def _wait_for_output(self, position: int) -> bool:
        """False if there was nothing for the interval of keep-alive events."""
        await wait(self._waiters, KEEPALIVE_INTERVAL_S)
        return self._ring.end > position or not self.is_running

    def _on_output(self, data: bytes) -> None:
        self._ring.write(data)
        self._budget -= len(data)
        wake(self._waiters)
        self._set_reading()

    def _set_reading(self) -> None:
        """Read from the shell only while the viewer keeps up and the budget is not used up."""
        if not self.is_running:
            return
        lags = self._viewer is not None and self.unread_bytes >= MAX_UNREAD_BYTES
        if self._budget <= 0 and self._resume is None:
            self._resume = self._loop.call_later(READ_PAUSE_S, self._refill)
        should_pause = lags or self._budget <= 0
        if should_pause and not self._is_paused:
            self._child.pause()
        elif self._is_paused and not should_pause:
            self._child.resume()
        self._is_paused = should_pause

    def _refill(self) -> None:
        self._resume = None
        self._budget = READ_BUDGET_BYTES
        self._set_reading()

    # --- input ------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Waits until the shell's terminal has taken the input. Raises AgentError if it does not:
        the rest is dropped."""
        self._require_running()
        if any(sign in data for sign in _INTERRUPTS):
            self._drop_input()  # what a program did not read is not for the next one
        if len(self._input) + len(data) > MAX_PENDING_INPUT_BYTES:
            raise _unread_error()
        self.unused_since = self._now()
        was_empty = not self._input
        self._input += data
        if was_empty:
            self._write_some()
        until = self._loop.time() + INPUT_TIMEOUT_S
        while self._input:
            left = until - self._loop.time()
            if left <= 0:
                self._drop_input()
                raise _unread_error()
            await wait(self._input_waiters, left)

    def _write_some(self) -> None:
        fd = self._shell.write_fd
        try:
            written = os.write(fd, self._input[:4096])
        except BlockingIOError:
            written = 0
        except OSError:
            self._drop_input()
            return
        del self._input[:written]
        if self._input:
            self._loop.add_writer(fd, self._write_some)
        else:
            self._drop_input()

    def _drop_input(self) -> None:
        self._loop.remove_writer(self._shell.write_fd)
        self._input.clear()
        wake(self._input_waiters)

    def resize(self, size: TerminalSize) -> None:
        self._require_running()
        if size != self._size:
            set_size(self._shell.write_fd, size)
            self._size = size

    def _require_running(self) -> None:
        if not self.is_running:
            raise AgentError(409, "The shell of this terminal has ended.", code="terminal_ended")

    # --- end --------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """Act as if the terminal were unplugged; processes that ignore that are killed."""
        if self.is_running:
            hang_up(self._child.pid)
            self._loop.call_later(HANGUP_GRACE_S, self._kill)

    def kill(self) -> None:
        if self.is_running:
            signal_session(self._child.pid, signal.SIGKILL)
            self._child.kill_now()

    async def wait_ended(self) -> None:
        while self.is_running:
            await wait(self._waiters, HANGUP_GRACE_S)

    def _kill(self) -> None:
        # The shell may be gone and a job of it not: the session's id is taken while it lives.
        with suppress(ProcessLookupError):
            signal_session(self._child.pid, signal.SIGKILL)

    def _on_exit(self, exit_code: int) -> None:
        if self._resume is not None:
            self._resume.cancel()
        self._drop_input()
        self.exit_code = max(exit_code, -1)
        self.unused_since = self._now()
        self._shell.close()
        wake(self._waiters)
        self._on_end()


def _unread_error() -> AgentError:
    text = "The program in the terminal does not read its input. Interrupt it, then try again."
    return AgentError(503, text, code="input_unread")
