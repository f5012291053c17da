"""The whole output of a command in a file of the workspace, beside the little that memory keeps.

Best effort: a full disk or a slow one costs the file, never the command. Commands can read and
change these files, as everything in the workspace.
"""

from __future__ import annotations

import os
from contextlib import suppress

from chatd.agent.atomic_file import write_all

RESULTS_DIRECTORY = ".chatd/results"
"""In the home directory. chatd also writes long results of MCP servers to it."""
FILED_ABOVE_BYTES = 8 * 1024
MAX_OUTPUT_FILE_BYTES = 8 * 1024 * 1024
MAX_UNWRITTEN_BYTES = 1024 * 1024
MAX_RESULT_FILES = 64
MAX_RESULT_BYTES = 128 * 1024 * 1024


class OutputFile:
    """`feed` in the event loop; `write` blocks, so call it in a thread, one call at a time."""

    def __init__(self, home: str, process_id: str) -> None:
        self._path = os.path.join(home, RESULTS_DIRECTORY, f"command-{process_id}.txt")
        self._pending = bytearray()
        self._fed = 0
        self._written = 0
        self._is_lost = False

    @property
    def is_due(self) -> bool:
        """Whether there is something to write: short output is in memory as a whole."""
        return bool(self._pending) and not self._is_lost and self._fed > FILED_ABOVE_BYTES

    @property
    def path(self) -> str | None:
        """None unless the file has all of the output, as far as it may."""
        return self._path if self._written and self._written == self._fed else None

    def feed(self, data: bytes) -> None:
        data = data[: MAX_OUTPUT_FILE_BYTES - self._fed]
        self._fed += len(data)
        self._pending += data
        if len(self._pending) > MAX_UNWRITTEN_BYTES:
            self._lose()

    def take(self) -> bytes:
        data = bytes(self._pending)
        self._pending.clear()
        return data

    def write(self, data: bytes) -> None:
        try:
            directory = os.path.dirname(self._path)
            # Not to wait for the reader of a pipe that a command has put in its place.
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            if not self._written:
                os.makedirs(directory, mode=0o700, exist_ok=True)
                prune_results(directory, max_files=MAX_RESULT_FILES - 1)
                flags |= os.O_CREAT | os.O_EXCL
            fd = os.open(self._path, flags, 0o600)
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
            self._written += len(data)
        except OSError:
            self._lose()
            with suppress(OSError):
                os.unlink(self._path)

    def _lose(self) -> None:
        self._is_lost = True
        self._pending.clear()


def prune_results(
    directory: str, *, max_files: int = MAX_RESULT_FILES, max_bytes: int = MAX_RESULT_BYTES
) -> None:
    """Remove the oldest results. Raises OSError if the directory cannot be read."""
    files: list[tuple[float, int, str]] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False):
                    files.append((info.st_mtime, info.st_size, entry.path))
    size = 0
    for kept, (_, length, path) in enumerate(sorted(files, reverse=True)):
        size += length
        if kept >= max_files or size > max_bytes:
            with suppress(OSError):
                os.unlink(path)
