"""Create and check chatd's own directories and files, and the locks by which processes share a
server.

Files are opened without following links and directories must have the expected owner: as root,
chatd shares these directories with an account that must not gain root's rights.
"""

import asyncio
import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from chatd.pg.config import ROOT_DATA_DIR, PgError
from chatd.pg.process import Account, first_closed_dir, run


def directory_error(data_dir: Path, error: OSError) -> PgError:
    return PgError(
        f"Cannot use {data_dir} for the database: {error.strerror} "
        f"({error.filename or data_dir}). Make it writable, or choose another data directory."
    )


async def require_reachable(path: Path, account: Account) -> None:
    """Refuse a directory that the account cannot reach.

    A process of the account tries it, because only that respects access lists and mandatory access
    control. The mode bits then show which directory to name in the error.
    """
    existing = path
    while not existing.exists():
        existing = existing.parent
    try:
        entered = await run(
            ["/bin/sh", "-c", 'cd "$1"', "sh", existing], run_as=account, timeout_s=20
        )
    except OSError as error:
        raise PgError(
            f"chatd runs as root but cannot run a program as {account.name}: {error}. "
            "Start chatd as an ordinary user, or give a database URL."
        ) from error
    if entered.code != 0:
        raise PgError(
            f"The database runs as {account.name} because chatd runs as root, and {account.name} "
            f"cannot enter {first_closed_dir(existing, account) or existing}. Choose a data "
            f"directory that it can reach (the default is {ROOT_DATA_DIR}), or start chatd as an "
            "ordinary user."
        )


def create_data_dir(path: Path, account: Account | None) -> None:
    """Create it if missing. A separate server account can pass through but not list it."""
    if path.exists():
        return
    for parent in reversed([parent for parent in path.parents if not parent.exists()]):
        parent.mkdir(exist_ok=True)
        if account is not None:
            parent.chmod(0o755)  # Independent of root's umask: the account must pass.
    # Rename it into place with its final mode: another chatd may check it at the same moment.
    new = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    new.mkdir()
    try:
        new.chmod(0o700 if account is None else 0o711)
        new.rename(path)
    except OSError:
        new.rmdir()
        if not path.is_dir():
            raise


def create_private_dir(path: Path, account: Account | None) -> None:
    """Create a directory that only the server's account can enter, or check an existing one."""
    uid = os.geteuid() if account is None else account.uid
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            if account is not None:
                os.chown(path, account.uid, account.gid, follow_symlinks=False)
        found = path.lstat()
    except OSError as error:
        raise directory_error(path, error) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise PgError(
            f"{path} is in the way: it must be a directory that belongs to uid {uid} and is "
            "closed to all others (mode 0700). Remove it and try again."
        )


class OwnedFile:
    """An open file of chatd's own. Child processes do not inherit its descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def open_file(path: Path, flags: int = os.O_RDWR) -> OwnedFile:
    """Open or create the file, owned by the directory's owner.

    When root uses an ordinary user's data directory, that user must still be able to acquire the
    locks.
    """
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.geteuid() == 0:
            parent = path.parent.stat()
            os.fchown(fd, parent.st_uid, parent.st_gid)
    except OSError as error:
        raise directory_error(path.parent, error) from error
    return OwnedFile(fd)


# The two flock files by which processes share a server, and waiting for other processes.
#
# The kernel releases a flock when its holder dies, so a killed process stops counting at once. The
# start/stop lock is held by the process that starts or stops the server. Every user holds the users
# lock shared; a process that can hold it exclusively is the last user. The users lock is acquired
# and released only under the start/stop lock.

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
