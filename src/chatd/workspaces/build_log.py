"""What a build says while it runs: kept in bounded memory, written behind in batches.

A backend's line never waits for the database and never fails. Too long a line is cut, too many
are dropped and said to be; lines that could not be written wait for the next time.
"""

import asyncio
from collections import deque
from typing import Final

from chatd.domain.workspace.entities import LogLevel
from chatd.store.conn import Conn
from chatd.store.workspace import build_leases

MOST_LINES: Final = 5000
MOST_BYTES: Final = 1024 * 1024
LINE_CHARS: Final = 4000
BATCH: Final = 200


class LogBuffer:
    """Satisfies `backend.LogSink`."""

    def __init__(self, hold: build_leases.BuildLease) -> None:
        self._hold = hold
        self._waiting: deque[build_leases.BuildLogLine] = deque()
        self._writing = asyncio.Lock()
        self._lines = 0
        self._bytes = 0
        self._full = False

    def __call__(self, stage: str, level: LogLevel, text: str) -> None:
        for line in text.splitlines() or [""]:
            if self._full:
                return
            cut = line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]} [cut]"
            self._lines += 1
            self._bytes += len(cut.encode(errors="replace"))
            self._full = self._lines > MOST_LINES or self._bytes > MOST_BYTES
            if self._full:
                level, cut = "warning", "There is more, and it is not kept."
            self._waiting.append(
                build_leases.BuildLogLine(stage=stage[:100], level=level, output=cut)
            )

    async def flush(self, conn: Conn) -> None:
        """What fails to be written stays."""
        async with self._writing:
            while self._waiting:
                batch = [self._waiting[at] for at in range(min(BATCH, len(self._waiting)))]
                await build_leases.append_log(conn, self._hold, batch)
                for _ in batch:
                    self._waiting.popleft()
