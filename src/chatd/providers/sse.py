"""Server-sent events from a stream of bytes, and the base of all stream decoders.

The parser accepts chunks cut at any byte. It buffers at most one incomplete event, of bounded size.
"""

from abc import ABC, abstractmethod
from typing import Final, Protocol, TypeVar

import msgspec

from chatd.domain.model.protocol import ModelEvent, ProviderFault, StreamFailed
from chatd.domain.text import decode_lenient, replace_json_surrogates
from chatd.providers.faults import incomplete_fault, too_large_fault

MAX_EVENT_BYTES: Final = 32 * 1024 * 1024
"""Limit of one event, complete or not. A larger one ends the answer as too large."""
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Raised by `decode_event` for data that the decoder cannot read."""

_BOM: Final = b"\xef\xbb\xbf"

_T = TypeVar("_T")

FramedEvent = tuple[bytes, bytes]
"""The name of the event, empty if it has none, and its data."""


class FramingError(Exception):
    """The bytes do not follow the framing."""


class EventTooLong(FramingError):
    """An event exceeds the size limit."""


class TooManyCalls(Exception):
    """An answer makes more calls than a decoder keeps."""


class SseParser:
    """`feed` takes a chunk and returns the events that it completes."""

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

    def feed(self, chunk: bytes) -> list[FramedEvent]:
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

    def end(self) -> list[FramedEvent]:
        """The last event of a stream that ended without a blank line. It may be incomplete."""
        lines = b"".join(self._rest).split(b"\n")
        self._rest.clear()
        self._size = 0
        return self._events([*lines, b""])

    def _plain(self, chunk: bytes) -> bytes:
        """Convert line ends to LF. A CR at the end of a chunk may be the first half of CR LF."""
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

    def _events(self, lines: list[bytes]) -> list[FramedEvent]:
        if self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[FramedEvent] = []
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
        # One byte for the line itself, so that empty lines count towards the limit.
        self._data_size += len(value) + 1
        self._check()


def decode_event(decoder: "msgspec.json.Decoder[_T]", data: bytes | msgspec.Raw) -> _T:
    """Decode JSON that may contain half of a surrogate pair, which JSON can escape and UTF-8
    cannot encode: providers cut streams between the two halves."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decoder.decode(replace_json_surrogates(decode_lenient(bytes(data))))


class StreamFraming(Protocol):
    """Splits bytes into events. Raises FramingError."""

    def feed(self, chunk: bytes) -> list[FramedEvent]: ...

    def end(self) -> list[FramedEvent]:
        """The event that the end of the stream completes. It may be incomplete."""
        ...


class FramedDecoder(ABC):
    """Base of the stream decoders: splits the bytes of a reply into events, ends the stream once.

    Never raises: a damaged reply gives a `StreamFailed` event. The last event is `Finished` or
    `StreamFailed`; `done` is true after it, and the rest need not be read.
    """

    def __init__(self, framing: StreamFraming | None = None) -> None:
        self.done = False
        self._framing = framing or SseParser()
        self._out: list[ModelEvent] = []

    def feed(self, chunk: bytes) -> list[ModelEvent]:
        if self.done:
            return []
        try:
            for name, data in self._framing.feed(chunk):
                self._decode(name, data)
                if self.done:
                    break
        except (EventTooLong, TooManyCalls) as error:
            self._fail(too_large_fault(str(error)))
        except FramingError as error:
            self._fail(incomplete_fault(str(error)))
        return self._take()

    def close(self) -> list[ModelEvent]:
        """End of the stream: gives an incomplete `StreamFailed` unless the answer was complete."""
        if not self.done:
            try:
                for name, data in self._framing.end():
                    self._decode(name, data, is_last=True)
            except TooManyCalls as error:
                self._fail(too_large_fault(str(error)))
        if not self.done:
            self._end()
        return self._take()

    @abstractmethod
    def _decode(self, name: bytes, data: bytes, *, is_last: bool = False) -> None:
        """Add the event's model events to `_out`. The last event may be incomplete."""

    def _end(self) -> None:
        """The stream has ended without a final event."""
        self._fail(incomplete_fault())

    def _fail(self, fault: ProviderFault) -> None:
        if not self.done:
            self.done = True
            self._out.append(StreamFailed(fault=fault))

    def _take(self) -> list[ModelEvent]:
        out = self._out.copy()
        self._out.clear()
        return out
