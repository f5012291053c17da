"""Rules for paths: which are valid, how links resolve, and which kinds of files may be opened."""

from __future__ import annotations

import errno
import os
import stat

from chatd.agent.errors import AgentError, from_os_error

MAX_LINKS = 40
MAX_PATH_BYTES = 4096


def require_absolute(path: str) -> str:
    """The path without surrounding blanks. Raises AgentError if it cannot name a file."""
    path = path.strip()
    if not path:
        raise AgentError(400, "path is required")
    if not path.startswith("/"):
        raise AgentError(400, f"path must be absolute, got {path!r}")
    check_encodable(path)
    return path


def check_encodable(path: str) -> None:
    """Raises AgentError for a path that no system call accepts."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raise AgentError(400, f"path cannot be a file name: {path!r}") from None
    if b"\0" in raw:
        raise AgentError(400, "path must not contain a NUL character")
    if len(raw) > MAX_PATH_BYTES:
        raise AgentError(400, f"path is longer than {MAX_PATH_BYTES} bytes")


def printable_name(path: str) -> str:
    """The name for JSON: bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def resolve_path(path: str) -> str:
    """Follow the links of the existing part; a missing tail stays as it is."""
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
    """In reverse order, so that `pop` returns the next one."""
    return [part for part in reversed(path.split("/")) if part not in {"", "."}]


def _link_target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOENT, errno.ENOTDIR}:
            return None  # not a link, or part of the missing tail
        raise from_os_error(error, f"resolve {path}") from error


def require_regular(info: os.stat_result, path: str) -> None:
    """Raises AgentError if it is not a regular file: reading a pipe or a device may never end."""
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
    """A descriptor for reading and its stat. Never blocks, never opens a device.

    Checked before, because opening a device can have an effect, and after, because the name may
    have been replaced in between.
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
    """Up to `limit` bytes from the current position. The stat's size is not used: it is 0 for
    files under /proc."""
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
