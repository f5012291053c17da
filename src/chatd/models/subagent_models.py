"""The models of subagents: the one that a call names, else the user's, else the administrator's,
else the parent's."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from chatd.domain.chat.row import Chat
from chatd.domain.errors import ToolError
from chatd.domain.ids import ModelConfigId, UserId
from chatd.domain.model.config import effort_objection
from chatd.domain.model.failures import ModelError
from chatd.domain.model.protocol import ProviderError
from chatd.domain.ports import Env
from chatd.domain.subagents import ModelPreferences, SubagentModel, SubagentType
from chatd.models.directory import ModelDirectory
from chatd.runtime_settings import RuntimeSettings
from chatd.store.model_configs import StoredModel

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
        if effort:
            await self._check_effort(chosen, effort)
        return chosen

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
        name = settings.explore_model if type_ == "explore" else settings.general_model
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
