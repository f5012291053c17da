"""Facts about OpenAI models by name, options of their providers, and Azure addresses."""

import msgspec
import pytest
from msgspec import UNSET, Raw, Struct

from chatd.domain.errors import InvalidInput
from chatd.domain.model.protocol import Effort
from chatd.providers.openai.openai_models import (
    CompatOptions,
    OpenAIOptions,
    OpenRouterOptions,
    ReasoningOptions,
    VercelOptions,
    choose_transport,
    find_model,
    fit_effort,
    forbid_storage,
    supports_reasoning,
)
from chatd.providers.openai.openai_provider import azure_url
from chatd.providers.options import parse_options
from chatd.providers.registry import OPTION_CLASSES, PROVIDER_CLASSES


@pytest.mark.parametrize(
    ("model", "transport"),
    [
        ("gpt-4o-mini", "responses"),
        ("gpt-4.1-2025-04-14", "responses"),
        ("gpt-5", "responses"),
        ("gpt-5.2-pro", "responses"),
        ("gpt-6-astra", "responses"),
        ("o1", "responses"),
        ("o4-mini-2025-04-16", "responses"),
        ("codex-mini-latest", "responses"),
        ("computer-use-preview", "responses"),
        ("ft:gpt-4o-mini:acme::1", "responses"),
        ("gpt-3.5-turbo", "chat"),
        ("gpt-4o-search-preview", "chat"),
        ("gpt-oss-120b", "chat"),
        ("gpt-35-turbo", "chat"),
        ("gpt-5-search-api", "chat"),
        ("gpt-5.7-new", "responses"),
        ("o3-pro", "responses"),
        ("my-deployment", "chat"),
        ("llama3.3", "chat"),
    ],
)
def test_known_models_use_the_responses_api(model: str, transport: str) -> None:
    assert choose_transport(model, use_responses_api=None) == transport


@pytest.mark.covers("providers-15")
def test_the_configured_api_wins_over_the_name() -> None:
    assert choose_transport("gpt-5", use_responses_api=False) == "chat"
    assert choose_transport("my-deployment", use_responses_api=True) == "responses"


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("o3", True),
        ("openai/o3-mini", True),
        ("gpt-5-nano", True),
        ("gpt-5.1-chat-latest", True),
        ("gpt-6-astra", True),
        ("openai/gpt-oss-20b", True),
        ("gpt-5-chat-latest", False),
        ("gpt-4o", False),
        ("chatgpt-4o-latest", False),
        ("gpt-3.5-turbo", False),
        ("my-deployment", None),
        ("olmo-2", None),
        ("deepseek-reasoner", None),
    ],
)
def test_reasoning_models_are_known_by_name(model: str, *, known: bool | None) -> None:
    assert supports_reasoning(model) is known


@pytest.mark.covers("providers-14")
@pytest.mark.parametrize(
    ("model", "asked", "sent"),
    [
        ("o3", "none", "low"),
        ("o3", "xhigh", "high"),
        ("gpt-5", "none", "minimal"),
        ("gpt-5", "max", "high"),
        ("gpt-5-pro", "low", "high"),
        ("gpt-5-codex", "minimal", "low"),
        ("gpt-5.1", "none", "none"),
        ("gpt-5.1", "minimal", "low"),
        ("gpt-5.1-codex-max", "xhigh", "xhigh"),
        ("gpt-5.2", "max", "xhigh"),
        ("gpt-5.2-chat-latest", "high", "medium"),
        ("gpt-5.6-sol", "max", "max"),
        ("gpt-5.2-pro", "none", "medium"),
        ("gpt-6-astra", "minimal", "low"),
        ("gpt-6-astra", "none", "low"),
        ("gpt-6.1-sol", "none", "low"),
        ("gpt-6.1-sol-2026-10-01", "max", "max"),
        ("gpt-6-luna", "none", "none"),
        ("gpt-6.1-terra", "none", "none"),
        ("gpt-7-nova", "none", "low"),
        ("gpt-7-nova", "max", "high"),
        ("openai/gpt-oss-20b", "max", "high"),
        ("my-deployment", "minimal", "minimal"),
    ],
)
def test_an_effort_is_fitted_to_the_model(model: str, asked: Effort, sent: str) -> None:
    assert fit_effort(asked, model) == sent


@pytest.mark.parametrize(
    ("model", "needs"),
    [
        ("gpt-5-pro-2025-10-06", True),
        ("gpt-5.5-pro", True),
        ("o3-deep-research", True),
        ("gpt-5.1-codex-mini", True),
        ("gpt-6-astra", True),
        ("gpt-6.1-sol", True),
        ("gpt-6-luna", False),
        ("gpt-5", False),
        ("o3-mini", False),
    ],
)
def test_models_of_the_responses_api_only_are_known(model: str, *, needs: bool) -> None:
    found = find_model(model)
    assert found is not None
    assert found.needs_responses is needs


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("https://Acme.openai.azure.com", "https://acme.openai.azure.com/openai/v1"),
        ("https://acme.openai.azure.com/openai/v1", "https://acme.openai.azure.com/openai/v1"),
        (
            "https://acme.openai.azure.com/openai/deployments/x?api-version=2024-10-21",
            "https://acme.openai.azure.com/openai/v1",
        ),
        ("https://acme.cognitiveservices.azure.com", "https://acme.openai.azure.com/openai/v1"),
        (
            "https://acme.services.ai.azure.com/api/projects/p",
            "https://acme.openai.azure.com/openai/v1",
        ),
        ("https://gate.example.com/azure/v1", "https://gate.example.com/azure/v1"),
        ("https://openai.azure.com.example.com/x", "https://openai.azure.com.example.com/x"),
    ],
)
def test_azure_addresses_are_converted_to_the_current_form(given: str, used: str) -> None:
    assert azure_url(given) == used


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


@pytest.mark.parametrize(
    ("options", "base", "store"),
    [
        (OpenAIOptions(), "https://api.openai.com/v1", False),
        (OpenAIOptions(), "https://eu.api.openai.com/v1", False),
        (OpenAIOptions(), "https://house.openai.azure.com/openai/v1", False),
        (OpenAIOptions(store=True), "https://api.openai.com/v1", True),
        (OpenAIOptions(metadata={"a": "b"}), "https://api.openai.com/v1", None),
        (OpenAIOptions(), "https://gateway.example.org/v1", None),
    ],
)
def test_the_vendors_are_told_not_to_store_chats(
    options: OpenAIOptions,
    base: str,
    store: bool | None,  # noqa: FBT001
) -> None:
    assert forbid_storage(options, base).store is store
