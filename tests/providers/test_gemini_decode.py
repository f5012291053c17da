"""What Gemini's streams mean."""

import re
from typing import TypeGuard

import msgspec
import pytest
from msgspec import UNSET, Raw

from chatd.domain.answer.assembler import Answer
from chatd.domain.chat.messages import TokenUsage
from chatd.domain.chat.parts import (
    Part,
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
    ModelEvent,
    ProviderFault,
    ReasoningEnd,
    SourceFound,
    StreamFailed,
    TextDelta,
    TextEnd,
    ToolCallDone,
)
from chatd.providers.gemini.answer import MAX_SOURCES
from chatd.providers.gemini.decode import Decoder
from chatd.providers.gemini.wire import Mark, SignedSpan, as_metadata, mark_of
from chatd.providers.schema import ToolNames
from tests.support.providers.gemini import STREAMS, event, stream
from tests.support.providers.reading import answer_of, read_bytewise, read_cut, read_whole

MODEL = "gemini-3-flash-preview"
ALL = sorted(path.stem for path in STREAMS.glob("*.sse"))


def new_decoder() -> Decoder:
    return Decoder(model=MODEL, names=ToolNames(["show.time"]), call_prefix="call-abc")


def read(name: str) -> list[ModelEvent]:
    return read_whole(new_decoder, stream(name))


def answer(name: str) -> Answer:
    return answer_of(read(name))


def finished(name: str) -> Finished:
    last = read(name)[-1]
    assert isinstance(last, Finished)
    return last


def failed(name: str) -> ProviderFault:
    last = read(name)[-1]
    assert isinstance(last, StreamFailed)
    return last.fault


def said(name: str) -> list[Part]:
    """The answer without what is only remembered for the vendor."""
    return [
        part
        if isinstance(part, SourcePart)
        else msgspec.structs.replace(part, provider_metadata=UNSET)
        for part in answer(name).content
        if isinstance(part, TextPart | ReasoningPart | ToolCallPart | ToolResultPart | SourcePart)
    ]


def call(call_id: str, name: str, args: str) -> ToolCallPart:
    return ToolCallPart(tool_call_id=ToolCallId(call_id), tool_name=name, args=Raw(args.encode()))


def signatures(name: str) -> list[str]:
    return re.findall(r'"thoughtSignature": "([^"]+)"', stream(name).decode())


@pytest.mark.parametrize("name", ALL)
def test_a_stream_means_the_same_wherever_it_is_cut(name: str) -> None:
    data = stream(name)
    whole = read_whole(new_decoder, data)
    assert read_bytewise(new_decoder, data) == whole
    for at in range(len(data)):
        assert read_cut(new_decoder, data, at) == whole


@pytest.mark.parametrize("name", ALL)
def test_line_ends_do_not_matter(name: str) -> None:
    data = stream(name)
    whole = read_whole(new_decoder, data)
    assert read_whole(new_decoder, data.replace(b"\r\n", b"\n")) == whole
    assert read_whole(new_decoder, data.replace(b"\r\n", b"\r")) == whole


@pytest.mark.parametrize("name", ALL)
def test_a_stream_ends_with_exactly_one_last_word(name: str) -> None:
    ends = [event for event in read(name) if isinstance(event, Finished | StreamFailed)]
    assert ends == [read(name)[-1]]


def test_text_comes_in_pieces() -> None:
    events = read("text")
    assert [e.delta for e in events if isinstance(e, TextDelta)] == [
        "The sky looks",
        " blue because air scatters short waves",
        " more than long ones. 日本語 👩‍🚀",
    ]
    assert finished("text") == Finished(
        reason="stop",
        usage=TokenUsage(input_tokens=8, output_tokens=24, total_tokens=32),
        response_id="mNYRaefsJLKhkdUP4tGv8Ac",
    )


def test_thoughts_are_reasoning_and_part_of_the_output() -> None:
    assert said("thinking") == [
        ReasoningPart(
            text="**Looking at the sum**\n\nI add the two numbers first. Then I check the carry."
        ),
        TextPart(text="17 + 25 is **42**."),
    ]
    assert finished("thinking").usage == TokenUsage(
        input_tokens=186,
        output_tokens=49,
        total_tokens=1259,
        reasoning_tokens=40,
        cache_read_tokens=1024,
    )


def test_a_signature_after_the_text_is_kept_at_its_place() -> None:
    [end] = [e for e in read("thinking") if isinstance(e, TextEnd)]
    signature = signatures("thinking")[0]
    assert end.provider_metadata == as_metadata(
        Mark(model=MODEL, spans=(SignedSpan(start=18, end=18, signature=signature),))
    )


