"""Events on their way out: cut into frames, and written for each transport.

Owns the bytes around events, not the events. A frame is what one write should carry. Events
have no line breaks (`domain.encode`), so one line of an event stream holds one.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

MAX_FRAME_EVENTS: Final = 256
MAX_FRAME_BYTES: Final = 256 * 1024

PING: Final = b": ping\n\n"


class Frame(Struct, frozen=True, kw_only=True):
    """`version` is set if the client has a whole state after it: it may resume from there. It
    is 0 if the client has just been told to drop everything: until all is there again it has
    nothing to resume from."""

    events: Sequence[bytes]
    version: int | None = None


def split_frames(events: Sequence[bytes], version: int, *, reset: bool = False) -> Iterator[Frame]:
    """One group as frames; the last one bears the version."""
    if reset:
        yield Frame(events=events[:1], version=0)
        events = events[1:]
    pieces = list(_pieces(events))
    for piece in pieces[:-1]:
        yield Frame(events=piece)
    yield Frame(events=pieces[-1] if pieces else (), version=version)


def _pieces(events: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    start = size = 0
    for index, event in enumerate(events):
        full = index - start >= MAX_FRAME_EVENTS or size + len(event) > MAX_FRAME_BYTES
        if full and index > start:
            yield events[start:index]
            start, size = index, 0
        size += len(event)
    if start < len(events):
        yield events[start:]


def encode_sse(frame: Frame) -> bytes:
    """For an event stream. Events are not named there, so that a browser's `onmessage` gets
    them all; the id is the version, so that `Last-Event-ID` resumes by itself."""
    body = b"data: " + b"\n\ndata: ".join(frame.events) if frame.events else b"data:"
    if frame.version is None:
        return body + b"\n\n"
    # With the last event of the frame: what precedes it does not make a state yet.
    return body + b"\nid: %d\n\n" % frame.version


def encode_json_array(frame: Frame) -> bytes:
    """For a WebSocket."""
    return b"[" + b",".join(frame.events) + b"]"
