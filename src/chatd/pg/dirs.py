"""Creating and checking the directories and files that are ours. Nothing else is changed.

Files are opened without following links and directories must have the owner we expect: as root
we work next to an account that we do not trust with root's rights.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path

from chatd.pg.account import Account, first_closed_dir
from chatd.pg.errors import PgError
from chatd.pg.places import ROOT_DATA_DIR
from chatd.pg.process import run


def unusable(data_dir: Path, error: OSError) -> PgError:
    return PgError(
        f"Cannot use {data_dir} for the database: {error.strerror} "
        f"({error.filename or data_dir}). Make it writable, or choose another data directory."
    )


async def require_way(path: Path, account: Account) -> None:
    """Refuse a place that the account cannot get to.

    It is asked to go there itself, as only that counts access lists and mandatory rules; the mode
    bits then tell which directory to name.
    """
    place = path
    while not place.exists():
        place = place.parent
    try:
        went = await run(["/bin/sh", "-c", 'cd "$1"', "sh", place], run_as=account, timeout_s=20)
    except OSError as error:
        raise PgError(
            f"chatd runs as root but cannot run a program as {account.name}: {error}. "
            "Start chatd as an ordinary user, or give a database URL."
        ) from error
    if went.code != 0:
        raise PgError(
            f"The database runs as {account.name} because chatd runs as root, and {account.name} "
            f"cannot enter {first_closed_dir(place, account) or place}. Choose a data directory "
            f"that it can reach (the default is {ROOT_DATA_DIR}), or start chatd as an ordinary "
            "user."
        )


def make_data_dir(path: Path, account: Account | None) -> None:
    """Make it if it is not there. An account of its own passes through it, others see nothing."""
    if path.exists():
        return
    for parent in reversed([parent for parent in path.parents if not parent.exists()]):
        parent.mkdir(exist_ok=True)
        if account is not None:
            parent.chmod(0o755)  # Whatever root's umask is, the account must pass.
    # It appears with its final mode: another chatd may be looking at this moment.
    new = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    new.mkdir()
    try:
        new.chmod(0o700 if account is None else 0o711)
        new.rename(path)
    except OSError:
        new.rmdir()
        if not path.is_dir():
            raise


def make_private_dir(path: Path, account: Account | None) -> None:
    """A directory that only the server's account can enter. One that exists must be just so."""
    uid = os.geteuid() if account is None else account.uid
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            if account is not None:
                os.chown(path, account.uid, account.gid, follow_symlinks=False)
        found = path.lstat()
    except OSError as error:
        raise unusable(path, error) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
        raise PgError(
            f"{path} is in the way: it must be a directory that belongs to uid {uid} and is "
            "closed to all others (mode 0700). Remove it and try again."
        )


class OwnFile:
    """An open file of ours. Its descriptor is not inherited by any program that we start."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def open_file(path: Path, flags: int = os.O_RDWR) -> OwnFile:
    """Open, creating it if needed, as a file of the directory's owner.

    The owner matters when root uses a data directory that an ordinary user made: that user must
    still be able to take the locks.
    """
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.geteuid() == 0:
            parent = path.parent.stat()
            os.fchown(fd, parent.st_uid, parent.st_gid)
    except OSError as error:
        raise unusable(path.parent, error) from error
    return OwnFile(fd)
