"""What one provider has said, for another to read."""

from uuid import UUID

import pytest
from msgspec import UNSET, Raw

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import (
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    UnknownPart,
    encode_parts,
)
from chatd.domain.ids import ModelConfigId, ToolCallId
from chatd.domain.model.protocol import (
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from chatd.domain.prompt.provider_content import (
    flattened,
    is_from_other_provider,
    strip_provider_content,
)
from tests.support.factories import call, message, result, text
from tests.support.wellformed import problems

EAST, WEST = ModelConfigId(UUID(int=1)), ModelConfigId(UUID(int=2))
ORIGINS = {EAST: "anthropic-east", WEST: "anthropic-west"}
SEAL = Raw(b'{"anthropic":{"signature":"s"}}')
SEARCH = call("s", "web_search", provider_executed=True)
FOUND = result("s", "web_search", '[{"title":"X","url":"u"}]', provider_executed=True)


def told(model: ModelConfigId | None, *parts: Part) -> list[str]:
    """An answer by that model, as the east reads it."""
    rows = (
        message(1, "user", text("hi")),
        message(2, "assistant", *parts, model_config_id=model),
        message(3, "user", text("ok")),
    )
    prompt = build_prompt(rows, PromptTarget(provider="anthropic-east", origins=ORIGINS))
    assert problems(prompt) == []
    return [type(part).__name__ for m in prompt[1:-1] for part in m.parts]


WHOLE = (ReasoningPart(text="hm", provider_metadata=SEAL), SEARCH, FOUND, text("So."))


@pytest.mark.covers("guard-9")
def test_an_answer_of_the_same_provider_is_told_as_it_is() -> None:
    assert told(EAST, *WHOLE) == ["PromptReasoning", "PromptCall", "PromptResult", "PromptText"]


@pytest.mark.covers("guard-9")
@pytest.mark.parametrize("model", [WEST, ModelConfigId(UUID(int=9)), None])
def test_of_an_answer_from_elsewhere_only_what_means_something_here_is_told(
    model: ModelConfigId | None,
) -> None:
    assert told(model, *WHOLE) == ["PromptText"]


@pytest.mark.covers("guard-9")
def test_an_answer_from_elsewhere_with_nothing_left_is_gone() -> None:
    assert told(WEST, SEARCH, FOUND) == []


@pytest.mark.covers("guard-9")
def test_instances_of_one_vendor_are_strangers_to_each_other() -> None:
    row = message(1, "assistant", text(), model_config_id=WEST)
    assert is_from_other_provider(row, "anthropic-east", ORIGINS)
    assert not is_from_other_provider(row, "anthropic-west", ORIGINS)


def test_without_knowing_who_answered_nothing_is_foreign() -> None:
    assert not is_from_other_provider(message(1, "assistant", text()), "east", None)


def test_what_people_and_tools_said_is_never_foreign() -> None:
    rows: list[Message] = [message(1, "user", text()), message(2, "tool", result("a"))]
    assert not any(is_from_other_provider(row, "east", ORIGINS) for row in rows)


@pytest.mark.covers("guard-9")
def test_our_own_calls_stay_without_what_was_attached_to_them() -> None:
    content = [
        TextPart(text="So.", provider_metadata=SEAL),
        call("a", provider_metadata=SEAL),
        SourcePart(url="u"),
        UnknownPart(raw=Raw(b'{"type":"new"}')),
    ]
    expected = [text("So."), call("a"), *content[2:]]
    assert encode_parts(strip_provider_content(content)) == encode_parts(expected)


# Flattened for a model elsewhere


def flat(*parts: PromptPart, role: str = "assistant") -> list[PromptPart]:
    ours = PromptMessage(role="user", parts=(PromptText(text="hi"),))
    if role == "tool":
        calls = tuple(
            PromptCall(id=part.id, name=part.name, input=Raw(b"{}"))
            for part in parts
            if isinstance(part, PromptResult)
        )
        given = [ours, PromptMessage(role="assistant", parts=calls)]
        given.append(PromptMessage(role="tool", parts=parts))
        return list(flattened(given, lambda kind: False)[2].parts)
    if role == "user":
        return list(
            flattened([PromptMessage(role="user", parts=parts)], lambda kind: False)[0].parts
        )
    return list(flattened([ours, PromptMessage(role="assistant", parts=parts)])[1].parts)


S = ToolCallId("s")


@pytest.mark.covers("compaction-9")
def test_a_search_is_told_in_words() -> None:
    parts = flat(
        PromptCall(id=S, name="web_search", input=Raw(b'{"q":"x"}'), provider_executed=True),
        PromptResult(
            id=S,
            name="web_search",
            text="",
            raw=Raw(b'[{"title":"X","url":"u"}]'),
            provider_executed=True,
        ),
    )
    assert parts == [
        PromptText(text='[Called web_search with {"q":"x"}]'),
        PromptText(text="[Result of web_search]\nX u"),
    ]


def test_thoughts_and_attachments_are_left_out() -> None:
    parts = flat(
        PromptReasoning(text="hm", provider_metadata=SEAL),
        PromptText(text="So.", provider_metadata=SEAL),
    )
    assert parts == [PromptText(text="So.")]


def test_our_own_calls_and_results_stay() -> None:
    given = PromptResult(id=S, name="execute", text="done", provider_metadata=SEAL)
    assert flat(given, role="tool") == [PromptResult(id=S, name="execute", text="done")]


@pytest.mark.covers("compaction-9")
def test_media_of_a_tool_leave_a_word_behind() -> None:
    media = PromptFile(media_type="image/png", data=b"x")
    (bare,) = flat(PromptResult(id=S, name="see", text="", media=media), role="tool")
    (worded,) = flat(PromptResult(id=S, name="see", text="a cat", media=media), role="tool")
    assert isinstance(bare, PromptResult)
    assert isinstance(worded, PromptResult)
    assert (bare.media, worded.media) == (None, None)
    assert bare.text == "[A picture or file that the tool made is left out here.]"
    assert worded.text.startswith("a cat\n[")


@pytest.mark.covers("compaction-9")
def test_a_file_that_would_not_be_shown_leaves_a_word_behind() -> None:
    file = PromptFile(media_type="application/pdf; q=1", data=b"x", name="a.pdf")
    words = PromptText(text="[The file a.pdf of type application/pdf is left out here.]")
    assert flat(file, role="user") == [words]
    kept = flattened([PromptMessage(role="user", parts=(file,))], lambda kind: True)
    assert kept[0].parts == (file,)


@pytest.mark.covers("compaction-9")
def test_a_search_outside_an_answer_is_left_out() -> None:
    search = PromptCall(id=S, name="web_search", input=Raw(b"{}"), provider_executed=True)
    hits = PromptResult(id=S, name="web_search", text="", provider_executed=True)
    assert flat(PromptText(text="hi"), search, hits, role="user") == [PromptText(text="hi")]


@pytest.mark.covers("compaction-9")
def test_the_prompt_that_is_flattened_stays_as_it_was() -> None:
    given = (
        PromptMessage(role="system", parts=(PromptText(text="Be kind."),)),
        PromptMessage(role="user", parts=(PromptText(text="hi", provider_metadata=SEAL),)),
    )
    before = tuple(given)
    flat_given = flattened(given)
    assert given == before
    assert flat_given[0] == given[0]
    assert flat_given[1].parts == (PromptText(text="hi", provider_metadata=UNSET),)
