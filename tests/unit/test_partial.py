"""What live parts leave in history when the worker that showed them is gone."""

from uuid import UUID

import msgspec
import pytest

from chatd.domain.answer.partial import LivePart, PartialAnswer, rebuild_partial
from chatd.domain.chat.messages import Role
from chatd.domain.chat.parts import (
    FilePart,
    KnownPart,
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.prompt.compaction import (
    ContextFill,
    SummaryPlan,
    summary_call,
    summary_call_id,
    summary_result,
)
from tests.support.factories import call, pending, result, text


def shown(*parts: KnownPart, role: Role = "assistant") -> list[LivePart]:
    return [LivePart(role=role, part=part) for part in parts]


def by_tool(*parts: KnownPart) -> list[LivePart]:
    return shown(*parts, role="tool")


def piece(call_id: str, delta: str, name: str = "execute") -> ToolCallPart:
    return call(call_id, name, None, args_delta=delta)


def plain(parts: tuple[Part, ...]) -> list[str]:
    return [msgspec.json.encode(part).decode() for part in parts]


def answered(found: PartialAnswer) -> list[str]:
    return [
        part.tool_call_id
        for draft in found.results
        for part in draft.content
        if isinstance(part, ToolResultPart)
    ]


@pytest.mark.covers("commit-4")
def test_pieces_of_text_and_reasoning_are_joined() -> None:
    found = rebuild_partial(
        shown(
            ReasoningPart(text="Let "),
            ReasoningPart(text="me see."),
            TextPart(text="Once "),
            TextPart(text="upon"),
            ReasoningPart(text="Hm."),
            TextPart(text=" a time"),
        ),
        at="09:00",
    )
    assert found.content == (
        ReasoningPart(text="Let me see.", created_at="09:00", completed_at="09:00"),
        TextPart(text="Once upon"),
        ReasoningPart(text="Hm.", created_at="09:00", completed_at="09:00"),
        TextPart(text=" a time"),
    )


@pytest.mark.covers("commit-4")
def test_pieces_of_a_call_are_joined_where_the_first_was_shown() -> None:
    found = rebuild_partial(
        shown(piece("a", '{"x'), text("meanwhile"), piece("b", "{"), piece("a", '":1}')),
        at="09:00",
    )
    assert plain(found.content) == plain(
        (
            call("a", args='{"x":1}', created_at="09:00"),
            text("meanwhile"),
            call("b", args=None, created_at="09:00"),
        )
    )


@pytest.mark.covers("commit-4")
def test_a_whole_call_counts_whatever_pieces_come_before_or_after() -> None:
    whole = call("a", args='{"x":2}')
    found = rebuild_partial(shown(piece("a", '{"x":'), whole, piece("a", "1}")))
    assert plain(found.content) == plain((whole,))


@pytest.mark.covers("commit-4")
def test_a_result_answers_its_call_once() -> None:
    found = rebuild_partial(
        [
            *shown(call("a"), call("b")),
            *by_tool(result("a", output='{"output":"first"}'), result("a"), result("c")),
        ]
    )
    assert answered(found) == ["a"]
    assert b"first" in msgspec.json.encode(found.results[0])
    assert [draft.role for draft in found.results] == ["tool"]


@pytest.mark.covers("commit-4")
def test_a_preview_of_an_output_answers_nothing() -> None:
    preview = result("a", output="{}", result_delta="line 1")
    assert rebuild_partial([*shown(call("a")), *by_tool(preview)]).results == ()


@pytest.mark.covers("commit-4")
def test_a_result_without_a_value_answers_nothing() -> None:
    empty = ToolResultPart(tool_call_id=call("a").tool_call_id, tool_name="execute")
    assert rebuild_partial([*shown(call("a")), *by_tool(empty)]).results == ()


@pytest.mark.covers("commit-4")
def test_results_answer_calls_that_were_open_before() -> None:
    found = rebuild_partial(
        by_tool(result("a"), result("x")), pending_calls=[pending("a"), pending("b")]
    )
    assert answered(found) == ["a"]
    assert found.content == ()


def test_nothing_said_is_kept_while_calls_are_open() -> None:
    assert rebuild_partial(shown(text("odd")), pending_calls=[pending("a")]) == PartialAnswer()


def test_the_providers_results_stand_in_its_answer() -> None:
    search = call("s", "web_search", provider_executed=True)
    hits = result("s", "web_search", "[]", provider_executed=True)
    found = rebuild_partial([*shown(search), *by_tool(hits), *shown(text("Found."))])
    assert found.content == (search, hits, text("Found."))
    assert found.results == ()


def test_sources_are_kept_and_what_no_model_says_is_not() -> None:
    source = SourcePart(url="https://x.example")
    file = FilePart(media_type="image/png", file_id="f")
    odd = [*shown(text("odd"), role="user"), *by_tool(text("odder")), *shown(file)]
    found = rebuild_partial([*shown(source), *odd])
    assert found.content == (source,)


def test_a_summary_that_did_not_come_about_leaves_nothing() -> None:
    plan = SummaryPlan(
        call_id=summary_call_id(UUID(int=1)), source="auto", threshold=70, fill=ContextFill()
    )
    begun = shown(summary_call(plan))
    assert rebuild_partial(begun) == PartialAnswer()
    assert rebuild_partial([*begun, *by_tool(summary_result(plan, "Goal."))]) == PartialAnswer()


def test_nothing_shown_leaves_nothing() -> None:
    assert rebuild_partial([]) == PartialAnswer()
