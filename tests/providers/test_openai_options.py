"""Options of OpenAI's kinds of providers, as administrators write them."""

import msgspec
import pytest
from msgspec import UNSET, Raw, Struct

from chatd.domain.errors import InvalidInput
from chatd.providers.options import parse
from chatd.providers.options_openai import (
    CompatOptions,
    OpenAIOptions,
    OpenRouterOptions,
    Reasoning,
    VercelOptions,
)
from chatd.providers.registry import BUILDERS, OPTIONS

BLOCKS: list[type[Struct]] = [OpenAIOptions, CompatOptions, OpenRouterOptions, VercelOptions]


@pytest.mark.parametrize("block", BLOCKS)
def test_nothing_said_is_fine(block: type[Struct]) -> None:
    assert parse(block, UNSET) == parse(block, Raw(b"{}")) == block()


@pytest.mark.parametrize(
    ("block", "options", "field"),
    [
        (OpenAIOptions, {"verbosity": "low"}, "options"),
        (OpenAIOptions, {"text_verbosity": "loud"}, "options.text_verbosity"),
        (OpenAIOptions, {"reasoning_effort": "huge"}, "options.reasoning_effort"),
        (OpenAIOptions, {"max_completion_tokens": 0}, "options.max_completion_tokens"),
        (OpenAIOptions, {"service_tier": "gold"}, "options.service_tier"),
        (OpenAIOptions, {"logit_bias": {"5": 101}}, "options.logit_bias[...]"),
        (OpenAIOptions, {"top_log_probs": 21}, "options.top_log_probs"),
        (OpenAIOptions, {"allowed_domains": [""]}, "options.allowed_domains[0]"),
        (OpenAIOptions, {"metadata": {str(n): "x" for n in range(17)}}, "options.metadata"),
        (CompatOptions, {"web_search_enabled": True}, "options"),
        (OpenRouterOptions, {"reasoning": {"max_tokens": 0}}, "options.reasoning.max_tokens"),
        (OpenRouterOptions, {"provider": {"sort": "beauty"}}, "options.provider.sort"),
        (VercelOptions, {"providerOptions": {"only": []}}, "options.providerOptions"),
    ],
)
def test_what_is_wrong_is_named(
    block: type[Struct], options: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse(block, Raw(msgspec.json.encode(options)))
    assert refused.value.field == field


@pytest.mark.parametrize("block", [OpenRouterOptions, VercelOptions])
def test_thinking_is_bounded_in_one_way(block: type[OpenRouterOptions | VercelOptions]) -> None:
    both = Raw(b'{"reasoning":{"max_tokens":5,"effort":"low"}}')
    with pytest.raises(InvalidInput, match="exclude each other"):
        parse(block, both)
    assert parse(block, Raw(b'{"reasoning":{"effort":"low"}}')).reasoning == Reasoning(effort="low")


@pytest.mark.parametrize("block", BLOCKS)
def test_a_form_can_be_made_of_them(block: type[Struct]) -> None:
    schema = msgspec.json.schema(block)["$defs"][block.__name__]
    assert schema["additionalProperties"] is False
    assert all("description" in found for found in schema["properties"].values())


def test_every_kind_that_can_be_built_has_options() -> None:
    assert set(BUILDERS) <= set(OPTIONS)
