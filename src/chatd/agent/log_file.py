"""Where the lines of a log are stored: under a name, or out of the reach of commands.

Commands run under the agent's account, so they can write to every file that the agent can open.
The local backend therefore opens the files outside of the sandbox and passes descriptors, which no
other process can use: the agent's memory and descriptors are closed to commands.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from contextlib import suppress
from typing import Protocol

from chatd.agent.atomic_file import write_all, write_atomic

MAX_LOG_FILE_BYTES = 64 * 1024 * 1024
_RESERVE_BYTES = 256 * 1024
_SEAL = re.compile(rb'^\{"seal":([0-9]{1,15})\}$', re.MULTILINE)


class LogFile(Protocol):
    """A reserve of disk space lets an append succeed on a full disk, once."""

    def read(self) -> bytes: ...

    def append(self, data: bytes, *, sync: bool) -> None:
        """Raises OSError; a part of the data may have been written."""
        ...

    def replace(self, data: bytes) -> None:
        """All or nothing. Raises OSError."""
        ...

    def create_reserve(self) -> None: ...

    def delete_reserve(self) -> bool: ...


def open_log_file(run_dir: str, name: str, first_fd: int = 0) -> LogFile:
    """The two files from descriptor `first_fd` on, if it is not 0 and they are usable: an older
    supervisor passes none. They begin with the lines that an older agent left under the name."""
    named = NamedLogFile(os.path.join(run_dir, name))
    descriptors = (first_fd, first_fd + 1)
    if not first_fd or not all(_is_append_only(fd) for fd in descriptors):
        return named
    for fd in descriptors:
        os.set_inheritable(fd, False)  # noqa: FBT003 - positional only
    hidden = HiddenLogFile(*descriptors)
    if hidden.is_new:
        try:
            hidden.replace(named.read())
        except OSError:  # A full disk: the older lines count, and the next start tries again.
            return named
    return hidden


def read_file_bytes(path: str, *, limit: int) -> bytes:
    """The file's bytes; b"" if it is not a regular file or too large.

    Commands of the workspace can write to these files: a pipe put there must not block the agent.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size > limit:
            return b""
        return file.read(limit)


class NamedLogFile:
    """Implements `LogFile` by a file and a file of zeros beside it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reserve = f"{path}.reserve"

    def read(self) -> bytes:
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        return read_file_bytes(self._path, limit=MAX_LOG_FILE_BYTES)

    def append(self, data: bytes, *, sync: bool) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._path, flags | os.O_CLOEXEC, 0o600)
        try:
            _append(fd, data, sync=sync)
        finally:
            os.close(fd)

    def replace(self, data: bytes) -> None:
        write_atomic(self._path, data, sync=True)

    def create_reserve(self) -> None:
        with suppress(OSError):  # no free space now: the next rewrite tries again
            if not os.path.exists(self._reserve):
                write_atomic(self._reserve, b"\0" * _RESERVE_BYTES, sync=False)

    def delete_reserve(self) -> bool:
        try:
            os.unlink(self._reserve)
        except OSError:
            return False
        return True


class HiddenLogFile:
    """Implements `LogFile` by two descriptors, because a file without a name cannot be replaced by
    a rename. One file has the lines; the other is the reserve, and the target of the next replace.

    The last line of a replace is a seal with its number, written when the rest is on disk. The file
    with the highest seal has the lines, so a replace that a crash cut off has not happened.
    """

    def __init__(self, first: int, second: int) -> None:
        seals = [_seal_number(_read_all(fd)) for fd in (first, second)]
        self._seal = max(seals)
        self._lines, self._other = (first, second) if seals[0] == self._seal else (second, first)
        self._set_size(self._other, 0)

    @property
    def is_new(self) -> bool:
        return self._seal == 0 and os.fstat(self._lines).st_size == 0

    def read(self) -> bytes:
        return _read_all(self._lines)

    def append(self, data: bytes, *, sync: bool) -> None:
        _append(self._lines, data, sync=sync)

    def replace(self, data: bytes) -> None:
        os.ftruncate(self._other, 0)
        write_all(self._other, data)
        os.fsync(self._other)
        write_all(self._other, b'%b{"seal":%d}\n' % (_line_end(data), self._seal + 1))
        os.fsync(self._other)
        self._seal += 1
        self._lines, self._other = self._other, self._lines
        self._set_size(self._other, 0)

    def create_reserve(self) -> None:
        with suppress(OSError):  # no free space now: the next rewrite tries again
            if not os.fstat(self._other).st_size:
                write_all(self._other, b"\0" * _RESERVE_BYTES)

    def delete_reserve(self) -> bool:
        had_bytes = os.fstat(self._other).st_size > 0
        return self._set_size(self._other, 0) and had_bytes

    def _set_size(self, fd: int, size: int) -> bool:
        try:
            os.ftruncate(fd, size)
        except OSError:
            return False
        return True


def _is_append_only(fd: int) -> bool:
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        is_regular = stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False
    return is_regular and flags & os.O_ACCMODE == os.O_RDWR and bool(flags & os.O_APPEND)


def _append(fd: int, data: bytes, *, sync: bool) -> None:
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if sync:
        os.fsync(fd)


def _read_all(fd: int) -> bytes:
    size = min(os.fstat(fd).st_size, MAX_LOG_FILE_BYTES)
    data = bytearray()
    while len(data) < size and (chunk := os.pread(fd, size - len(data), len(data))):
        data += chunk
    return bytes(data)


def _seal_number(data: bytes) -> int:
    return max((int(found[1]) for found in _SEAL.finditer(data)), default=0)


def _line_end(data: bytes) -> bytes:
    return b"" if not data or data.endswith(b"\n") else b"\n"
