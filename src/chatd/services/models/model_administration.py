"""What administrators do with models: create, change and delete them, and choose those of tasks.

Every write is one transaction, which also publishes the change to all replicas.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from uuid import UUID

from msgspec import UNSET, structs

from chatd.domain.chat.row import Chat
from chatd.domain.decode_errors import show_value
from chatd.domain.errors import InvalidInput, NotFound, ToolError
from chatd.domain.ids import ModelConfigId, UserId
from chatd.domain.model.config import effort_objection
from chatd.domain.model.failures import ModelError
from chatd.domain.model.fallback import check_fallbacks
from chatd.domain.model.protocol import (
    Fallback,
    ModelCapabilities,
    ModelConfig,
    Prices,
    ProviderError,
)
from chatd.domain.ports import Env
from chatd.domain.subagents import ModelPreferences, SubagentModel, SubagentType
from chatd.providers.provider_config import ProviderKind
from chatd.services.models.directory import ModelDirectory
from chatd.services.models.model_bodies import (
    CreateModelBody,
    ModelPrices,
    OptionsSchemaReply,
    OverridesBody,
    UpdateModelBody,
    convert_prices,
)
from chatd.services.models.provider_administration import (
    check_effort,
    check_fits,
    check_options,
    check_storable,
    options_schema,
    plain_price,
)
from chatd.services.operation.runtime_settings import RuntimeSettings
from chatd.store.account.audit import ChangeAuthor
from chatd.store.database.conn import DatabaseSession
from chatd.store.model import model_configs, providers
from chatd.store.model.model_configs import NO_MODEL, ModelTask, ModelWrite, StoredModel
from chatd.store.model.providers import StoredProvider, managed_elsewhere

_CONFIG_FIELDS: Final = frozenset(ModelConfig.__struct_fields__) - {"id", "provider"}
TASKS: Final[tuple[ModelTask, ...]] = (
    "title",
    "compaction",
    "general",
    "explore",
    "computer_use",
)


class ModelAdministration:
    def __init__(self, directory: ModelDirectory, env: Env) -> None:
        self._directory = directory
        self._env = env

    def options_schema(self) -> OptionsSchemaReply:
        return options_schema()

    async def create_model(self, by: ChangeAuthor, body: CreateModelBody) -> StoredModel:
        """The first model beside the demo model becomes the default. Raises Conflict for a taken
        name and InvalidInput for an invalid field."""
        new_id = self._env.new_id()
        given = structs.asdict(body)
        is_default = cast("bool | None", given.pop("is_default"))
        async with self._directory.change("model", new_id, by, "create", given) as session:
            freed = await model_configs.find_free_name(session, body.name, None)
            model_id = ModelConfigId(freed or new_id)
            provider = await _find_provider(session, body.provider)
            await _check_fallbacks(session, body.name, body.fallbacks)
            row = _write(model_id, provider, given)
            await model_configs.write(session, row)
            if is_default is None:
                is_default = row.enabled and await model_configs.is_demo_default(session)
            await _set_default(session, row, wanted=is_default)
        return await self._get(model_id)

    async def update_model(
        self, by: ChangeAuthor, model_id: ModelConfigId, body: UpdateModelBody
    ) -> StoredModel:
        given = {name: value for name, value in structs.asdict(body).items() if value is not UNSET}
        changed = tuple(given)
        is_default = cast("bool | None", given.pop("is_default", None))
        async with self._directory.change("model", model_id, by, "update", changed) as session:
            known = await _find_own(session, model_id)
            fields = _fields(known) | given
            await model_configs.find_free_name(session, fields["name"], model_id)
            provider = await _find_provider(session, fields["provider"])
            if "fallbacks" in given:
                await _check_fallbacks(session, fields["name"], fields["fallbacks"])
            row = _write(model_id, provider, fields)
            await model_configs.write(session, row)
            if row.config.name != known.config.name:
                await model_configs.rename_fallback(session, known.config.name, row.config.name)
            await _set_default(session, row, wanted=is_default)
        return await self._get(model_id)

    async def delete_model(self, by: ChangeAuthor, model_id: ModelConfigId) -> None:
        """The default model answers in the chats that use it, unless they require it."""
        async with self._directory.change("model", model_id, by, "delete") as session:
            await _find_own(session, model_id)
            await model_configs.delete(session, model_id)
            await model_configs.elect_default(session)

    async def set_overrides(self, by: ChangeAuthor, body: OverridesBody) -> None:
        async with self._directory.change("model", NO_MODEL, by, "override", TASKS) as session:
            live = [one for one in await model_configs.list_models(session) if one.enabled]
            ids = {one.config.name: one.config.id for one in live}
            for task in TASKS:
                name = getattr(body, task)
                if name is UNSET:
                    continue
                if name is not None and name not in ids:
                    raise InvalidInput(task, "there is no such model, or it is disabled")
                await model_configs.set_override(session, task, name and ids[name])

    async def _get(self, model_id: ModelConfigId) -> StoredModel:
        found = await self._directory.get(model_id)
        if found is None:
            raise NotFound("There is no such model.")
        return found


async def _find_own(session: DatabaseSession, model_id: ModelConfigId) -> StoredModel:
    """Raises Conflict for a model that a process declares."""
    models = await model_configs.list_models(session)
    known = next((one for one in models if one.config.id == model_id), None)
    if known is None or known.is_deleted:
        raise NotFound("There is no such model.")
    if known.source != "database":
        raise managed_elsewhere("model", known.config.name, known.source)
    return known


async def _find_provider(session: DatabaseSession, name: object) -> StoredProvider:
    found = await providers.list_providers(session)
    live = {one.name: one for one in found if not one.is_deleted}
    provider = live.get(str(name))
    if provider is None:
        known = ", ".join(live)
        raise InvalidInput("provider", f"there is no such provider; there are {known[:300]}")
    return provider


async def _check_fallbacks(session: DatabaseSession, name: str, given: Sequence[Fallback]) -> None:
    if (problem := check_fallbacks(name, given)) is not None:
        raise InvalidInput("fallbacks", problem)
    known = {one.config.name for one in await model_configs.list_models(session) if one.enabled}
    for fallback in given:
        if fallback.model not in known:
            text = f"there is no model {show_value(fallback.model)}, or it is disabled"
            raise InvalidInput("fallbacks", text)


async def _set_default(session: DatabaseSession, row: ModelWrite, *, wanted: bool | None) -> None:
    """Exactly one model is the default: without it another one is elected."""
    if wanted and not row.enabled:
        raise InvalidInput("is_default", "a disabled model cannot be the default")
    if wanted:
        await model_configs.make_default(session, row.config.id)
    elif wanted is False:
        await model_configs.drop_default(session, row.config.id)
    await model_configs.elect_default(session, row.config.id)


def _fields(known: StoredModel) -> dict[str, Any]:
    """A stored model in the fields of a body."""
    fields = structs.asdict(known.config)
    prices = known.config.prices
    shown = None if prices is None else convert_prices(prices)
    return fields | {
        "prices": shown,
        "display_name": None if known.display_name == known.config.name else known.display_name,
        "enabled": known.enabled,
        "capabilities": known.capabilities,
    }


def _write(
    model_id: ModelConfigId, provider: StoredProvider, given: Mapping[str, Any]
) -> ModelWrite:
    fields = {name: value for name, value in given.items() if name in _CONFIG_FIELDS}
    prices = cast("ModelPrices | None", given["prices"])
    config = ModelConfig(id=model_id, provider=provider.name, **fields)
    config = structs.replace(
        config,
        prices=None if prices is None else _prices(prices),
        options=check_options(provider.kind, config.options),
        reasoning_effort=check_effort(config.reasoning_effort),
    )
    told = cast("ModelCapabilities | None", given["capabilities"])
    check_fits(config, cast("ProviderKind", provider.kind), told)
    check_storable("name", config.name)
    check_storable("model", config.model)
    shown = cast("str | None", given["display_name"])
    return ModelWrite(
        config=config,
        provider_id=provider.id,
        display_name=check_storable("display_name", shown or config.name),
        enabled=bool(given["enabled"]),
        capabilities=told,
    )


def _prices(given: ModelPrices) -> Prices:
    return Prices(
        input=plain_price(given.input),
        output=plain_price(given.output),
        cache_read=plain_price(given.cache_read),
        cache_write=plain_price(given.cache_write),
        web_search=plain_price(given.web_search),
    )


# The models of subagents: the one that a call names, else the user's, else the administrator's,
# else the parent's.

MAX_LISTED_MODELS: Final = 100


class SubagentModelChoice:
    """Satisfies `ports.SubagentModels`."""

    def __init__(self, models: ModelDirectory, settings: RuntimeSettings, env: Env) -> None:
        self._models = models
        self._settings = settings
        self._env = env

    async def choose(
        self, chat: Chat, type_: SubagentType, wanted: str, effort: str = ""
    ) -> ModelConfigId | None:
        chosen = await self._choose(chat, type_, wanted)
        if type_ == "computer_use":
            await self._check_images(chosen, chat.owner_id)
        if effort:
            await self._check_effort(chosen, effort)
        return chosen

    async def _check_images(self, model_id: ModelConfigId | None, owner_id: UserId) -> None:
        known = await (self._models.default() if model_id is None else self._models.get(model_id))
        if known is None or (await self._models.capabilities(known)).images is not False:
            return
        # The demo model sees nothing and knows where to click.
        if (await self._models.choose(known.config.id, owner_id)).kind != "demo":
            raise ToolError(
                f"The model {known.config.name!r} does not read images, so it cannot use a desktop."
                " Name another one that list_subagent_models returns."
            )

    async def _check_effort(self, model_id: ModelConfigId | None, effort: str) -> None:
        known = await (self._models.default() if model_id is None else self._models.get(model_id))
        if known is None:
            return
        efforts = (await self._models.capabilities(known)).efforts
        if (objection := effort_objection(known.config.name, effort, efforts)) is not None:
            raise ToolError(f"reasoning_effort: {objection}.")

    async def _choose(self, chat: Chat, type_: SubagentType, wanted: str) -> ModelConfigId | None:
        if wanted:
            known = await self._find(wanted)
            if known is None or not await self._is_usable(known.config.id, chat.owner_id):
                raise ToolError(
                    f"There is no model {wanted!r} that a subagent can use. Call"
                    " list_subagent_models, or leave the model out."
                )
            return known.config.id
        for model_id in (await self._preferences(chat, type_)).in_order():
            if model_id == chat.model_config_id or await self._is_usable(model_id, chat.owner_id):
                return model_id
            self._env.emit("task_model_unusable", task=type_, model_id=model_id)
        return None

    async def usable(self, owner_id: UserId) -> Sequence[SubagentModel]:
        enabled = [known for known in await self._models.all() if known.enabled]
        return [
            SubagentModel(
                id=known.config.id,
                name=known.config.name,
                provider=known.config.provider,
                is_default=known.is_default,
            )
            for known in enabled[:MAX_LISTED_MODELS]
            if await self._is_usable(known.config.id, owner_id)
        ]

    async def _preferences(self, chat: Chat, type_: SubagentType) -> ModelPreferences:
        settings = await self._settings.user(chat.owner_id)
        names: Mapping[SubagentType, str] = {
            "general": settings.general_model,
            "explore": settings.explore_model,
            "computer_use": settings.computer_use_model,
        }
        name = names[type_]
        own = await self._models.by_name(name) if name else None
        return ModelPreferences(
            user=None if own is None else own.config.id,
            deployment=(await self._models.overrides()).get(type_),
            parent=chat.model_config_id,
        )

    async def _find(self, wanted: str) -> StoredModel | None:
        if (known := await self._models.by_name(wanted)) is not None:
            return known
        try:
            return await self._models.get(ModelConfigId(UUID(wanted)))
        except ValueError:
            return None

    async def _is_usable(self, model_id: ModelConfigId, owner_id: UserId) -> bool:
        try:
            await self._models.choose(model_id, owner_id)
        except (ModelError, ProviderError):
            return False
        return True
