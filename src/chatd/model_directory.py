"""The models of a deployment: those of this process's settings, those that other replicas have
declared in the database, and the demo model.

Owns the part of the models that the API shows, and a copy of the database's list, read again at
intervals. `model_settings` converts the settings.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid5

import msgspec

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.protocol import ModelConfig
from chatd.domain.ports import Env, ModelChoice
from chatd.domain.prompt.titles import TitleModel, list_title_models
from chatd.model_settings import derive_model_id
from chatd.providers.registry import MODEL_NOT_CONFIGURED_TEXT, ProviderRegistry, config_error
from chatd.store import model_configs, model_declarations
from chatd.store.model_configs import StoredModel, StoredProvider
from chatd.store.model_declarations import DeclaredProvider, ModelDeclaration
from chatd.store.pool import Pool

_PROVIDER_NAMES: Final = UUID("0d9a5f6e-3c1b-4b6a-8a57-2f4e9b7c6d12")

MODELS_REFRESH_INTERVAL_S: Final = 10.0
DECLARATION_DEAD_AFTER_S: Final = 120.0
"""A process that has not renewed its declaration for this long no longer keeps models enabled."""
MAX_DECLARE_ATTEMPTS: Final = 4
"""Meanwhile the statement timeout ends a declaration of another replica that hangs."""


def build_declaration(known: ProviderRegistry) -> ModelDeclaration:
    """The part of these models that every replica and the API may show: no key, no header."""
    return ModelDeclaration(
        providers=tuple(
            DeclaredProvider(
                id=uuid5(_PROVIDER_NAMES, name),
                name=name,
                kind=provider.kind,
                base_url=_without_secrets(provider.base_url),
                has_api_key=bool(provider.api_key),
            )
            for name, provider in known.providers.items()
        ),
        models=tuple(known.models),
        has_models=any(known.providers[one.provider].kind != "demo" for one in known.models),
    )


def _without_secrets(url: str | None) -> str | None:
    """Drop user, password and query, which may hold a key."""
    if url is None:
        return None
    try:
        pieces = urlsplit(url.strip())
        host, port = pieces.hostname or "", pieces.port
    except ValueError:
        return None
    where = f"[{host}]" if ":" in host else host
    where = where if port is None else f"{where}:{port}"
    return urlunsplit((pieces.scheme, where, pieces.path, "", ""))


class ModelDirectory:
    """Satisfies `ports.ModelSource` and the API's model listing. A model that only another replica
    has declared can be used here too if this replica has its provider, and so its key.

    Before `declare` it knows the models of its own settings only, and only the engine may use it.
    """

    def __init__(self, own: ProviderRegistry, env: Env) -> None:
        self._own = own
        self._env = env
        self._process_id = env.new_id()
        self._pool: Pool | None = None
        self._known: Sequence[StoredModel] = ()
        self._renewals: dict[UUID, tuple[datetime, float]] = {}

    async def declare(self, pool: Pool) -> None:
        """Write the models of these settings to the database, and log how other running
        processes differ."""
        declaration = build_declaration(self._own)
        for left in reversed(range(MAX_DECLARE_ATTEMPTS)):
            try:
                found = await model_declarations.declare(pool, self._process_id, declaration)
                break
            except Unavailable:
                if left == 0:
                    raise
        else:
            raise AssertionError  # the last attempt returns or raises
        self._pool = pool
        if found.different:
            self._env.emit("settings_differ", models=", ".join(found.different))
        if found.missing:
            self._env.emit("settings_lack_models", models=", ".join(found.missing))
        await self._read()

    async def withdraw(self) -> None:
        """At exit: the next process to start need not wait until this one counts as dead."""
        if self._pool is not None:
            with suppress(Unavailable):
                await model_declarations.withdraw(self._pool, self._process_id)

    async def run(self) -> None:
        """Renew the declaration and read the list again at intervals: a replica with other
        settings may have started or stopped."""
        failures = 0
        while True:
            await self._env.clock.sleep(MODELS_REFRESH_INTERVAL_S, "models_read")
            try:
                await self._renew()
                await self._read()
                failures = 0
            except ChatdError as error:
                failures += 1
                self._env.emit("models_read_failed", error_kind=error.code, failures=failures)

    async def _renew(self) -> None:
        """A process is dead if its time of renewal has not changed for long, by this process's
        own clock: the database's clock may jump."""
        if self._pool is None:
            return
        now = self._env.clock.monotonic()
        renewals = await model_declarations.renew(self._pool, self._process_id)
        if self._process_id not in renewals:  # this process was suspended for long
            await self.declare(self._pool)
        known, self._renewals = self._renewals, {}
        for process_id, at in renewals.items():
            seen = known.get(process_id)
            self._renewals[process_id] = seen if seen is not None and seen[0] == at else (at, now)
        dead = {
            process_id: at
            for process_id, (at, since) in self._renewals.items()
            if process_id != self._process_id and now - since >= DECLARATION_DEAD_AFTER_S
        }
        if dead or known.keys() - renewals.keys():
            await model_declarations.withdraw_dead(self._pool, dead)

    async def _read(self) -> None:
        if self._pool is not None:
            self._known = await model_configs.list_models(self._pool)

    # For the engine

    async def choose(self, model_config_id: ModelConfigId | None) -> ModelChoice:
        choice = await self._choose(model_config_id)
        return msgspec.structs.replace(choice, origins=self._origins())

    async def _choose(self, model_config_id: ModelConfigId | None) -> ModelChoice:
        if self._own.find(model_config_id) is not None or model_config_id is None:
            return await self._own.choose(model_config_id)
        known = await self.get(model_config_id)
        if known is None:
            raise config_error(MODEL_NOT_CONFIGURED_TEXT)
        if not known.enabled:
            name = known.config.name
            raise config_error(f"The model {name} is not configured any more. Choose another one.")
        return await self._own.open(known.config)

    def _origins(self) -> dict[ModelConfigId, str]:
        """The provider of each model, also of disabled ones: the answers of a chat that has
        changed its model stay readable by their own provider only."""
        stored = {one.config.id: one.config.provider for one in self._known}
        return stored | {one.id: one.provider for one in self._own.models}

    async def title_models(self, choice: ModelChoice) -> Sequence[ModelChoice]:
        """The models that may title a chat with this model, in order: a small model of the same
        provider, then the chat's own."""
        own = TitleModel(provider=choice.kind, model=choice.config.model)
        return [
            choice if found == own else await self._own.open(self._small_model(choice, found.model))
            for found in list_title_models({choice.kind}, own)
        ]

    def _small_model(self, choice: ModelChoice, model: str) -> ModelConfig:
        """As configured, if it is; otherwise with the provider's defaults."""
        provider = choice.config.provider
        configured = (one for one in self._own.models if one.provider == provider)
        config = ModelConfig(
            id=derive_model_id(f"title/{provider}/{model}"),
            name=model,
            provider=provider,
            model=model,
        )
        return next((one for one in configured if one.model == model), config)

    # For the API

    async def all(self) -> Sequence[StoredModel]:
        return self._known

    async def get(self, model_id: ModelConfigId) -> StoredModel | None:
        """Reads the list again if the copy lacks the model: it may be new."""
        if (found := self._by_id(model_id)) is None:
            await self._read()
            found = self._by_id(model_id)
        return found

    async def is_priced(self, model: StoredModel) -> bool:
        return await self._own.is_priced(model.config)

    async def by_name(self, name: str) -> StoredModel | None:
        if (found := self._by_name(name)) is None:
            await self._read()
            found = self._by_name(name)
        return found

    async def default(self) -> StoredModel | None:
        """The deployment's default; if its provider has no key here, the first usable model."""
        here = [one for one in self._known if one.config.provider in self._own.providers]
        usable = [one for one in here if one.enabled] or [one for one in self._known if one.enabled]
        return next((one for one in usable if one.is_default), usable[0] if usable else None)

    async def providers(self) -> Sequence[StoredProvider]:
        return () if self._pool is None else await model_configs.list_providers(self._pool)

    async def close(self) -> None:
        await self._own.close()

    def _by_id(self, model_id: ModelConfigId) -> StoredModel | None:
        return next((known for known in self._known if known.config.id == model_id), None)

    def _by_name(self, name: str) -> StoredModel | None:
        return next((known for known in self._known if known.config.name == name), None)
