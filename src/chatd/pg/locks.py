"""The two flock files by which processes share a server, and waiting for other processes.

The kernel releases a flock when its holder dies, so a killed process stops counting at once. The
start/stop lock is held by the process that starts or stops the server. Every user holds the users
lock shared; a process that can hold it exclusively is the last user. The users lock is acquired
and released only under the start/stop lock.
"""

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from chatd.pg.config import PgError
from chatd.pg.directories import OwnedFile, open_file

# Longer than all work of another process under the lock: initdb, three starts, recovery, shutdown.
LOCK_TIMEOUT_S: Final = 480.0
FIRST_POLL_S: Final = 0.005
MAX_POLL_S: Final = 0.1


class RealTimeBackoff:
    """Growing delays until a timeout: `while not done: if not await backoff.wait(): give up`.

    Uses real time, because other processes do: under a test's clock, a lock that another process
    releases would never be polled again.
    """

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_s
        self._delay_s = FIRST_POLL_S

    async def wait(self) -> bool:
        """Wait for the next delay; False when the timeout has passed."""
        if self._loop.time() >= self._deadline:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._delay_s):
                await self._loop.create_future()
        self._delay_s = min(self._delay_s * 1.5, MAX_POLL_S)
        return True


class LockTimeout(PgError):
    """Another process held the start/stop lock for too long."""


@contextlib.asynccontextmanager
async def start_stop_lock(path: Path, *, timeout_s: float = LOCK_TIMEOUT_S) -> AsyncGenerator[None]:
    file = open_file(path)
    try:
        backoff = RealTimeBackoff(timeout_s)
        while not _try_lock(file, fcntl.LOCK_EX):
            if not await backoff.wait():
                raise LockTimeout(
                    f"Another chatd has held {path} for {timeout_s:.0f} s: it is starting or "
                    "stopping the database and has not finished. See server.log beside that file; "
                    "if that process hangs, end it and try again."
                )
        yield
    finally:
        file.close()


class UserLock:
    """Marks this process as a user. Create it, and call `is_last`, under the start/stop lock."""

    def __init__(self, path: Path) -> None:
        self._file: OwnedFile = open_file(path)
        if not _try_lock(self._file, fcntl.LOCK_SH):
            self._file.close()
            raise PgError(f"{path} is locked by a program that is not chatd. End it and try again.")

    def is_last(self) -> bool:
        """Whether no other user is left. Call it only before `release`: False drops this lock."""
        return _try_lock(self._file, fcntl.LOCK_EX)

    def release(self) -> None:
        self._file.close()


def _try_lock(file: OwnedFile, mode: int) -> bool:
    try:
        fcntl.flock(file.fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise PgError(
            f"The data directory is on a file system without locks ({error.strerror}). "
            "Choose one on a local disk."
        ) from error
    return True