def test_a_signature_on_the_first_piece_of_a_text_covers_that_piece_only() -> None:
    events = read("signed_text")
    [end] = [e for e in events if isinstance(e, TextEnd)]
    [thought] = [e for e in events if isinstance(e, ReasoningEnd)]
    signature = signatures("signed_text")[0]
    assert end.provider_metadata == as_metadata(
        Mark(model=MODEL, spans=(SignedSpan(start=0, end=7, signature=signature),))
    )
    assert thought.provider_metadata is UNSET
    assert said("signed_text")[1] == TextPart(text="Call it Ada, or Grace.")


def test_calls_in_parallel_keep_their_ids_and_the_first_its_signature() -> None:
    assert said("calls_parallel")[1:] == [
        TextPart(text="I'll read both files."),
        call("8f2k1q0z", "read_file", '{"path": "/w/calc.py", "limit": 200}'),
        call("9p3m7x4c", "read_file", '{"path": "/w/test_calc.py"}'),
        call("1b5v8n2m", "execute", r'{"command": "pytest -q \"a b\"\nls"}'),
    ]
    [signature] = signatures("calls_parallel")
    assert [e.provider_metadata for e in read("calls_parallel") if isinstance(e, ToolCallDone)] == [
        as_metadata(Mark(model=MODEL, signature=signature, call_id="8f2k1q0z")),
        as_metadata(Mark(model=MODEL, call_id="9p3m7x4c")),
        as_metadata(Mark(model=MODEL, call_id="1b5v8n2m")),
    ]
    assert finished("calls_parallel").reason == "tool-calls"
    assert finished("calls_parallel").explanation is None


def test_calls_without_ids_get_some_that_the_request_decides() -> None:
    assert said("calls_without_ids") == [
        call("call-abc-0", "get_weather", '{"city": "Paris"}'),
        call("call-abc-1", "get_weather", '{"city": "東京", "units": null}'),
        call("call-abc-2", "now", "{}"),
    ]
    marks = [mark_of(e.provider_metadata) for e in read("calls_without_ids") if is_call(e)]
    assert [mark.call_id for mark in marks if mark] == [None, None, None]


def test_an_id_that_comes_twice_is_told_apart() -> None:
    part = {"functionCall": {"name": "now", "id": "same"}}
    data = event({"candidates": [{"content": {"parts": [part, part]}, "finishReason": "STOP"}]})
    calls = [e for e in read_whole(new_decoder, data) if isinstance(e, ToolCallDone)]
    assert [c.id for c in calls] == ["same", "same-1"]
    assert [mark_of(c.provider_metadata) for c in calls] == [Mark(model=MODEL, call_id="same")] * 2


