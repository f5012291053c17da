"""What one provider has said, for another to read."""

from uuid import UUID

import pytest
from msgspec import Raw

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import (
    Part,
    ReasoningPart,
    SourcePart,
    TextPart,
    UnknownPart,
    encode_parts,
)
from chatd.domain.ids import ModelConfigId
from chatd.domain.prompt.builder import PromptTarget, build_prompt
from chatd.domain.prompt.provider_content import (
    is_from_other_provider,
    strip_provider_content,
)
from tests.support.factories import call, message, result, text
from tests.support.prompt_rules import find_problems

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
    assert find_problems(prompt) == []
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
