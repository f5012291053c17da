"""Files that survive a crash of the agent: replaced in one rename, or logs of lines."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol, cast

from chatd.agent.errors import AgentError
from chatd.agent.threads import start_pool

# A file replaced in one rename: a reader sees the old content or the new content, never a part.


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
    """Make the rename survive a power failure. Some file systems cannot; that is not an error."""
    with suppress(OSError):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


# Where the lines of a log are stored: under a name, or out of the reach of commands.
#
# Commands run under the agent's account, so they can write to every file that the agent can open.
# So the local backend opens the files outside of the sandbox and passes descriptors, which no other
# process can use: the agent's memory and descriptors are closed to commands.

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
    """Implements `LogFile` by a file and a file of zeros next to it."""

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


# A log of JSON lines: appended to, sometimes rewritten.
#
# Handles write order, lines torn by a crash, and a full disk. One thread does all writing, in the
# order of the calls, so that a cancelled caller leaves no half-written state.

Json = dict[str, object]

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


def parse_line(line: bytes) -> Json | None:
    """None if the line is not a JSON object, for example because a crash cut it."""
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast(Json, value) if isinstance(value, dict) else None


def not_noted_error(error: OSError) -> AgentError:
    return AgentError(
        503,
        f"Nothing was done: the workspace cannot record the request on its disk ({error}). "
        "Free some disk space, then try again.",
        code="not_noted",
    )


class JsonLog:
    """Call `load` once, then `append`, and `rewrite` when there are too many lines."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._thread = start_pool(1, "jsonlog")
        self._is_torn = False
        self.lines = 0
        self.size = 0

    def load(self) -> list[Json]:
        """All readable lines, oldest first."""
        data = self._file.read()
        records = [record for line in data.splitlines() if (record := parse_line(line)) is not None]
        self.lines = len(records)
        self.size = len(data)
        # The next line must not continue a last line that has no line end.
        self._is_torn = bool(data) and not data.endswith(b"\n")
        self._file.create_reserve()
        return records

    async def append(self, record: Json, *, sync: bool) -> None:
        """Raises OSError if the line was not written; with `sync`, returns once it is on disk."""
        line = _encode(record)
        self.lines += 1
        self.size += len(line)
        await self._in_thread(partial(self._write_line, line, sync=sync))

    async def rewrite(self, records: Iterable[Json]) -> None:
        """Replace all lines by these. Records appended after this call come after them."""
        lines = [_encode(record) for record in records]
        data = b"".join(lines)
        self.lines = len(lines)
        self.size = len(data)
        await self._in_thread(partial(self._replace, data))

    def close(self) -> None:
        """Accept no more writes. Does not wait for those submitted: the disk may never answer."""
        self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _write_line(self, line: bytes, *, sync: bool) -> None:
        try:
            self._write(line, sync=sync)
        except OSError as error:
            if error.errno not in _DISK_FULL or not self._file.delete_reserve():
                raise
            # A command must be recorded before it runs, even the `rm` that frees a full disk.
            self._write(line, sync=sync)

    def _write(self, line: bytes, *, sync: bool) -> None:
        data = b"\n" + line if self._is_torn else line
        self._is_torn = True
        self._file.append(data, sync=sync)
        self._is_torn = False

    def _replace(self, data: bytes) -> None:
        self._file.replace(data)
        self._is_torn = False
        self._file.create_reserve()


def _encode(record: Json) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
