"""A file of JSON lines that survives the agent: appended to, sometimes rewritten.

Owns order, torn lines and the full disk. What the lines mean is the business of `once` and
`fence`. All writing happens in one thread of its own, in the order in which it was asked for, so
that a caller who is cancelled leaves nothing half done.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

from chatd.agent.threads import start_pool

Json = dict[str, object]

_MAX_FILE_BYTES = 64 * 1024 * 1024
_RESERVE_BYTES = 256 * 1024
_FULL = {errno.ENOSPC, errno.EDQUOT}


def read_file_bytes(path: str, *, limit: int) -> bytes:
    """The file's bytes, b"" if it is not a plain file or too large.

    Commands of the workspace can reach these files: a pipe put there must not stop the agent.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > limit:
            return b""
        return file.read(limit)


def parse_line(line: bytes) -> Json | None:
    """None for what is not an object: a line torn by a crash, or somebody's scribble."""
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast(Json, value) if isinstance(value, dict) else None


def write_atomic(path: str, data: bytes, *, sync: bool) -> None:
    """Replace a file in one step: after a crash it is the old one or the new one."""
    aside = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(aside, flags, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(fd)
    os.replace(aside, path)


class JsonLog:
    """`load` once at the start; then `append`, and `rewrite` when there are too many lines."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reserve = f"{path}.reserve"
        self._thread = start_pool(1, "jsonlog")
        self._torn = False
        self.lines = 0
        self.size = 0

    def load(self) -> list[Json]:
        """Every line that can be read, oldest first."""
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        data = read_file_bytes(self._path, limit=_MAX_FILE_BYTES)
        records = [record for line in data.splitlines() if (record := parse_line(line)) is not None]
        self.lines = len(records)
        self.size = len(data)
        # A last line without an end must not be continued by the next one.
        self._torn = bool(data) and not data.endswith(b"\n")
        self._lay_reserve()
        return records

    async def append(self, record: Json, *, sync: bool) -> None:
        """Raises OSError if it could not be written; with `sync`, returns when the disk has it."""
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
        """What was asked for is still written. Does not wait: a dead disk may never answer."""
        self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _write_line(self, line: bytes, *, sync: bool) -> None:
        try:
            self._write(line, sync=sync)
        except OSError as error:
            if error.errno not in _FULL or not self._give_up_reserve():
                raise
            # On a full disk a command must still be noted, or nobody could ever run `rm`.
            self._write(line, sync=sync)

    def _write(self, line: bytes, *, sync: bool) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._path, flags | os.O_CLOEXEC, 0o600)
        try:
            data = b"\n" + line if self._torn else line
            self._torn = True
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            self._torn = False
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)

    def _replace(self, data: bytes) -> None:
        write_atomic(self._path, data, sync=True)
        self._torn = False
        self._lay_reserve()

    def _lay_reserve(self) -> None:
        try:
            if not os.path.exists(self._reserve):
                write_atomic(self._reserve, b"\0" * _RESERVE_BYTES, sync=False)
        except OSError:
            pass  # no room for it now; it is laid at the next rewrite

    def _give_up_reserve(self) -> bool:
        try:
            os.unlink(self._reserve)
        except OSError:
            return False
        return True


def _encode(record: Json) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
