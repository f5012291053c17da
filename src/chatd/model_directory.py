"""The models of a deployment: those of this process's settings, those that other replicas have
declared in the database, and the demo model.

Owns the conversion of settings into models, the part of them that the API shows, and a copy of
the database's list, read again at intervals.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, cast, get_args
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid5

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.decode_errors import show_value, suggest_name
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.config import EFFORT_LEVELS
from chatd.domain.model.protocol import EffortRange, ModelConfig, Prices
from chatd.domain.ports import Clock, Env, ModelChoice
from chatd.domain.prompt.titles import TitleModel, list_title_models
from chatd.providers.config import (
    KEY_VARIABLES,
    SILENCE_LIMITS_S,
    ProviderConfig,
    ProviderKind,
    is_valid_header,
)
from chatd.providers.http import HttpConfig
from chatd.providers.network import ProxyRules, TlsFiles, environment_proxies, provider_proxies
from chatd.providers.registry import MODEL_NOT_CONFIGURED_TEXT, ProviderRegistry, config_error
from chatd.providers.secret import Secret
from chatd.settings.schema import ModelEntry, PriceEntry, ProviderEntry, Settings, SettingsError
from chatd.store import model_configs, model_declarations
from chatd.store.model_configs import StoredModel, StoredProvider
from chatd.store.model_declarations import DeclaredProvider, ModelDeclaration
from chatd.store.pool import Pool

_NAMES: Final = UUID("5c3f1a52-9d0e-4f6e-9a63-6f5d1b0c7a11")
_PROVIDER_NAMES: Final = UUID("0d9a5f6e-3c1b-4b6a-8a57-2f4e9b7c6d12")
MAX_MODEL_NAME_CHARS: Final = 200

MODELS_REFRESH_INTERVAL_S: Final = 10.0
DECLARATION_DEAD_AFTER_S: Final = 120.0
"""A process that has not renewed its declaration for this long no longer keeps models enabled."""
MAX_DECLARE_ATTEMPTS: Final = 4
"""Meanwhile the statement timeout ends a declaration of another replica that hangs."""

_KINDS_WITH_KEY: Final = frozenset(
    {"anthropic", "azure", "google", "openai", "openrouter", "vercel"}
)
_KINDS_WITH_ADDRESS: Final = frozenset({"azure", "openai-compat"})

DEMO_MODEL: Final = ModelEntry(name="demo", provider="demo", model="demo")


def build_registry(settings: Settings, env: Mapping[str, str], clock: Clock) -> ProviderRegistry:
    """Raises SettingsError if a model names a provider that is not there."""
    _check_names("providers", [entry.name for entry in settings.providers])
    _check_names("models", [entry.name for entry in settings.models])
    providers = {entry.name: _provider(entry, env) for entry in settings.providers}
    providers.setdefault("demo", ProviderConfig(kind="demo", name="demo"))
    for entry in settings.models:
        if entry.provider not in providers:
            hint = suggest_name(entry.provider, providers) or f"; there are {', '.join(providers)}"
            text = f"there is no provider {show_value(entry.provider)}{hint}"
            raise SettingsError(f"models {show_value(entry.name)}: {text}")
    defaults = [show_value(entry.name) for entry in settings.models if entry.default]
    if len(defaults) > 1:
        text = f"{' and '.join(defaults)} are all the default; set default = true for one of them"
        raise SettingsError(f"models: {text}")
    chosen = sorted(settings.models, key=lambda entry: not entry.default)
    # A model or a provider of the settings with the name `demo` replaces the built-in one.
    is_named = any(entry.name == DEMO_MODEL.name for entry in chosen)
    if not is_named and providers["demo"].kind == "demo":
        chosen.append(DEMO_MODEL)
    return ProviderRegistry([_model(entry) for entry in chosen], providers, clock)


def settings_gaps(settings: Settings, env: Mapping[str, str]) -> list[str]:
    """What is missing for requests to the providers. The server starts nevertheless: the other
    providers work."""
    gaps: list[str] = []
    for entry in settings.providers:
        where = f"provider {show_value(entry.name)}"
        usual = KEY_VARIABLES.get(cast("ProviderKind", entry.kind))
        if entry.api_key is None and entry.api_key_env and not env.get(entry.api_key_env):
            gaps.append(f"{where}: api_key_env: {entry.api_key_env} is not set")
        elif entry.kind in _KINDS_WITH_KEY and not (entry.api_key or env.get(usual or "")):
            gaps.append(f"{where} has no API key: set api_key, api_key_env or {usual}")
        if entry.kind in _KINDS_WITH_ADDRESS and not entry.base_url:
            gaps.append(f"{where} has no base_url")
    return gaps


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


def _check_names(section: str, names: list[str]) -> None:
    for name in names:
        if not name.isprintable() or len(name) > MAX_MODEL_NAME_CHARS:
            text = f"a name has 1 to {MAX_MODEL_NAME_CHARS} printable characters"
            raise SettingsError(f"{section} {show_value(name)}: {text}")
        if names.count(name) > 1:
            raise SettingsError(f"{section} {show_value(name)}: there are two of that name")


def _provider(entry: ProviderEntry, env: Mapping[str, str]) -> ProviderConfig:
    if entry.kind not in get_args(ProviderKind):
        known = ", ".join(sorted(get_args(ProviderKind)))
        hint = suggest_name(entry.kind, get_args(ProviderKind))
        text = f"kind: expected one of {known}, got {show_value(entry.kind)}{hint}"
        raise SettingsError(f"providers {show_value(entry.name)}: {text}")
    kind = cast("ProviderKind", entry.kind)
    variable = entry.api_key_env or KEY_VARIABLES.get(kind, "")
    key = entry.api_key or env.get(variable)
    return ProviderConfig(
        kind=kind,
        name=entry.name,
        base_url=entry.base_url,
        api_key=None if not key else Secret(key),
        headers=_headers(entry),
        region=entry.region,
        default_region=env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION"),
        http=HttpConfig(
            connect_timeout_s=entry.connect_timeout_s or HttpConfig().connect_timeout_s,
            silence_s=entry.silence_timeout_s or SILENCE_LIMITS_S[kind],
            answer_s=entry.answer_timeout_s,
            proxies=_proxies(entry, env),
            tls=_tls_files(entry),
        ),
    )


def _proxies(entry: ProviderEntry, env: Mapping[str, str]) -> ProxyRules:
    """The URL is not repeated in errors: it may contain a password."""
    if entry.proxy is None:
        return environment_proxies(env)
    rules = provider_proxies(entry.proxy)
    proxy = None if rules.https is None else rules.https.reveal()
    if proxy is not None and not proxy.startswith(("http://", "https://")):
        text = "proxy: expected an address that starts with http:// or https://, or none"
        raise SettingsError(f"providers {show_value(entry.name)}: {text}")
    return rules


def _tls_files(entry: ProviderEntry) -> TlsFiles:
    files = {
        "ca_file": entry.ca_file,
        "client_cert": entry.client_cert,
        "client_key": entry.client_key,
    }
    for setting, path in files.items():
        if path is not None and not Path(path).is_absolute():
            text = f"{setting}: expected an absolute path, got {show_value(path)}"
            raise SettingsError(f"providers {show_value(entry.name)}: {text}")
    if entry.client_key is not None and entry.client_cert is None:
        text = "client_key: needs client_cert, the certificate of this key"
        raise SettingsError(f"providers {show_value(entry.name)}: {text}")
    return TlsFiles(**files)


def _headers(entry: ProviderEntry) -> dict[str, Secret]:
    """Values are not repeated in errors: they may be keys."""
    for name, value in entry.headers.items():
        if not is_valid_header(name, value):
            text = "a header has a name of letters, digits and dashes and a value of one line"
            raise SettingsError(
                f"providers {show_value(entry.name)}: headers {show_value(name)}: {text}"
            )
    return {name: Secret(value) for name, value in entry.headers.items()}


def _model(entry: ModelEntry) -> ModelConfig:
    """The id follows from the name, so that chats keep their model over a restart."""
    effort = entry.reasoning_effort
    return ModelConfig(
        id=ModelConfigId(uuid5(_NAMES, entry.name)),
        name=entry.name,
        provider=entry.provider,
        model=entry.model,
        context_limit=entry.context_limit,
        compaction_threshold=entry.compaction_threshold,
        max_output_tokens=entry.max_output_tokens,
        temperature=entry.temperature,
        top_p=entry.top_p,
        reasoning_effort=None if effort is None else _effort(entry.name, effort),
        options=Raw(msgspec.json.encode(entry.options)) if entry.options else UNSET,
        prices=None if entry.prices is None else _prices(entry.prices),
    )


def _effort(name: str, effort: str) -> EffortRange:
    try:
        return msgspec.convert({"default": effort, "max": "max"}, EffortRange)
    except msgspec.ValidationError:
        known = ", ".join(EFFORT_LEVELS)
        text = f"reasoning_effort: expected one of {known}, got {show_value(effort)}"
        raise SettingsError(f"models {show_value(name)}: {text}") from None


def _prices(entry: PriceEntry) -> Prices:
    def text(price: str | float | None) -> str | None:
        return None if price is None else str(price)

    return Prices(
        input=text(entry.input),
        output=text(entry.output),
        cache_read=text(entry.cache_read),
        cache_write=text(entry.cache_write),
    )


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
            id=ModelConfigId(uuid5(_NAMES, f"title/{provider}/{model}")),
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
