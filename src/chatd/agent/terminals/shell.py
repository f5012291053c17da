"""A shell on a pseudoterminal of its own, with the limits and the environment of commands."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from chatd.agent.errors import AgentError
from chatd.agent.processes.child import SpawnedShell

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
