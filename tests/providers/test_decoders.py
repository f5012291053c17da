"""What the decoders of all APIs have in common, on recorded streams."""

import msgspec
import pytest

from chatd.domain.answer.assembler import Assembler
from chatd.domain.chat.messages import TokenUsage
from chatd.domain.chat.parts import ToolCallPart
from chatd.domain.model.protocol import Finished, StreamFailed, TextDelta
from tests.support.providers.openai_chat import DONE, chunk
from tests.support.providers.recorded import APIS
from tests.support.providers.stream_reader import read_at_all_cuts, read_bytewise

RECORDED = [(api, name) for api, streams in APIS.items() for name in streams.names]
recorded = pytest.mark.parametrize(("api", "name"), RECORDED)


@recorded
def test_a_stream_decodes_the_same_wherever_it_is_cut(api: str, name: str) -> None:
    streams = APIS[api]
    data, whole = streams.stream(name), streams.read(name)
    assert read_bytewise(lambda: streams.new_decoder(name), data) == whole
    for found in read_at_all_cuts(lambda: streams.new_decoder(name), data):
        assert found == whole


@recorded
def test_a_stream_decodes_the_same_with_other_line_ends(api: str, name: str) -> None:
    streams = APIS[api]
    data, whole = streams.stream(name).replace(b"\r\n", b"\n"), streams.read(name)
    for line_end in (b"\n", b"\r\n", b"\r"):
        assert streams.decode(data.replace(b"\n", line_end), name) == whole


@recorded
def test_the_last_event_needs_no_blank_line(api: str, name: str) -> None:
    streams = APIS[api]
    assert streams.decode(streams.stream(name).rstrip(b"\r\n"), name) == streams.read(name)


@recorded
def test_a_stream_has_one_final_event(api: str, name: str) -> None:
    events = APIS[api].read(name)
    assert [e for e in events if isinstance(e, Finished | StreamFailed)] == events[-1:]


@pytest.mark.parametrize(
    ("api", "name"), [(api, name) for api, name in RECORDED if api in ("chat", "responses")]
)
def test_a_closed_decoder_gives_no_events(api: str, name: str) -> None:
    streams = APIS[api]
    decoder = streams.new_decoder(name)
    decoder.feed(streams.stream(name))
    decoder.close()
    assert decoder.feed(streams.stream("text")) == []
    assert decoder.close() == []


def wire_cut_calls(wire: str) -> tuple[bytes, ...]:
    """An answer that is cut before the first byte of the arguments of its call."""
    match wire:
        case "chat":
            call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "echo"}}
            return (chunk(tool_calls=[call]), chunk(finish="length"), DONE)
        case "responses":
            item = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "echo"}
            response = {"id": "r", "incomplete_details": {"reason": "max_output_tokens"}}
            return (
                event("response.output_item.added", output_index=0, item=item),
                event("response.incomplete", response={**response, "status": "incomplete"}),
            )
        case _:
            no_input: dict[str, object] = {}
            block = {"type": "tool_use", "id": "c1", "name": "echo", "input": no_input}
            started = {"id": "m", "usage": {"input_tokens": 1}}
            delta = {"stop_reason": "max_tokens"}
            return (
                event("message_start", message=started),
                event("content_block_start", index=0, content_block=block),
                event("content_block_stop", index=0),
                event("message_delta", delta=delta, usage={"output_tokens": 9}),
                event("message_stop"),
            )


def event(name: str, **fields: object) -> bytes:
    data = msgspec.json.encode({"type": name, **fields})
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


@pytest.mark.parametrize("wire", ["chat", "responses", "anthropic"])
def test_a_call_cut_before_its_first_argument_is_marked_on_every_wire(wire: str) -> None:
    assembler = Assembler()
    for found in APIS[wire].decode(b"".join(wire_cut_calls(wire)), "text"):
        assembler.feed(found)
    [call] = assembler.finished().content
    assert isinstance(call, ToolCallPart)
    assert call.cut


@pytest.mark.parametrize(
    ("api", "is_told"),
    [("anthropic", True), ("gemini", True), ("chat", False), ("responses", False)],
)
def test_a_call_stopped_while_it_streams_has_its_whole_input_once(
    api: str, *, is_told: bool
) -> None:
    """As its vendor tells it with the first text, else as it is expected. The numbers of the end
    replace it."""
    expected = TokenUsage(input_tokens=40, cache_read_tokens=60)
    assembler = Assembler(expected=expected)
    events = APIS[api].read("text")
    whole = Assembler()
    for event in events:
        whole.feed(event)
    final = whole.usage
    deltas = [number for number, event in enumerate(events) if isinstance(event, TextDelta)]
    for event in events[: deltas[1]]:
        assembler.feed(event)
    stopped = assembler.usage
    assert stopped.estimated
    wanted = final if is_told else expected
    assert (stopped.input_tokens, stopped.cache_read_tokens) == (
        wanted.input_tokens,
        wanted.cache_read_tokens,
    )
    assert stopped.total_tokens == (
        stopped.input_tokens
        + stopped.cache_read_tokens
        + stopped.cache_creation_tokens
        + stopped.output_tokens
    )
