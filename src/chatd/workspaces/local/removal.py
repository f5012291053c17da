"""Removing a tree that somebody hostile has made.

Nothing is reached by a path: every step goes from an open directory to a name in it, without
following a link. A directory is emptied by moving the directories in it up to the trash, so depth
costs neither recursion nor descriptors. Modes that forbid reading or writing are undone first.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from chatd.workspaces.local import kernel

OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_PATH: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def discard(path: Path, trash: Path) -> None:
    """Move to the trash, at once and whole. Fine if it is not there."""
    unmount_below(path)
    with contextlib.suppress(FileNotFoundError):
        parent = os.open(path.parent, OPEN_DIRECTORY)
        try:
            _open_up(parent, path.name)  # Moving a directory writes to it: its parent changes.
        finally:
            os.close(parent)
        path.rename(trash / _free_name(trash, path.name))


def empty_trash(trash: Path) -> None:
    """Remove all that is in the trash. Others may do the same at the same time."""
    top = os.open(trash, OPEN_DIRECTORY)
    counter = 0
    try:
        while names := os.listdir(top):
            for name in names:
                counter = _remove(top, name, counter)
    finally:
        os.close(top)


def unmount_below(path: Path) -> None:
    """What a crashed program has left mounted; our own mounts are never in this namespace."""
    mine = os.fsencode(path.absolute())
    for line in reversed(Path("/proc/self/mountinfo").read_bytes().splitlines()):
        point = line.split()[4].replace(b"\\040", b" ")
        if point == mine or point.startswith(mine + b"/"):
            kernel.unmount(os.fsdecode(point))


def _remove(top: int, name: str, counter: int) -> int:
    """One entry of the trash. Directories in it become entries of the trash."""
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=top)
            return counter
        _open_up(top, name)
        inner = os.open(name, OPEN_DIRECTORY, dir_fd=top)
    except FileNotFoundError:
        return counter
    try:
        for entry in os.listdir(inner):
            counter = _clear(inner, entry, top, counter)
    finally:
        os.close(inner)
    _rmdir(top, name)
    return counter


def _clear(inner: int, entry: str, top: int, counter: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(entry, dir_fd=inner, follow_symlinks=False).st_mode):
            os.unlink(entry, dir_fd=inner)
            return counter
        if _try_rmdir(inner, entry):
            return counter
        _open_up(inner, entry)
        while True:
            counter += 1
            try:
                os.rename(entry, f"{os.getpid()}.{counter}", src_dir_fd=inner, dst_dir_fd=top)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            else:
                return counter
    return counter


def _open_up(directory: int, name: str) -> None:
    """By a descriptor that is the entry itself, so that a link put there meanwhile is not meant."""
    descriptor = os.open(name, OPEN_PATH, dir_fd=directory)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)


def _try_rmdir(directory: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError:
        return False
    return True


def _rmdir(directory: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # Somebody has just put something in: another round.
            raise


def _free_name(trash: Path, name: str) -> str:
    number = 0
    while os.path.lexists(trash / f"{name}.{number}"):
        number += 1
    return f"{name}.{number}"
