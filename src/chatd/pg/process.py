"""Run PostgreSQL's programs: with a timeout, in their own session, as the server's account.

Plain `subprocess` in threads: an asyncio transport kills its process when it is closed, and the
server must outlive this process.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from chatd.pg.account import Account
from chatd.pg.config import PgError

# Not the caller's environment: PGPORT, LC_ALL or LD_PRELOAD would reach the server.
ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C",
    "TZ": "UTC",
}
KILL_TIMEOUT_S: Final = 5.0


class ProcessResult(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    output: str


def last_lines(text: str, count: int = 8) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


async def run(
    argv: Sequence[str | Path], *, run_as: Account | None, timeout_s: float
) -> ProcessResult:
    """Run a program to its end. Raises OSError when it cannot be executed."""
    process = _spawn(argv, run_as=run_as, output=subprocess.PIPE)
    try:
        output = await asyncio.to_thread(_communicate, process, timeout_s)
    except subprocess.TimeoutExpired:
        raise PgError(f"{argv[0]} did not finish within {timeout_s:.0f} s.") from None
    finally:
        _kill(process)  # It still runs only if this task was cancelled.
    return ProcessResult(code=process.returncode, output=output.decode(errors="replace"))


class DetachedProcess:
    """A process that outlives this one and writes its output to the log.

    A thread reaps it: PostgreSQL would take a zombie for a running server and refuse to start.
    """

    def __init__(self, argv: Sequence[str], *, run_as: Account | None, log_fd: int) -> None:
        self._process = _spawn(argv, run_as=run_as, output=log_fd)
        threading.Thread(target=self._process.wait, name="postmaster-reaper", daemon=True).start()

    def stop(self) -> None:
        """Request a fast shutdown. Does nothing once the process has exited."""
        self._process.send_signal(signal.SIGINT)

    @property
    def exited(self) -> bool:
        return self._process.poll() is not None


def _spawn(
    argv: Sequence[str | Path], *, run_as: Account | None, output: int
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [str(word) for word in argv],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd="/",  # The account may not be able to enter our working directory.
        env=ENVIRONMENT,
        start_new_session=True,  # A Ctrl-C in the terminal must not reach the server.
        close_fds=True,  # The server must not inherit our locks.
        user=None if run_as is None else run_as.uid,
        group=None if run_as is None else run_as.gid,
        extra_groups=None if run_as is None else [],
        umask=0o077,
    )


def _communicate(process: "subprocess.Popen[bytes]", timeout_s: float) -> bytes:
    try:
        return process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        _kill(process)
        process.communicate(timeout=KILL_TIMEOUT_S)
        raise


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
