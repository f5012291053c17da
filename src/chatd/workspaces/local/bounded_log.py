"""What a sandbox's first process says, kept in a file that cannot grow. Standard library only.

The process gets a pipe, never the file: whoever shares its account inside could open the file
again through /proc and fill the disk.
"""

import asyncio
import contextlib
import os
from collections import deque
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 256 * 1024
CHUNK: Final = 64 * 1024
TAIL_BYTES: Final = 4096


class BoundedLog:
    """Two files at most: the current one, and the one before with `.1` after its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readers: set[int] = set()
        self._tail: deque[int] = deque(maxlen=TAIL_BYTES)

    def listen(self) -> int:
        """A descriptor to write to; the caller closes its own after handing it on."""
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
            self._forget(reader)

    def _read(self, reader: int) -> None:
        try:
            data = os.read(reader, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._forget(reader)
            return
        self._tail.extend(data[-TAIL_BYTES:])
        with contextlib.suppress(OSError):  # A full disk must not end the supervisor.
            self._write(data)

    def _write(self, data: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(data)
            size = file.tell()
        if size > MAX_BYTES:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))

    def _forget(self, reader: int) -> None:
        if reader in self._readers:
            self._readers.discard(reader)
            asyncio.get_running_loop().remove_reader(reader)
            os.close(reader)
