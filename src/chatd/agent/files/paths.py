"""Paths as the workspace agent takes them: checked, resolved, and opened without surprises.

Owns the rules for what a path may look like and what kind of file may be opened. Reading and
writing are next door.
"""

from __future__ import annotations

import errno
import os
import stat

from chatd.agent.errors import AgentError, from_os_error

MAX_LINKS = 40
MAX_PATH_BYTES = 4096


def require_absolute(path: str) -> str:
    """The path, if it can name a file here; surrounding blanks are a caller's slip and go."""
    path = path.strip()
    if not path:
        raise AgentError(400, "path is required")
    if not path.startswith("/"):
        raise AgentError(400, f"path must be absolute, got {path!r}")
    check_encodable(path)
    return path


def check_encodable(path: str) -> None:
    """Refuses what no system call would take."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raise AgentError(400, f"path cannot be a file name: {path!r}") from None
    if b"\0" in raw:
        raise AgentError(400, "path must not contain a NUL character")
    if len(raw) > MAX_PATH_BYTES:
        raise AgentError(400, f"path is longer than {MAX_PATH_BYTES} bytes")


def printable_name(path: str) -> str:
    """A name fit for JSON: bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def resolve_path(path: str) -> str:
    """The path with the links of its existing part followed; a missing tail is kept as it is."""
    path = require_absolute(path)
    done = "/"
    rest = _components(path)
    links = 0
    while rest:
        name = rest.pop()
        if name == "..":
            done = os.path.dirname(done)
            continue
        step = os.path.join(done, name)
        target = _link_target(step)
        if target is None:
            done = step
            continue
        links += 1
        if links > MAX_LINKS:
            raise AgentError(400, f"cannot resolve {path}: too many levels of symbolic links")
        if target.startswith("/"):
            done = "/"
        rest.extend(_components(target))
    return done


def _components(path: str) -> list[str]:
    """Last first, so that the next one is popped."""
    return [part for part in reversed(path.split("/")) if part not in {"", "."}]


def _link_target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOENT, errno.ENOTDIR}:
            return None  # no link, or nothing there: part of the missing tail
        raise from_os_error(error, f"resolve {path}") from error


def require_regular(info: os.stat_result, path: str) -> None:
    """Refuses what is no plain file: reading a fifo or a device may never end."""
    if stat.S_ISDIR(info.st_mode):
        raise AgentError(400, f"{path} is a directory, not a file")
    if not stat.S_ISREG(info.st_mode):
        raise AgentError(400, f"{path} is a {file_kind(info.st_mode)}, not a regular file")


def file_kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "named pipe"
    if stat.S_ISSOCK(mode):
        return "socket"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "device"
    return "special file"


def open_regular(path: str) -> tuple[int, os.stat_result]:
    """A descriptor for reading, and what it is open on. Never blocks, never touches a device.

    Looked at twice: before, because opening a device is already an act; after, because the name
    may have changed hands in between.
    """
    try:
        require_regular(os.stat(path), path)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise from_os_error(error, f"read {path}") from error
    try:
        info = os.fstat(fd)
        require_regular(info, path)
    except BaseException:
        os.close(fd)
        raise
    return fd, info


def read_at_most(fd: int, limit: int, *, path: str) -> bytes:
    """Up to `limit` bytes from where the descriptor stands, whatever size the file claims."""
    chunks: list[bytes] = []
    left = limit
    try:
        while left > 0:
            chunk = os.read(fd, min(left, 1 << 20))
            if not chunk:
                break
            chunks.append(chunk)
            left -= len(chunk)
    except OSError as error:
        raise from_os_error(error, f"read {path}") from error
    return b"".join(chunks)
