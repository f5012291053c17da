"""Any input of the OpenAI decoders gives one final event, and their content can be encoded."""

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
from chatd.providers.http import StreamDecoder
from chatd.providers.openai.chat.answer import ChatAnswerBuilder
from chatd.providers.openai.chat.decoder import ChatDecoder
from chatd.providers.openai.chat.request import encode_request as encode_chat
from chatd.providers.openai.chat.wire import COMPATIBLE_DIALECT, GOOGLE_DIALECT, OPENAI_DIALECT
from chatd.providers.openai.models import CompatOptions, OpenAIOptions
from chatd.providers.openai.responses.decoder import ResponsesDecoder
from chatd.providers.openai.responses.request import encode_request as encode_responses
from chatd.providers.openai.tools import build_tool_names
from chatd.providers.tool_schema import ToolNames
from tests.support.fuzz import fuzzed
from tests.support.providers.openai_chat import STREAMS as CHAT_STREAMS
from tests.support.providers.openai_responses import STREAMS
from tests.support.providers.prompts import message, replayed, request
from tests.support.providers.random_openai import RandomOpenAi
from tests.support.providers.stream_reader import read_pieces

ORIGIN = "o"
NAMES = ToolNames(["a.b", "c"])

WIRES: dict[str, Callable[[], StreamDecoder]] = {
    "responses": lambda: ResponsesDecoder(ORIGIN, NAMES),
    "chat": lambda: ChatDecoder(ChatAnswerBuilder(ORIGIN, NAMES, salt="s")),
    "gemini": lambda: ChatDecoder(
        ChatAnswerBuilder(ORIGIN, NAMES, salt="s", has_thought_tags=True)
    ),
}
RECORDED = {
    name: [path.read_bytes() for path in sorted(streams.glob("*.sse"))]
    for name, streams in (("responses", STREAMS), ("chat", CHAT_STREAMS))
}

seeds = st.integers(0, 2**32)


def decode_checked(wire: str, pieces: list[bytes]) -> list[ModelEvent]:
    """The events of the decoder, after a check that the content can be stored and sent back."""
    events = read_pieces(WIRES[wire](), pieces)
    assert [e for e in events if isinstance(e, Finished | StreamFailed)] == events[-1:]
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    answer = assembler.finished()
    stored = encode_parts(answer.content)
    assert encode_parts(decode_parts(stored)) == stored
    if isinstance(events[-1], Finished):
        model_request = request(message("user", "Hi"), *replayed(answer), model="gpt-5")
        if wire == "responses":
            encode_responses(
                model_request, OpenAIOptions(), build_tool_names(model_request), ORIGIN
            )
        else:
            encode_chat(
                model_request,
                CompatOptions(),
                build_tool_names(model_request),
                GOOGLE_DIALECT,
                ORIGIN,
            )
    return events


@pytest.mark.parametrize("wire", WIRES)
@fuzzed
@given(pieces=st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_give_one_final_event(wire: str, pieces: list[bytes]) -> None:
    decode_checked(wire, pieces)


@fuzzed
@given(seeds)
def test_any_response_events_give_one_final_event(seed: int) -> None:
    dice = RandomOpenAi(seed)
    named = dice.chance(0.7)
    pieces: list[bytes] = []
    for _ in range(10):
        name, data = dice.event()
        head = f"event: {name}\n".encode() if named else b""
        pieces.append(head + b"data: " + msgspec.json.encode({**data, "type": name}) + b"\n\n")
    events = decode_checked("responses", pieces)
    begun = {e.id for e in events if isinstance(e, ToolCallStart)}
    assert {e.id for e in events if isinstance(e, ToolCallDone)} <= begun


@pytest.mark.parametrize("wire", ["chat", "gemini"])
@fuzzed
@given(seed=seeds)
def test_any_chunks_give_one_final_event(wire: str, seed: int) -> None:
    dice = RandomOpenAi(seed)
    values = dice.several_of(dice.chunk)
    events = decode_checked(
        wire, [b"data: " + msgspec.json.encode(value) + b"\n\n" for value in values]
    )
    done = [e.id for e in events if isinstance(e, ToolCallDone)]
    assert len(set(done)) == len(done)


@pytest.mark.parametrize("wire", WIRES)
@fuzzed
@given(seed=seeds)
def test_damaged_recorded_streams_give_one_final_event(wire: str, seed: int) -> None:
    recorded = RECORDED[wire if wire == "responses" else "chat"]
    decode_checked(wire, [RandomOpenAi(seed).corrupt(recorded[seed % len(recorded)])])


@fuzzed
@given(seeds)
def test_any_history_can_be_encoded(seed: int) -> None:
    model_request = request(*RandomOpenAi(seed).conversation(), model="gpt-5")
    names = build_tool_names(model_request)
    sent = [
        encode_responses(model_request, OpenAIOptions(), names, ORIGIN),
        encode_chat(model_request, OpenAIOptions(), names, OPENAI_DIALECT, ORIGIN),
        encode_chat(model_request, CompatOptions(), names, COMPATIBLE_DIALECT, ORIGIN),
        encode_chat(model_request, CompatOptions(), names, GOOGLE_DIALECT, ORIGIN),
    ]
    for body in sent:
        assert msgspec.json.decode(body)
