"""Whatever comes down the wire, the decoders answer with events and one last word; whatever they
kept, the encoders can send."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.domain.answer.assembler import Assembler
from chatd.domain.chat.parts import decode_parts, encode_parts
from chatd.domain.model.protocol import (
    Finished,
    ModelEvent,
    StreamFailed,
    ToolCallDone,
    ToolCallStart,
)
from chatd.providers.http import Decoder
from chatd.providers.openai_chat.answer import Answer
from chatd.providers.openai_chat.decode import Decoder as ChatDecoder
from chatd.providers.openai_chat.dialect import COMPATIBLE, GOOGLE, OPENAI
from chatd.providers.openai_chat.encode import encode as encode_chat
from chatd.providers.openai_responses.decode import Decoder as ResponsesDecoder
from chatd.providers.openai_responses.encode import encode as encode_responses
from chatd.providers.openai_tools import names_of
from chatd.providers.options_openai import CompatOptions, OpenAIOptions
from chatd.providers.schema import ToolNames
from tests.support.fuzz import fuzzed
from tests.support.providers.openai_chat import STREAMS as CHAT_STREAMS
from tests.support.providers.openai_dice import Dice
from tests.support.providers.openai_responses import STREAMS
from tests.support.providers.prompts import message, replayed, request
from tests.support.providers.reading import read_pieces

ORIGIN = "o"
NAMES = ToolNames(["a.b", "c"])

WIRES: dict[str, Callable[[], Decoder]] = {
    "responses": lambda: ResponsesDecoder(ORIGIN, NAMES),
    "chat": lambda: ChatDecoder(Answer(ORIGIN, NAMES, salt="s")),
    "gemini": lambda: ChatDecoder(Answer(ORIGIN, NAMES, salt="s", thoughts=True)),
}
RECORDED = {
    name: [path.read_bytes() for path in sorted(streams.glob("*.sse"))]
    for name, streams in (("responses", STREAMS), ("chat", CHAT_STREAMS))
}

seeds = st.integers(0, 2**32)


def heard(wire: str, pieces: list[bytes]) -> list[ModelEvent]:
    """What the decoder says, having checked that the house can work with it."""
    events = read_pieces(WIRES[wire](), pieces)
    assert [e for e in events if isinstance(e, Finished | StreamFailed)] == events[-1:]
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    answer = assembler.finished()
    # What is kept can be stored and read back, and sent again.
    stored = encode_parts(answer.content)
    assert encode_parts(decode_parts(stored)) == stored
    if isinstance(events[-1], Finished):
        asked = request(message("user", "Hi"), *replayed(answer), model="gpt-5")
        if wire == "responses":
            encode_responses(asked, OpenAIOptions(), names_of(asked), ORIGIN)
        else:
            encode_chat(asked, CompatOptions(), names_of(asked), GOOGLE, ORIGIN)
    return events


@pytest.mark.parametrize("wire", WIRES)
@fuzzed
@given(pieces=st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_at_all(wire: str, pieces: list[bytes]) -> None:
    heard(wire, pieces)


@fuzzed
@given(seeds)
def test_any_events_of_a_response(seed: int) -> None:
    dice = Dice(seed)
    named = dice.chance(0.7)
    pieces: list[bytes] = []
    for _ in range(10):
        name, data = dice.event()
        head = f"event: {name}\n".encode() if named else b""
        pieces.append(head + b"data: " + msgspec.json.encode({**data, "type": name}) + b"\n\n")
    told = heard("responses", pieces)
    begun = {e.id for e in told if isinstance(e, ToolCallStart)}
    assert {e.id for e in told if isinstance(e, ToolCallDone)} <= begun


@pytest.mark.parametrize("wire", ["chat", "gemini"])
@fuzzed
@given(seed=seeds)
def test_any_chunks_of_a_completion(wire: str, seed: int) -> None:
    dice = Dice(seed)
    values = dice.several_of(dice.chunk)
    told = heard(wire, [b"data: " + msgspec.json.encode(value) + b"\n\n" for value in values])
    done = [e.id for e in told if isinstance(e, ToolCallDone)]
    assert len(set(done)) == len(done)


@pytest.mark.parametrize("wire", WIRES)
@fuzzed
@given(seed=seeds)
def test_recorded_streams_with_bytes_changed_lost_and_doubled(wire: str, seed: int) -> None:
    recorded = RECORDED[wire if wire == "responses" else "chat"]
    heard(wire, [Dice(seed).spoilt(recorded[seed % len(recorded)])])


@fuzzed
@given(seeds)
def test_any_conversation_can_be_written(seed: int) -> None:
    asked = request(*Dice(seed).conversation(), model="gpt-5")
    names = names_of(asked)
    sent = [
        encode_responses(asked, OpenAIOptions(), names, ORIGIN),
        encode_chat(asked, OpenAIOptions(), names, OPENAI, ORIGIN),
        encode_chat(asked, CompatOptions(), names, COMPATIBLE, ORIGIN),
        encode_chat(asked, CompatOptions(), names, GOOGLE, ORIGIN),
    ]
    for body in sent:
        assert msgspec.json.decode(body)
