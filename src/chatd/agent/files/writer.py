"""Writing files whole: a reader sees the old content or the new, never a part, never nothing.

Owns the temporary sibling and the rename. What to write is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Generator

from chatd.agent.errors import AgentError, from_os_error
from chatd.agent.files.paths import require_absolute, require_regular, resolve_path

# A temporary name must fit into 255 bytes, and a character takes up to four.
_KEPT_NAME = 60
# How long to wait for another writer. One that holds on for longer is none of ours.
_TURN_S = 10.0
_TURN_POLL_S = 0.005


def write_file(path: str, content: bytes) -> None:
    """Makes parents as needed; follows a link and leaves it a link; keeps an existing mode."""
    path = require_absolute(path)
    if path.endswith("/"):
        raise AgentError(400, f"{path} names a directory, not a file")
    target = resolve_path(path)
    with directory_lock(target):
        before = stat_target(target)
        if before is None:
            _make_parents(os.path.dirname(target), path)
        else:
            require_writable(before, target)
        replace_content(target, content, before=before)


def stat_target(target: str) -> os.stat_result | None:
    """What is at a resolved path, or None."""
    try:
        return os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise from_os_error(error, f"write {target}") from error


def require_writable(info: os.stat_result, target: str) -> None:
    """A rename asks only the directory, so the file's own mode is asked here."""
    require_regular(info, target)
    if not os.access(target, os.W_OK):
        raise AgentError(403, f"cannot write {target}: permission denied")


def replace_content(target: str, content: bytes, *, before: os.stat_result | None) -> None:
    """Puts `content` at a resolved path in one rename. On any failure nothing has changed."""
    directory, name = os.path.split(target)
    temporary = os.path.join(directory, f".{name[:_KEPT_NAME]}.tmp.{secrets.token_hex(4)}")
    try:
        _fill(temporary, content, before)
        try:
            os.replace(temporary, target)
        except BaseException:
            _remove(temporary)
            raise
        _sync_directory(directory)
    except OSError as error:
        raise from_os_error(error, f"write {target}") from error


@contextlib.contextmanager
def directory_lock(target: str) -> Generator[None]:
    """One writer at a time in a directory, of those who ask. Look at the file once inside.

    The lock is on the directory: the file itself is another one after each rename.
    """
    try:
        fd = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield  # not there yet or not readable: whatever is done next will tell
        return
    try:
        _wait_for(fd)
        yield
    finally:
        os.close(fd)


def _wait_for(fd: int) -> None:
    until = time.monotonic() + _TURN_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return
            time.sleep(_TURN_POLL_S)
        except OSError:
            return  # a file system without locks
        else:
            return


def _fill(temporary: str, content: bytes, before: os.stat_result | None) -> None:
    # A new file gets what the umask leaves; one that replaces another is private until it has
    # the other's mode.
    mode = 0o666 if before is None else 0o600
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, mode)
    try:
        try:
            _write_all(fd, content)
            if before is not None:
                _take_over(fd, before)
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException:
        _remove(temporary)
        raise


def _take_over(fd: int, before: os.stat_result) -> None:
    mode = stat.S_IMODE(before.st_mode)
    mine = os.fstat(fd)
    if (mine.st_uid, mine.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.chown(fd, before.st_uid, before.st_gid)
        except OSError:
            # Not ours to give away; then nobody may run it as somebody else either.
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(fd, mode)


def _write_all(fd: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def _remove(temporary: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(temporary)


def _make_parents(directory: str, path: str) -> None:
    try:
        os.makedirs(directory, 0o755, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise AgentError(
            400, f"cannot write {path}: a parent of it is a file, not a directory"
        ) from None
    except OSError as error:
        raise from_os_error(error, f"make the directory {directory}") from error


def _sync_directory(directory: str) -> None:
    """So that the rename outlives a power cut. Some file systems cannot; that is no failure."""
    with contextlib.suppress(OSError):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
