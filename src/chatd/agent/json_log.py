"""A file of JSON lines that survives a restart of the agent: appended to, sometimes rewritten.

Handles write order, lines torn by a crash, and a full disk. One thread does all writing, in the
order of the calls, so that a cancelled caller leaves no half-written state.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import cast

from chatd.agent.atomic_file import write_atomic
from chatd.agent.errors import AgentError
from chatd.agent.threads import start_pool

Json = dict[str, object]

_MAX_LOG_FILE_BYTES = 64 * 1024 * 1024
_RESERVE_BYTES = 256 * 1024
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


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

    def __init__(self, path: str) -> None:
        self._path = path
        self._reserve = f"{path}.reserve"
        self._thread = start_pool(1, "jsonlog")
        self._is_torn = False
        self.lines = 0
        self.size = 0

    def load(self) -> list[Json]:
        """All readable lines, oldest first."""
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        data = read_file_bytes(self._path, limit=_MAX_LOG_FILE_BYTES)
        records = [record for line in data.splitlines() if (record := parse_line(line)) is not None]
        self.lines = len(records)
        self.size = len(data)
        # The next line must not continue a last line that has no line end.
        self._is_torn = bool(data) and not data.endswith(b"\n")
        self._create_reserve()
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
            if error.errno not in _DISK_FULL or not self._delete_reserve():
                raise
            # A command must be recorded before it runs, also the `rm` that frees a full disk.
            self._write(line, sync=sync)

    def _write(self, line: bytes, *, sync: bool) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._path, flags | os.O_CLOEXEC, 0o600)
        try:
            data = b"\n" + line if self._is_torn else line
            self._is_torn = True
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            self._is_torn = False
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)

    def _replace(self, data: bytes) -> None:
        write_atomic(self._path, data, sync=True)
        self._is_torn = False
        self._create_reserve()

    def _create_reserve(self) -> None:
        with suppress(OSError):  # no free space now: the next rewrite tries again
            if not os.path.exists(self._reserve):
                write_atomic(self._reserve, b"\0" * _RESERVE_BYTES, sync=False)

    def _delete_reserve(self) -> bool:
        try:
            os.unlink(self._reserve)
        except OSError:
            return False
        return True


def _encode(record: Json) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
