"""Models and providers: which there are, and which one a message is for.

They are declared in the settings, so nothing can be changed here.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from chatd.api.call import Call, Reply, Route, reply
from chatd.api.doors import Doors, ModelDirectory
from chatd.api.wire import (
    ListedModel,
    ModelParameters,
    ModelReply,
    ModelsQuery,
    ModelsReply,
    ModelWish,
    PriceList,
    ProviderModels,
    ProviderReply,
)
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import Prices
from chatd.store.model_configs import StoredModel, StoredProvider

KEYLESS: Final = frozenset({"demo", "openai-compat"})
"""Kinds of providers that may be used without a key."""


async def chosen(models: ModelDirectory, wish: ModelWish) -> ModelConfigId | None:
    """None if the wish names none. Raises InvalidInput if it names one that is not there."""
    by_name = by_id = None
    if wish.model is not None:
        by_name = _usable("model", await models.by_name(wish.model))
    if wish.model_config_id is not None:
        found = await models.get(ModelConfigId(wish.model_config_id))
        by_id = _usable("model_config_id", found)
    if by_name is not None and by_id is not None and by_name != by_id:
        raise InvalidInput("model", "is another model than the one that model_config_id names")
    return by_id or by_name


def _usable(field: str, known: StoredModel | None) -> ModelConfigId:
    if known is None:
        raise InvalidInput(field, "there is no such model")
    if not known.enabled:
        raise InvalidInput(field, f"the model {known.config.name} is not configured any more")
    return known.config.id


async def chosen_or_default(models: ModelDirectory, wish: ModelWish) -> ModelConfigId:
    if (wanted := await chosen(models, wish)) is not None:
        return wanted
    default = await models.default()
    if default is None:
        raise InvalidInput("model", "no model is configured as the default", code="no_model")
    return default.config.id


class ModelRoutes:
    def __init__(self, doors: Doors) -> None:
        self._models = doors.models

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                method="GET",
                path="/models",
                name="list_models",
                summary="The models there are, the default first",
                handle=self.list,
                query=ModelsQuery,
                gives={200: list[ModelReply]},
            ),
            Route(
                method="GET",
                path="/chats/model-configs",
                name="list_model_configs",
                summary="The same as /models",
                handle=self.list,
                query=ModelsQuery,
                gives={200: list[ModelReply]},
            ),
            Route(
                method="GET",
                path="/models/{model_id}",
                name="get_model",
                summary="One model, also if it is switched off",
                handle=self.get,
                gives={200: ModelReply},
            ),
            Route(
                method="GET",
                path="/providers",
                name="list_providers",
                summary="The providers there are; never their keys",
                handle=self.providers,
                query=ModelsQuery,
                gives={200: list[ProviderReply]},
            ),
            Route(
                method="GET",
                path="/chats/models",
                name="list_models_by_provider",
                summary="The models that can be used, by provider",
                handle=self.by_provider,
                gives={200: ModelsReply},
            ),
        )

    async def list(self, call: Call) -> Reply:
        query = call.query(ModelsQuery)
        found = await self._models.all()
        return reply([_public(one) for one in found if one.enabled or query.include_disabled])

    async def get(self, call: Call) -> Reply:
        found = await self._models.get(call.model_id)
        if found is None:
            raise NotFound("There is no such model.")
        return reply(_public(found))

    async def providers(self, call: Call) -> Reply:
        query = call.query(ModelsQuery)
        found = await self._models.providers()
        return reply([_provider(one) for one in found if one.enabled or query.include_disabled])

    async def by_provider(self, call: Call) -> Reply:
        del call
        providers = {one.name: one for one in await self._models.providers()}
        usable = [one for one in await self._models.all() if one.enabled]
        usable.sort(key=lambda one: one.config.provider)
        return reply(
            ModelsReply(
                providers=tuple(
                    _listed(name, providers.get(name), tuple(found))
                    for name, found in groupby(usable, key=lambda one: one.config.provider)
                )
            )
        )


def _listed(
    name: str, provider: StoredProvider | None, found: Sequence[StoredModel]
) -> ProviderModels:
    has_key = provider is None or provider.has_api_key or provider.kind in KEYLESS
    return ProviderModels(
        provider=name,
        available=has_key,
        unavailable_reason=None if has_key else "missing_api_key",
        models=tuple(
            ListedModel(
                id=f"{name}:{one.config.model}",
                provider=name,
                model=one.config.model,
                display_name=one.config.name,
            )
            for one in found
        ),
    )


def _public(known: StoredModel) -> ModelReply:
    config = known.config
    return ModelReply(
        id=config.id,
        name=config.name,
        provider=config.provider,
        model=config.model,
        display_name=config.name,
        enabled=known.enabled,
        is_default=known.is_default,
        source="database" if known.source == "database" else "settings",
        created_at=known.created_at,
        updated_at=known.updated_at,
        context_limit=config.context_limit,
        compression_threshold=config.compaction_threshold,
        reasoning_effort=config.reasoning_effort,
        model_config=ModelParameters(
            max_output_tokens=config.max_output_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            cost=None if config.prices is None else _prices(config.prices),
        ),
    )


def _prices(prices: Prices) -> PriceList:
    return PriceList(
        input_price_per_million_tokens=prices.input,
        output_price_per_million_tokens=prices.output,
        cache_read_price_per_million_tokens=prices.cache_read,
        cache_write_price_per_million_tokens=prices.cache_write,
    )


def _provider(known: StoredProvider) -> ProviderReply:
    return ProviderReply(
        id=known.id,
        name=known.name,
        provider=known.kind,
        display_name=known.name,
        enabled=known.enabled,
        has_api_key=known.has_api_key,
        source="database" if known.source == "database" else "settings",
        created_at=known.created_at,
        updated_at=known.updated_at,
        base_url=known.base_url,
    )
