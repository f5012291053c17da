"""Facts about OpenAI models by name, and Azure addresses."""

import pytest

from chatd.domain.model.protocol import Effort
from chatd.providers.openai.connection import azure_url
from chatd.providers.openai.models import choose_transport, fit_effort, supports_reasoning


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
        ("gpt-6-astra", "minimal", "low"),
        ("openai/gpt-oss-20b", "max", "high"),
        ("my-deployment", "minimal", "minimal"),
    ],
)
def test_an_effort_is_fitted_to_the_model(model: str, asked: Effort, sent: str) -> None:
    assert fit_effort(asked, model) == sent


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
