"""Create and check chatd's own directories and files.

Files are opened without following links and directories must have the expected owner: as root,
chatd shares these directories with an account that must not gain root's rights.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path

from chatd.pg.account import Account, first_closed_dir
from chatd.pg.config import PgError
from chatd.pg.layout import ROOT_DATA_DIR
from chatd.pg.process import run


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
