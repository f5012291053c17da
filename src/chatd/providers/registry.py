"""Which kind of provider is built by whom. The only list of them."""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from chatd.domain.errors import InvariantBroken
from chatd.domain.ports import Clock, Provider
from chatd.providers.anthropic.client import AnthropicProvider
from chatd.providers.bedrock.client import BedrockProvider
from chatd.providers.demo.provider import DemoOptions, DemoProvider
from chatd.providers.gemini.client import GeminiProvider
from chatd.providers.openai import OpenAIProvider
from chatd.providers.options import AnthropicOptions
from chatd.providers.options_google import GoogleOptions
from chatd.providers.options_openai import (
    CompatOptions,
    OpenAIOptions,
    OpenRouterOptions,
    VercelOptions,
)
from chatd.providers.settings import Kind, ProviderSettings, misconfigured

BUILDERS: Final[Mapping[Kind, Callable[[ProviderSettings], Provider]]] = {
    "anthropic": AnthropicProvider,
    "azure": OpenAIProvider,
    "google": GeminiProvider,
    "openai": OpenAIProvider,
    "openai-compat": OpenAIProvider,
    "openrouter": OpenAIProvider,
    "vercel": OpenAIProvider,
}

TIMED_BUILDERS: Final[Mapping[Kind, Callable[[ProviderSettings, Clock], Provider]]] = {
    "bedrock": BedrockProvider,
    "demo": DemoProvider,
}

# By the kind of provider: the options of its models.
OPTIONS: Final[Mapping[Kind, type[Struct]]] = {
    "anthropic": AnthropicOptions,
    "azure": OpenAIOptions,
    "bedrock": AnthropicOptions,
    "demo": DemoOptions,
    "google": GoogleOptions,
    "openai": OpenAIOptions,
    "openai-compat": CompatOptions,
    "openrouter": OpenRouterOptions,
    "vercel": VercelOptions,
}


def build(settings: ProviderSettings, clock: Clock | None = None) -> Provider:
    """Nothing is sent yet. Raises `ProviderFailed` that says what is missing.

    The clock is for those who sign, because a signature tells the time, and for the demo, which
    speaks at a pace.
    """
    if (timed := TIMED_BUILDERS.get(settings.kind)) is not None:
        if clock is None:
            raise InvariantBroken(f"a provider of kind {settings.kind} needs a clock")
        return timed(settings, clock)
    builder = BUILDERS.get(settings.kind)
    if builder is None:
        raise misconfigured(settings, f"providers of kind {settings.kind} are not supported")
    return builder(settings)
