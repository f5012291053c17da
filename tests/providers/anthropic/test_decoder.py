"""Decoding streams of the Messages API."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.chat.parts import (
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.ids import ToolCallId
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import (
    Finished,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    SourceFound,
    StreamFailed,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
    ToolResultDone,
    UsageReported,
)
from chatd.providers.anthropic.anthropic_decoder import MAX_CITATIONS_PER_TEXT, AnthropicDecoder
from chatd.providers.anthropic.anthropic_wire import (
    AnthropicMetadata,
    pack_metadata,
    unpack_metadata,
)
from chatd.providers.sse import SseParser
from chatd.providers.tool_schema import ToolNames
from tests.support.providers.anthropic import NAMES, event, stream
from tests.support.providers.recorded import ANTHROPIC, only, tokens, without_usage
from tests.support.providers.stream_reader import answer_of, read_pieces, read_whole

read, answer, finished = ANTHROPIC.read, ANTHROPIC.answer, ANTHROPIC.finished
decode, decode_end, failed = ANTHROPIC.decode, ANTHROPIC.decode_end, ANTHROPIC.failed


START = event("message_start", message={"id": "msg_1", "usage": {"input_tokens": 9}})
STOP = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 5})
END = event("message_stop")


def text_block(index: int, *pieces: str) -> bytes:
    begin = event("content_block_start", index=index, content_block={"type": "text", "text": ""})
    deltas = (
        event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
        for piece in pieces
    )
    return begin + b"".join(deltas) + event("content_block_stop", index=index)


# Cuts


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_without_its_final_event_is_incomplete(name: str) -> None:
    data = stream(name)
    end = data.rfind(b"event: message_stop")
    if end < 0:
        end = data.rfind(b"event: error") if b"event: error" in data else len(data)
    for at in range(0, end, 7):
        fault = failed(data[:at])
        assert fault.incomplete
        assert classify_fault(fault).retryable


def test_half_of_the_last_event_is_incomplete() -> None:
    assert failed((START + text_block(0, "Hi") + STOP + END).rstrip(b"}\n")).incomplete


# Content


def test_text_arrives_in_deltas() -> None:
    assert without_usage(read("text")) == [
        TextStart(id="0"),
        TextDelta(id="0", delta="Grüß"),
        TextDelta(id="0", delta=" Gott, "),
        TextDelta(id="0", delta='世界 👋\n"quoted"'),
        TextEnd(id="0"),
        finished("text"),
    ]


def test_thinking_keeps_its_signature_and_calls_their_order() -> None:
    signature = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds+/=="
    paris = ToolCallId("toolu_01A09q90qw90lq917835lq9")
    cities = ToolCallId("toolu_01B12r23ty45uz678901opq")
    assert without_usage(read("thinking_and_tools"))[:-1] == [
        ReasoningStart(id="0"),
        ReasoningDelta(id="0", delta="Two cities, "),
        ReasoningDelta(id="0", delta="so two calls."),
        ReasoningEnd(
            id="0", provider_metadata=pack_metadata(AnthropicMetadata(signature=signature))
        ),
        TextStart(id="1"),
        TextDelta(id="1", delta="Let me "),
        TextDelta(id="1", delta="look that up."),
        TextEnd(id="1"),
        ToolCallStart(id=paris, name="get_weather"),
        ToolCallDelta(id=paris, delta='{"city": "P'),
        ToolCallDelta(id=paris, delta='aris", "unit"'),
        ToolCallDelta(id=paris, delta=': "c"}'),
        ToolCallDone(id=paris, name="get_weather", input='{"city": "Paris", "unit": "c"}'),
        ToolCallStart(id=cities, name="list_cities"),
        ToolCallDone(id=cities, name="list_cities", input="{}"),
    ]


def test_redacted_thinking_and_thinking_without_text_are_kept() -> None:
    redacted, silent, text = answer("redacted_thinking").content
    assert isinstance(redacted, ReasoningPart)
    assert isinstance(silent, ReasoningPart)
    assert unpack_metadata(redacted.provider_metadata).redacted_thinking == (
        "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyIwxtE3rAFBa8cr3qpPkNRj2YfWXGmKDxH4mPnZ5sQ7vB"
    )
    expected = ("", "ErUBCkYIBRgCIkDVzQ==")
    assert (silent.text, unpack_metadata(silent.provider_metadata).signature) == expected
    assert text == TextPart(text="I can help with that.")


def test_a_search_has_its_call_result_and_sources() -> None:
    content = answer("web_search").content
    cited = [TextPart, TextPart, SourcePart]
    expected = [TextPart, ToolCallPart, ToolResultPart, *cited, *cited]
    assert [type(part) for part in content] == expected
    call, result = content[1], content[2]
    assert isinstance(call, ToolCallPart)
    assert isinstance(result, ToolResultPart)
    assert call.provider_executed
    assert call.args == Raw(b'{"query": "ada lovelace notes"}')
    assert (result.tool_call_id, result.tool_name) == (call.tool_call_id, "web_search")
    assert result.provider_executed
    assert not result.is_error
    assert isinstance(result.result, Raw)
    found = msgspec.json.decode(result.result, type=list[dict[str, object]])
    assert [str(page["encrypted_content"])[:4] for page in found] == ["Eqgf", "EqQC"]
    assert only(SourcePart, content) == [
        SourcePart(
            url="https://en.wikipedia.org/wiki/Ada_Lovelace", title="Ada Lovelace - Wikipedia"
        ),
        SourcePart(url="https://example.org/notes?id=1&x=2"),
    ]


def test_citations_are_stored_with_their_text() -> None:
    texts = only(TextPart, answer("web_search").content)
    quotes = [unpack_metadata(text.provider_metadata).citations for text in texts]
    assert [len(found or ()) for found in quotes] == [0, 0, 1, 0, 2]


def test_a_failed_search_is_an_error_result() -> None:
    result = answer("web_search_error").content[1]
    assert isinstance(result, ToolResultPart)
    assert result.is_error
    assert result.result == Raw(
        b'{"type":"web_search_tool_result_error","error_code":"max_uses_exceeded"}'
    )
    assert unpack_metadata(result.provider_metadata) == AnthropicMetadata(
        block="web_search_tool_result", caller=Raw(b'{"type":"direct"}')
    )


def test_a_computer_action_is_a_tool_call() -> None:
    call = answer("computer").content[-1]
    assert isinstance(call, ToolCallPart)
    expected = ("computer", Raw(b'{"action": "left_click", "coordinate": [512, 300]}'))
    assert (call.tool_name, call.args) == expected


def test_tools_of_the_computer_toolset_become_actions_of_one_tool() -> None:
    calls = only(ToolCallPart, answer("computer_toolset").content)
    assert [(call.tool_name, call.args) for call in calls] == [
        ("computer", Raw(b'{"action":"left_click","coordinate":[512, 300]}')),
        ("computer", Raw(b'{"action":"screenshot"}')),
    ]


def test_a_call_cut_off_by_the_token_limit_keeps_its_input_so_far() -> None:
    call = without_usage(read("max_tokens"))[-2]
    assert isinstance(call, ToolCallDone)
    assert call.input == '{"path": "a.txt", "content": "half a sen'


def test_a_gateway_may_send_whole_blocks_and_leave_one_open() -> None:
    assert answer("gateway").content == (
        TextPart(text="Whole at once"),
        ToolCallPart(
            tool_call_id=ToolCallId("toolu_gw"), tool_name="read_file", args=Raw(b'{"path":"a b"}')
        ),
        TextPart(text="unclosed"),
    )


def test_a_toolset_call_may_arrive_whole() -> None:
    for sent, fields in (({"text": "a"}, b',"text":"a"'), ({}, b"")):
        block = {"type": "tool_use", "id": "t", "name": "key", "toolset_name": "computer"}
        begin = event("content_block_start", index=0, content_block={**block, "input": sent})
        call = answer_of(decode(START + begin + STOP + END)).content[0]
        assert isinstance(call, ToolCallPart)
        assert call.args == Raw(b'{"action":"key"' + fields + b"}")


BLOCK_STARTS: list[dict[str, object]] = [
    {"type": "text", "text": ""},
    {"type": "thinking", "thinking": ""},
    {"type": "redacted_thinking", "data": "EmwK"},
    {"type": "tool_use", "id": "t", "name": "n"},
    {"type": "tool_use", "id": "t", "name": "n", "toolset_name": "computer"},
    {"type": "server_tool_use", "id": "t", "name": "n"},
]


@pytest.mark.parametrize("block", BLOCK_STARTS)
def test_empty_deltas_and_deltas_of_another_type_are_ignored(block: dict[str, object]) -> None:
    begin = event("content_block_start", index=0, content_block=block)
    pieces: list[dict[str, object]] = [
        {"type": "text_delta", "text": ""},
        {"type": "thinking_delta", "thinking": ""},
        {"type": "input_json_delta", "partial_json": ""},
        {"type": "signature_delta", "signature": ""},
        {"type": "citations_delta", "citation": 7},
    ]
    said = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
    theirs = {"text": "text_delta", "thinking": "thinking_delta"}
    own = theirs.get(str(block["type"]), "input_json_delta")
    for kind, field in said.items():
        if kind != own or block["type"] == "redacted_thinking":
            pieces.append({"type": kind, field: "x"})
    odd = b"".join(event("content_block_delta", index=0, delta=piece) for piece in pieces)
    plain = decode(START + begin + STOP + END)
    assert decode(START + begin + odd + STOP + END) == plain


def test_thinking_without_a_signature_has_no_metadata() -> None:
    begin = event("content_block_start", index=0, content_block={"type": "thinking"})
    events = decode(START + begin + STOP + END)
    assert without_usage(events)[:2] == [ReasoningStart(id="0"), ReasoningEnd(id="0")]


def test_tool_names_are_translated_back() -> None:
    names = ToolNames(["get.weather", "get weather"])
    data = stream("thinking_and_tools").replace(
        b'"get_weather"', b'"%b"' % names.to_wire("get weather").encode()
    )
    events = read_whole(lambda: AnthropicDecoder(names), data)
    assert [e.name for e in events if isinstance(e, ToolCallDone)] == ["get weather", "list_cities"]


def test_a_block_at_a_used_index_closes_the_block_before() -> None:
    begin = event("content_block_start", index=0, content_block={"type": "text", "text": "a"})
    events = decode(START + begin + begin + STOP + END)
    types = [type(e) for e in without_usage(events)]
    assert types[:-1] == [TextStart, TextDelta, TextEnd] * 2


def test_half_of_a_surrogate_pair_does_not_fail_the_answer() -> None:
    piece = (
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%b"}}'
    )
    broken = text_block(0).replace(
        b"event: content_block_stop",
        piece % b"\\ud83d" + b"\n\n" + piece % b"a\xff" + b"\n\nevent: content_block_stop",
    )
    events = decode(START + broken + STOP + END)
    assert [e.delta for e in events if isinstance(e, TextDelta)] == ["\ufffd", "a\ufffd"]
    assert isinstance(events[-1], Finished)


# Usage


@pytest.mark.covers("providers-3")
@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("text", tokens(4, 17, 2151, cache_creation_tokens=310, cache_read_tokens=1820)),
        ("thinking_and_tools", tokens(412, 164, 576, reasoning_tokens=58)),
        ("web_search", tokens(10682, 510, 11192, context_tokens=2679, web_searches=1)),
        (
            "web_search_error",
            tokens(
                1900,
                40,
                2740,
                cache_creation_tokens=100,
                cache_read_tokens=700,
                context_tokens=1900,
            ),
        ),
        ("gateway", tokens(55, 12, 72, cache_read_tokens=5)),
        ("unknown_things", tokens(30, 5, 35)),
    ],
)
def test_token_counts_reported_in_several_events_are_counted_once(
    name: str, usage: TokenUsage
) -> None:
    assert finished(name).usage == usage


@pytest.mark.promise("P11")
def test_the_input_is_reported_before_the_answer_and_the_output_at_its_end() -> None:
    events = decode(START + text_block(0, "Hi") + STOP + END)
    assert [e.usage for e in only(UsageReported, events)] == [tokens(9, 0, 9), tokens(9, 5, 14)]
    assert isinstance(events[0], UsageReported)


@pytest.mark.covers("providers-3")
def test_a_later_empty_count_does_not_erase_an_earlier_one() -> None:
    start = event(
        "message_start",
        message={"usage": {"input_tokens": 9, "cache_read_input_tokens": 100, "output_tokens": 1}},
    )
    zero = event(
        "message_delta",
        delta={"stop_reason": "end_turn"},
        usage={"input_tokens": 0, "cache_read_input_tokens": None, "output_tokens": 5},
    )
    last = decode_end(start + zero + END)
    assert last.usage == TokenUsage(
        input_tokens=9, cache_read_tokens=100, output_tokens=5, total_tokens=114
    )


def decode_usage(start: object, later: object) -> TokenUsage:
    begin = event("message_start", message={"usage": start})
    stop = event("message_delta", delta={"stop_reason": "end_turn"}, usage=later)
    last = decode_end(begin + stop + END)
    return last.usage


def test_writes_for_an_hour_are_counted_as_such() -> None:
    wrote = {
        "input_tokens": 9,
        "cache_creation_input_tokens": 20,
        "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 15},
    }
    found = decode_usage(wrote, {"output_tokens": 5})
    assert (found.cache_creation_tokens, found.cache_creation_1h_tokens) == (20, 15)


@pytest.mark.covers("providers-3")
def test_repeated_counts_are_not_added_up() -> None:
    read = {"input_tokens": 9, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
    thought = {"output_tokens": 5, "output_tokens_details": {"thinking_tokens": 3}}
    assert decode_usage({**read, **thought}, {**read, **thought}) == TokenUsage(
        input_tokens=9,
        cache_read_tokens=100,
        cache_creation_tokens=20,
        output_tokens=5,
        reasoning_tokens=3,
        total_tokens=134,
    )


def test_usage_is_zero_if_none_was_reported() -> None:
    assert decode_usage(None, None) == TokenUsage()
    assert decode_usage({}, {"output_tokens_details": {}, "iterations": []}) == TokenUsage()


def test_one_run_of_the_model_has_no_separate_context_size() -> None:
    once = [{"type": "message", "input_tokens": 5, "cache_read_input_tokens": 7}]
    later = {"input_tokens": 5, "cache_read_input_tokens": 7, "iterations": once}
    assert decode_usage({"input_tokens": 5}, later).context_tokens is None


def test_the_context_size_is_that_of_the_last_run() -> None:
    asked = [{"type": "message", "input_tokens": 5}, {"type": "message"}, {"type": "message"}]
    asked[-1] = {"type": "message", "cache_creation_input_tokens": 9}
    assert (
        decode_usage({"input_tokens": 5}, {"input_tokens": 50, "iterations": asked}).context_tokens
        == 9
    )


# Ends and failures


@pytest.mark.covers("providers-4")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("text", "stop"),
        ("pause", "pause"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("context_full", "length"),
        ("thinking_and_tools", "tool-calls"),
        ("refusal", "refusal"),
        ("unknown_things", "other"),
    ],
)
def test_stop_reasons_become_finish_reasons(name: str, reason: str) -> None:
    assert finished(name).reason == reason


@pytest.mark.covers("providers-4")
@pytest.mark.parametrize("said", ["content_filtered", "guardrail_intervened"])
def test_a_filter_of_a_platform_is_a_content_filter(said: str) -> None:
    stop = event("message_delta", delta={"stop_reason": said})
    last = decode_end(START + stop + END)
    assert last.reason == "content-filter"


@pytest.mark.covers("providers-19")
def test_a_refusal_is_explained() -> None:
    assert finished("refusal").explanation == "The request could enable cyber harm."


@pytest.mark.covers("providers-19")
def test_a_refusal_without_explanation_is_explained_by_its_category() -> None:
    stop = event(
        "message_delta",
        delta={"stop_reason": "refusal", "stop_details": {"type": "refusal", "category": "bio"}},
    )
    last = decode_end(START + stop + END)
    assert last.explanation == "bio"


def test_the_final_event_has_the_response_id_and_skipped_blocks() -> None:
    ending = finished("unknown_things")
    assert ending.response_id == "msg_01XyZ9aBcDeFgHiJkLmNoPq"
    assert ending.provider_metadata == Raw(
        b'{"anthropic":{"stop_reason":"enlightenment","unknown_blocks":["hologram"]}}'
    )


def test_the_final_event_omits_absent_fields() -> None:
    assert finished("text").provider_metadata == Raw(b'{"anthropic":{"stop_reason":"end_turn"}}')
    assert finished("stop_sequence").provider_metadata == Raw(
        b'{"anthropic":{"stop_reason":"stop_sequence","stop_sequence":"###"}}'
    )
    assert finished("refusal").provider_metadata == Raw(
        b'{"anthropic":{"stop_reason":"refusal","category":"cyber"}}'
    )


def test_a_stop_reason_is_not_erased() -> None:
    silent = event("message_delta", delta={"stop_reason": None}, usage={"output_tokens": 6})
    last = decode_end(START + STOP + silent + END)
    assert (last.reason, last.usage.output_tokens) == ("stop", 6)


def test_an_error_during_the_stream_keeps_the_api_error_type() -> None:
    fault = failed(stream("error_midway"))
    assert (fault.type, fault.message) == ("overloaded_error", "Overloaded")
    assert classify_fault(fault).kind == "overloaded"
    assert classify_fault(fault).retryable


@pytest.mark.covers("providers-4")
def test_an_answer_needs_a_stop_reason_and_a_final_event() -> None:
    assert failed(stream("no_reason")).incomplete
    assert failed(START + STOP).incomplete
    assert failed(START + END).incomplete
    assert failed(b"").incomplete


@pytest.mark.parametrize(
    "data",
    [
        b"data: not json\n\n",
        b"data: {\n\n",
        b'data: "text"\n\n',
        b"data: []\n\n",
        b'event: message_delta\ndata: {"no":"type"}\n\n',
        b'data: {"type":7}\n\n',
        b'data: {"type":"content_block_stop","index":"one"}\n\n',
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta"}}\n\n',
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use"}}\n\n',
        b'data: {"type":"content_block_start","index":0,"content_block":7}\n\n',
        event("content_block_start", index=0, content_block={"type": "web_search_tool_result"}),
        b"data: " + b"[" * 100_000 + b"\n\n",
    ],
)
def test_a_damaged_event_is_a_retryable_failure(data: bytes) -> None:
    fault = failed(START + data + STOP + END)
    assert fault.incomplete
    assert classify_fault(fault).retryable


def test_deeply_nested_results_are_damage() -> None:
    deep = b'"x":' + b"[" * 2000 + b"]" * 2000
    block = b'{"type":"web_search_tool_result","tool_use_id":"s","content":{%b}}' % deep
    data = b'data: {"type":"content_block_start","index":0,"content_block":%b}\n\n' % block
    assert failed(START + data + STOP + END).incomplete


def test_an_endless_event_is_a_failure() -> None:
    decoder = AnthropicDecoder(framing=SseParser(limit=1000))
    events = read_pieces(decoder, [START, b"data: ", *[b"x" * 100] * 20])
    assert isinstance(events[-1], StreamFailed)
    assert events[-1].fault.type == "answer_too_large"


def test_events_after_the_final_event_are_ignored() -> None:
    decoder = AnthropicDecoder()
    decoder.feed(stream("text"))
    assert decoder.done
    assert decoder.feed(text_block(0, "more") + STOP + END) == []
    assert decoder.close() == []


def test_only_a_citation_with_a_url_is_a_source() -> None:
    cited = [{"type": "char_location", "cited_text": "b"}, {"url": "https://x.org"}]
    block = {"type": "text", "text": "a", "citations": cited}
    begin = event("content_block_start", index=0, content_block=block)
    events = decode(START + begin + STOP + END)
    assert only(SourceFound, events) == [SourceFound(url="https://x.org")]


def test_the_citations_of_a_text_are_bounded() -> None:
    cited = [{"url": f"https://x.org/{n}"} for n in range(MAX_CITATIONS_PER_TEXT)]
    begin = event(
        "content_block_start", index=0, content_block={"type": "text", "citations": cited}
    )
    more = event(
        "content_block_delta",
        index=0,
        delta={"type": "citations_delta", "citation": {"url": "https://x.org/more"}},
    )
    events = decode(START + begin + more + STOP + END)
    [end] = only(TextEnd, events)
    kept = unpack_metadata(end.provider_metadata).citations or ()
    assert len(kept) == len(only(SourceFound, events)) == MAX_CITATIONS_PER_TEXT


def test_a_result_of_unknown_type_is_kept_whole() -> None:
    block = {"type": "oracle_tool_result", "tool_use_id": "srvtoolu_1", "content": {"said": 42}}
    begin = event("content_block_start", index=0, content_block=block)
    result = without_usage(decode(START + begin + STOP + END))[0]
    assert result == ToolResultDone(
        id=ToolCallId("srvtoolu_1"),
        name="oracle",
        result=Raw(b'{"said":42}'),
        provider_metadata=pack_metadata(AnthropicMetadata(block="oracle_tool_result")),
    )
