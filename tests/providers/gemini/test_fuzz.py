"""Any input of the Gemini decoder gives events that end with one final event.

CHATD_TEST_EXAMPLES sets how many cases are drawn.
"""

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatd.domain.answer.assembler import Assembler
from chatd.domain.chat.parts import decode_parts, encode_parts
from chatd.domain.model.protocol import Finished, ModelEvent, StreamFailed
from chatd.providers.gemini.decoder import GeminiDecoder
from chatd.providers.tool_schema import ToolNames
from tests.support.providers.gemini import STREAMS
from tests.support.providers.stream_reader import read_pieces
from tests.support.run_length import examples

RECORDED = [path.read_bytes() for path in sorted(STREAMS.glob("*.sse"))]

SETTINGS = settings(
    max_examples=examples(150),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
parts = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(max_size=12) | json_values,
        "thought": st.booleans() | json_values,
        "thoughtSignature": st.text("ab=", max_size=8) | json_values,
        "functionCall": st.fixed_dictionaries(
            {}, optional={"name": st.text(max_size=4), "args": json_values, "id": st.text("xy")}
        )
        | json_values,
        "toolCall": json_values,
        "toolResponse": json_values,
    },
)
candidates = st.fixed_dictionaries(
    {},
    optional={
        "content": st.fixed_dictionaries({"parts": st.lists(parts, max_size=4)}) | json_values,
        "finishReason": st.sampled_from(["STOP", "MAX_TOKENS", "SAFETY", "OTHER", "NEW", ""]),
        "finishMessage": st.text(max_size=5) | json_values,
        "groundingMetadata": json_values,
    },
)
chunks = st.fixed_dictionaries(
    {},
    optional={
        "candidates": st.lists(candidates, max_size=2) | json_values,
        "usageMetadata": st.dictionaries(
            st.sampled_from(["promptTokenCount", "candidatesTokenCount", "totalTokenCount"]),
            st.integers() | json_values,
        ),
        "promptFeedback": st.fixed_dictionaries({"blockReason": st.text(max_size=4)}),
        "error": st.fixed_dictionaries({}, optional={"code": json_values, "message": json_values}),
    },
)


def last_word(pieces: list[bytes]) -> list[ModelEvent]:
    decoder = GeminiDecoder(model="gemini-3-pro", names=ToolNames([]), call_prefix="call")
    events = read_pieces(decoder, pieces)
    assert [e for e in events if isinstance(e, Finished | StreamFailed)] == events[-1:]
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    # The content can be stored and read back.
    content = assembler.finished().content
    stored = encode_parts(content)
    assert encode_parts(decode_parts(stored)) == stored
    return events


@SETTINGS
@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_give_one_final_event(pieces: list[bytes]) -> None:
    last_word(pieces)


@SETTINGS
@given(st.lists(chunks | json_values, max_size=5))
def test_any_json_chunks_give_one_final_event(values: list[object]) -> None:
    last_word([b"data: " + msgspec.json.encode(value) + b"\r\n\r\n" for value in values])


@SETTINGS
@given(st.data())
def test_damaged_recorded_streams_give_one_final_event(data: st.DataObject) -> None:
    stream = bytearray(data.draw(st.sampled_from(RECORDED)))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(stream) - 1))
        match data.draw(st.integers(0, 3)):
            case 0:
                stream[at] = data.draw(st.integers(0, 255))
            case 1:
                del stream[at : at + data.draw(st.integers(1, 40))]
            case 2:
                stream[at:at] = stream[at : at + data.draw(st.integers(1, 200))]
            case _:
                del stream[at + 1 :]
        if not stream:
            break
    last_word([bytes(stream)])
