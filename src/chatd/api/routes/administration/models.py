"""Routes of models, and the model that a request selects."""

from collections.abc import Sequence
from typing import Final, cast

from msgspec import convert

from chatd.api.deps import ApiDeps, ModelListing
from chatd.api.pages import ItemPosition, Paging, cut_whole, page_reply
from chatd.api.request import NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.schemas.messages import ModelSelection, from_rows
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.config import LearnedLimit, effort_objection
from chatd.domain.model.protocol import ModelCapabilities
from chatd.domain.text import clip
from chatd.services.models.model_bodies import (
    CreateModelBody,
    LearnedContext,
    ModelPage,
    ModelReply,
    ModelsQuery,
    OptionsSchemaReply,
    OverridesBody,
    OverridesReply,
    Source,
    UpdateModelBody,
    convert_prices,
)
from chatd.store.model.model_configs import StoredModel

CREATE: Final = BodySpec(CreateModelBody)
UPDATE: Final = BodySpec(UpdateModelBody)
OVERRIDES: Final = BodySpec(OverridesBody)


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


async def check_effort(
    models: ModelListing, model_id: ModelConfigId | None, effort: str | None
) -> None:
    """Raises InvalidInput if that model, or the default, takes no reasoning effort."""
    if effort is None:
        return
    known = await models.default() if model_id is None else await models.get(model_id)
    if known is None:
        return
    efforts = (await models.capabilities(known)).efforts
    if (objection := effort_objection(known.config.name, effort, efforts)) is not None:
        raise InvalidInput("reasoning_effort", objection, code="effort_not_supported")


class ModelRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._models = deps.models
        self._author = deps.author
        self._control = deps.model_administration
        self._calls = deps.provider_trials

    def routes(self) -> tuple[ApiRoute, ...]:
        return (*self._model_routes(), *self._task_routes())

    def _model_routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /models",
                permission="catalog.read",
                summary="List models, the default first",
                description="One list of all models: those of the settings, of the environment"
                " and of the database. `source` tells which.",
                handle=self.list_models,
                query=ModelsQuery,
                replies={200: ModelPage},
            ),
            ApiRoute(
                endpoint="POST /models",
                permission="config.write",
                summary="Create a model",
                description="Every replica knows it within a second. The first model beside the"
                " demo becomes the default. Its capabilities are asked of the provider, which may"
                " take a few seconds. A name that only stopped servers have declared is"
                " taken over with its id, so that chats keep their model.",
                handle=self.create_model,
                body_spec=CREATE,
                replies={201: ModelReply},
                errors=(
                    *("invalid_options", "effort_not_supported"),
                    *("name_taken", "managed_by_settings"),
                ),
            ),
            ApiRoute(
                endpoint="GET /models/{model_id}",
                permission="catalog.read",
                summary="Get a model, also if it is disabled or deleted",
                description="Chats name models by this id.",
                handle=self.get_model,
                replies={200: ModelReply},
            ),
            ApiRoute(
                endpoint="PATCH /models/{model_id}",
                permission="config.write",
                summary="Change a model; the next model call uses it",
                description="Exactly one model is the default: if the default is disabled or"
                " given up, another one takes its place.",
                handle=self.update_model,
                body_spec=UPDATE,
                replies={200: ModelReply},
                errors=(
                    *("invalid_options", "effort_not_supported"),
                    *("name_taken", "managed_by_settings"),
                ),
            ),
            ApiRoute(
                endpoint="DELETE /models/{model_id}",
                permission="config.write",
                summary="Delete a model; chats that use it keep its name and need another one",
                description="The row stays, because chats and usage name it. The name can be"
                " used again.",
                handle=self.delete_model,
                replies={204: None},
                errors=("managed_by_settings",),
            ),
        )

    def _task_routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /model-options/schema",
                permission="catalog.read",
                summary="Get the JSON Schema of the options of models, by kind of provider",
                description="A JSON Schema with one property per kind of provider, to check"
                " `options` of a model or to make a form of it.",
                handle=self.get_model_options_schema,
                replies={200: OptionsSchemaReply},
            ),
            ApiRoute(
                endpoint="GET /model-overrides",
                permission="config.read",
                summary="Get the models that write titles and summaries",
                description="Null: the chat's own model, and for titles a small model of its"
                " provider.",
                handle=self.get_model_overrides,
                replies={200: OverridesReply},
            ),
            ApiRoute(
                endpoint="PATCH /model-overrides",
                permission="config.write",
                summary="Choose the models that write titles and summaries",
                description="A model that cannot be used later is skipped: the chat's own model"
                " does the task.",
                handle=self.set_model_overrides,
                body_spec=OVERRIDES,
                replies={200: OverridesReply},
            ),
        )

    async def list_models(self, request: ApiRequest) -> ApiReply:
        query = request.query(ModelsQuery)
        paging = Paging(request, query, ItemPosition)
        found = [one for one in await self._models.all() if one.enabled or query.include_disabled]
        shown, cursor = cut_whole(paging, found, lambda row: row.config.id)
        return page_reply(ModelPage, [await self._public(one) for one in shown], cursor)

    async def create_model(self, request: ApiRequest) -> ApiReply:
        created = await self._control.create_model(
            self._author(request), await request.body(CREATE)
        )
        await self._calls.learn(created.provider_id)
        known = await self._models.get(created.config.id)
        return reply(await self._public(known or created), 201)

    async def get_model(self, request: ApiRequest) -> ApiReply:
        found = await self._models.get(request.model_id)
        if found is None:
            raise NotFound("There is no such model.")
        return reply(await self._public(found))

    async def update_model(self, request: ApiRequest) -> ApiReply:
        body = await request.body(UPDATE)
        return reply(
            await self._public(
                await self._control.update_model(self._author(request), request.model_id, body)
            )
        )

    async def delete_model(self, request: ApiRequest) -> ApiReply:
        await self._control.delete_model(self._author(request), request.model_id)
        return NO_CONTENT

    async def get_model_options_schema(self, request: ApiRequest) -> ApiReply:
        del request
        return reply(self._control.options_schema())

    async def get_model_overrides(self, request: ApiRequest) -> ApiReply:
        del request
        return reply(await self._overrides())

    async def set_model_overrides(self, request: ApiRequest) -> ApiReply:
        await self._control.set_overrides(self._author(request), await request.body(OVERRIDES))
        return reply(await self._overrides())

    async def _overrides(self) -> OverridesReply:
        names = {one.config.id: one.config.name for one in await self._models.all()}
        chosen = await self._models.overrides()
        tasks = {task: names.get(model_id) for task, model_id in chosen.items()}
        return OverridesReply(
            title=tasks.get("title"),
            compaction=tasks.get("compaction"),
            general=tasks.get("general"),
            explore=tasks.get("explore"),
            computer_use=tasks.get("computer_use"),
        )

    async def _public(self, known: StoredModel) -> ModelReply:
        return _public(
            known,
            capabilities=await self._models.capabilities(known),
            is_priced=await self._models.is_priced(known),
            price_source=await self._models.price_source(known),
        )


def _public(
    known: StoredModel,
    *,
    capabilities: ModelCapabilities,
    is_priced: bool,
    price_source: str | None,
) -> ModelReply:
    config = known.config
    return from_rows(
        ModelReply,
        config,
        known,
        display_name=known.display_name or config.name,
        source=cast("Source", known.source),
        capabilities=capabilities,
        learned_context=None if config.context_limit else _learned(known.learned),
        prices=None if config.prices is None else convert_prices(config.prices),
        unpriced=not is_priced,
        price_source=price_source,
        deleted=known.is_deleted,
    )


def _learned(found: LearnedLimit | None) -> LearnedContext | None:
    return None if found is None else convert(found, LearnedContext, from_attributes=True)
