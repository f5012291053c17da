"""The models of a deployment: those of this process's settings and environment, those that other
replicas have declared, those that administrators made, and the demo model.

`ModelDirectory` chooses the model, the provider and the key of a call. `ModelLists` is this
replica's copy of the stored lists, used only while the replica hears of changes.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Final, Literal, cast
from uuid import UUID

from msgspec.structs import replace

from chatd.domain.access.permissions import SystemActor
from chatd.domain.deployment.config_change import ConfigChange, ConfigKind
from chatd.domain.errors import ChatdError, InvariantBroken
from chatd.domain.ids import ModelConfigId, UserId
from chatd.domain.model.config import LearnedLimit, is_priced
from chatd.domain.model.failures import ModelError, ModelRemoved, RemovedModel
from chatd.domain.model.protocol import (
    DEFAULT_MAX_OUTPUT_TOKENS,
    FileInputKind,
    ModelCapabilities,
    ModelConfig,
    Prices,
    merge_capabilities,
)
from chatd.domain.ports import Env, ModelChoice
from chatd.domain.prompt.titles import TitleModel, list_title_models
from chatd.providers.known_models import known_capabilities
from chatd.providers.prices import listed_name
from chatd.providers.provider_config import ProviderKind
from chatd.providers.registry import (
    ProviderRegistry,
    accepted_files,
    build_limits,
    config_error,
    missing_model,
)
from chatd.services.models.configuration import SettingsDeclaration, derive_model_id
from chatd.services.models.provider_clients import ProviderClients, moved_key_text, usable_keys
from chatd.store.account import audit
from chatd.store.account.audit import ChangeAuthor
from chatd.store.database.conn import DatabaseSession
from chatd.store.database.notifications import ConfigChanges, publish
from chatd.store.database.pool import Pool
from chatd.store.model import model_configs, model_declarations, providers
from chatd.store.model.model_configs import StoredModel
from chatd.store.model.providers import StoredKey, StoredProvider

CHANGE_KINDS: Final = frozenset({"provider", "model", "secret_key"})


class ModelLists:
    """`on_read` gets the providers of each read. Without a `pool` the lists are empty."""

    def __init__(
        self,
        on_read: Callable[[Sequence[StoredProvider]], None] | None,
        changes: ConfigChanges | None,
    ) -> None:
        self.pool: Pool | None = None
        self.models: Sequence[StoredModel] = ()
        self.providers: Mapping[UUID, StoredProvider] = {}
        self.overrides: Mapping[str, ModelConfigId] = {}
        self._on_read = on_read
        self._changes = changes
        self._is_stale = True
        self._reads = count(1)
        self._last_read = 0
        if changes is not None:
            changes.subscribe(self._on_change)

    @asynccontextmanager
    async def change(
        self,
        kind: ConfigKind,
        object_id: UUID,
        by: ChangeAuthor,
        verb: str,
        fields: Iterable[str] = (),
        *,
        detail: Mapping[str, object] | None = None,
    ) -> AsyncGenerator[DatabaseSession]:
        """One transaction that changes providers or models, one at a time, and that all replicas
        hear of. The audit log gets the names of the changed fields, not their values, and what
        `detail` has at the end."""
        if self.pool is None:
            raise InvariantBroken("Models are changed before the database is known.")
        async with self.pool.transaction() as session:
            await model_declarations.lock(session)
            yield session
            await audit.record(
                session,
                by.actor,
                action=f"{kind}.{verb}",
                object_type=kind,
                object_id=object_id,
                ip=by.ip,
                detail={"fields": sorted(fields), **(detail or {})},
            )
            await publish(session, ConfigChange(kind=kind, id=str(object_id)))
        self._is_stale = True

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind in CHANGE_KINDS:
            self._is_stale = True

    async def refresh(self) -> None:
        is_heard = self._changes is None or self._changes.is_current
        if self._changes is not None and (self._is_stale or not is_heard):
            await self.read()

    async def read(self) -> None:
        if self.pool is None:
            return
        self._is_stale = False  # first: a change during the read must be read too
        number = next(self._reads)
        try:
            found = await providers.list_providers(self.pool)
            models = await model_configs.list_models(self.pool)
            overrides = await model_configs.list_overrides(self.pool)
        except BaseException:
            self._is_stale = True
            raise
        if number < self._last_read:
            return  # a later read has ended before this one
        self._last_read = number
        self.models, self.overrides = models, overrides
        self.providers = {one.id: one for one in found}
        if self._on_read is not None:
            self._on_read(found)

    def by_id(self, model_id: ModelConfigId) -> StoredModel | None:
        return next((known for known in self.models if known.config.id == model_id), None)

    def by_name(self, name: str) -> StoredModel | None:
        live = (known for known in self.models if not known.is_deleted)
        return next((known for known in live if known.config.name == name), None)


MODELS_REFRESH_INTERVAL_S: Final = 10.0
LEARN_LIMIT_TIMEOUT_S: Final = 5.0
"""How long a chat waits until the context limit is stored that a refusal has taught."""
LIMIT_CHANGE_INTERVAL_S: Final = 60.0
"""For one model at a replica. Every change is audited, and all replicas read their models again; a
provider may name another number with each refusal."""
_LEARNED: Final = ChangeAuthor(actor=SystemActor(reason="refused prompt"))


class ModelDirectory:
    """Satisfies `ports.ModelSource` and the API's model listing. A model that only another replica
    has declared can be used here too if this replica has its provider, and so its key.

    Before `declare` it knows the models of its own settings only, and only the engine may use it.
    Its copy is used only while `changes` are heard; without them it reads the lists again at
    intervals only.
    """

    def __init__(
        self,
        own: ProviderRegistry,
        env: Env,
        clients: ProviderClients | None = None,
        changes: ConfigChanges | None = None,
    ) -> None:
        self._own = own
        self._env = env
        self._clients = clients
        self._declaration = SettingsDeclaration(own, env)
        self._lists = ModelLists(None if clients is None else clients.keep_only, changes)
        self._limits_changed_at: dict[ModelConfigId, float] = {}
        if changes is not None:
            changes.subscribe(self._on_change)

    async def declare(self, pool: Pool) -> None:
        """Write the models of these settings to the database, and read all models."""
        await self._declaration.declare(pool)
        self._lists.pool = pool
        await self._lists.read()

    async def withdraw(self) -> None:
        if self._lists.pool is not None:
            await self._declaration.withdraw(self._lists.pool)

    async def run(self) -> None:
        """Renew the declaration and read the lists again at intervals: a replica with other
        settings may have started or stopped."""
        failures = 0
        while True:
            await self._env.clock.sleep(MODELS_REFRESH_INTERVAL_S, "models_read")
            try:
                if self._lists.pool is not None:
                    await self._declaration.renew(self._lists.pool)
                await self._lists.read()
                failures = 0
            except ChatdError as error:
                failures += 1
                self._env.emit("models_read_failed", error_kind=error.code, failures=failures)
            if self._clients is not None:
                await self._clients.close_unused()

    def change(
        self,
        kind: ConfigKind,
        object_id: UUID,
        by: ChangeAuthor,
        verb: str,
        fields: Iterable[str] = (),
        *,
        detail: Mapping[str, object] | None = None,
    ) -> AbstractAsyncContextManager[DatabaseSession]:
        """As `ModelLists.change`."""
        return self._lists.change(kind, object_id, by, verb, fields, detail=detail)

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is not None and change.kind == "user_key" and self._clients is not None:
            self._clients.retire_key(change.id)

    # For the engine

    async def choose(
        self, model_config_id: ModelConfigId | None, owner_id: UserId | None = None
    ) -> ModelChoice:
        await self._lists.refresh()
        choice = await self._choose(model_config_id, owner_id)
        return replace(
            choice,
            learned=self._learned(self._lists.by_id(choice.config.id)),
            origins=self._origins(),
            owner_id=owner_id,
            summary_model=await self._model_of_task("compaction", owner_id),
        )

    async def _choose(
        self, model_config_id: ModelConfigId | None, owner_id: UserId | None
    ) -> ModelChoice:
        known = await self.default() if model_config_id is None else await self.get(model_config_id)
        if known is None or (known.source != "database" and not self._is_ours(known)):
            if (own := self._own.find(model_config_id)) is not None:
                return await self._own.open(self._with_told_limit(own, self._lists.by_id(own.id)))
            if known is None:
                raise missing_model(model_config_id)
        if not known.enabled:
            raise _unusable(known)
        return await self._open(known, owner_id)

    async def choose_named(self, name: str, owner_id: UserId | None = None) -> ModelChoice:
        if (known := await self.by_name(name)) is None:
            raise config_error(f"There is no model {name}.")
        return await self.choose(known.config.id, owner_id)

    async def configured(self, model_config_id: ModelConfigId | None) -> ModelConfig | None:
        known = await self.default() if model_config_id is None else await self.get(model_config_id)
        if known is not None and (known.source == "database" or self._is_ours(known)):
            return None if known.is_deleted else known.config
        return self._own.find(model_config_id) or (known and known.config)

    def _is_ours(self, known: StoredModel) -> bool:
        """Whether administrators made the model's provider."""
        provider = self._lists.providers.get(known.provider_id)
        return provider is not None and provider.source == "database"

    async def _open(self, known: StoredModel, owner_id: UserId | None) -> ModelChoice:
        provider = self._lists.providers.get(known.provider_id)
        config = self._effective(known)
        if provider is None or provider.source != "database" or self._clients is None:
            return await self._own.open(config)
        if not provider.enabled:
            text = f"The provider {provider.name} of the model {config.name} is disabled."
            raise config_error(f"{text} Choose another model.", "provider_disabled")
        user_key = await self._user_key(provider, owner_id)
        client, public = (
            self._clients.open(provider, user_key),
            self._clients.public_config(provider),
        )
        kind = cast("ProviderKind", provider.kind)
        return ModelChoice(
            config=await self._own.fill_missing(config, kind, provider.base_url),
            provider=client,
            kind=kind,
            limits=build_limits(config, public),
            files=accepted_files(config, public),
            efforts=self._capabilities(known).efforts,
            by_user_key=user_key is not None,
        )

    async def _user_key(
        self, provider: StoredProvider, owner_id: UserId | None
    ) -> StoredKey | None:
        """Raises ModelError if the owner's key is for another address and there is no other."""
        if not provider.user_keys or owner_id is None or self._lists.pool is None:
            return None
        found = await providers.find_user_key(self._lists.pool, owner_id, provider.id)
        if found is None or found.destination == provider.destination:
            return found
        if not usable_keys(provider):
            raise config_error(moved_key_text(provider), "missing_key")
        return None

    def _effective(self, known: StoredModel) -> ModelConfig:
        """With the limits that an administrator or the provider told."""
        if known.source != "database":
            return self._with_told_limit(known.config, known)
        told = self._capabilities(known)
        config = known.config
        most = told.max_output_tokens
        is_less = most is not None and most < DEFAULT_MAX_OUTPUT_TOKENS
        return replace(
            config,
            context_limit=config.context_limit or told.context_limit,
            max_output_tokens=config.max_output_tokens or (most if is_less else None),
            file_inputs=_file_inputs(merge_capabilities(known.capabilities, known.reported)),
        )

    def _with_told_limit(self, declared: ModelConfig, known: StoredModel | None) -> ModelConfig:
        """A model of the settings, with the window that its provider told, if they name none."""
        if known is None or declared.context_limit is not None:
            return declared
        told = merge_capabilities(_learned_layer(known), known.reported)
        return replace(declared, context_limit=told.context_limit)

    def _learned(self, known: StoredModel | None) -> LearnedLimit | None:
        """What refusals have taught of its window. None if an operator has set the limit."""
        return None if known is None or self._configured_limit(known) else known.learned

    def _configured_limit(self, known: StoredModel) -> int | None:
        own = None if known.source == "database" else self._own.find(known.config.id)
        set_here = None if known.capabilities is None else known.capabilities.context_limit
        return (own or known.config).context_limit or set_here

    async def learn_limit(self, model_id: ModelConfigId, learned: LearnedLimit) -> None:
        known = self._lists.by_id(model_id)
        if known is None or self._configured_limit(known) or not learned.supersedes(known.learned):
            return
        await self._keep_limit(known, learned, "learned")

    async def forget_limit(self, model_id: ModelConfigId, learned: LearnedLimit) -> None:
        known = self._lists.by_id(model_id)
        if known is None or known.learned is None or known.learned.tokens > learned.tokens:
            return
        await self._keep_limit(known, learned, "forgotten")

    async def _keep_limit(
        self, known: StoredModel, learned: LearnedLimit, verb: Literal["learned", "forgotten"]
    ) -> None:
        """A chat does not fail for it: the next refusal teaches the same."""
        now = self._env.clock.monotonic()
        last = self._limits_changed_at.get(known.config.id)
        if last is not None and now - last < LIMIT_CHANGE_INTERVAL_S:
            return
        self._limits_changed_at[known.config.id] = now
        write = model_configs.learn_limit if verb == "learned" else model_configs.forget_limit
        facts = {"tokens": learned.tokens, "is_bound": learned.is_bound}
        try:
            async with (
                asyncio.timeout(LEARN_LIMIT_TIMEOUT_S),
                self._lists.change(
                    "model", known.config.id, _LEARNED, verb, ("learned_limit",), detail=facts
                ) as session,
            ):
                await write(session, known.config.id, learned)
        except (TimeoutError, ChatdError) as error:
            reason = error.code if isinstance(error, ChatdError) else "timeout"
            self._env.emit("limit_not_kept", model=known.config.name, reason=reason)
        else:
            event = "limit_learned" if verb == "learned" else "limit_forgotten"
            self._env.emit(event, model=known.config.name, **facts)

    def _capabilities(self, known: StoredModel) -> ModelCapabilities:
        provider = self._lists.providers.get(known.provider_id)
        kind = cast("ProviderKind", "openai-compat" if provider is None else provider.kind)
        shipped = known_capabilities(kind, listed_name(known.config))
        layers = (known.capabilities, _learned_layer(known), known.reported, shipped)
        return merge_capabilities(*layers)

    def _origins(self) -> dict[ModelConfigId, str]:
        """The provider of each model, also of disabled ones: the answers of a chat that has
        changed its model stay readable by their own provider only."""
        stored = {one.config.id: one.config.provider for one in self._lists.models}
        return stored | {one.id: one.provider for one in self._own.models if one.id not in stored}

    async def _model_of_task(self, task: str, owner_id: UserId | None) -> ModelChoice | None:
        """None if no model was chosen for the task, or if it cannot be used."""
        if (model_id := self._lists.overrides.get(task)) is None:
            return None
        try:
            choice = await self._choose(model_id, owner_id)
        except ModelError as error:
            kind = error.classified.kind
            self._env.emit("task_model_unusable", task=task, model_id=model_id, error_kind=kind)
            return None
        learned = self._learned(self._lists.by_id(choice.config.id))
        return replace(choice, learned=learned, origins=self._origins(), owner_id=owner_id)

    async def title_models(self, choice: ModelChoice) -> Sequence[ModelChoice]:
        """The models that may title a chat with this model, in order: the one that an
        administrator chose; else a small model of the same provider, then the chat's own."""
        if "title" in self._lists.overrides:
            chosen = await self._model_of_task("title", choice.owner_id)
            return (choice,) if chosen is None else (chosen,)
        own = TitleModel(provider=choice.kind, model=choice.config.model)
        return [
            choice if found == own else await self._small_model(choice, found.model)
            for found in list_title_models({choice.kind}, own)
        ]

    async def _small_model(self, choice: ModelChoice, model: str) -> ModelChoice:
        """As configured, if it is; otherwise with the provider's defaults."""
        name = choice.config.provider
        config = ModelConfig(
            id=derive_model_id(f"title/{name}/{model}"), name=model, provider=name, model=model
        )
        configured = (one.config for one in self._lists.models if one.enabled)
        every = (*self._own.models, *configured)
        config = next((one for one in every if one.provider == name and one.model == model), config)
        if name in self._own.providers and choice.provider.name not in self._client_names():
            return await self._own.open(config)
        kind = cast("ProviderKind", choice.kind)
        filled = await self._own.fill_missing(config, kind, None)
        return replace(choice, config=filled, summary_model=None)

    def _client_names(self) -> set[str]:
        return {one.name for one in self._lists.providers.values() if one.source == "database"}

    # For the API

    async def all(self) -> Sequence[StoredModel]:
        await self._lists.refresh()
        return self._lists.models

    async def get(self, model_id: ModelConfigId) -> StoredModel | None:
        """Reads the list again if the copy lacks the model: it may be new."""
        await self._lists.refresh()
        if (found := self._lists.by_id(model_id)) is None:
            await self._lists.read()
            found = self._lists.by_id(model_id)
        return found

    async def is_priced(self, model: StoredModel) -> bool:
        kind, prices = await self._prices(model)
        return is_priced(prices, kind)

    async def price_source(self, model: StoredModel) -> str | None:
        _, prices = await self._prices(model)
        return None if prices is None else prices.source

    async def _prices(self, model: StoredModel) -> tuple[str, Prices | None]:
        """With the kind of the provider. Of a provider that is not configured here only the model's
        own prices are known."""
        config, provider = model.config, self._lists.providers.get(model.provider_id)
        if provider is not None and provider.source == "database":
            kind, url = cast("ProviderKind", provider.kind), provider.base_url
        elif (own := self._own.providers.get(config.provider)) is not None:
            kind, url = own.kind, own.base_url
        else:
            return "", config.prices
        return kind, (await self._own.fill_missing(config, kind, url)).prices

    async def capabilities(self, model: StoredModel) -> ModelCapabilities:
        """What the model can do, as far as it is known. The configured window counts first."""
        told = self._capabilities(model)
        provider = self._lists.providers.get(model.provider_id)
        kind = cast("ProviderKind", "openai-compat" if provider is None else provider.kind)
        url = None if provider is None else provider.base_url
        config = replace(
            model.config, context_limit=model.config.context_limit or told.context_limit
        )
        filled = await self._own.fill_missing(config, kind, url)
        return replace(told, context_limit=filled.context_limit)

    async def by_name(self, name: str) -> StoredModel | None:
        await self._lists.refresh()
        if (found := self._lists.by_name(name)) is None:
            await self._lists.read()
            found = self._lists.by_name(name)
        return found

    async def default(self) -> StoredModel | None:
        """The deployment's default; if its provider has no key here, the first usable model."""
        await self._lists.refresh()
        here = [one for one in self._lists.models if self._can_use(one)]
        usable = [one for one in here if one.enabled] or [
            one for one in self._lists.models if one.enabled
        ]
        return next((one for one in usable if one.is_default), usable[0] if usable else None)

    def _can_use(self, known: StoredModel) -> bool:
        provider = self._lists.providers.get(known.provider_id)
        if provider is not None and provider.source == "database":
            return provider.enabled and self._clients is not None
        return known.config.provider in self._own.providers

    async def providers(self) -> Sequence[StoredProvider]:
        await self._lists.refresh()
        return [one for one in self._lists.providers.values() if not one.is_deleted]

    async def overrides(self) -> Mapping[str, ModelConfigId]:
        await self._lists.refresh()
        return self._lists.overrides

    async def close(self) -> None:
        await self._own.close()
        if self._clients is not None:
            await self._clients.close()


def _learned_layer(known: StoredModel) -> ModelCapabilities | None:
    """What the provider said when it refused a prompt counts before what it lists. An estimate is
    no window."""
    if known.learned is None or known.learned.is_bound:
        return None
    return ModelCapabilities(context_limit=known.learned.tokens)


def _file_inputs(told: ModelCapabilities) -> tuple[FileInputKind, ...] | None:
    """The files that the model takes. None: all that its API takes."""
    if told.images is not False and told.pdfs is not False:
        return None
    kinds: dict[FileInputKind, bool | None] = {"image": told.images, "pdf": told.pdfs}
    return tuple(kind for kind, takes in kinds.items() if takes is not False)


def _unusable(known: StoredModel) -> ModelError:
    """An administrator who disables a model may enable it again: it is not removed."""
    name = known.config.name
    removed = RemovedModel(id=known.config.id, name=name)
    if known.is_deleted:
        return ModelRemoved(removed, f"The model {name} was deleted. Choose another one.")
    if known.source == "database":
        return config_error(f"The model {name} is disabled. Choose another one.")
    text = f"The model {name} is not configured any more. Choose another one."
    return ModelRemoved(removed, text)
