"""Any input of a decoder gives one final event, and its content can be stored and sent back."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatd.domain.answer.assembler import Answer
from chatd.domain.chat.messages import decode_parts, encode_parts
from chatd.domain.model.protocol import (
    Finished,
    ModelRequest,
    StreamFailed,
    ToolCallDone,
    ToolCallStart,
)
from chatd.providers.anthropic.anthropic_decoder import AnthropicDecoder
from chatd.providers.anthropic.anthropic_request import encode_request as encode_anthropic
from chatd.providers.anthropic.bedrock import EventStream
from chatd.providers.gemini.gemini_models import GoogleOptions
from chatd.providers.gemini.gemini_request import encode_request as encode_gemini
from chatd.providers.gemini.gemini_request import gemini_tool_names
from chatd.providers.openai.chat_dialect import (
    COMPATIBLE_DIALECT,
    GOOGLE_DIALECT,
    OPENAI_DIALECT,
    ChatDialect,
)
from chatd.providers.openai.chat_request import encode_request as encode_chat
from chatd.providers.openai.openai_models import CompatOptions, OpenAIOptions
from chatd.providers.openai.openai_tools import build_tool_names
from chatd.providers.openai.responses_request import encode_request as encode_responses
from chatd.providers.sse import FramedDecoder
from tests.support.providers.bedrock import framed
from tests.support.providers.prompts import message, replayed, request
from tests.support.providers.random_streams import RandomStreams
from tests.support.providers.recorded import (
    ANTHROPIC,
    APIS,
    CHAT,
    GEMINI,
    ORIGIN,
    RESPONSES,
    RecordedApi,
    chat_decoder,
)
from tests.support.providers.stream_reader import answer_of, read_pieces
from tests.support.run_length import fuzzed


class Wire(NamedTuple):
    api: RecordedApi
    new_decoder: Callable[[], FramedDecoder]
    frame: Callable[[bytes], bytes] = bytes


WIRES = {
    "anthropic": Wire(ANTHROPIC, ANTHROPIC.new_decoder),
    "bedrock": Wire(ANTHROPIC, lambda: AnthropicDecoder(framing=EventStream()), framed),
    "gemini": Wire(GEMINI, GEMINI.new_decoder),
    "responses": Wire(RESPONSES, RESPONSES.new_decoder),
    "chat": Wire(CHAT, CHAT.new_decoder),
    "chat of Google": Wire(CHAT, lambda: chat_decoder(thoughts=True)),
}


def chat_body(sent: ModelRequest, dialect: ChatDialect) -> bytes:
    options = OpenAIOptions() if dialect is OPENAI_DIALECT else CompatOptions()
    return encode_chat(sent, options, build_tool_names(sent), dialect, ORIGIN)


ENCODERS: dict[str, Callable[[ModelRequest], bytes]] = {
    "anthropic": lambda sent: encode_anthropic(sent).body,
    "gemini": lambda sent: encode_gemini(sent, GoogleOptions(), gemini_tool_names(sent)),
    "responses": lambda sent: encode_responses(
        sent, OpenAIOptions(), build_tool_names(sent), ORIGIN
    ),
    "chat of OpenAI": lambda sent: chat_body(sent, OPENAI_DIALECT),
    "chat of others": lambda sent: chat_body(sent, COMPATIBLE_DIALECT),
    "chat of Google": lambda sent: chat_body(sent, GOOGLE_DIALECT),
}
every_wire = pytest.mark.parametrize("wire", WIRES)
seeds = st.integers(0, 2**32)


def check(wire: str, pieces: list[bytes]) -> None:
    events = read_pieces(WIRES[wire].new_decoder(), pieces)
    assert [e for e in events if isinstance(e, Finished | StreamFailed)] == events[-1:]
    done = [e.id for e in events if isinstance(e, ToolCallDone)]
    if wire == "responses":
        assert set(done) <= {e.id for e in events if isinstance(e, ToolCallStart)}
    if wire.startswith("chat"):
        assert len(set(done)) == len(done)
    answer = answer_of(events)
    stored = encode_parts(answer.content)
    assert encode_parts(decode_parts(stored)) == stored
    if isinstance(events[-1], Finished):
        check_sent_back(answer)


def check_sent_back(answer: Answer) -> None:
    sent = request(message("user", "Hi"), *replayed(answer), model="gpt-5")
    for encode in ENCODERS.values():
        assert msgspec.json.decode(encode(sent))


@every_wire
@fuzzed
@given(pieces=st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_give_one_final_event(wire: str, pieces: list[bytes]) -> None:
    check(wire, pieces)


@every_wire
@fuzzed
@given(seed=seeds)
def test_any_events_give_one_final_event(wire: str, seed: int) -> None:
    random = RandomStreams(WIRES[wire].api, seed)
    check(wire, random.pieces(WIRES[wire].frame(random.events())))


@every_wire
@fuzzed
@given(seed=seeds)
def test_damaged_recorded_streams_give_one_final_event(wire: str, seed: int) -> None:
    random = RandomStreams(WIRES[wire].api, seed)
    recorded = WIRES[wire].frame(WIRES[wire].api.stream(random.recorded_name()))
    check(wire, [random.damaged(recorded)])


@pytest.mark.parametrize("api", APIS)
@fuzzed
@given(seed=seeds)
def test_any_history_can_be_encoded(api: str, seed: int) -> None:
    sent = request(*RandomStreams(APIS[api], seed).conversation(), model="gpt-5")
    for encode in ENCODERS.values():
        assert msgspec.json.decode(encode(sent))
