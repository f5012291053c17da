"""Decoding streams of Gemini."""

import re
from typing import TypeGuard

import pytest
from msgspec import UNSET

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.chat.parts import (
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.protocol import (
    Finished,
    ModelEvent,
    ProviderFault,
    ReasoningEnd,
    SourceFound,
    StreamFailed,
    TextDelta,
    TextEnd,
    ToolCallDone,
    UsageReported,
)
from chatd.providers.gemini.gemini_decoder import MAX_SOURCES
from chatd.providers.gemini.gemini_wire import (
    GeminiMetadata,
    SignedSpan,
    pack_metadata,
    unpack_metadata,
)
from tests.support.providers.gemini import event, stream
from tests.support.providers.recorded import GEMINI, GEMINI_MODEL, only, tokens, tool_call
from tests.support.providers.stream_reader import answer_of

read, answer, decoded_parts, finished = GEMINI.read, GEMINI.answer, GEMINI.parts, GEMINI.finished
decode, decode_end = GEMINI.decode, GEMINI.decode_end


def failed(name: str) -> ProviderFault:
    return GEMINI.failed(stream(name))


def signatures(name: str) -> list[str]:
    return re.findall(r'"thoughtSignature": "([^"]+)"', stream(name).decode())


def test_text_arrives_in_deltas() -> None:
    events = read("text")
    assert [e.delta for e in events if isinstance(e, TextDelta)] == [
        "The sky looks",
        " blue because air scatters short waves",
        " more than long ones. 日本語 👩‍🚀",
    ]
    assert finished("text") == Finished(
        reason="stop", usage=tokens(8, 24, 32), response_id="mNYRaefsJLKhkdUP4tGv8Ac"
    )


def test_thoughts_are_reasoning_and_count_as_output() -> None:
    assert decoded_parts("thinking") == [
        ReasoningPart(
            text="**Looking at the sum**\n\nI add the two numbers first. Then I check the carry."
        ),
        TextPart(text="17 + 25 is **42**."),
    ]
    assert finished("thinking").usage == tokens(
        186, 49, 1259, reasoning_tokens=40, cache_read_tokens=1024
    )


def test_a_signature_after_the_text_keeps_its_position() -> None:
    [end] = only(TextEnd, read("thinking"))
    signature = signatures("thinking")[0]
    assert end.provider_metadata == pack_metadata(
        GeminiMetadata(
            model=GEMINI_MODEL, spans=(SignedSpan(start=18, end=18, signature=signature),)
        )
    )


def test_a_signature_covers_only_its_own_part_of_the_text() -> None:
    events = read("signed_text")
    [end] = only(TextEnd, events)
    [thought] = only(ReasoningEnd, events)
    signature = signatures("signed_text")[0]
    assert end.provider_metadata == pack_metadata(
        GeminiMetadata(model=GEMINI_MODEL, spans=(SignedSpan(start=0, end=7, signature=signature),))
    )
    assert thought.provider_metadata is UNSET
    assert decoded_parts("signed_text")[1] == TextPart(text="Call it Ada, or Grace.")


def test_parallel_calls_keep_their_ids_and_the_first_signature() -> None:
    assert decoded_parts("calls_parallel")[1:] == [
        TextPart(text="I'll read both files."),
        tool_call("8f2k1q0z", "read_file", '{"path": "/w/calc.py", "limit": 200}'),
        tool_call("9p3m7x4c", "read_file", '{"path": "/w/test_calc.py"}'),
        tool_call("1b5v8n2m", "execute", r'{"command": "pytest -q \"a b\"\nls"}'),
    ]
    [signature] = signatures("calls_parallel")
    assert [e.provider_metadata for e in read("calls_parallel") if isinstance(e, ToolCallDone)] == [
        pack_metadata(GeminiMetadata(model=GEMINI_MODEL, signature=signature, call_id="8f2k1q0z")),
        pack_metadata(GeminiMetadata(model=GEMINI_MODEL, call_id="9p3m7x4c")),
        pack_metadata(GeminiMetadata(model=GEMINI_MODEL, call_id="1b5v8n2m")),
    ]
    assert finished("calls_parallel").reason == "tool-calls"
    assert finished("calls_parallel").explanation is None


def test_calls_without_ids_get_ids_from_the_request() -> None:
    assert decoded_parts("calls_without_ids") == [
        tool_call("call-abc-0", "get_weather", '{"city": "Paris"}'),
        tool_call("call-abc-1", "get_weather", '{"city": "東京", "units": null}'),
        tool_call("call-abc-2", "now", "{}"),
    ]
    marks = [unpack_metadata(e.provider_metadata) for e in read("calls_without_ids") if is_call(e)]
    assert [mark.call_id for mark in marks if mark] == [None, None, None]


def one_chunk(*parts: object) -> bytes:
    return event({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})


def test_repeated_ids_are_made_unique() -> None:
    part = {"functionCall": {"name": "now", "id": "same"}}
    calls = only(ToolCallDone, decode(one_chunk(part, part)))
    assert [c.id for c in calls] == ["same", "same-1"]
    assert [unpack_metadata(c.provider_metadata) for c in calls] == [
        GeminiMetadata(model=GEMINI_MODEL, call_id="same")
    ] * 2


def test_tool_names_of_calls_are_translated_back() -> None:
    [done] = only(ToolCallDone, decode(one_chunk({"functionCall": {"name": "show_time"}})))
    assert done.name == "show.time"


@pytest.mark.covers("providers-12")
def test_calls_are_an_answer_even_without_a_finish_reason() -> None:
    assert finished("calls_unfinished").reason == "tool-calls"
    assert failed("cut") == ProviderFault(
        message="the stream ended before the answer did", incomplete=True
    )


def test_each_source_is_reported_once_after_the_text() -> None:
    base = "https://vertexaisearch.cloud.google.com/grounding-api-redirect"
    assert decoded_parts("search") == [
        TextPart(text="Spain won Euro 2024, beating England."),
        SourcePart(url=f"{base}/AUZIYQE1", title="uefa.com"),
        SourcePart(url=f"{base}/AUZIYQE2", title="wikipedia.org"),
    ]
    end = finished("search")
    assert end.usage == tokens(80, 10, 90, context_tokens=12)
    assert end.provider_metadata is not UNSET
    assert b'"webSearchQueries": ["who won euro 2024"]' in bytes(end.provider_metadata)


def test_a_search_is_a_provider_executed_call_and_result() -> None:
    content = answer("search_and_call").content
    searched, found, called, source = content
    assert isinstance(searched, ToolCallPart)
    assert isinstance(found, ToolResultPart)
    assert isinstance(called, ToolCallPart)
    assert (searched.tool_name, searched.provider_executed) == ("web_search", True)
    assert (found.tool_call_id, found.provider_executed) == (searched.tool_call_id, True)
    assert (called.tool_name, called.provider_executed) == ("get_weather", False)
    assert source == SourcePart(url="https://example.org/utqiagvik", title="example.org")
    marks = [unpack_metadata(part.provider_metadata) for part in (searched, found, called)]
    assert [mark.signature for mark in marks if mark] == signatures("search_and_call")
    assert finished("search_and_call").reason == "tool-calls"


@pytest.mark.parametrize(
    ("name", "reason", "why"),
    [
        ("text", "stop", None),
        ("every_chunk_stops", "stop", None),
        ("max_tokens", "length", None),
        ("max_tokens_in_thought", "length", None),
        (
            "safety",
            "content-filter",
            "The answer was stopped by a safety filter (dangerous content).",
        ),
        (
            "recitation",
            "content-filter",
            "The answer was stopped because it repeats a known source.",
        ),
        (
            "blocked",
            "content-filter",
            "The prompt was refused: PROHIBITED_CONTENT (sexually explicit).",
        ),
        ("unknown_reason", "other", "The state has decayed."),
    ],
)
def test_finish_reasons_are_converted_and_explained(
    name: str, reason: str, why: str | None
) -> None:
    assert (finished(name).reason, finished(name).explanation) == (reason, why)


def test_a_later_usage_keeps_counts_that_it_omits() -> None:
    usages = (
        {"promptTokenCount": 9, "cachedContentTokenCount": 4, "thoughtsTokenCount": 3},
        {"promptTokenCount": 9, "candidatesTokenCount": 2, "toolUsePromptTokenCount": 1},
        {"totalTokenCount": 15},
    )
    data = b"".join(event({"usageMetadata": counts}) for counts in usages)
    last = event({"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}]})
    end = decode_end(data + last)
    assert end.usage == tokens(6, 5, 15, reasoning_tokens=3, cache_read_tokens=4, context_tokens=9)


@pytest.mark.promise("P11")
def test_usage_is_reported_as_soon_as_it_is_told() -> None:
    data = event({"usageMetadata": {"promptTokenCount": 7}})
    first, last = GEMINI.decode(data)
    assert first == UsageReported(usage=tokens(7, 0, 7))
    assert isinstance(last, StreamFailed)


def test_a_blocked_prompt_has_usage() -> None:
    assert finished("blocked").usage == TokenUsage(input_tokens=31, total_tokens=31)


def test_a_malformed_call_is_a_retryable_failure() -> None:
    fault = failed("malformed_call")
    assert fault.type == "malformed_function_call"
    assert "default_api.read_file" in fault.message
    assert classify_fault(fault).retryable


@pytest.mark.covers("providers-12")
@pytest.mark.parametrize(
    ("word", "ending"),
    [
        ("MALFORMED_FUNCTION_CALL", StreamFailed),
        ("MALFORMED_RESPONSE", StreamFailed),
        ("UNEXPECTED_TOOL_CALL", StreamFailed),
        ("TOO_MANY_TOOL_CALLS", Finished),
        ("OTHER", Finished),
    ],
)
def test_text_before_a_malformed_call_is_not_an_answer(word: str, ending: type[ModelEvent]) -> None:
    words = event({"candidates": [{"content": {"parts": [{"text": "Let me look."}]}}]})
    last = event({"candidates": [{"finishReason": word}]})
    assert isinstance(decode(words + last)[-1], ending)


def test_a_valid_call_beside_a_malformed_one_is_kept() -> None:
    made = event(
        {"candidates": [{"content": {"parts": [{"functionCall": {"name": "show_time"}}]}}]}
    )
    last = event({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]})
    assert isinstance(decode(made + last)[-1], Finished)


def test_a_finish_reason_in_every_chunk_does_not_end_the_answer() -> None:
    assert decoded_parts("every_chunk_stops") == [TextPart(text="One two three")]


def test_unknown_fields_and_events_are_skipped() -> None:
    assert decoded_parts("unknown") == [TextPart(text="Here is a picture.")]
    assert finished("unknown").reason == "stop"


def test_a_recorded_stream_may_end_without_a_blank_line() -> None:
    assert decoded_parts("no_blank_line") == [TextPart(text="All of it.")]


def test_an_error_during_the_stream_is_a_fault_with_its_facts() -> None:
    fault = failed("overloaded")
    assert (fault.status_code, fault.type) == (503, "UNAVAILABLE")
    assert classify_fault(fault).retryable
    assert failed("rate_limited").retry_after_s == 37.5
    assert classify_fault(failed("rate_limited")).kind == "rate_limit"


def test_events_after_an_error_are_ignored() -> None:
    decoder = GEMINI.new_decoder()
    decoder.feed(stream("overloaded"))
    assert decoder.done
    assert decoder.feed(stream("text")) == []
    assert decoder.close() == []


@pytest.mark.parametrize(
    "data",
    [
        b"data: {\r\n\r\n",
        b"data: [1,2]\n\n",
        b'data: {"candidates": 7}\n\n',
        b'data: {"candidates": [{"content": {"parts": [{"text": 5}]}}]}\n\n',
        b"data: " + b"[" * 5000 + b"\n\n",
        b"data: \xff\xfe\n\n",
    ],
)
def test_an_unreadable_event_is_a_failure(data: bytes) -> None:
    [last] = decode(data)
    assert isinstance(last, StreamFailed)
    assert last.fault.incomplete


def test_half_of_a_surrogate_pair_does_not_fail_the_answer() -> None:
    data = (
        rb'data: {"candidates":[{"content":{"parts":[{"text":"\ud83d!"}]},"finishReason":"STOP"}]}'
    )
    events = decode(data + b"\n\n")
    assert answer_of(events).content == (TextPart(text="\ufffd!"),)


def test_an_endless_event_is_a_failure() -> None:
    decoder = GEMINI.new_decoder()
    piece = b"data: " + b"x" * (1024 * 1024)
    events = [event for _ in range(40) for event in decoder.feed(piece)]
    assert [type(e) for e in events[:1]] == [StreamFailed]


def test_sources_are_bounded() -> None:
    chunks = [{"web": {"uri": f"https://example.org/{n}"}} for n in range(1000)]
    candidate = {"finishReason": "STOP", "groundingMetadata": {"groundingChunks": chunks}}
    events = decode(event({"candidates": [candidate]}))
    assert sum(isinstance(e, SourceFound) for e in events) == MAX_SOURCES


def is_call(event: ModelEvent) -> TypeGuard[ToolCallDone]:
    return isinstance(event, ToolCallDone)
