"""AWS event streams: binary messages with checksums, from bytes cut anywhere.

Returns the events of the Messages API as if they were server-sent events. An AWS exception becomes
that API's error event with the AWS name as its type.
"""

import struct
import zlib
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from chatd.providers.sse import EventTooLong, FramedEvent, FramingError

MAX_MESSAGE_BYTES: Final = 24 * 1024 * 1024

_PRELUDE: Final = struct.Struct(">III")
_CRC: Final = struct.Struct(">I")
_STRING: Final = 7
# The length of a header's value by its type; None if the length precedes the value.
_LENGTHS: Final[Mapping[int, int | None]] = {
    0: 0,
    1: 0,
    2: 1,
    3: 2,
    4: 4,
    5: 8,
    6: None,
    7: None,
    8: 8,
    9: 16,
}


class _Chunk(Struct):
    bytes: str = ""


class _Exception(Struct):
    message: str = ""


_CHUNK: Final = msgspec.json.Decoder(_Chunk)
_EXCEPTION: Final = msgspec.json.Decoder(_Exception)


class EventStream:
    """`feed` takes a chunk and returns the events that it completes."""

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[FramedEvent]:
        self._buffer += chunk
        events: list[FramedEvent] = []
        start = 0
        while (total := self._complete(start)) is not None:
            event = _event(bytes(self._buffer[start : start + total]))
            start += total
            if event is not None:
                events.append(event)
        del self._buffer[:start]
        return events

    def end(self) -> list[FramedEvent]:
        """A message states its length, so the end completes none."""
        return []

    def _complete(self, start: int) -> int | None:
        """The length of the message at `start` if it has arrived as a whole."""
        if len(self._buffer) - start < _PRELUDE.size:
            return None
        total, headers, crc = _PRELUDE.unpack_from(self._buffer, start)
        if zlib.crc32(self._buffer[start : start + 8]) != crc:
            raise FramingError("the beginning of a message is damaged")
        if total > self._limit:
            raise EventTooLong(f"a message of {total} bytes")
        if total < _PRELUDE.size + headers + _CRC.size:
            raise FramingError("a message is shorter than its headers")
        return total if len(self._buffer) - start >= total else None


def _event(message: bytes) -> FramedEvent | None:
    (crc,) = _CRC.unpack_from(message, len(message) - _CRC.size)
    if zlib.crc32(message[: -_CRC.size]) != crc:
        raise FramingError("a message is damaged")
    _, headers_size, _ = _PRELUDE.unpack_from(message)
    end = _PRELUDE.size + headers_size
    headers = _headers(message[_PRELUDE.size : end])
    payload = message[end : -_CRC.size]
    try:
        return _meaning(headers, payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError, Base64Error, ValueError) as error:
        raise FramingError("a message cannot be read") from error


def _meaning(headers: Mapping[str, str], payload: bytes) -> FramedEvent | None:
    match headers.get(":message-type"):
        case "event" if headers.get(":event-type") == "chunk":
            return b"", b64decode(_CHUNK.decode(payload).bytes, validate=True)
        case "exception":
            name = headers.get(":exception-type", "exception")
            return _error(name, _EXCEPTION.decode(payload or b"{}").message)
        case "error":
            return _error(headers.get(":error-code", "error"), headers.get(":error-message", ""))
        case _:
            return None


def _error(name: str, message: str) -> FramedEvent:
    event = {"type": "error", "error": {"type": name, "message": message or name}}
    return b"error", msgspec.json.encode(event)


def _headers(data: bytes) -> dict[str, str]:
    """The headers of type string."""
    headers: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            name_end = at + 1 + data[at]
            name, kind = data[at + 1 : name_end], data[name_end]
            at = name_end + 1
            size = _LENGTHS[kind]
            if size is None:
                (size,) = struct.unpack_from(">H", data, at)
                at += 2
            if at + size > len(data):
                raise FramingError("a header is cut off")
            if kind == _STRING:
                headers[name.decode()] = data[at : at + size].decode()
            at += size
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise FramingError("a header cannot be read") from error
    return headers
