"""Remove hostile directory trees, and kits that are no longer used.

Trees: every step goes from an open directory to a name in it and never follows a link. A directory
is emptied by moving its subdirectories up to the trash, so depth needs neither recursion nor
descriptors. Modes that forbid reading or writing are changed first.

Kits: every server holds a lock on its own kit while it runs, and the supervisor knows which kits
its sandboxes use. A kit is removed only if neither uses it; if the supervisor cannot be asked, all
kits stay. Workspaces do not see the lock files, or they could block a server.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import weakref
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from chatd.workspaces.local.supervisor import syscalls

OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_PATH: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
KIT_NAME_PATTERN: Final = re.compile(r"\.?([0-9a-f]{16})(-[0-9a-f]+)?")
"""A kit, or a kit that is being built or removed."""


def move_to_trash(path: Path, trash: Path) -> None:
    """Atomic. Does nothing if the path does not exist."""
    unmount_below(path)
    with contextlib.suppress(FileNotFoundError):
        parent = os.open(path.parent, OPEN_DIRECTORY)
        try:
            _make_writable(parent, path.name)  # A rename changes the directory's `..` entry.
        finally:
            os.close(parent)
        number = 0
        while os.path.lexists(trash / f"{path.name}.{number}"):
            number += 1
        path.rename(trash / f"{path.name}.{number}")


def empty_trash(trash: Path) -> None:
    """Remove everything in the trash. Several processes may do so at once."""
    top = os.open(trash, OPEN_DIRECTORY)
    counter = 0
    try:
        while names := os.listdir(top):
            for name in names:
                counter = _remove_entry(top, name, counter)
    finally:
        os.close(top)


def unmount_below(path: Path) -> None:
    """Unmount what a crashed program left mounted; sandboxes mount in their own namespace."""
    root = os.fsencode(path.absolute())
    for line in reversed(Path("/proc/self/mountinfo").read_bytes().splitlines()):
        point = line.split()[4].replace(b"\\040", b" ")
        if point == root or point.startswith(root + b"/"):
            syscalls.unmount(os.fsdecode(point))


def _remove_entry(top: int, name: str, counter: int) -> int:
    """Remove one entry of the trash. Its subdirectories become entries of the trash."""
    try:
        if _unlink_file(top, name):
            return counter
        _make_writable(top, name)
        inner = os.open(name, OPEN_DIRECTORY, dir_fd=top)
    except FileNotFoundError:
        return counter
    try:
        for entry in os.listdir(inner):
            counter = _move_up(inner, entry, top, counter)
    finally:
        os.close(inner)
    try:
        os.rmdir(name, dir_fd=top)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # A new entry: the next pass removes it.
            raise
    return counter


def _move_up(inner: int, entry: str, top: int, counter: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        if _unlink_file(inner, entry) or _try_rmdir(inner, entry):
            return counter
        _make_writable(inner, entry)
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


def _unlink_file(directory: int, name: str) -> bool:
    """False if it is a directory."""
    if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=directory)
    return True


def _make_writable(directory: int, name: str) -> None:
    """Through a descriptor of the entry itself, so that a link put there meanwhile is ignored."""
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


class KitLock:
    """A lock on a kit, released by `close` or by the garbage collector."""

    def __init__(self, descriptor: int) -> None:
        self._close = weakref.finalize(self, os.close, descriptor)

    def close(self) -> None:
        self._close()


def kit_work_dir(directory: Path, name: str) -> Path:
    """A unique directory for building or removing this kit."""
    return directory / f".{name}-{secrets.token_hex(8)}"


def lock_kit(directory: Path, name: str, *, exclusive: bool = False) -> KitLock | None:
    """Shared, waiting for an exclusive holder; or exclusive, None if any process holds it."""
    path = directory / f"{name}.lock"
    mode = fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, mode)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_same_file(path, descriptor):
            return KitLock(descriptor)
        os.close(descriptor)  # The last holder has removed the file.


async def remove_unused_kits(
    directory: Path,
    current: str,
    words_in_use: Callable[[Sequence[str]], Awaitable[AbstractSet[str] | None]],
) -> None:
    """`words_in_use` returns which of these names running sandboxes use; None if unknown."""
    locks: dict[str, KitLock] = {}
    try:
        for name in _kit_names(directory) - {current}:
            if (lock := lock_kit(directory, name, exclusive=True)) is not None:
                locks[name] = lock
        used = await words_in_use(sorted(locks)) if locks else None
        if used is not None:
            for name in locks.keys() - used:
                await asyncio.to_thread(_remove_kit, directory, name)
    finally:
        for lock in locks.values():
            lock.close()


def _kit_names(directory: Path) -> set[str]:
    """Empty if the directory is a link, thus shared: other supervisors may use its kits."""
    entries = [] if directory.is_symlink() else os.listdir(directory)
    found = (KIT_NAME_PATTERN.fullmatch(entry) for entry in entries)
    return {match[1] for match in found if match is not None}


def _remove_kit(directory: Path, name: str) -> None:
    """Rename it first, so that a kit is always complete or absent."""
    if (directory / name).is_dir():
        (directory / name).rename(kit_work_dir(directory, name))
    for entry in os.listdir(directory):
        if entry.startswith(f".{name}-"):
            shutil.rmtree(directory / entry, ignore_errors=True)
    (directory / f"{name}.lock").unlink(missing_ok=True)


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
