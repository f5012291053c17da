"""Running PostgreSQL's programs: bounded, in their own session, as the right account.

Plain `subprocess` in threads: an asyncio transport kills its process when it is closed, and the
server must outlive us.
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
from chatd.pg.errors import PgError

# Nothing of the caller's environment: PGPORT, LC_ALL or LD_PRELOAD would reach the server.
ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C",
    "TZ": "UTC",
}
KILL_WAIT_S: Final = 5.0


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    output: str


def last_lines(text: str, count: int = 8) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


async def run(argv: Sequence[str | Path], *, run_as: Account | None, timeout_s: float) -> Finished:
    """Run to the end and return what it said. OSError when it cannot be executed at all."""
    process = _spawn(argv, run_as=run_as, output=subprocess.PIPE)
    try:
        output = await asyncio.to_thread(_communicate, process, timeout_s)
    except subprocess.TimeoutExpired:
        raise PgError(f"{argv[0]} did not finish within {timeout_s:.0f} s.") from None
    finally:
        _kill(process)  # Only does something when this task was cancelled.
    return Finished(code=process.returncode, output=output.decode(errors="replace"))


def launch(argv: Sequence[str | Path], *, run_as: Account | None, log_fd: int) -> "Launched":
    """Start a process that is to outlive us, its output going to the log."""
    return Launched(_spawn(argv, run_as=run_as, output=log_fd))


class Launched:
    """A process we started and do not own. A thread reaps it, so that it never stays a zombie:
    PostgreSQL would take the zombie for a running server and refuse to start."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        threading.Thread(target=process.wait, name="postmaster-reaper", daemon=True).start()

    def stop(self) -> None:
        """Fast shutdown. Asking a process that is gone does nothing."""
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
        cwd="/",  # Ours may be a directory that the account cannot enter.
        env=ENVIRONMENT,
        start_new_session=True,  # A Ctrl-C in our terminal is for us.
        close_fds=True,  # Our locks stay ours.
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
        process.communicate(timeout=KILL_WAIT_S)
        raise


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
