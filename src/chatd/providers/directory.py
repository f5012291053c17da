"""The models of this deployment and whoever serves them.

Owns looking one up and keeping its provider open. A provider that is not set
up right is told of when its model is wanted, not at start: the others work.
"""

import asyncio
from collections.abc import Mapping, Sequence

from chatd.domain.classify import classify
from chatd.domain.failures import ModelFailed
from chatd.domain.ids import ModelConfigId
from chatd.domain.model import ModelConfig, ProviderFailed, ProviderFault
from chatd.domain.ports import Clock, ModelChoice, Provider
from chatd.providers.prices import PriceBook
from chatd.providers.registry import build
from chatd.providers.settings import ProviderSettings


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

    async def choose(self, wanted: ModelConfigId | None) -> ModelChoice:
        config = self._find(wanted)
        if config is None:
            fault = ProviderFault(
                message="the chat's model is not configured any more", type="config"
            )
            raise ModelFailed(classify(fault))
        settings = self._settings[config.provider]
        try:
            provider = self._provider(settings)
        except ProviderFailed as failed:
            raise ModelFailed(classify(failed.fault)) from failed
        return ModelChoice(
            config=await self._with_facts(config, settings),
            provider=provider,
            kind=settings.kind,
        )

    def _find(self, wanted: ModelConfigId | None) -> ModelConfig | None:
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

    async def all(self) -> Sequence[ModelConfig]:
        return tuple(self._models.values())

    async def get(self, model_id: ModelConfigId) -> ModelConfig | None:
        return self._models.get(model_id)

    async def by_name(self, name: str) -> ModelConfig | None:
        return next((model for model in self._models.values() if model.name == name), None)

    async def default(self) -> ModelConfig | None:
        return self._find(None)

    async def close(self) -> None:
        for provider in self._open.values():
            await provider.close()
        self._open.clear()
