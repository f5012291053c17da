"""Write whole files of the workspace, each in one rename, one writer per directory at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Generator

from chatd.agent.atomic_file import write_atomic
from chatd.agent.errors import AgentError, from_os_error
from chatd.agent.files.paths import require_absolute, require_regular, resolve_path

# A temporary name must fit into 255 bytes, and a character has up to four.
_MAX_NAME_CHARS = 60
# A process that holds the lock longer than this is not an agent; write without the lock.
_LOCK_TIMEOUT_S = 10.0
_LOCK_POLL_S = 0.005


def write_file(path: str, content: bytes) -> None:
    """Create missing parents, follow links, and keep the owner and mode of an existing file."""
    path = require_absolute(path)
    if path.endswith("/"):
        raise AgentError(400, f"{path} names a directory, not a file")
    target = resolve_path(path)
    with directory_lock(target):
        before = stat_target(target)
        if before is None:
            _create_parents(os.path.dirname(target), path)
        else:
            require_writable(before, target)
        replace_content(target, content, before=before)


def stat_target(target: str) -> os.stat_result | None:
    """Stat a resolved path; None if it does not exist."""
    try:
        return os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise from_os_error(error, f"write {target}") from error


def require_writable(info: os.stat_result, target: str) -> None:
    """Check the file's own mode: a rename needs write access to the directory only."""
    require_regular(info, target)
    if not os.access(target, os.W_OK):
        raise AgentError(403, f"cannot write {target}: permission denied")


def replace_content(target: str, content: bytes, *, before: os.stat_result | None) -> None:
    """Write `content` to a resolved path. A failure leaves the old file unchanged."""
    directory, name = os.path.split(target)
    suffix = secrets.token_hex(4)
    temporary = os.path.join(directory, f".{name[:_MAX_NAME_CHARS]}.tmp.{suffix}")
    try:
        write_atomic(target, content, sync=True, temporary=temporary, mode=0o666, replaced=before)
    except OSError as error:
        raise from_os_error(error, f"write {target}") from error


@contextlib.contextmanager
def directory_lock(target: str) -> Generator[None]:
    """Exclude other writers of the agent in the directory; read the file inside the lock.

    The directory is locked because each rename replaces the file itself.
    """
    try:
        fd = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield  # missing or not readable: the write itself reports the error
        return
    try:
        _lock(fd)
        yield
    finally:
        os.close(fd)


def _lock(fd: int) -> None:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return
            time.sleep(_LOCK_POLL_S)
        except OSError:
            return  # a file system without locks
        else:
            return


def _create_parents(directory: str, path: str) -> None:
    try:
        os.makedirs(directory, 0o755, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise AgentError(
            400, f"cannot write {path}: a parent of it is a file, not a directory"
        ) from None
    except OSError as error:
        raise from_os_error(error, f"create the directory {directory}") from error
