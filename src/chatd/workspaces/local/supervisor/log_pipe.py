"""The output of a sandbox's first process, written to a log file of bounded size.

The process gets a pipe and never the file: another process of its account could open the file
through /proc and fill the disk. Standard library only.
"""

import asyncio
import contextlib
import os
from collections import deque
from pathlib import Path
from typing import Final

MAX_SANDBOX_LOG_BYTES: Final = 256 * 1024
READ_BYTES: Final = 64 * 1024
TAIL_BYTES: Final = 4096


class LogPipe:
    """At most two files: the current one, and the previous one with the suffix `.1`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readers: set[int] = set()
        self._tail: deque[int] = deque(maxlen=TAIL_BYTES)

    def open_pipe(self) -> int:
        """A descriptor to write to. The caller closes its copy after starting the process."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        asyncio.get_running_loop().add_reader(reader, self._read, reader)
        self._readers.add(reader)
        return writer

    def tail(self) -> str:
        return bytes(self._tail).decode(errors="replace")

    def close(self) -> None:
        for reader in tuple(self._readers):
            self._read(reader)
            self._close_reader(reader)

    def _read(self, reader: int) -> None:
        try:
            data = os.read(reader, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._close_reader(reader)
            return
        self._tail.extend(data[-TAIL_BYTES:])
        with contextlib.suppress(OSError):  # A full disk must not end the supervisor.
            self._write(data)

    def _write(self, data: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(data)
            size = file.tell()
        if size > MAX_SANDBOX_LOG_BYTES:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))

    def _close_reader(self, reader: int) -> None:
        if reader in self._readers:
            self._readers.discard(reader)
            asyncio.get_running_loop().remove_reader(reader)
            os.close(reader)
