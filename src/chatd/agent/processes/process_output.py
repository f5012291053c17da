"""The output of a command: its beginning and end in bounded memory, all of it in a file.

A cursor counts every byte ever written. Not safe for use by several threads.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from chatd.agent.durable_files import write_all
from chatd.agent.errors import clip_utf8, incomplete_bytes

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 16 * 1024
MAX_OUTPUT_LINE_BYTES = 2048
LINE_SUFFIX = b" [... line cut]"


@dataclass(frozen=True)
class TruncationInfo:
    """`retained_bytes` and `omitted_bytes` add up to `original_bytes`."""

    original_bytes: int
    retained_bytes: int
    omitted_bytes: int
    strategy: str = "head_tail"


@dataclass(frozen=True)
class OutputView:
    """Text up to `cursor`, from which a later read continues."""

    text: str
    cursor: int
    truncated: TruncationInfo | None = None


def omission_marker(omitted: int) -> bytes:
    return b"\n\n[... omitted %d bytes ...]\n\n" % omitted


class OutputBuffer:
    """The first `head_bytes` and the last `tail_bytes` of a stream, and its length."""

    def __init__(self, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head = bytearray()
        # Grows to twice its size before its front is dropped: one copy per `tail_bytes` written.
        self._tail = bytearray()
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    @property
    def cursor(self) -> int:
        """Where a read ends now: `total`, less an incomplete character at the end."""
        return self._ends(final=False)[2]

    def write(self, data: bytes) -> None:
        self._total += len(data)
        free_bytes = self._head_bytes - len(self._head)
        if free_bytes > 0:
            self._head += data[:free_bytes]
            data = data[free_bytes:]
        if len(data) >= self._tail_bytes:
            self._tail[:] = data[len(data) - self._tail_bytes :]
        else:
            self._tail += data
            if len(self._tail) >= 2 * self._tail_bytes:
                del self._tail[: len(self._tail) - self._tail_bytes]

    def view(self, *, final: bool) -> OutputView:
        """The retained output with long lines clipped. Unless `final`, an incomplete character at
        the end is left for a later read."""
        head, tail, cursor = self._ends(final=final)
        if not tail:
            clipped, kept = clip_lines(head)
            truncated = None if kept == cursor else TruncationInfo(cursor, kept, cursor - kept)
            return OutputView(_decode(clipped), cursor, truncated)
        if cursor > len(head) + len(tail):
            head, tail = clip_utf8(head, len(head)), _skip_partial_start(tail)
            joint = omission_marker(cursor - len(head) - len(tail))
        else:
            whole = head + tail
            head = clip_utf8(head, len(head))
            tail = whole[len(head) :]
            joint = b"\n"
        front, front_kept = clip_lines(head)
        back, back_kept = clip_lines(tail)
        kept = front_kept + back_kept
        truncated = TruncationInfo(cursor, kept, cursor - kept)
        return OutputView(_decode(front + joint + back), cursor, truncated)

    def read_after(self, after: int, *, final: bool) -> OutputView:
        """The unclipped output after a cursor, so that a reader can join the pieces.

        From the start it is `view`. A marker says how many bytes are missing.
        """
        if after <= 0:
            return self.view(final=final)
        head, tail, cursor = self._ends(final=final)
        if after >= cursor:
            return OutputView("", cursor)
        tail_start = cursor - len(tail)
        if after >= tail_start:
            return OutputView(_decode(tail[after - tail_start :]), cursor)
        front = head[after:]
        if after + len(front) == tail_start:
            return OutputView(_decode(front + tail), cursor)
        front, tail = clip_utf8(front, len(front)), _skip_partial_start(tail)
        kept = len(front) + len(tail)
        lost = cursor - after - kept
        text = _decode(front + omission_marker(lost) + tail)
        return OutputView(text, cursor, TruncationInfo(cursor - after, kept, lost))

    def _ends(self, *, final: bool) -> tuple[bytes, bytes, int]:
        head = bytes(self._head)
        tail = bytes(self._tail[-self._tail_bytes :]) if self._tail_bytes else b""
        if final:
            return head, tail, self._total
        # A character may be split between head and tail: check both.
        held = incomplete_bytes((head + tail)[-4:])
        if held <= len(tail):
            return head, tail[: len(tail) - held], self._total - held
        return head[: len(head) + len(tail) - held], b"", self._total - held


def clip_lines(data: bytes) -> tuple[bytes, int]:
    """Clip lines to MAX_OUTPUT_LINE_BYTES. Returns also how many bytes of the data remain."""
    if len(data) <= MAX_OUTPUT_LINE_BYTES:
        return data, len(data)
    kept = len(data)
    lines = data.split(b"\n")
    for index, line in enumerate(lines):
        if len(line) > MAX_OUTPUT_LINE_BYTES:
            short = clip_utf8(line, MAX_OUTPUT_LINE_BYTES - len(LINE_SUFFIX))
            kept -= len(line) - len(short)
            lines[index] = short + LINE_SUFFIX
    return b"\n".join(lines), kept


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _skip_partial_start(data: bytes) -> bytes:
    """Drop the rest of a character at the start."""
    skip = 0
    while skip < min(3, len(data)) and data[skip] & 0xC0 == 0x80:
        skip += 1
    return data[skip:]


# The file in the workspace. Best effort: a full or slow disk costs the file, never the command.
# Commands can read and change these files, like everything in the workspace.

RESULTS_DIRECTORY = ".chatd/results"
"""Within the home directory. chatd also writes long results of MCP servers to it."""
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