def test_a_call_goes_by_the_name_we_know_it_by() -> None:
    part = {"functionCall": {"name": "show_time"}}
    data = event({"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]})
    [done] = [e for e in read_whole(new_decoder, data) if isinstance(e, ToolCallDone)]
    assert done.name == "show.time"


@pytest.mark.covers("providers-12")
def test_calls_are_an_answer_even_without_a_reason_to_finish() -> None:
    assert finished("calls_unfinished").reason == "tool-calls"
    assert failed("cut") == ProviderFault(
        message="the stream ended before the answer did", incomplete=True
    )


def test_pages_found_are_sources_once_each_and_after_the_text() -> None:
    base = "https://vertexaisearch.cloud.google.com/grounding-api-redirect"
    assert said("search") == [
        TextPart(text="Spain won Euro 2024, beating England."),
        SourcePart(url=f"{base}/AUZIYQE1", title="uefa.com"),
        SourcePart(url=f"{base}/AUZIYQE2", title="wikipedia.org"),
    ]
    end = finished("search")
    assert end.usage == TokenUsage(
        input_tokens=80, output_tokens=10, total_tokens=90, context_tokens=12
    )
    assert end.provider_metadata is not UNSET
    assert b'"webSearchQueries": ["who won euro 2024"]' in bytes(end.provider_metadata)


def test_a_search_beside_our_own_tools_is_a_call_and_a_result_of_the_provider() -> None:
    content = answer("search_and_call").content
    searched, found, called, source = content
    assert isinstance(searched, ToolCallPart)
    assert isinstance(found, ToolResultPart)
    assert isinstance(called, ToolCallPart)
    assert (searched.tool_name, searched.provider_executed) == ("web_search", True)
    assert (found.tool_call_id, found.provider_executed) == (searched.tool_call_id, True)
    assert (called.tool_name, called.provider_executed) == ("get_weather", False)
    assert source == SourcePart(url="https://example.org/utqiagvik", title="example.org")
    marks = [mark_of(part.provider_metadata) for part in (searched, found, called)]
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
def test_why_an_answer_ended(name: str, reason: str, why: str | None) -> None:
    assert (finished(name).reason, finished(name).explanation) == (reason, why)


def test_a_later_telling_does_not_erase_what_it_leaves_out() -> None:
    told = (
        {"promptTokenCount": 9, "cachedContentTokenCount": 4, "thoughtsTokenCount": 3},
        {"promptTokenCount": 9, "candidatesTokenCount": 2, "toolUsePromptTokenCount": 1},
        {"totalTokenCount": 15},
    )
    data = b"".join(event({"usageMetadata": counts}) for counts in told)
    last = event({"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}]})
    end = read_whole(new_decoder, data + last)[-1]
    assert isinstance(end, Finished)
    assert end.usage == TokenUsage(
        input_tokens=6,
        output_tokens=5,
        total_tokens=15,
        reasoning_tokens=3,
        cache_read_tokens=4,
        context_tokens=9,
    )


def test_a_refused_prompt_is_still_paid_for() -> None:
    assert finished("blocked").usage == TokenUsage(input_tokens=31, total_tokens=31)


def test_a_call_that_the_model_has_garbled_is_an_error_worth_another_try() -> None:
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
def test_words_before_a_call_that_was_garbled_are_not_taken_for_an_answer(
    word: str, ending: type[ModelEvent]
) -> None:
    words = event({"candidates": [{"content": {"parts": [{"text": "Let me look."}]}}]})
    last = event({"candidates": [{"finishReason": word}]})
    assert isinstance(read_whole(new_decoder, words + last)[-1], ending)


def test_a_call_beside_one_that_was_garbled_is_kept() -> None:
    made = event(
        {"candidates": [{"content": {"parts": [{"functionCall": {"name": "show_time"}}]}}]}
    )
    last = event({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]})
    assert isinstance(read_whole(new_decoder, made + last)[-1], Finished)


def test_a_reason_with_every_piece_cuts_nothing_off() -> None:
    assert said("every_chunk_stops") == [TextPart(text="One two three")]


def test_what_is_not_known_is_passed_over() -> None:
    assert said("unknown") == [TextPart(text="Here is a picture.")]
    assert finished("unknown").reason == "stop"


def test_a_last_event_without_its_blank_line_counts() -> None:
    assert said("no_blank_line") == [TextPart(text="All of it.")]


def test_an_error_in_the_middle_ends_the_stream_with_its_facts() -> None:
    fault = failed("overloaded")
    assert (fault.status_code, fault.type) == (503, "UNAVAILABLE")
    assert classify_fault(fault).retryable
    assert failed("rate_limited").retry_after_s == 37.5
    assert classify_fault(failed("rate_limited")).kind == "rate_limit"


def test_nothing_is_read_after_an_error() -> None:
    decoder = new_decoder()
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
def test_an_event_that_cannot_be_read_is_a_failure(data: bytes) -> None:
    [last] = read_whole(new_decoder, data)
    assert isinstance(last, StreamFailed)
    assert last.fault.incomplete


def test_half_a_character_does_not_cost_the_answer() -> None:
    data = (
        rb'data: {"candidates":[{"content":{"parts":[{"text":"\ud83d!"}]},"finishReason":"STOP"}]}'
    )
    events = read_whole(new_decoder, data + b"\n\n")
    assert answer_of(events).content == (TextPart(text="\ufffd!"),)


def test_an_event_without_end_is_a_failure() -> None:
    decoder = new_decoder()
    piece = b"data: " + b"x" * (1024 * 1024)
    events = [event for _ in range(40) for event in decoder.feed(piece)]
    assert [type(e) for e in events[:1]] == [StreamFailed]


def test_sources_are_bounded() -> None:
    chunks = [{"web": {"uri": f"https://example.org/{n}"}} for n in range(1000)]
    candidate = {"finishReason": "STOP", "groundingMetadata": {"groundingChunks": chunks}}
    events = read_whole(new_decoder, event({"candidates": [candidate]}))
    assert sum(isinstance(e, SourceFound) for e in events) == MAX_SOURCES


def is_call(event: ModelEvent) -> TypeGuard[ToolCallDone]:
    return isinstance(event, ToolCallDone)
