"""Rebuilding a partial answer from live parts after the worker died."""

from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from chatd.domain.answer.partial import (
    LivePart,
    PartialAnswer,
    continuation,
    keep_longer,
    longest_attempt,
    missing_parts,
    rebuild_partial,
)
from chatd.domain.chat.messages import Draft, Role
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
from chatd.domain.chat.row import Episode, Setbacks
from chatd.domain.chat.states import State
from chatd.domain.prompt.compaction import (
    ContextFill,
    SummaryPlan,
    summary_call,
    summary_call_id,
    summary_result,
)
from tests.support.factories import call, pending, result, text
from tests.support.seeds import seed_state


def live(*parts: KnownPart, role: Role = "assistant") -> list[LivePart]:
    return [LivePart(role=role, part=part) for part in parts]


def tool_live(*parts: KnownPart) -> list[LivePart]:
    return live(*parts, role="tool")


def call_delta(call_id: str, delta: str, name: str = "execute") -> ToolCallPart:
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
def test_deltas_of_text_and_reasoning_are_joined() -> None:
    found = rebuild_partial(
        live(
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
def test_deltas_of_a_call_are_joined_at_the_first_one() -> None:
    found = rebuild_partial(
        live(
            call_delta("a", '{"x'), text("meanwhile"), call_delta("b", "{"), call_delta("a", '":1}')
        ),
        at="09:00",
    )
    assert plain(found.content) == plain(
        (
            call("a", args='{"x":1}', created_at="09:00", cut=True),
            text("meanwhile"),
            call("b", args=None, args_text="{", created_at="09:00", cut=True),
        )
    )


@pytest.mark.covers("commit-4")
def test_a_complete_call_replaces_deltas_before_and_after_it() -> None:
    whole = call("a", args='{"x":2}')
    found = rebuild_partial(live(call_delta("a", '{"x":'), whole, call_delta("a", "1}")))
    assert plain(found.content) == plain((whole,))


@pytest.mark.covers("commit-4")
def test_a_result_answers_its_call_once() -> None:
    found = rebuild_partial(
        [
            *live(call("a"), call("b")),
            *tool_live(result("a", output='{"output":"first"}'), result("a"), result("c")),
        ]
    )
    assert answered(found) == ["a"]
    assert b"first" in msgspec.json.encode(found.results[0])
    assert [draft.role for draft in found.results] == ["tool"]


@pytest.mark.covers("commit-4")
def test_a_result_delta_is_no_result() -> None:
    preview = result("a", output="{}", result_delta="line 1")
    assert rebuild_partial([*live(call("a")), *tool_live(preview)]).results == ()


@pytest.mark.covers("commit-4")
def test_a_result_without_a_value_is_no_result() -> None:
    empty = ToolResultPart(tool_call_id=call("a").tool_call_id, tool_name="execute")
    assert rebuild_partial([*live(call("a")), *tool_live(empty)]).results == ()


@pytest.mark.covers("commit-4")
def test_results_of_pending_calls_are_kept() -> None:
    found = rebuild_partial(
        tool_live(result("a"), result("x")), pending_calls=[pending("a"), pending("b")]
    )
    assert answered(found) == ["a"]
    assert found.content == ()


def test_with_pending_calls_no_answer_content_is_kept() -> None:
    assert rebuild_partial(live(text("odd")), pending_calls=[pending("a")]) == PartialAnswer()


def test_provider_results_stay_in_the_answer() -> None:
    search = call("s", "web_search", provider_executed=True)
    hits = result("s", "web_search", "[]", provider_executed=True)
    found = rebuild_partial([*live(search), *tool_live(hits), *live(text("Found."))])
    assert found.content == (search, hits, text("Found."))
    assert found.results == ()


def test_sources_are_kept_and_user_parts_are_not() -> None:
    source = SourcePart(url="https://x.example")
    file = FilePart(media_type="image/png", file_id="f")
    odd = [*live(text("odd"), role="user"), *tool_live(text("odder")), *live(file)]
    found = rebuild_partial([*live(source), *odd])
    assert found.content == (source,)


def test_an_unfinished_summary_is_dropped() -> None:
    plan = SummaryPlan(
        call_id=summary_call_id(UUID(int=1)), source="auto", threshold=70, fill=ContextFill()
    )
    begun = live(summary_call(plan))
    assert rebuild_partial(begun) == PartialAnswer()
    assert rebuild_partial([*begun, *tool_live(summary_result(plan, "Goal."))]) == PartialAnswer()


def test_without_live_parts_the_answer_is_empty() -> None:
    assert rebuild_partial([]) == PartialAnswer()


def said(*words: str) -> tuple[Draft, ...]:
    """An answer of text parts; none without words."""
    content = tuple(text(word) for word in words)
    return (Draft(role="assistant", content=content),) if words else ()


def results(*call_ids: str) -> tuple[Draft, ...]:
    return tuple(Draft(role="tool", content=(result(call_id),)) for call_id in call_ids)


@pytest.mark.promise("P4")
@pytest.mark.parametrize(
    ("own", "previous", "kept"),
    [
        ((), said("half an ans"), said("half an ans")),
        (said("half"), said("half an ans"), said("half an ans")),
        (said("a whole answer"), said("half an ans"), said("a whole answer")),
        (said("same"), said("else"), said("same")),
        (said("more"), (), said("more")),
        (results("a"), results("a", "b"), results("a", "b")),
        ((), (), ()),
    ],
)
def test_an_interrupt_keeps_the_longer_answer_and_every_result(
    own: tuple[Draft, ...], previous: tuple[Draft, ...], kept: tuple[Draft, ...]
) -> None:
    assert keep_longer(own, previous) == kept


@pytest.mark.promise("P4")
@pytest.mark.parametrize(
    ("said_by", "discarded", "longest"),
    [
        ({}, 0, None),
        ({1: [], 2: []}, 0, None),
        ({1: live(text("Once upon")), 2: live(text("Once"))}, 0, 1),
        ({1: live(text("Once")), 2: live(text("Once"))}, 0, 2),
        ({1: live(text("Once upon")), 2: live(text("Once"))}, 1, 2),
        ({1: live(text("Once upon"))}, 1, None),
        ({1: live(text("Once")), 2: live(ReasoningPart(text="Hm, so be it."))}, 0, 2),
        ({1: tool_live(result("a"))}, 0, None),
    ],
)
def test_the_longest_answer_that_was_not_discarded_is_kept_for_later_attempts(
    said_by: dict[int, list[LivePart]], discarded: int, longest: int | None
) -> None:
    chat = replace(
        seed_state(State.R0).chat, attempt=40, setbacks=Setbacks(discarded_attempt=discarded)
    )
    parts = {
        Episode(chat.id, chat.history_version, attempt): tuple(live_parts)
        for attempt, live_parts in said_by.items()
    }
    found = longest_attempt(chat, parts)
    assert (None if found is None else found.attempt) == longest


def test_an_answer_that_calls_a_tool_is_longer_than_the_text_before_the_call() -> None:
    called = (Draft(role="assistant", content=(text("I run it."), call("a"))),)
    assert keep_longer(said("I run it."), called) == called


THOUGHT = ReasoningPart(text="Hm, so.", created_at="09:00", completed_at="09:01")


@pytest.mark.promise("P8")
@pytest.mark.parametrize(
    ("shown", "stored", "missing"),
    [
        ([], [text("Once")], [text("Once")]),
        ([text("On"), text("ce")], [text("Once upon")], [text(" upon")]),
        ([text("Once")], [text("Once")], []),
        (
            [ReasoningPart(text="Hm,")],
            [THOUGHT, text("a")],
            [ReasoningPart(text=" so."), text("a")],
        ),
        ([ReasoningPart(text="Hm, so."), text("a")], [THOUGHT, text("ab")], [text("b")]),
        ([text("a")], [text("a"), call("c1")], [call("c1")]),
        ([text("a"), call_delta("c1", "{")], [text("a"), call("c1")], [call("c1")]),
        ([text("another")], [text("Once")], []),
        ([text("a"), text("b"), call("c1")], [text("ab")], []),
        ([ReasoningPart(text="Hm.")], [text("a")], []),
    ],
)
def test_what_a_message_says_after_its_live_parts(
    shown: list[KnownPart], stored: list[Part], missing: list[Part]
) -> None:
    assert list(missing_parts(live(*shown), stored)) == missing


@pytest.mark.promise("P10")
@pytest.mark.parametrize(
    ("previous", "continued"),
    [
        ([live()], None),
        ([live(text("Once"), text(" upon"))], "Once upon"),
        ([live(text("Once upon \n\n"))], "Once upon"),
        ([live(text("  \n"))], None),
        ([live(text("On")), live(text("Once upon")), live(text("Once"))], "Once upon"),
        ([live(ReasoningPart(text="Hm.")), live(text("Once"))], "Once"),
        ([live(ReasoningPart(text="Hm."), text("Once"))], None),
        ([live(text("I look."), call_delta("a", "{"))], None),
        ([live(text("I looked."), call("a"))], None),
        ([live(text("See"), SourcePart(url="https://example.com"))], None),
        ([tool_live(result("a"))], None),
    ],
)
def test_only_plain_text_is_continued(
    previous: list[list[LivePart]], continued: str | None
) -> None:
    assert continuation(previous) == continued
