"""Models: which there are, and which one a message is for."""

from itertools import groupby

from chatd.api.call import Call, Reply, Route, reply
from chatd.api.doors import Doors, ModelDirectory
from chatd.api.wire import ListedModel, ModelReply, ModelsReply, ModelWish, ProviderModels
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ModelConfigId
from chatd.domain.model import ModelConfig


async def chosen(models: ModelDirectory, wish: ModelWish) -> ModelConfigId | None:
    """None if the wish names none. Raises InvalidInput if it names one that is not there."""
    by_name = by_id = None
    if wish.model is not None:
        by_name = await models.by_name(wish.model)
        if by_name is None:
            raise InvalidInput("model", "there is no such model")
    if wish.model_config_id is not None:
        by_id = await models.get(ModelConfigId(wish.model_config_id))
        if by_id is None:
            raise InvalidInput("model_config_id", "there is no such model")
    if by_name is not None and by_id is not None and by_name.id != by_id.id:
        raise InvalidInput("model", "is another model than the one that model_config_id names")
    found = by_id or by_name
    return None if found is None else found.id


async def chosen_or_default(models: ModelDirectory, wish: ModelWish) -> ModelConfigId:
    if (wanted := await chosen(models, wish)) is not None:
        return wanted
    default = await models.default()
    if default is None:
        raise InvalidInput("model", "no model is configured as the default", code="no_model")
    return default.id


class ModelRoutes:
    def __init__(self, doors: Doors) -> None:
        self._models = doors.models

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                method="GET",
                path="/chats/models",
                name="list_models",
                summary="The models there are, by provider",
                handle=self.by_provider,
                gives={200: ModelsReply},
            ),
            Route(
                method="GET",
                path="/chats/model-configs",
                name="list_model_configs",
                summary="The models there are, with the ids that messages may name",
                handle=self.configs,
                gives={200: list[ModelReply]},
            ),
        )

    async def by_provider(self, call: Call) -> Reply:
        del call
        found = sorted(await self._models.all(), key=lambda config: config.provider)
        return reply(
            ModelsReply(
                providers=tuple(
                    ProviderModels(
                        provider=provider, available=True, models=tuple(map(_listed, configs))
                    )
                    for provider, configs in groupby(found, key=lambda config: config.provider)
                )
            )
        )

    async def configs(self, call: Call) -> Reply:
        del call
        default = await self._models.default()
        default_id = None if default is None else default.id
        return reply([_public(config, default_id) for config in await self._models.all()])


def _listed(config: ModelConfig) -> ListedModel:
    return ListedModel(
        id=f"{config.provider}:{config.model}",
        provider=config.provider,
        model=config.model,
        display_name=config.name,
    )


def _public(config: ModelConfig, default_id: ModelConfigId | None) -> ModelReply:
    return ModelReply(
        id=config.id,
        name=config.name,
        provider=config.provider,
        model=config.model,
        display_name=config.name,
        is_default=config.id == default_id,
        context_limit=config.context_limit,
        compression_threshold=config.compaction_threshold,
        reasoning_effort=config.reasoning_effort,
    )
