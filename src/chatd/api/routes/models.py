"""Routes that list models and providers, and the model that a request selects.

Models are declared in the settings; the API cannot change them.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from chatd.api.deps import ApiDeps, ModelListing
from chatd.api.pages import ItemPosition, Paging, cut_whole
from chatd.api.request import ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.messages import ModelSelection
from chatd.api.schemas.models import (
    ListedModel,
    ModelPage,
    ModelParameters,
    ModelReply,
    ModelsQuery,
    ModelsReply,
    PriceList,
    ProviderModels,
    ProviderPage,
    ProviderReply,
)
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import Prices
from chatd.domain.text import clip
from chatd.store.model_configs import StoredModel, StoredProvider

KINDS_WITHOUT_KEY: Final = frozenset({"demo", "openai-compat"})
"""Provider kinds that work without an API key."""


async def find_model(models: ModelListing, selection: ModelSelection) -> ModelConfigId | None:
    """None if the request selects no model. Raises InvalidInput for an unknown one."""
    by_name = by_id = None
    if selection.model is not None:
        found = await models.by_name(selection.model)
        by_name = _usable("model", found, await models.all())
    if selection.model_config_id is not None:
        found = await models.get(ModelConfigId(selection.model_config_id))
        by_id = _usable("model_config_id", found, await models.all())
    if by_name is not None and by_id is not None and by_name != by_id:
        raise InvalidInput("model", "names another model than model_config_id")
    return by_id or by_name


def _usable(field: str, known: StoredModel | None, every: Sequence[StoredModel]) -> ModelConfigId:
    names = ", ".join(model.config.name for model in every if model.enabled)
    if known is None:
        raise InvalidInput(field, f"there is no such model; there are {clip(names, 300)}")
    if not known.enabled:
        text = f"the model {known.config.name} is no longer configured; there are {names}"
        raise InvalidInput(field, clip(text, 300))
    return known.config.id


async def find_model_or_default(models: ModelListing, selection: ModelSelection) -> ModelConfigId:
    if (selected := await find_model(models, selection)) is not None:
        return selected
    default = await models.default()
    if default is None:
        raise InvalidInput("model", "no default model is configured; name a model", code="no_model")
    return default.config.id


class ModelRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._models = deps.models

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /models",
                permission="catalog.read",
                summary="List models, the default first",
                handle=self.list_models,
                query=ModelsQuery,
                replies={200: ModelPage},
            ),
            ApiRoute(
                endpoint="GET /chats/model-configs",
                permission="catalog.read",
                name="list_model_configs",
                summary="List models, as /models does",
                handle=self.list_models,
                query=ModelsQuery,
                replies={200: ModelPage},
            ),
            ApiRoute(
                endpoint="GET /models/{model_id}",
                permission="catalog.read",
                summary="Get a model, also if it is disabled",
                handle=self.get_model,
                replies={200: ModelReply},
            ),
            ApiRoute(
                endpoint="GET /providers",
                permission="catalog.read",
                summary="List providers, without their keys",
                handle=self.list_providers,
                query=ModelsQuery,
                replies={200: ProviderPage},
            ),
            ApiRoute(
                endpoint="GET /chats/models",
                permission="catalog.read",
                summary="List enabled models by provider",
                handle=self.list_models_by_provider,
                replies={200: ModelsReply},
            ),
        )

    async def list_models(self, request: ApiRequest) -> ApiReply:
        query = request.query(ModelsQuery)
        paging = Paging(request, query, ItemPosition)
        found = [one for one in await self._models.all() if one.enabled or query.include_disabled]
        shown, cursor = cut_whole(paging, found, lambda row: row.config.id)
        items = tuple([await self._public(one) for one in shown])
        return reply(ModelPage(items=items, has_more=cursor is not None, next_cursor=cursor))

    async def get_model(self, request: ApiRequest) -> ApiReply:
        found = await self._models.get(request.model_id)
        if found is None:
            raise NotFound("There is no such model.")
        return reply(await self._public(found))

    async def _public(self, known: StoredModel) -> ModelReply:
        return _public(known, is_priced=await self._models.is_priced(known))

    async def list_providers(self, request: ApiRequest) -> ApiReply:
        query = request.query(ModelsQuery)
        paging = Paging(request, query, ItemPosition)
        every = await self._models.providers()
        found = [one for one in every if one.enabled or query.include_disabled]
        shown, cursor = cut_whole(paging, found, lambda row: row.id)
        items = tuple(map(_provider, shown))
        return reply(ProviderPage(items=items, has_more=cursor is not None, next_cursor=cursor))

    async def list_models_by_provider(self, request: ApiRequest) -> ApiReply:
        del request
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
    has_key = provider is None or provider.has_api_key or provider.kind in KINDS_WITHOUT_KEY
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


def _public(known: StoredModel, *, is_priced: bool) -> ModelReply:
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
        unpriced=not is_priced,
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
        web_search_price_per_thousand=prices.web_search,
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
