"""Provider classes by kind, and the registry that opens the provider of a configured model.

The registry reports a provider's configuration error when one of its models is requested, not at
start: models of other providers keep working.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.chat.row import ChatError
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import ModelConfigId, UserId
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.failures import (
    ClassifiedFailure,
    FailureKind,
    ModelError,
    ModelRemoved,
    RemovedModel,
)
from chatd.domain.model.protocol import AcceptedFiles, ModelConfig, ProviderError
from chatd.domain.model.retry import CallLimits
from chatd.domain.ports import Clock, ModelChoice, Provider
from chatd.providers.anthropic.anthropic_client import AnthropicProvider
from chatd.providers.anthropic.bedrock import BedrockProvider
from chatd.providers.demo_provider import DemoOptions, DemoProvider
from chatd.providers.file_inputs import ANTHROPIC_FILES, GEMINI_FILES
from chatd.providers.gemini.gemini_client import GeminiProvider
from chatd.providers.gemini.gemini_models import GoogleOptions
from chatd.providers.known_models import known_capabilities
from chatd.providers.openai.chat_dialect import choose_dialect
from chatd.providers.openai.openai_models import (
    CompatOptions,
    OpenAIOptions,
    OpenRouterOptions,
    VercelOptions,
)
from chatd.providers.openai.openai_provider import OpenAIProvider
from chatd.providers.options import AnthropicOptions
from chatd.providers.prices import PriceTable, listed_name
from chatd.providers.provider_config import (
    SILENCE_LIMITS_S,
    ProviderConfig,
    ProviderKind,
    config_fault,
)

PROVIDER_CLASSES: Final[Mapping[ProviderKind, Callable[[ProviderConfig], Provider]]] = {
    "anthropic": AnthropicProvider,
    "azure": OpenAIProvider,
    "google": GeminiProvider,
    "openai": OpenAIProvider,
    "openai-compat": OpenAIProvider,
    "openrouter": OpenAIProvider,
    "vercel": OpenAIProvider,
}

# Bedrock signs requests with the time; the demo model paces its answers.
CLOCKED_PROVIDER_CLASSES: Final[
    Mapping[ProviderKind, Callable[[ProviderConfig, Clock], Provider]]
] = {
    "bedrock": BedrockProvider,
    "demo": DemoProvider,
}

OPTION_CLASSES: Final[Mapping[ProviderKind, type[Struct]]] = {
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
MODEL_NOT_CONFIGURED_TEXT: Final = (
    "The chat's model is not configured any more. Choose another one."
)


def build_provider(config: ProviderConfig, clock: Clock | None = None) -> Provider:
    """Sends nothing. Raises `ProviderError` that names the missing setting."""
    if (clocked := CLOCKED_PROVIDER_CLASSES.get(config.kind)) is not None:
        if clock is None:
            raise InvariantBroken(f"a provider of kind {config.kind} needs a clock")
        return clocked(config, clock)
    provider_class = PROVIDER_CLASSES.get(config.kind)
    if provider_class is None:
        raise config_fault(config, f"providers of kind {config.kind} are not supported")
    return provider_class(config)


def build_limits(model: ModelConfig, provider: ProviderConfig) -> CallLimits:
    silence_s = provider.http.silence_s or SILENCE_LIMITS_S[provider.kind]
    return CallLimits.of_model(model.max_output_tokens, silence_s, provider.http.answer_s)


def accepted_files(model: ModelConfig, provider: ProviderConfig) -> AcceptedFiles:
    match provider.kind:
        case "anthropic" | "bedrock" | "demo":
            accepts = ANTHROPIC_FILES
        case "google":
            accepts = GEMINI_FILES
        case _:
            base = provider.base_url or ""
            accepts = choose_dialect(provider.kind, base, model.model).accepted_files
    return accepts.limited_to(model.file_inputs)


class ProviderRegistry:
    """Satisfies `ports.Models`. The first model is the default."""

    def __init__(
        self,
        models: Sequence[ModelConfig],
        providers: Mapping[str, ProviderConfig],
        clock: Clock,
    ) -> None:
        self._models = {model.id: model for model in models}
        self._configs = providers
        self._clock = clock
        self._prices = PriceTable()
        self._open: dict[str, Provider] = {}
        self._filled: dict[ModelConfigId, tuple[ModelConfig, ModelConfig]] = {}

    @property
    def models(self) -> Sequence[ModelConfig]:
        return tuple(self._models.values())

    @property
    def providers(self) -> Mapping[str, ProviderConfig]:
        return self._configs

    async def choose(
        self, model_config_id: ModelConfigId | None, owner_id: UserId | None = None
    ) -> ModelChoice:
        """The keys of the settings are for all users."""
        del owner_id
        model = self.find(model_config_id)
        if model is None:
            raise missing_model(model_config_id)
        return await self.open(model)

    async def open(self, config: ModelConfig) -> ModelChoice:
        """Also opens a model that only other replicas have declared, if its provider is
        configured here."""
        provider_config = self._configs.get(config.provider)
        if provider_config is None:
            raise config_error(
                f"The provider of the model {config.name} is not configured on this server."
            )
        try:
            provider = self._provider(config.provider, provider_config)
        except ProviderError as failed:
            raise ModelError(classify_fault(failed.fault)) from failed
        return ModelChoice(
            config=await self.fill_missing(config, provider_config.kind, provider_config.base_url),
            provider=provider,
            kind=provider_config.kind,
            limits=build_limits(config, provider_config),
            files=accepted_files(config, provider_config),
            efforts=known_capabilities(provider_config.kind, listed_name(config)).efforts,
        )

    def find(self, wanted: ModelConfigId | None) -> ModelConfig | None:
        if wanted is not None:
            return self._models.get(wanted)
        return next(iter(self._models.values()), None)

    async def close(self) -> None:
        for provider in self._open.values():
            await provider.close()
        self._open.clear()

    def _provider(self, name: str, config: ProviderConfig) -> Provider:
        found = self._open.get(name)
        if found is None:
            found = self._open[name] = build_provider(config, self._clock)
        return found

    async def fill_missing(
        self, model: ModelConfig, kind: ProviderKind, base_url: str | None
    ) -> ModelConfig:
        """In a thread: the first look-up of a price takes half a second."""
        found = self._filled.get(model.id)
        if found is None or found[0] != model:
            filled = await asyncio.to_thread(
                self._prices.fill_missing, model, kind, self._clock.now(), base_url
            )
            found = self._filled[model.id] = (model, filled)
        return found[1]


def missing_model(model_id: ModelConfigId | None) -> ModelError:
    """No row says what it was."""
    if model_id is None:
        return config_error("No model is configured. An administrator must add one.")
    removed = RemovedModel(id=model_id, name="The chat's model")
    return ModelRemoved(removed, MODEL_NOT_CONFIGURED_TEXT)


def config_error(message: str, kind: FailureKind = "config") -> ModelError:
    return ModelError(ClassifiedFailure(kind=kind, error=ChatError(message=message, kind=kind)))
