"""Reads decoders and providers to their end, and assembles the answer."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import pytest

from chatd.domain.answer.assembler import Answer, Assembler
from chatd.domain.model.protocol import (
    ModelEvent,
    ModelRequest,
    ProviderError,
    StreamFailed,
    StreamPing,
)
from chatd.domain.ports import Provider
from chatd.providers.sse import FramedDecoder

WAIT_S = 30
CUT_DISTANCE_BYTES = 97

NewDecoder = Callable[[], FramedDecoder]


def read_pieces(decoder: FramedDecoder, pieces: Iterable[bytes]) -> list[ModelEvent]:
    """Like the HTTP session: until the decoder is done or the stream ends."""
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


def read_at_all_cuts(new: NewDecoder, stream: bytes) -> Iterator[list[ModelEvent]]:
    """Each position is a cut in one of these readings, with a whole piece on both sides. Cuts so
    far apart do not affect each other, and a reading for each position would take a minute."""
    for first in range(CUT_DISTANCE_BYTES):
        cuts = [0, *range(first, len(stream), CUT_DISTANCE_BYTES), len(stream)]
        yield read_pieces(new(), [stream[start:end] for start, end in pairwise(cuts)])


def read_bytewise(new: NewDecoder, stream: bytes) -> list[ModelEvent]:
    return read_pieces(new(), (stream[at : at + 1] for at in range(len(stream))))


def answer_of(events: Iterable[ModelEvent]) -> Answer:
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    return assembler.finished()


async def collect(provider: Provider, request: ModelRequest) -> list[ModelEvent]:
    """All events but pings, which depend on how the reply is cut into chunks."""
    async with asyncio.timeout(WAIT_S), provider.stream(request) as events:
        return [event async for event in events if not isinstance(event, StreamPing)]


async def collect_failure(provider: Provider, request: ModelRequest) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await collect(provider, request)
    return caught.value
