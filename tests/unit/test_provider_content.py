"""Answers of another provider in a prompt: what is sent and what is removed."""

from uuid import UUID

import pytest
from msgspec import Raw

from chatd.domain.chat.messages import Message, encode_parts
from chatd.domain.chat.parts import Part, ReasoningPart, SourcePart, TextPart, UnknownPart
from chatd.domain.ids import ModelConfigId
from chatd.domain.prompt.builder import PromptTarget, build_prompt, is_from_other_provider
from chatd.domain.prompt.provider_content import strip_provider_content
from tests.support.domain.prompt_rules import find_problems
from tests.support.factories import call, message, result, text

EAST, WEST = ModelConfigId(UUID(int=1)), ModelConfigId(UUID(int=2))
ORIGINS = {EAST: "anthropic-east", WEST: "anthropic-west"}
SIGNED = Raw(b'{"anthropic":{"signature":"s"}}')
SEARCH = call("s", "web_search", provider_executed=True)
FOUND = result("s", "web_search", '[{"title":"X","url":"u"}]', provider_executed=True)


def parts_sent(model: ModelConfigId | None, *parts: Part) -> list[str]:
    """The kinds of prompt parts that anthropic-east gets of an answer by `model`."""
    rows = (
        message(1, "user", text("hi")),
        message(2, "assistant", *parts, model_config_id=model),
        message(3, "user", text("ok")),
    )
    prompt = build_prompt(rows, PromptTarget(provider="anthropic-east", origins=ORIGINS))
    assert find_problems(prompt) == []
    return [type(part).__name__ for m in prompt[1:-1] for part in m.parts]


CONTENT = (ReasoningPart(text="hm", provider_metadata=SIGNED), SEARCH, FOUND, text("So."))


@pytest.mark.covers("guard-9")
def test_an_answer_of_the_same_provider_is_sent_unchanged() -> None:
    assert parts_sent(EAST, *CONTENT) == [
        "PromptReasoning",
        "PromptCall",
        "PromptResult",
        "PromptText",
    ]


@pytest.mark.covers("guard-9")
@pytest.mark.parametrize("model", [WEST, ModelConfigId(UUID(int=9)), None])
def test_an_answer_of_another_provider_loses_reasoning_and_provider_executed_calls(
    model: ModelConfigId | None,
) -> None:
    assert parts_sent(model, *CONTENT) == ["PromptText"]


@pytest.mark.covers("guard-9")
def test_an_answer_of_another_provider_left_empty_is_dropped() -> None:
    assert parts_sent(WEST, SEARCH, FOUND) == []


@pytest.mark.covers("guard-9")
def test_two_accounts_at_one_vendor_are_different_providers() -> None:
    row = message(1, "assistant", text(), model_config_id=WEST)
    assert is_from_other_provider(row, "anthropic-east", ORIGINS)
    assert not is_from_other_provider(row, "anthropic-west", ORIGINS)


def test_without_origins_every_answer_is_of_this_provider() -> None:
    assert not is_from_other_provider(message(1, "assistant", text()), "east", None)


def test_user_and_tool_messages_are_never_of_another_provider() -> None:
    rows: list[Message] = [message(1, "user", text()), message(2, "tool", result("a"))]
    assert not any(is_from_other_provider(row, "east", ORIGINS) for row in rows)


@pytest.mark.covers("guard-9")
def test_text_and_local_calls_stay_without_provider_metadata() -> None:
    content = [
        TextPart(text="So.", provider_metadata=SIGNED),
        call("a", provider_metadata=SIGNED),
        SourcePart(url="u"),
        UnknownPart(raw=Raw(b'{"type":"new"}')),
    ]
    expected = [text("So."), call("a"), *content[2:]]
    assert encode_parts(strip_provider_content(content)) == encode_parts(expected)
