"""A log of JSON lines that survives a restart of the agent: appended to, sometimes rewritten.

Handles write order, lines torn by a crash, and a full disk. One thread does all writing, in the
order of the calls, so that a cancelled caller leaves no half-written state.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

from chatd.agent.errors import AgentError
from chatd.agent.log_file import LogFile
from chatd.agent.threads import start_pool

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
            # A command must be recorded before it runs, also the `rm` that frees a full disk.
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
