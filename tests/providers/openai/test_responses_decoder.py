"""Decoding streams of the Responses API."""

import msgspec
import pytest

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
    ReasoningEnd,
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
from chatd.domain.text import Json
from chatd.providers.faults import incomplete_fault
from chatd.providers.openai.responses_wire import ResponsesMetadata, unpack_metadata
from tests.support.providers.openai_responses import event, stream
from tests.support.providers.recorded import ORIGIN, RESPONSES, only, tokens, tool_call

read, answer, decoded_parts = RESPONSES.read, RESPONSES.answer, RESPONSES.parts
finished, failed = RESPONSES.finished, RESPONSES.failed
decode, decode_end = RESPONSES.decode, RESPONSES.decode_end


def read_metadata(metadata: Json) -> ResponsesMetadata:
    found = unpack_metadata(metadata, ORIGIN)
    assert found is not None
    return found


DONE = event("response.completed", response={"id": "resp_1", "status": "completed"})


def item_done(output: int, **item: object) -> bytes:
    return event("response.output_item.done", output_index=output, item=item)


# Cuts


@pytest.mark.covers("providers-8")
@pytest.mark.parametrize("name", ["text", "reasoning", "tools", "web_search", "max_tokens"])
def test_a_stream_without_its_final_event_is_incomplete(name: str) -> None:
    data = stream(name)
    end = max(data.rfind(b"event: response.completed"), data.rfind(b"event: response.incomplete"))
    for at in range(0, end, 5):
        fault = failed(data[:at])
        assert fault == incomplete_fault()
        assert classify_fault(fault).retryable


# Content


def test_text_arrives_in_deltas() -> None:
    events = read("text")
    end = events[-2]
    assert isinstance(end, TextEnd)
    assert read_metadata(end.provider_metadata) == ResponsesMetadata(origin=ORIGIN, id="msg_text01")
    assert [events[0], *events[1:5]] == [
        TextStart(id="0.0"),
        TextDelta(id="0.0", delta="The "),
        TextDelta(id="0.0", delta="sky is"),
        TextDelta(id="0.0", delta=" blue, "),
        TextDelta(id="0.0", delta="café ☕ — déjà vu."),
    ]


def test_reasoning_summaries_are_paragraphs_and_the_encrypted_item_is_kept() -> None:
    reasoning, text = answer("reasoning").content
    assert isinstance(reasoning, ReasoningPart)
    assert isinstance(text, TextPart)
    assert reasoning.text == (
        "**Weighing options**\n\nThe user wants a short answer.\n\n**Deciding**\n\nBlue it is."
    )
    sealed = read_metadata(reasoning.provider_metadata)
    assert sealed.id == "rs_think01"
    # From the closing event: the encrypted content of the first may be incomplete.
    assert bytes(sealed.item or b"") in stream("reasoning")
    assert b"gAAAAABo8x9k" in bytes(sealed.item or b"")
    assert read_metadata(text.provider_metadata) == ResponsesMetadata(
        origin=ORIGIN, id="msg_think01", after="rs_think01", phase="final_answer"
    )


def test_calls_arrive_in_deltas_and_whole_under_the_tools_names() -> None:
    first, second = ToolCallId("call_aaa111"), ToolCallId("call_bbb222")
    assert [e for e in read("tools") if isinstance(e, ToolCallStart | ToolCallDelta)] == [
        ToolCallStart(id=first, name="read_file"),
        ToolCallDelta(id=first, delta='{"pa'),
        ToolCallDelta(id=first, delta='th":"a'),
        ToolCallDelta(id=first, delta='.txt"}'),
        ToolCallStart(id=second, name="show.time"),
    ]
    assert decoded_parts("tools") == [
        ReasoningPart(text=""),
        TextPart(text="I will look at both files."),
        tool_call("call_aaa111", "read_file", '{"path":"a.txt"}'),
        tool_call("call_bbb222", "show.time", "{}"),
    ]
    assert finished("tools").reason == "tool-calls"


def test_a_search_has_its_action_and_its_sources() -> None:
    found = [
        part
        for part in decoded_parts("web_search")
        if isinstance(part, ToolCallPart | ToolResultPart)
    ]
    one, two = ToolCallId("ws_search01"), ToolCallId("ws_search02")
    assert [(p.tool_call_id, p.tool_name, p.provider_executed) for p in found] == [
        (one, "web_search", True),
        (one, "web_search", True),
        (two, "web_search", True),
        (two, "web_search", True),
    ]
    sent, result = found[0], found[1]
    assert isinstance(sent, ToolCallPart)
    assert isinstance(result, ToolResultPart)
    expected = {"type": "search", "query": "tallest tower 2026", "queries": ["tallest tower 2026"]}
    assert msgspec.json.decode(sent.args or b"") == expected
    assert msgspec.json.decode(result.result or b"") == {
        "status": "completed",
        "sources": [
            {"type": "url", "url": "https://example.org/towers"},
            {"type": "url", "url": "https://example.com/list"},
        ],
    }
    assert finished("web_search").reason == "stop"


