"""Assembling model events into live parts and an answer, and judging the answer."""

from collections.abc import Callable

import msgspec
import pytest
from msgspec import UNSET, Raw

from chatd.domain.answer.answer import Answer, EmptyAnswer, KeepAnswer, RejectAnswer, judge_answer
from chatd.domain.answer.assembler import (
    MAX_ANSWER_CHARS,
    MAX_ANSWER_PARTS,
    Assembler,
    used_call_ids,
)
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
from chatd.domain.model.failures import ModelError
from chatd.domain.model.protocol import (
    Finished,
    FinishReason,
    ModelEvent,
    ProviderFault,
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
from chatd.domain.text import Json
from tests.support.factories import call, message

A, B = ToolCallId("a"), ToolCallId("b")
SIGNED = Raw(b'{"anthropic":{"signature":"s"}}')
STOP = Finished(reason="stop", usage=TokenUsage(input_tokens=3, output_tokens=2))


def fed(*events: ModelEvent) -> Assembler:
    assembler = Assembler()
    for event in events:
        assembler.feed(event)
    return assembler


def content(*events: ModelEvent) -> tuple[Part, ...]:
    return fed(*events).finished().content


def interrupted(*events: ModelEvent) -> tuple[Part, ...]:
    return fed(*events).interrupted().content


def plain(part: Part) -> str:
    return msgspec.json.encode(part).decode()


def metadata(part: Part) -> bytes | None:
    assert isinstance(part, TextPart | ReasoningPart | ToolCallPart | ToolResultPart)
    raw: Json = part.provider_metadata
    return None if raw is UNSET else bytes(raw)


# Text


def test_text_is_shown_by_delta_and_stored_as_one_part() -> None:
    assembler = Assembler()
    assert assembler.feed(TextStart(id="1")) == ()
    assert assembler.feed(TextDelta(id="1", delta="Hello, ")) == (TextPart(text="Hello, "),)
    assert assembler.feed(TextDelta(id="1", delta="world")) == (TextPart(text="world"),)
    assert assembler.feed(TextEnd(id="1")) == ()
    assert assembler.feed(STOP) == ()
    answer = assembler.finished()
    content = (TextPart(text="Hello, world"),)
    assert answer == Answer(content=content, finished=STOP, usage=STOP.usage)


@pytest.mark.covers("loop-15")
def test_text_without_a_start_event_is_shown_and_stored() -> None:
    assembler = Assembler()
    assert assembler.feed(TextDelta(id="9", delta="late")) == (TextPart(text="late"),)
    assert assembler.finished().content == (TextPart(text="late"),)


def test_an_empty_delta_is_not_shown() -> None:
    assembler = Assembler()
    assert assembler.feed(TextDelta(id="1", delta="")) == ()
    assert assembler.feed(ReasoningDelta(id="1", delta="")) == ()
    assert assembler.feed(ToolCallStart(id=A, name="execute")) == ()
    assert assembler.feed(ToolCallDelta(id=A, delta="")) == ()


def test_adjacent_texts_are_merged_unless_they_have_metadata() -> None:
    events = [
        TextStart(id="1"),
        TextDelta(id="1", delta="a"),
        TextEnd(id="1"),
        TextDelta(id="2", delta="b"),
        TextEnd(id="2"),
    ]
    assert content(*events) == (TextPart(text="ab"),)
    marked = content(*events[:2], TextEnd(id="1", provider_metadata=SIGNED), *events[3:])
    assert [plain(part) for part in marked] == [
        '{"type":"text","text":"a","provider_metadata":{"anthropic":{"signature":"s"}}}',
        '{"type":"text","text":"b"}',
    ]


def test_an_empty_text_is_stored_only_with_metadata() -> None:
    assert content(TextStart(id="1"), TextEnd(id="1")) == ()
    parts = content(TextStart(id="1"), TextEnd(id="1", provider_metadata=SIGNED))
    assert [metadata(part) for part in parts] == [bytes(SIGNED)]


def test_the_end_of_an_unknown_block_is_ignored() -> None:
    assert content(TextEnd(id="1"), ReasoningEnd(id="1", provider_metadata=SIGNED)) == ()


# Reasoning


@pytest.mark.covers("loop-12")
def test_reasoning_keeps_its_signature_when_later_events_have_none() -> None:
    parts = content(
        ReasoningStart(id="1", text="Let ", provider_metadata=SIGNED),
        ReasoningDelta(id="1", delta="me"),
        ReasoningDelta(id="1", delta=" see", provider_metadata=Raw(b"{}")),
        ReasoningEnd(id="1", provider_metadata=Raw(b"null")),
    )
    assert [metadata(part) for part in parts] == [bytes(SIGNED)]
    assert isinstance(parts[0], ReasoningPart)
    assert parts[0].text == "Let me see"


@pytest.mark.covers("loop-12")
def test_a_newer_signature_replaces_an_older_one() -> None:
    newer = Raw(b'{"anthropic":{"signature":"t"}}')
    parts = content(
        ReasoningStart(id="1", provider_metadata=SIGNED),
        ReasoningDelta(id="1", delta="x", provider_metadata=newer),
    )
    assert [metadata(part) for part in parts] == [bytes(newer)]


@pytest.mark.covers("loop-13")
def test_reasoning_with_metadata_only_is_stored() -> None:
    sealed = Raw(b'{"anthropic":{"redacted_data":"xyz"}}')
    done = content(ReasoningStart(id="1", provider_metadata=sealed), ReasoningEnd(id="1"))
    assert [metadata(part) for part in done] == [bytes(sealed)]
    cut = interrupted(ReasoningStart(id="1", provider_metadata=sealed))
    assert [metadata(part) for part in cut] == [bytes(sealed)]


def test_reasoning_without_text_and_metadata_is_not_stored() -> None:
    assert content(ReasoningStart(id="1"), ReasoningEnd(id="1")) == ()


@pytest.mark.covers("commit-1")
def test_reasoning_has_its_start_and_end_time() -> None:
    assembler = Assembler()
    assembler.feed(ReasoningStart(id="1"), at="09:00")
    assert assembler.feed(ReasoningDelta(id="1", delta="hm"), at="09:01") == (
        ReasoningPart(text="hm"),
    )
    assembler.feed(ReasoningEnd(id="1"), at="09:02")
    done = ReasoningPart(text="hm", created_at="09:00", completed_at="09:02")
    assert assembler.finished().content == (done,)


def test_interrupted_reasoning_ends_at_the_interrupt() -> None:
    assembler = Assembler()
    assembler.feed(ReasoningDelta(id="1", delta="hm"), at="09:00")
    done = ReasoningPart(text="hm", created_at="09:00", completed_at="09:05")
    assert assembler.interrupted(at="09:05").content == (done,)


# Calls


def test_the_input_of_a_call_is_shown_by_delta_and_then_as_a_complete_call() -> None:
    assembler = Assembler()
    assert assembler.feed(ToolCallStart(id=A, name="execute")) == ()
    assert assembler.feed(ToolCallDelta(id=A, delta='{"x":')) == (
        ToolCallPart(tool_call_id=A, tool_name="execute", args_delta='{"x":'),
    )
    shown = assembler.feed(ToolCallDone(id=A, name="execute", input='{"x": 1}'), at="09:00")
    whole = call("a", args='{"x": 1}', created_at="09:00")
    assert [plain(part) for part in shown] == [plain(whole)]
    assert [plain(part) for part in assembler.finished().content] == [plain(whole)]


@pytest.mark.covers("loop-16")
def test_the_complete_call_replaces_its_deltas() -> None:
    parts = content(
        ToolCallStart(id=A, name="execute"),
        ToolCallDelta(id=A, delta='{"x":2}'),
        ToolCallDone(id=A, name="read_file", input='{"x":1}', provider_metadata=SIGNED),
    )
    whole = call("a", "read_file", '{"x":1}', provider_metadata=SIGNED)
    assert [plain(part) for part in parts] == [plain(whole)]


@pytest.mark.parametrize(
    ("input_text", "stored_args"),
    [
        ("", b"{}"),
        ("  ", b"{}"),
        ('{"a":1}', b'{"a":1}'),
        ("[1]", b"[1]"),
        ('{"a":', None),
        ("nonsense", None),
        (r'{"a":"\ud800"}', rb'{"a":"\ufffd"}'),
        ("[" * 100_000, None),
    ],
)
def test_arguments_are_stored_if_they_are_json(input_text: str, stored_args: bytes | None) -> None:
    (part,) = content(ToolCallDone(id=A, name="execute", input=input_text))
    assert isinstance(part, ToolCallPart)
    assert (None if part.args is UNSET else bytes(part.args)) == stored_args


def test_a_delta_of_an_unknown_call_is_ignored() -> None:
    assembler = Assembler()
    assert assembler.feed(ToolCallDelta(id=A, delta="{")) == ()
    assert assembler.finished().content == ()


@pytest.mark.covers("loop-16")
def test_an_incomplete_call_at_the_end_is_not_stored_with_empty_input() -> None:
    (part,) = content(
        ToolCallStart(id=A, name="execute"), Finished(reason="length", usage=TokenUsage())
    )
    assert isinstance(part, ToolCallPart)
    assert part.args is UNSET


@pytest.mark.parametrize("reason", ["length", "content-filter", "error"])
def test_the_calls_of_a_cut_answer_are_marked(reason: FinishReason) -> None:
    parts = content(
        ToolCallDone(id=A, name="execute", input="{}"),
        ToolCallDone(id=B, name="web_search", input="{}", provider_executed=True),
        Finished(reason=reason, usage=TokenUsage()),
    )
    marks = [part.cut for part in parts if isinstance(part, ToolCallPart)]
    assert marks == [True, False]


@pytest.mark.parametrize("reason", ["tool-calls", "stop", "other", "unknown"])
def test_the_calls_of_a_whole_answer_are_not_marked(reason: FinishReason) -> None:
    done = ToolCallDone(id=A, name="execute", input="{}")
    (part,) = content(done, Finished(reason=reason, usage=TokenUsage()))
    assert isinstance(part, ToolCallPart)
    assert not part.cut


@pytest.mark.covers("loop-17")
def test_two_calls_of_one_id_become_two_calls() -> None:
    parts = content(
        ToolCallDone(id=A, name="execute", input="{}"),
        ToolCallStart(id=A, name="execute"),
        ToolCallDone(id=A, name="execute", input="{}"),
        ToolCallDone(id=ToolCallId(""), name="execute", input="{}"),
    )
    assert [p.tool_call_id for p in parts if isinstance(p, ToolCallPart)] == ["a", "a-2", "call"]


@pytest.mark.promise("P13")
def test_no_call_of_a_model_has_the_id_of_a_persons_command() -> None:
    """Its tool policy would not hold for it."""
    forged = ToolCallDone(id=ToolCallId("person-command-1"), name="execute", input="{}")
    parts = content(forged, forged)
    ids = [part.tool_call_id for part in parts if isinstance(part, ToolCallPart)]
    assert ids == ["call-person-command-1", "call-person-command-1-2"]


@pytest.mark.covers("loop-17")
def test_an_id_used_by_an_earlier_answer_is_replaced() -> None:
    history = [message(1, "assistant", call("a"), call("b", provider_executed=True))]
    assembler = Assembler(used_ids=used_call_ids(history))
    shown = [
        *assembler.feed(ToolCallStart(id=A, name="execute")),
        *assembler.feed(ToolCallDelta(id=A, delta="{}")),
        *assembler.feed(ToolCallDone(id=A, name="execute", input="{}")),
    ]
    assert {p.tool_call_id for p in shown if isinstance(p, ToolCallPart)} == {"a-2"}


@pytest.mark.covers("loop-3")
def test_provider_executed_calls_keep_their_ids_and_results() -> None:
    search = ToolCallDone(id=A, name="web_search", input='{"q":"x"}', provider_executed=True)
    found = ToolResultDone(
        id=A, name="web_search", result=Raw(b'[{"url":"u"}]'), provider_metadata=SIGNED
    )
    assembler = Assembler(used_ids=[A])
    assembler.feed(TextDelta(id="1", delta="Searching. "))
    assembler.feed(TextEnd(id="1"))
    assembler.feed(search)
    (shown,) = assembler.feed(found, at="09:00")
    assert isinstance(shown, ToolResultPart)
    assert shown.provider_executed
    assembler.feed(TextDelta(id="2", delta="Found."))
    kinds = [type(part) for part in assembler.finished().content]
    assert kinds == [TextPart, ToolCallPart, ToolResultPart, TextPart]
    assert assembler.finished().content[2] == shown
    assert shown.tool_call_id == A


@pytest.mark.covers("prompt-15")
def test_invalid_bytes_of_a_provider_are_replaced() -> None:
    (part,) = content(ToolResultDone(id=A, name="web_search", result=Raw(b'"\xff"')))
    assert isinstance(part, ToolResultPart)
    assert part.result is not UNSET
    assert bytes(part.result).decode() == '"\ufffd"'


def test_a_source_is_shown_and_stored() -> None:
    assembler = Assembler()
    source = SourcePart(url="https://x.example", source_id="s", title="X")
    found = SourceFound(url="https://x.example", id="s", title="X")
    assert assembler.feed(found) == (source,)
    assert assembler.finished().content == (source,)


# Order and end


@pytest.mark.covers("loop-14")
def test_parts_are_in_the_order_of_completion() -> None:
    parts = content(
        TextStart(id="1"),
        ToolCallStart(id=A, name="execute"),
        TextDelta(id="1", delta="text"),
        ToolCallDone(id=A, name="execute", input="{}"),
        ReasoningDelta(id="r", delta="hm"),
        ReasoningEnd(id="r"),
        TextEnd(id="1"),
    )
    assert [type(part) for part in parts] == [ToolCallPart, ReasoningPart, TextPart]


@pytest.mark.covers("loop-5")
def test_blocks_open_at_an_interrupt_follow_in_the_order_of_their_start() -> None:
    parts = interrupted(
        ToolCallStart(id=A, name="execute"),
        ToolCallDelta(id=A, delta='{"path":"main.go"'),
        TextDelta(id="1", delta="done "),
        TextEnd(id="1"),
        ReasoningDelta(id="r", delta="hm"),
        TextDelta(id="2", delta="half a sen"),
        ToolCallStart(id=B, name="read_file"),
        ToolCallDelta(id=B, delta='{"path":"x"}'),
    )
    assert [plain(part) for part in parts] == [
        '{"type":"text","text":"done "}',
        (
            '{"type":"tool-call","tool_call_id":"a","tool_name":"execute",'
            r'"args_text":"{\"path\":\"main.go\"","cut":true}'
        ),
        '{"type":"reasoning","text":"hm"}',
        '{"type":"text","text":"half a sen"}',
        (
            '{"type":"tool-call","tool_call_id":"b","tool_name":"read_file","args":{"path":"x"},'
            '"cut":true}'
        ),
    ]


@pytest.mark.covers("loop-5")
def test_an_interrupted_answer_has_the_usage_told_so_far() -> None:
    assembler = fed(TextDelta(id="1", delta="x"), STOP)
    assert assembler.interrupted() == Answer(content=(TextPart(text="x"),), usage=STOP.usage)


@pytest.mark.promise("P11")
@pytest.mark.parametrize(
    ("events", "usage"),
    [
        ((), (40, 0)),
        ((TextDelta(id="1", delta="12345678"),), (40, 2)),
        ((ReasoningDelta(id="1", delta="1234"), TextDelta(id="1", delta="ä" * 4)), (40, 3)),
        ((ToolCallStart(id=A, name="f"), ToolCallDelta(id=A, delta="{}")), (40, 1)),
        ((ToolCallDone(id=A, name="f", input='{"a": 1}'),), (40, 2)),
        (
            (
                ToolCallStart(id=A, name="f"),
                ToolCallDelta(id=A, delta='{"a": 1}'),
                ToolCallDone(id=A, name="f", input='{"a": 1}'),
            ),
            (40, 2),
        ),
        ((UsageReported(usage=TokenUsage(input_tokens=9, output_tokens=1)),), (9, 1)),
        (
            (
                UsageReported(usage=TokenUsage(input_tokens=9, output_tokens=1)),
                TextDelta(id="1", delta="x" * 40),
            ),
            (9, 10),
        ),
        (
            (
                UsageReported(usage=TokenUsage(input_tokens=9, output_tokens=30)),
                TextDelta(id="1", delta="x" * 40),
            ),
            (9, 30),
        ),
        ((TextDelta(id="1", delta="x"), Finished(reason="stop", usage=TokenUsage())), (40, 1)),
        (
            (
                TextDelta(id="1", delta="x" * 40),
                Finished(reason="stop", usage=TokenUsage(output_tokens=3)),
            ),
            (40, 3),
        ),
        ((Finished(reason="stop", usage=TokenUsage()),), (40, 0)),
    ],
)
def test_what_the_provider_does_not_tell_is_estimated(
    events: tuple[ModelEvent, ...], usage: tuple[int, int]
) -> None:
    assembler = Assembler(expected=TokenUsage(input_tokens=40))
    for event in events:
        assembler.feed(event)
    found = assembler.usage
    assert ((found.input_tokens, found.output_tokens), found.estimated) == (usage, True)


@pytest.mark.promise("P11")
def test_told_usage_is_not_estimated_and_corrects_earlier_reports() -> None:
    assembler = Assembler(expected=TokenUsage(input_tokens=40))
    assembler.feed(UsageReported(usage=TokenUsage(input_tokens=9, output_tokens=1)))
    assembler.feed(TextDelta(id="1", delta="x" * 400))
    assembler.feed(Finished(reason="stop", usage=TokenUsage(output_tokens=90)))
    assert assembler.usage == TokenUsage(input_tokens=9, output_tokens=90)


@pytest.mark.covers("loop-5")
def test_an_interrupt_before_the_first_delta_gives_an_empty_answer() -> None:
    assert interrupted() == ()
    assert interrupted(TextStart(id="1"), ReasoningStart(id="2")) == ()


def test_a_failure_adds_nothing() -> None:
    assert fed().feed(StreamFailed(fault=ProviderFault(message="no"))) == ()


def test_a_surrogate_breaks_neither_live_parts_nor_the_answer() -> None:
    assembler = Assembler()
    assert assembler.feed(TextDelta(id="1", delta="a\ud83d")) == (TextPart(text="a\ufffd"),)
    assembler.feed(TextDelta(id="1", delta="\ude00"))
    assert assembler.finished().content == (TextPart(text="a\U0001f600"),)


def test_an_answer_over_the_size_limit_is_a_failure() -> None:
    assembler = Assembler()
    piece = TextDelta(id="1", delta="x" * (MAX_ANSWER_CHARS // 4))
    for _ in range(3):
        assembler.feed(piece)
    with pytest.raises(ModelError) as failed:
        assembler.feed(piece)
    assert (failed.value.classified.kind, failed.value.classified.retryable) == (
        "answer_too_large",
        False,
    )


MANY: dict[str, Callable[[str], tuple[ModelEvent, ...]]] = {
    "texts": lambda n: (TextStart(id=n), TextEnd(id=n, provider_metadata=SIGNED)),
    "reasoning": lambda n: (ReasoningStart(id=n, provider_metadata=SIGNED), ReasoningEnd(id=n)),
    "sources": lambda n: (SourceFound(url=f"https://a.example/{n}"),),
    "results": lambda n: (ToolResultDone(id=ToolCallId(n), name="find", result=Raw(b"{}")),),
    "open calls": lambda n: (ToolCallStart(id=ToolCallId(n), name="execute"),),
    "one id": lambda _: (ToolCallDone(id=A, name="execute", input="{}"),),
    "provider's calls": lambda n: (
        ToolCallStart(id=ToolCallId(n), name="web_search", provider_executed=True),
    ),
}


@pytest.mark.parametrize("part", MANY.values(), ids=MANY)
def test_an_answer_with_too_many_parts_is_a_failure_that_is_not_retried(
    part: Callable[[str], tuple[ModelEvent, ...]],
) -> None:
    assembler = Assembler()
    for number in range(MAX_ANSWER_PARTS):
        for event in part(str(number)):
            assembler.feed(event)
    with pytest.raises(ModelError) as failed:
        assembler.feed(part("more")[0])
    assert failed.value.classified.kind == "answer_too_large"
    assert not failed.value.classified.retryable
    assert len(assembler.interrupted().content) <= MAX_ANSWER_PARTS


def test_metadata_counts_towards_the_size_limit() -> None:
    assembler = Assembler()
    metadata = Raw(b'{"a":"' + b"x" * (MAX_ANSWER_CHARS // 4) + b'"}')
    for number in range(3):
        assembler.feed(TextEnd(id="none", provider_metadata=metadata))
        assembler.feed(ReasoningStart(id=f"{number}", provider_metadata=metadata))
    with pytest.raises(ModelError):
        assembler.feed(ReasoningStart(id="4", provider_metadata=metadata))


def test_calls_beyond_twice_the_limit_are_counted_and_neither_shown_nor_stored() -> None:
    assembler = Assembler(max_calls=2)
    shown: list[Part] = []
    for number in range(7):
        made = ToolCallId(f"c{number}")
        shown += assembler.feed(ToolCallStart(id=made, name="execute"))
        shown += assembler.feed(ToolCallDelta(id=made, delta="{}"))
    for number in range(7):
        made = ToolCallId(f"c{number}")
        shown += assembler.feed(ToolCallDone(id=made, name="execute", input="{}"))
    answer = assembler.finished()
    assert answer.calls_made == 7
    assert [part.tool_call_id for part in answer.content if isinstance(part, ToolCallPart)] == [
        "c0",
        "c1",
        "c2",
        "c3",
    ]
    assert {part.tool_call_id for part in shown if isinstance(part, ToolCallPart)} == {
        "c0",
        "c1",
        "c2",
        "c3",
    }
    # The model wrote the dropped calls too.
    assert answer.usage is not None
    assert answer.usage.output_tokens == -(-7 * 2 // 4)


def test_dropped_calls_with_one_id_are_counted_each() -> None:
    assembler = Assembler(max_calls=1)
    for _ in range(5):
        assembler.feed(ToolCallStart(id=A, name="execute"))
        assembler.feed(ToolCallDone(id=A, name="execute", input="{}"))
    assert assembler.finished().calls_made == 5
    assert len(assembler.finished().content) == 2


@pytest.mark.covers("prompt-6")
def test_an_assembled_answer_can_be_stored_and_read_back() -> None:
    parts = content(
        ReasoningStart(id="1", text="hm", provider_metadata=SIGNED),
        ToolCallDone(id=A, name="execute", input=r'{"a":"\ud800\u0000"}'),
        ToolResultDone(id=A, name="web_search", result=Raw(b'{"x":"\xff"}')),
        TextDelta(id="1", delta="\ud800\0"),
    )
    stored = msgspec.json.encode(parts)
    assert msgspec.json.decode(
        stored, type=tuple[ReasoningPart | ToolCallPart | ToolResultPart | TextPart, ...]
    )


# Judging answers


def answer(*parts: Part, reason: FinishReason = "stop", why: str | None = None) -> Answer:
    return Answer(
        content=parts, finished=Finished(reason=reason, usage=TokenUsage(), explanation=why)
    )


THOUGHT = ReasoningPart(text="I should not.")


@pytest.mark.covers("loop-23")
@pytest.mark.parametrize(
    ("reason", "kind", "message"),
    [
        ("content-filter", "content_filter", "The content filter of Anthropic stopped the answer."),
        ("refusal", "refusal", "The model at Anthropic refused to answer."),
    ],
)
@pytest.mark.parametrize(
    "parts", [(), (THOUGHT,), (TextPart(text=" "),), (THOUGHT, TextPart(text=""))]
)
def test_a_filtered_or_refused_answer_without_visible_text_is_an_error(
    parts: tuple[Part, ...], reason: FinishReason, kind: str, message: str
) -> None:
    verdict = judge_answer(answer(*parts, reason=reason, why="Category: x."), "anthropic")
    assert isinstance(verdict, RejectAnswer)
    error = verdict.failure.error
    assert (error.kind, error.retryable) == (kind, False)
    assert error.message == message
    assert error.detail == "Category: x."


def test_the_explanation_of_a_filtered_answer_is_bounded() -> None:
    for why, detail in ((None, None), (" ", None), ("x" * 900, "x" * 499 + "…")):
        verdict = judge_answer(answer(reason="content-filter", why=why), "anthropic")
        assert isinstance(verdict, RejectAnswer)
        assert verdict.failure.error.detail == detail


@pytest.mark.covers("loop-23")
@pytest.mark.parametrize("part", [TextPart(text="partial"), call("a"), SourcePart(url="u")])
def test_visible_content_of_a_filtered_answer_is_kept(part: Part) -> None:
    assert judge_answer(answer(THOUGHT, part, reason="content-filter"), "anthropic") == KeepAnswer()


@pytest.mark.covers("loop-24")
def test_an_answer_without_content_is_empty() -> None:
    assert judge_answer(answer(), "openai") == EmptyAnswer()
    assert judge_answer(answer(TextPart(text=" \n")), "openai") == EmptyAnswer()
    assert judge_answer(Answer(content=()), "openai") == EmptyAnswer()


def test_reasoning_alone_is_kept_after_a_normal_stop() -> None:
    assert judge_answer(answer(THOUGHT), "openai") == KeepAnswer()
    sealed = ReasoningPart(text="", provider_metadata=SIGNED)
    assert judge_answer(answer(sealed), "openai") == KeepAnswer()


def test_an_answer_that_ended_in_an_error_is_retryable() -> None:
    verdict = judge_answer(answer(THOUGHT, reason="error"), "google")
    assert isinstance(verdict, RejectAnswer)
    assert verdict.failure.retryable
    assert judge_answer(answer(TextPart(text="said"), reason="error"), "google") == KeepAnswer()


@pytest.mark.parametrize("parts", [(), (THOUGHT,), (THOUGHT, TextPart(text=" "))])
def test_an_output_limit_without_output_is_an_error(parts: tuple[Part, ...]) -> None:
    verdict = judge_answer(answer(*parts, reason="length"), "anthropic")
    assert isinstance(verdict, RejectAnswer)
    assert (verdict.failure.kind, verdict.failure.retryable) == ("output_limit", False)


def test_text_at_the_output_limit_is_kept() -> None:
    said = answer(THOUGHT, TextPart(text="said"), reason="length")
    assert judge_answer(said, "anthropic") == KeepAnswer()


def test_a_call_is_kept_for_every_finish_reason() -> None:
    assert judge_answer(answer(call("a", args=None), reason="length"), "openai") == KeepAnswer()
