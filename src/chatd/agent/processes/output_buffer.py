"""What is kept of a command's output: its beginning and its end, in bounded memory.

Owns the two ends, the marker between them, the cutting of long lines and the cursor that counts
every byte ever written. Knows nothing of processes; one thread writes and reads.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 16 * 1024
MAX_LINE_BYTES = 2048
LINE_SUFFIX = b" [... line cut]"


@dataclass(frozen=True)
class TruncationInfo:
    """How much of `original_bytes` can be seen; the other two add up to it."""

    original_bytes: int
    retained_bytes: int
    omitted_bytes: int
    strategy: str = "head_tail"


@dataclass(frozen=True)
class OutputView:
    """Text up to `cursor`, which is where a later look goes on."""

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
        # Up to twice its size before the front is dropped: one move per `tail_bytes` written.
        self._tail = bytearray()
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    @property
    def cursor(self) -> int:
        """How far a look reaches now: `total`, less half a character at the end."""
        return self._ends(final=False)[2]

    def write(self, data: bytes) -> None:
        self._total += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) >= self._tail_bytes:
            self._tail[:] = data[len(data) - self._tail_bytes :]
        else:
            self._tail += data
            if len(self._tail) >= 2 * self._tail_bytes:
                del self._tail[: len(self._tail) - self._tail_bytes]

    def view(self, *, final: bool) -> OutputView:
        """All that is kept, long lines cut. Unless `final`, half a character waits for its rest."""
        head, tail, cursor = self._ends(final=final)
        if not tail:
            shown, kept = clip_lines(head)
            return OutputView(_decode(shown), cursor, _truncated(cursor, kept))
        lost = cursor - len(head) - len(tail)
        if lost:
            head, tail = _whole_end(head), _whole_start(tail)
            joint = omission_marker(cursor - len(head) - len(tail))
        else:
            whole = head + tail
            head = _whole_end(head)
            tail = whole[len(head) :]
            joint = b"\n"
        front, front_kept = clip_lines(head)
        back, back_kept = clip_lines(tail)
        kept = front_kept + back_kept
        truncated = TruncationInfo(cursor, kept, cursor - kept)
        return OutputView(_decode(front + joint + back), cursor, truncated)

    def read_after(self, after: int, *, final: bool) -> OutputView:
        """What came after a cursor, as it came: pieces of a stream can be put together again.

        From the start it is the whole view. Where bytes are gone, the marker says how many.
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
        front, tail = _whole_end(front), _whole_start(tail)
        kept = len(front) + len(tail)
        lost = cursor - after - kept
        text = _decode(front + omission_marker(lost) + tail)
        return OutputView(text, cursor, TruncationInfo(cursor - after, kept, lost))

    def _ends(self, *, final: bool) -> tuple[bytes, bytes, int]:
        head = bytes(self._head)
        tail = bytes(self._tail[-self._tail_bytes :]) if self._tail_bytes else b""
        if final:
            return head, tail, self._total
        # A character split between head and tail is not open: look at both.
        held = _open_bytes((head + tail)[-4:])
        if held <= len(tail):
            return head, tail[: len(tail) - held], self._total - held
        return head[: len(head) + len(tail) - held], b"", self._total - held


def clip_lines(data: bytes) -> tuple[bytes, int]:
    """The data with no line longer than LINE_BYTES, and how many of its bytes are in there."""
    if len(data) <= MAX_LINE_BYTES:
        return data, len(data)
    kept = len(data)
    lines = data.split(b"\n")
    for index, line in enumerate(lines):
        if len(line) > MAX_LINE_BYTES:
            short = _whole_end(line[: MAX_LINE_BYTES - len(LINE_SUFFIX)])
            kept -= len(line) - len(short)
            lines[index] = short + LINE_SUFFIX
    return b"\n".join(lines), kept


def _truncated(original: int, kept: int) -> TruncationInfo | None:
    return None if kept == original else TruncationInfo(original, kept, original - kept)


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _open_bytes(end: bytes) -> int:
    """How many bytes at the end begin a character that is not complete yet."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(end)
    pending = decoder.getstate()[0]
    return len(pending)


def _whole_end(data: bytes) -> bytes:
    return data[: len(data) - _open_bytes(data[-4:])]


def _whole_start(data: bytes) -> bytes:
    skip = 0
    while skip < min(3, len(data)) and data[skip] & 0xC0 == 0x80:
        skip += 1
    return data[skip:]