def test_each_source_is_reported_once() -> None:
    assert only(SourcePart, decoded_parts("web_search")) == [
        SourcePart(url="https://example.org/towers", title="Towers of the world")
    ]


def test_a_search_stores_the_reasoning_before_it() -> None:
    calls = only(ToolCallPart, answer("web_search").content)
    expected = ["rs_search01", "rs_search02"]
    assert [read_metadata(p.provider_metadata).after for p in calls] == expected
    reasoning = only(ReasoningPart, answer("web_search").content)
    assert [read_metadata(p.provider_metadata).after for p in reasoning] == [None, None, None]


def test_a_failed_search_is_an_error_result() -> None:
    data = item_done(0, type="web_search_call", id="ws_1", status="failed") + DONE
    [sent, result] = [e for e in decode(data) if isinstance(e, ToolCallDone | ToolResultDone)]
    assert isinstance(result, ToolResultDone)
    assert result.is_error
    assert isinstance(sent, ToolCallDone)
    assert sent.input == "{}"


@pytest.mark.parametrize(
    ("name", "call_id", "args"),
    [
        (
            "computer",
            "call_cu1",
            {
                "actions": [
                    {"action": "left_click", "coordinate": [405, 157]},
                    {"action": "type", "text": "hello"},
                ],
                "pending_safety_checks": [
                    {
                        "id": "cu_sc_1",
                        "code": "malicious_instructions",
                        "message": "Check this page.",
                    }
                ],
            },
        ),
        ("computer_preview", "call_cu2", {"actions": [{"action": "screenshot"}]}),
    ],
)
def test_a_computer_action_is_a_tool_call(name: str, call_id: str, args: object) -> None:
    [used] = only(ToolCallPart, answer(name).content)
    expected = (call_id, "computer", False)
    assert (used.tool_call_id, used.tool_name, used.provider_executed) == expected
    assert msgspec.json.decode(used.args or b"") == args
    assert finished(name).reason == "tool-calls"


def test_a_refusal_is_text_and_a_reason_of_its_own() -> None:
    words = "I'm sorry, I cannot help with that."
    assert decoded_parts("refusal") == [TextPart(text=words)]
    [text] = answer("refusal").content
    assert isinstance(text, TextPart)
    assert read_metadata(text.provider_metadata).refusal
    end = finished("refusal")
    assert (end.reason, end.explanation) == ("refusal", words)


@pytest.mark.covers("providers-8")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("text", "stop"),
        ("max_tokens", "length"),
        ("content_filter", "content-filter"),
        ("cut_call", "length"),
        ("unknown", "stop"),
    ],
)
def test_finish_reasons_are_converted(name: str, reason: str) -> None:
    assert finished(name).reason == reason


def test_arguments_that_were_cut_off_are_reported_incomplete() -> None:
    [done] = only(ToolCallDone, read("cut_call"))
    assert done.input == '{"path":"a.txt","content":"it was a dark'


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("text", tokens(56, 14, 134, cache_read_tokens=64)),
        (
            "reasoning",
            tokens(
                24, 90, 390, reasoning_tokens=64, cache_creation_tokens=20, cache_read_tokens=256
            ),
        ),
    ],
)
def test_cached_tokens_are_not_counted_as_input(name: str, usage: TokenUsage) -> None:
    end = finished(name)
    assert end.usage == usage
    assert (end.response_id or "").startswith("resp_")


@pytest.mark.promise("P11")
def test_a_failed_response_reports_its_usage() -> None:
    usage = {"input_tokens": 5, "output_tokens": 2}
    data = event("response.failed", response={"usage": usage, "error": {"message": "boom"}})
    reported, failure = RESPONSES.decode(data)
    assert reported == UsageReported(usage=tokens(5, 2, 7))
    assert isinstance(failure, StreamFailed)


def test_more_cached_than_input_tokens_give_zero_input() -> None:
    usage = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 9}}
    data = event("response.completed", response={"usage": usage})
    end = decode_end(data)
    assert (end.usage.input_tokens, end.usage.cache_read_tokens) == (0, 9)


# Failures


@pytest.mark.covers("providers-8")
@pytest.mark.parametrize(
    ("name", "kind", "retryable"),
    [
        ("failed", "generic", True),
        ("error", "rate_limit", True),
        ("error_nested", "context_overflow", False),
        ("cut", "timeout", True),
    ],
)
def test_failures_can_be_classified(name: str, kind: str, *, retryable: bool) -> None:
    told = classify_fault(failed(stream(name)))
    assert (told.kind, told.retryable) == (kind, retryable)


