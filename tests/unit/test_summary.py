"""The summary request, the rows of a summary, and shrinking a prompt that is too long."""

from uuid import UUID

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.answer.answer import Answer, ModelCallRecord
from chatd.domain.chat.messages import Draft, Message, TokenUsage
from chatd.domain.chat.parts import (
    ContextFilePart,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.ids import ModelConfigId, ToolCallId
from chatd.domain.model.failures import ClassifiedFailure
from chatd.domain.model.protocol import (
    Finished,
    FinishReason,
    ModelConfig,
    ModelRequest,
    Prices,
    PromptFile,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
    ToolSpec,
)
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from chatd.domain.prompt.compaction import (
    MIN_SUMMARY_TOKENS,
    SUMMARY_INSTRUCTION,
    SUMMARY_PREFIX,
    ContextFill,
    SummaryPlan,
    find_boundary,
    newest_context,
    read_summary,
    rows_for_prompt,
    strictest_limit,
    summary_call,
    summary_call_id,
    summary_failed,
    summary_request,
    summary_result,
    summary_rows,
)
from chatd.domain.prompt.repair import MIN_SHRUNK_TEXT_CHARS, prompt_bytes, shrink_prompt
from chatd.domain.text import parse_json
from tests.support.domain.prompt_rules import find_problems
from tests.support.factories import call, message, result, text

PLAN = SummaryPlan(
    call_id=summary_call_id(UUID(int=5)),
    source="auto",
    threshold=70,
    fill=ContextFill(tokens=150_000, limit=200_000),
)
CONFIG = ModelConfig(
    id=ModelConfigId(UUID(int=7)),
    name="Small",
    provider="here",
    model="m",
    prices=Prices(input="1", output="2"),
)
CALL = ModelCallRecord(config=CONFIG, runtime_ms=900)
WRITTEN = Answer(
    content=(
        ReasoningPart(text="hm"),
        TextPart(text=" Goal: ship. "),
        TextPart(text="\nNext: test."),
    ),
    finished=Finished(reason="stop", usage=TokenUsage(input_tokens=10, output_tokens=5)),
    usage=TokenUsage(input_tokens=10, output_tokens=5),
)


def rows() -> list[Draft]:
    return list(summary_rows(PLAN, "All of it.", CALL, WRITTEN))


def value(part: object) -> object:
    assert isinstance(part, ToolCallPart | ToolResultPart)
    return parse_json(part.args if isinstance(part, ToolCallPart) else part.result)


# The request


@pytest.mark.covers("compaction-10")
def test_the_summary_instruction_ends_the_whole_prompt() -> None:
    spec = ToolSpec(name="execute", description="", input_schema=Raw(b"{}"))
    first = PromptMessage(role="user", parts=(PromptText(text="hi"),))
    base = ModelRequest(model="m", messages=(first,), tools=(spec,), max_output_tokens=32_000)
    request = summary_request(base)
    assert request.messages[0] == first
    assert request.messages[1:] == (
        PromptMessage(role="user", parts=(PromptText(text=SUMMARY_INSTRUCTION),)),
    )
    assert msgspec.structs.replace(request, messages=base.messages) == base
    assert len(base.messages) == 1


@pytest.mark.parametrize(
    ("configured", "sent"), [(None, None), (100, MIN_SUMMARY_TOKENS), (9000, 9000)]
)
def test_a_summary_is_not_cut_by_a_low_output_limit(
    configured: int | None, sent: int | None
) -> None:
    request = summary_request(ModelRequest(model="m", messages=(), max_output_tokens=configured))
    assert request.max_output_tokens == sent


def test_an_answer_that_calls_a_tool_is_no_summary() -> None:
    read = read_summary(Answer(content=(text("Let me look."), call("a"))), "here")
    assert isinstance(read, ClassifiedFailure)


def test_a_summary_keeps_the_newest_workspace_context() -> None:
    def context(path: str, content: str, agent: str = "w1") -> ContextFilePart:
        return ContextFilePart(
            context_file_path=path, context_file_content=content, context_file_agent_id=agent
        )

    kept = newest_context(
        [
            message(1, "user", context("D", "of the old workspace", "w0"), visibility="model"),
            message(2, "user", context("A", "stale"), context("B", "b"), visibility="model"),
            message(3, "user", context("A", "a"), visibility="model"),
            message(4, "user", context("C", "gone"), visibility="model", deleted=True),
        ]
    )
    assert {(file.context_file_path, file.context_file_content) for file in kept} == {
        ("A", "a"),
        ("B", "b"),
    }


@pytest.mark.covers("compaction-10")
def test_a_hint_is_added_to_the_request() -> None:
    request = summary_request(ModelRequest(model="m", messages=()), hint="Mind the schema.")
    (part,) = request.messages[0].parts
    assert isinstance(part, PromptText)
    assert part.text.startswith(SUMMARY_INSTRUCTION)
    assert part.text.endswith("Mind the schema.")


@pytest.mark.covers("compaction-10")
@pytest.mark.parametrize(
    "topic",
    [
        "goal",
        "task at hand",
        "constraint",
        "correction",
        "until the user takes them back",
        "instruction files",
        "decided and why",
        "paths",
        "functions",
        "commands",
        "interfaces",
        "settings",
        "went wrong",
        "solved",
        "no reason to avoid that tool",
        "DONE",
        "IN PROGRESS",
        "REMAINING",
        "action that was under way",
        "rather than copying it out",
        "dense",
        "filler",
    ],
)
def test_the_instruction_names_every_topic(topic: str) -> None:
    assert topic.lower() in SUMMARY_INSTRUCTION.lower()


def test_the_summary_prefix_asks_to_continue_the_work() -> None:
    assert "continue" in SUMMARY_PREFIX.lower()


# The answer


def test_the_texts_of_an_answer_are_joined_to_one_summary() -> None:
    assert read_summary(WRITTEN, "here") == "Goal: ship. Next: test."


@pytest.mark.covers("compaction-11")
@pytest.mark.parametrize("content", [(), (ReasoningPart(text="hm"),), (TextPart(text=" \n"),)])
def test_an_answer_without_text_is_no_summary(
    content: tuple[TextPart | ReasoningPart, ...],
) -> None:
    assert isinstance(read_summary(Answer(content=content), "here"), ClassifiedFailure)


@pytest.mark.parametrize(
    ("reason", "kind"), [("content-filter", "content_filter"), ("refusal", "refusal")]
)
def test_a_text_that_a_filter_cut_is_no_summary(reason: FinishReason, kind: str) -> None:
    cut = Answer(content=(text("Goal: sh"),), finished=Finished(reason=reason, usage=TokenUsage()))
    read = read_summary(cut, "here")
    assert isinstance(read, ClassifiedFailure)
    assert read.kind == kind


# The rows


@pytest.mark.covers("compaction-1", "compaction-4")
def test_a_summary_is_stored_as_three_rows() -> None:
    boundary, call_row, result_row = rows()
    assert [row.role for row in rows()] == ["user", "assistant", "tool"]
    assert [row.visibility for row in rows()] == ["model", "user", "both"]
    assert all(row.compressed for row in rows())
    assert boundary.content == (TextPart(text=SUMMARY_PREFIX + "All of it."),)
    assert value(call_row.content[0]) == {"source": "auto", "threshold_percent": 70}
    assert value(result_row.content[0]) == {
        "summary": "All of it.",
        "source": "auto",
        "threshold_percent": 70,
        "usage_percent": 75,
        "context_tokens": 150_000,
        "context_limit_tokens": 200_000,
        "kept_messages": 0,
        "kept_tokens": 0,
    }


@pytest.mark.covers("compaction-4")
def test_the_live_call_and_the_stored_call_are_equal() -> None:
    _, call_row, result_row = rows()
    expected = f"chat_summarized_{UUID(int=5).hex}"
    stored = [part for row in (call_row, result_row) for part in row.content]
    live = [summary_call(PLAN), summary_result(PLAN, "All of it.")]
    ids = [p.tool_call_id for p in [*stored, *live] if isinstance(p, ToolCallPart | ToolResultPart)]
    assert ids == [expected] * 4


@pytest.mark.covers("compaction-4")
def test_a_manual_summary_is_marked() -> None:
    plan = SummaryPlan(call_id=PLAN.call_id, source="manual", threshold=70, fill=ContextFill())
    _, call_row, result_row = summary_rows(plan, "x", CALL, WRITTEN)
    assert value(call_row.content[0]) == {"source": "manual", "threshold_percent": 70}
    found = value(result_row.content[0])
    assert isinstance(found, dict)
    assert found["source"] == "manual"


@pytest.mark.covers("compaction-4")
def test_usage_and_cost_of_a_summary_are_on_its_call_row() -> None:
    boundary, call_row, result_row = rows()
    assert call_row.usage == TokenUsage(input_tokens=10, output_tokens=5)
    assert (call_row.cost_micros, call_row.runtime_ms, call_row.model_config_id) == (
        20,
        900,
        CONFIG.id,
    )
    assert [(row.usage, row.runtime_ms) for row in (boundary, result_row)] == [(None, None)] * 2
    quick = summary_rows(PLAN, "x", ModelCallRecord(config=CONFIG), WRITTEN)
    assert quick[1].runtime_ms is None


@pytest.mark.covers("compaction-11")
def test_a_failed_summary_is_an_error_result() -> None:
    part = summary_failed(PLAN, "The provider is overloaded.")
    assert part.is_error
    assert part.tool_call_id == PLAN.call_id
    assert value(part) == {"error": "The provider is overloaded."}


def committed(first_id: int, drafts: list[Draft]) -> list[Message]:
    return [
        message(
            first_id + index,
            draft.role,
            *draft.content,
            visibility=draft.visibility,
            compressed=draft.compressed,
            usage=draft.usage,
        )
        for index, draft in enumerate(drafts)
    ]


@pytest.mark.covers("compaction-2")
def test_after_a_summary_the_model_gets_it_as_a_user_message() -> None:
    history = [
        message(1, "user", text("old")),
        message(2, "assistant", text("older")),
        *committed(3, rows()),
    ]
    cut = find_boundary(history)
    assert cut is not None
    assert cut.id == 3
    assert [row.id for row in rows_for_prompt(history)] == [3]
    (only,) = build_prompt(history, PromptTarget(provider="here"))
    assert only.role == "user"
    assert only.parts == (PromptText(text=SUMMARY_PREFIX + "All of it."),)


# Another model for summaries


@pytest.mark.covers("compaction-8")
@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((200, 100), 100),
        ((100, 200), 100),
        ((None, 200), 200),
        ((0, 200), 200),
        ((-1, None), None),
        ((), None),
    ],
)
def test_the_smaller_of_two_context_limits_is_used(
    limits: tuple[int | None, ...], expected: int | None
) -> None:
    assert strictest_limit(*limits) == expected


