"""Server-sent events out of a stream of bytes, cut anywhere.

Owns the framing of the event stream format: line ends, comments, several data
lines, the byte order mark. Knows nothing of what the data means, and keeps no
more than one unfinished event, of bounded size.
"""

from typing import Final

MAX_EVENT_BYTES: Final = 32 * 1024 * 1024

_BOM: Final = b"\xef\xbb\xbf"

Event = tuple[bytes, bytes]
"""The event's name, empty if it has none, and its data."""


class BrokenFraming(Exception):
    """The bytes are not events."""


class EventTooLong(BrokenFraming):
    """The other side sends an event without end."""


class SseParser:
    """`feed` takes what has arrived and returns the events completed by it."""

    __slots__ = ("_after_cr", "_data", "_data_size", "_first", "_limit", "_name", "_rest", "_size")

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        self._size = 0
        self._name = b""
        self._data: list[bytes] = []
        self._data_size = 0
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> list[Event]:
        if self._after_cr or b"\r" in chunk:
            chunk = self._plain(chunk)
        end = chunk.rfind(b"\n")
        if end < 0:
            self._keep(chunk)
            return []
        if self._rest:
            self._rest.append(chunk[:end])
            lines = b"".join(self._rest).split(b"\n")
            self._rest.clear()
            self._size = 0
        else:
            lines = chunk[:end].split(b"\n")
        self._keep(chunk[end + 1 :])
        return self._events(lines)

    def end(self) -> list[Event]:
        """The last event of a stream that ended without the blank line. It may be cut off."""
        lines = b"".join(self._rest).split(b"\n")
        self._rest.clear()
        self._size = 0
        return self._events([*lines, b""])

    def _plain(self, chunk: bytes) -> bytes:
        """Every line end becomes LF. A CR at the end of a chunk may be half of a CR LF."""
        if not chunk:
            return chunk
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
        self._after_cr = chunk[-1:] == b"\r"
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _keep(self, rest: bytes) -> None:
        if not rest:
            return
        self._rest.append(rest)
        self._size += len(rest)
        self._check()

    def _check(self) -> None:
        if self._size + self._data_size > self._limit:
            raise EventTooLong(f"an event of more than {self._limit} bytes")

    def _events(self, lines: list[bytes]) -> list[Event]:
        if self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[Event] = []
        for line in lines:
            if not line:
                if self._data:
                    data = self._data
                    events.append((self._name, data[0] if len(data) == 1 else b"\n".join(data)))
                    self._data = []
                    self._data_size = 0
                self._name = b""
            elif line.startswith(b"data:"):
                self._add(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                self._name = line[7:] if line[6:7] == b" " else line[6:]
            elif line == b"data":
                self._add(b"")
        return events

    def _add(self, value: bytes) -> None:
        self._data.append(value)
        # One for the line itself: empty lines must not pile up either.
        self._data_size += len(value) + 1
        self._check()