@pytest.mark.covers("providers-8")
@pytest.mark.parametrize(
    ("data", "message", "retryable"),
    [
        (b'{"type":"response.failed","response":{}}', "the response failed", True),
        (b'{"type":"response.failed","response":{"error":"boom"}}', "boom", False),
        (b'{"type":"error","code":"503","message":"busy"}', "busy", True),
        (b'{"type":"error","error":{"message":{"a":1},"code":500}}', '{"a":1}', True),
        (b'{"type":"error","error":["a"]}', '["a"]', False),
    ],
)
def test_errors_of_different_forms_are_read(data: bytes, message: str, *, retryable: bool) -> None:
    fault = failed(b"data: " + data + b"\n\n")
    assert (fault.message, classify_fault(fault).retryable) == (message, retryable)


def test_text_before_a_failure_is_delivered() -> None:
    assert read("error")[:2] == [TextStart(id="0.0"), TextDelta(id="0.0", delta="Half of")]


def test_an_unreadable_event_is_a_retryable_failure() -> None:
    fault = failed(b'event: response.output_text.delta\ndata: {"delta": 7}\n\n' + DONE)
    assert classify_fault(fault).retryable
    assert fault.incomplete


# Unknown and irregular events


def test_unknown_events_are_skipped_and_unknown_items_kept_unless_they_are_calls() -> None:
    carriers = only(ReasoningPart, answer("unknown").content)
    items = [
        msgspec.json.decode(read_metadata(p.provider_metadata).item or b"", type=dict[str, object])
        for p in carriers
    ]
    expected = ["mcp_list_tools", "reasoning", "thing_of_the_future"]
    assert [item["type"] for item in items] == expected
    assert items[2]["payload"] == {"a": [1, 2.5, None, "é"]}
    assert decoded_parts("unknown")[-1] == TextPart(text="Still here.")


def test_events_without_names_are_identified_by_their_type() -> None:
    expected = [ReasoningPart(text="We need to greet."), TextPart(text="Hello!")]
    assert decoded_parts("nameless") == expected


def test_items_without_deltas_are_complete() -> None:
    assert decoded_parts("whole_items") == [
        SourcePart(url="https://example.net/w", title="W"),
        TextPart(text="All at once."),
        ReasoningPart(text="One.\n\nTwo."),
        tool_call("call_whole1", "show.time", '{"a": 1}'),
    ]


def test_open_items_are_closed_at_the_end() -> None:
    added = {"type": "function_call", "call_id": "call_1", "name": "read_file"}
    data = (
        event("response.output_text.delta", output_index=0, content_index=0, delta="Well")
        + event("response.reasoning_text.delta", output_index=1, delta="Hm")
        + event("response.output_item.added", output_index=2, item=added)
        + event("response.function_call_arguments.delta", output_index=2, delta='{"a"')
        + DONE
    )
    events = decode(data)
    assert events[-4:-1] == [
        TextEnd(id="0.0"),
        ReasoningEnd(id="1"),
        ToolCallDone(id=ToolCallId("call_1"), name="read_file", input='{"a"'),
    ]
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.reason == "tool-calls"


def test_an_item_closed_twice_counts_once() -> None:
    item = item_done(0, type="function_call", id="fc_1", call_id="call_1", name="read_file")
    events = decode(item + item + DONE)
    assert len(only(ToolCallDone, events)) == 1


def test_half_of_a_surrogate_pair_does_not_fail_the_answer() -> None:
    half = (
        b"event: response.output_text.delta\n"
        b'data: {"type":"response.output_text.delta","output_index":0,"delta":"a\\ud83db"}\n\n'
    )
    assert TextDelta(id="0.0", delta="a\ufffdb") in decode(half + DONE)
    broken = (
        b"event: response.output_item.done\n"
        b'data: {"item":{"type":"reasoning","id":"rs_1","encrypted_content":"x\\ud83d"}}\n\n'
    )
    end = next(e for e in decode(broken + DONE) if isinstance(e, ReasoningEnd))
    assert b"x\\ufffd" in bytes(read_metadata(end.provider_metadata).item or b"")


def test_invalid_utf8_is_not_stored() -> None:
    item = b'{"type":"reasoning","id":"rs_1","encrypted_content":"x\xff"}'
    data = b'event: response.output_item.done\ndata: {"item":' + item + b"}\n\n"
    end = next(e for e in decode(data + DONE) if isinstance(e, ReasoningEnd))
    expected = {"type": "reasoning", "id": "rs_1", "encrypted_content": "x\ufffd"}
    assert msgspec.json.decode(read_metadata(end.provider_metadata).item or b"") == expected
