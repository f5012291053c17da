"""What a decoder makes of a stream, cut anywhere, and what the answer then is."""

from collections.abc import Callable, Iterable

from chatd.domain.answer.assembler import Answer, Assembler
from chatd.domain.model.protocol import ModelEvent, StreamFailed
from chatd.providers.http import StreamDecoder

NewDecoder = Callable[[], StreamDecoder]


def read_pieces(decoder: StreamDecoder, pieces: Iterable[bytes]) -> list[ModelEvent]:
    """As the pipe does it: until the decoder is done or the stream ends."""
    events: list[ModelEvent] = []
    for piece in pieces:
        if decoder.done:
            break
        events += decoder.feed(piece)
    return (
        events if events and isinstance(events[-1], StreamFailed) else [*events, *decoder.close()]
    )


def read_whole(new: NewDecoder, stream: bytes) -> list[ModelEvent]:
    return read_pieces(new(), [stream])


def read_cut(new: NewDecoder, stream: bytes, at: int) -> list[ModelEvent]:
    return read_pieces(new(), [stream[:at], stream[at:]])


def read_bytewise(new: NewDecoder, stream: bytes) -> list[ModelEvent]:
    return read_pieces(new(), (stream[at : at + 1] for at in range(len(stream))))


def answer_of(events: Iterable[ModelEvent]) -> Answer:
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    return assembler.finished()
