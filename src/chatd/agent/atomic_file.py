"""Replace a file in one rename: a reader sees the old content or the new content, never a part."""

from __future__ import annotations

import os
import stat
from contextlib import suppress


def write_atomic(
    path: str,
    data: bytes,
    *,
    sync: bool,
    temporary: str = "",
    mode: int = 0o600,
    replaced: os.stat_result | None = None,
) -> None:
    """Raises OSError; `path` is then unchanged and the temporary file is removed.

    A new file gets `mode` less the umask; one that replaces a file gets the owner and mode of
    `replaced`. With `sync`, returns when the data and the rename are on disk.
    """
    temporary = temporary or f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(temporary)  # left by a crash
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # Private until it has the mode of the file that it replaces.
    fd = os.open(temporary, flags, mode if replaced is None else 0o600)
    try:
        try:
            write_all(fd, data)
            if replaced is not None:
                _copy_owner_and_mode(fd, replaced)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if sync:
        _sync_directory(os.path.dirname(path))


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _copy_owner_and_mode(fd: int, replaced: os.stat_result) -> None:
    mode = stat.S_IMODE(replaced.st_mode)
    info = os.fstat(fd)
    if (info.st_uid, info.st_gid) != (replaced.st_uid, replaced.st_gid):
        try:
            os.chown(fd, replaced.st_uid, replaced.st_gid)
        except OSError:
            # The file keeps the agent's owner, so it must not run with that owner's rights.
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(fd, mode)


def _sync_directory(directory: str) -> None:
    """Make the rename survive a power failure. Some file systems cannot; that is no error."""
    with suppress(OSError):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
