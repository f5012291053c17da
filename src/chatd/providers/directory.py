"""The models that this process was told of, and whoever serves them.

Owns looking one up and keeping its provider open. A provider that is not set
up right is told of when its model is wanted, not at start: the others work.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from chatd.domain.chat.row import ChatError
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.classify import classify_fault
from chatd.domain.model.failures import ClassifiedFailure, ModelError
from chatd.domain.model.protocol import ModelConfig, ProviderError
from chatd.domain.ports import Clock, ModelChoice, Provider
from chatd.providers.prices import PriceBook
from chatd.providers.registry import build
from chatd.providers.settings import ProviderSettings

GONE: Final = "The chat's model is not configured any more. Choose another one."


class Directory:
    """Satisfies `ports.Models`. The first model is the default."""

    def __init__(
        self,
        models: Sequence[ModelConfig],
        providers: Mapping[str, ProviderSettings],
        clock: Clock,
    ) -> None:
        self._models = {model.id: model for model in models}
        self._settings = providers
        self._clock = clock
        self._prices = PriceBook()
        self._open: dict[str, Provider] = {}
        self._filled: dict[ModelConfigId, ModelConfig] = {}

    @property
    def models(self) -> Sequence[ModelConfig]:
        return tuple(self._models.values())

    @property
    def providers(self) -> Mapping[str, ProviderSettings]:
        return self._settings

    async def choose(self, wanted: ModelConfigId | None) -> ModelChoice:
        config = self.find(wanted)
        if config is None:
            raise misfit(GONE)
        return await self.open(config)

    async def open(self, config: ModelConfig) -> ModelChoice:
        """Also for a model that only others were told of, if its provider is known here."""
        settings = self._settings.get(config.provider)
        if settings is None:
            raise misfit(
                f"The provider of the model {config.name} is not configured on this server."
            )
        try:
            provider = self._provider(settings)
        except ProviderError as failed:
            raise ModelError(classify_fault(failed.fault)) from failed
        return ModelChoice(
            config=await self._with_facts(config, settings),
            provider=provider,
            kind=settings.kind,
        )

    def find(self, wanted: ModelConfigId | None) -> ModelConfig | None:
        if wanted is not None:
            return self._models.get(wanted)
        return next(iter(self._models.values()), None)

    def _provider(self, settings: ProviderSettings) -> Provider:
        found = self._open.get(settings.label)
        if found is None:
            found = self._open[settings.label] = build(settings, self._clock)
        return found

    async def _with_facts(self, config: ModelConfig, settings: ProviderSettings) -> ModelConfig:
        """Not on the loop: the first look into the table of prices takes half a second."""
        found = self._filled.get(config.id)
        if found is None:
            found = await asyncio.to_thread(
                self._prices.filled, config, settings.kind, self._clock.now(), settings.base_url
            )
            self._filled[config.id] = found
        return found

    async def close(self) -> None:
        for provider in self._open.values():
            await provider.close()
        self._open.clear()


def misfit(message: str) -> ModelError:
    """Something is set up in a way that this chat cannot be answered with."""
    return ModelError(
        ClassifiedFailure(kind="config", error=ChatError(message=message, kind="config"))
    )
