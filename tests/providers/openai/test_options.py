"""Options of providers with OpenAI's APIs."""

import msgspec
import pytest
from msgspec import UNSET, Raw, Struct

from chatd.domain.errors import InvalidInput
from chatd.providers.openai.models import (
    CompatOptions,
    OpenAIOptions,
    OpenRouterOptions,
    ReasoningOptions,
    VercelOptions,
)
from chatd.providers.options import parse_options
from chatd.providers.registry import OPTION_CLASSES, PROVIDER_CLASSES

BLOCKS: list[type[Struct]] = [OpenAIOptions, CompatOptions, OpenRouterOptions, VercelOptions]


@pytest.mark.parametrize("block", BLOCKS)
def test_missing_options_are_the_defaults(block: type[Struct]) -> None:
    assert parse_options(block, UNSET) == parse_options(block, Raw(b"{}")) == block()


@pytest.mark.parametrize(
    ("block", "options", "field"),
    [
        (OpenAIOptions, {"verbosity": "low"}, "options.verbosity"),
        (OpenAIOptions, {"text_verbosity": "loud"}, "options.text_verbosity"),
        (OpenAIOptions, {"reasoning_effort": "huge"}, "options.reasoning_effort"),
        (OpenAIOptions, {"max_completion_tokens": 0}, "options.max_completion_tokens"),
        (OpenAIOptions, {"service_tier": "gold"}, "options.service_tier"),
        (OpenAIOptions, {"logit_bias": {"5": 101}}, "options.logit_bias[...]"),
        (OpenAIOptions, {"top_log_probs": 21}, "options.top_log_probs"),
        (OpenAIOptions, {"allowed_domains": [""]}, "options.allowed_domains[0]"),
        (OpenAIOptions, {"metadata": {str(n): "x" for n in range(17)}}, "options.metadata"),
        (CompatOptions, {"web_search_enabled": True}, "options.web_search_enabled"),
        (OpenRouterOptions, {"reasoning": {"max_tokens": 0}}, "options.reasoning.max_tokens"),
        (OpenRouterOptions, {"provider": {"sort": "beauty"}}, "options.provider.sort"),
        (VercelOptions, {"providerOptions": {"only": []}}, "options.providerOptions.only"),
    ],
)
def test_an_invalid_option_is_named(
    block: type[Struct], options: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_options(block, Raw(msgspec.json.encode(options)))
    assert refused.value.field == field


@pytest.mark.parametrize("block", [OpenRouterOptions, VercelOptions])
def test_effort_and_token_limit_exclude_each_other(
    block: type[OpenRouterOptions | VercelOptions],
) -> None:
    both = Raw(b'{"reasoning":{"max_tokens":5,"effort":"low"}}')
    with pytest.raises(InvalidInput, match="exclude each other"):
        parse_options(block, both)
    assert parse_options(
        block, Raw(b'{"reasoning":{"effort":"low"}}')
    ).reasoning == ReasoningOptions(effort="low")


@pytest.mark.parametrize("block", BLOCKS)
def test_options_have_a_json_schema(block: type[Struct]) -> None:
    schema = msgspec.json.schema(block)["$defs"][block.__name__]
    assert schema["additionalProperties"] is False
    assert all("description" in found for found in schema["properties"].values())


def test_every_provider_kind_has_options() -> None:
    assert set(PROVIDER_CLASSES) <= set(OPTION_CLASSES)
