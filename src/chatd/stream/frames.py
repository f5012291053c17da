"""Split events into frames (one socket write each) and encode frames for each transport.

An encoded event has no line break (`domain.chat.events`), so it fits one line of an SSE stream.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.chat_views.events import START, Cursor

MAX_FRAME_EVENTS: Final = 256
MAX_FRAME_BYTES: Final = 256 * 1024

PING: Final = b": ping\n\n"
_TYPE_FIELD: Final = b'{"type":"'


class Frame(Struct, frozen=True, kw_only=True):
    """`cursor` is set on the frame that completes a state: the client may resume from it. It is the
    start on a frame that resets the client, which cannot resume until the new state is complete."""

    events: Sequence[bytes]
    cursor: Cursor | None = None


def split_frames(
    events: Sequence[bytes], cursor: Cursor, *, reset: bool = False
) -> Iterator[Frame]:
    """Split one group; the last frame has its cursor."""
    if reset:
        yield Frame(events=events[:1], cursor=START)
        events = events[1:]
    pieces = list(_pieces(events))
    for piece in pieces[:-1]:
        yield Frame(events=piece)
    yield Frame(events=pieces[-1] if pieces else (), cursor=cursor)


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
    """The id is the cursor, so that `Last-Event-ID` resumes."""
    body = b"\n\n".join(map(sse_block, frame.events)) if frame.events else b"data:"
    if frame.cursor is None:
        return body + b"\n\n"
    # The id goes with the frame's last event: only then the state is complete.
    return body + b"\nid: %b\n\n" % str(frame.cursor).encode()


def sse_block(event: bytes) -> bytes:
    """The `event:` line repeats the type, which is the event's first field."""
    if not event.startswith(_TYPE_FIELD):
        return b"data: " + event
    name = event[len(_TYPE_FIELD) : event.index(b'"', len(_TYPE_FIELD))]
    return b"event: %b\ndata: %b" % (name, event)


def encode_json_array(frame: Frame) -> bytes:
    """For a WebSocket."""
    return b"[" + b",".join(frame.events) + b"]"