# Shrinking


def long_prompt() -> list[PromptMessage]:
    history = [message(1, "system", text("Be kind. " * 100), visibility="model")]
    for index in range(10):
        first = 2 + index * 3
        history += [
            message(first, "user", text(f"question {index}")),
            message(first + 1, "assistant", call(f"c{index}")),
            message(
                first + 2, "tool", result(f"c{index}", output=f'{{"output":"{"x" * 20_000}"}}')
            ),
        ]
    return list(build_prompt(history, PromptTarget(provider="here")))


@pytest.mark.covers("loop-29", "compaction-12")
@pytest.mark.parametrize("halvings", [1, 2, 3, 6, 20])
def test_shrinking_halves_the_prompt_and_keeps_it_well_formed(halvings: int) -> None:
    whole = long_prompt()
    rest = [message for message in whole if message.role != "system"]
    short = shrink_prompt(whole, halvings)
    assert find_problems(short) == []
    left = [message for message in short if message.role != "system"]
    newest = prompt_bytes(rest[-2:])
    assert prompt_bytes(left) <= max(prompt_bytes(rest) >> halvings, newest) + 100
    assert short[0] == whole[0]
    assert short[-1].role == "tool"


def test_the_oldest_message_is_clipped_first() -> None:
    short = shrink_prompt(long_prompt(), 1)
    results = [
        part.text for message in short for part in message.parts if isinstance(part, PromptResult)
    ]
    assert len(results) == 10
    assert len(results[0]) <= MIN_SHRUNK_TEXT_CHARS
    assert len(results[-1]) == 20_000


def test_a_prompt_without_halvings_is_unchanged() -> None:
    whole = long_prompt()
    assert list(shrink_prompt(whole, 0)) == whole


def test_shrinking_drops_files_and_media_and_keeps_signed_answers() -> None:
    file = PromptFile(media_type="image/png", data=b"x" * 100_000)
    thought = PromptReasoning(text="hm" * 2000, provider_metadata=Raw(b'{"a":1}'))
    spoken = PromptText(text="z" * 3000)
    shot = PromptResult(id=ToolCallId("a"), name="see", text="", media=file)
    whole = [
        PromptMessage(role="user", parts=(PromptText(text="see"), file)),
        PromptMessage(role="assistant", parts=(thought, spoken)),
        PromptMessage(role="tool", parts=(shot,)),
        PromptMessage(role="user", parts=(PromptText(text="y" * 9000),)),
    ]
    size = prompt_bytes(whole)
    assert size < 40_000
    short = shrink_prompt(whole, 1)
    assert short[1].parts == (thought, spoken)
    assert file not in short[0].parts
    assert all(
        part.media is None and part.text
        for message in short
        for part in message.parts
        if isinstance(part, PromptResult)
    )
