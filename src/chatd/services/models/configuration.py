"""Models and providers as the settings declare them: checked, completed by the environment and
converted for the provider registry.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, cast, get_args
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid5

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from chatd.domain.decode_errors import show_value, suggest_name
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ModelConfigId
from chatd.domain.model.config import EFFORT_LEVELS, is_effort_range_empty
from chatd.domain.model.fallback import check_fallbacks
from chatd.domain.model.protocol import EffortRange, ModelConfig, Prices
from chatd.domain.ports import Clock, Env
from chatd.providers.known_models import PRESET_MODELS, find_objection
from chatd.providers.provider_config import (
    KEY_VARIABLES,
    SILENCE_LIMITS_S,
    HttpConfig,
    ProviderConfig,
    ProviderKind,
    ProxyRules,
    Secret,
    TlsFiles,
    environment_proxies,
    is_http_proxy,
    is_valid_header,
    provider_proxies,
)
from chatd.providers.registry import ProviderRegistry
from chatd.settings.schema import (
    EffortEntry,
    ModelEntry,
    PriceEntry,
    ProviderEntry,
    Settings,
    SettingsError,
)
from chatd.store.database.pool import Pool
from chatd.store.model import model_declarations
from chatd.store.model.model_declarations import DeclaredProvider, ModelDeclaration

_NAMES: Final = UUID("5c3f1a52-9d0e-4f6e-9a63-6f5d1b0c7a11")
MAX_MODEL_NAME_CHARS: Final = 200

KINDS_WITH_KEY: Final = frozenset(
    {"anthropic", "azure", "google", "openai", "openrouter", "vercel"}
)
KINDS_WITH_ADDRESS: Final = frozenset({"azure", "openai-compat"})

DEMO_MODEL: Final = ModelEntry(name="demo", provider="demo", model="demo")


def derive_model_id(name: str) -> ModelConfigId:
    """The id follows from the name, so that chats keep their model over a restart."""
    return ModelConfigId(uuid5(_NAMES, name))


def build_registry(settings: Settings, env: Mapping[str, str], clock: Clock) -> ProviderRegistry:
    """Raises SettingsError if a model names a provider that is not there."""
    _check_names("providers", [entry.name for entry in settings.providers])
    _check_names("models", [entry.name for entry in settings.models])
    providers = {entry.name: build_provider_config(entry, env) for entry in settings.providers}
    providers.setdefault("demo", ProviderConfig(kind="demo", name="demo"))
    for entry in settings.models:
        if entry.provider not in providers:
            hint = suggest_name(entry.provider, providers) or f"; there are {', '.join(providers)}"
            text = f"there is no provider {show_value(entry.provider)}{hint}"
            raise SettingsError(f"models {show_value(entry.name)}: {text}")
        if (problem := check_fallbacks(entry.name, entry.fallbacks)) is not None:
            raise SettingsError(f"models {show_value(entry.name)}: fallbacks: {problem}")
    defaults = [show_value(entry.name) for entry in settings.models if entry.default]
    if len(defaults) > 1:
        text = f"{' and '.join(defaults)} are all the default; set default = true for one of them"
        raise SettingsError(f"models: {text}")
    chosen = sorted(settings.models, key=lambda entry: not entry.default)
    presets = _presets(settings, env, providers)
    providers |= {name: replace(config, is_preset=True) for name, config in presets.items()}
    names = {entry.name for entry in chosen}
    chosen += [
        ModelEntry(name=model, provider=name, model=model)
        for name, config in presets.items()
        for model in PRESET_MODELS[config.kind]
        if model not in names
    ]
    # A model or a provider of the settings with the name `demo` replaces the built-in one.
    is_named = any(entry.name == DEMO_MODEL.name for entry in chosen)
    if not is_named and providers["demo"].kind == "demo":
        chosen.append(DEMO_MODEL)
    return ProviderRegistry([_model(entry) for entry in chosen], providers, clock)


def _presets(
    settings: Settings, env: Mapping[str, str], taken: Collection[str]
) -> dict[str, ProviderConfig]:
    """A provider for each vendor that only a key in the environment names."""
    kinds = {entry.kind for entry in settings.providers}
    return {
        kind: build_provider_config(ProviderEntry(name=kind, kind=kind), env)
        for kind in PRESET_MODELS
        if kind not in kinds and kind not in taken and env.get(KEY_VARIABLES[kind], "").strip()
    }


def settings_gaps(settings: Settings, env: Mapping[str, str]) -> list[str]:
    """What is missing for requests to the providers. The server starts nevertheless: the other
    providers work."""
    gaps: list[str] = []
    for entry in settings.providers:
        where = f"provider {show_value(entry.name)}"
        usual = KEY_VARIABLES.get(cast("ProviderKind", entry.kind))
        if entry.api_key is None and entry.api_key_env and not env.get(entry.api_key_env):
            gaps.append(f"{where}: api_key_env: {entry.api_key_env} is not set")
        elif entry.kind in KINDS_WITH_KEY and not (entry.api_key or env.get(usual or "")):
            gaps.append(f"{where} has no API key: set api_key, api_key_env or {usual}")
        if entry.kind in KINDS_WITH_ADDRESS and not entry.base_url:
            gaps.append(f"{where} has no base_url")
    kinds: dict[str, ProviderKind] = {
        entry.name: cast("ProviderKind", entry.kind) for entry in settings.providers
    }
    for entry in settings.models:
        kind = kinds.get(entry.provider)
        if kind is not None and (found := find_objection(kind, _model(entry))) is not None:
            gaps.append(f"model {show_value(entry.name)}: {found.field}: {found.text}")
    return gaps


def _check_names(section: str, names: list[str]) -> None:
    for name in names:
        if not name.isprintable() or len(name) > MAX_MODEL_NAME_CHARS:
            text = f"a name has 1 to {MAX_MODEL_NAME_CHARS} printable characters"
            raise SettingsError(f"{section} {show_value(name)}: {text}")
        if names.count(name) > 1:
            raise SettingsError(f"{section} {show_value(name)}: there are two of that name")


def build_provider_config(entry: ProviderEntry, env: Mapping[str, str]) -> ProviderConfig:
    """Raises SettingsError that names the provider and the key."""
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
    if proxy is not None and not is_http_proxy(proxy):
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
    effort = entry.reasoning_effort
    return ModelConfig(
        id=derive_model_id(entry.name),
        name=entry.name,
        provider=entry.provider,
        model=entry.model,
        context_limit=entry.context_limit,
        compaction_threshold=entry.compaction_threshold,
        max_output_tokens=entry.max_output_tokens,
        temperature=entry.temperature,
        top_p=entry.top_p,
        file_inputs=entry.file_inputs,
        fallbacks=entry.fallbacks,
        reasoning_effort=None if effort is None else _effort(entry.name, effort),
        options=Raw(msgspec.json.encode(entry.options)) if entry.options else UNSET,
        prices=None if entry.prices is None else _prices(entry.prices),
    )


def _effort(name: str, effort: str | EffortEntry) -> EffortRange:
    """A word is the default."""
    given = EffortEntry(default=effort) if isinstance(effort, str) else effort
    known = ", ".join(EFFORT_LEVELS)
    for field in ("default", "max"):
        word = cast("str | None", getattr(given, field))
        if word is not None and word not in EFFORT_LEVELS:
            where = "reasoning_effort" if isinstance(effort, str) else f"reasoning_effort.{field}"
            text = f"{where}: expected one of {known}, got {show_value(word)}"
            raise SettingsError(f"models {show_value(name)}: {text}")
    found = msgspec.convert(given, EffortRange, from_attributes=True)
    if is_effort_range_empty(found):
        text = "reasoning_effort: the default must not be above the max"
        raise SettingsError(f"models {show_value(name)}: {text}")
    return found


def _prices(entry: PriceEntry) -> Prices:
    def text(price: str | float | None) -> str | None:
        return None if price is None else str(price)

    return Prices(
        input=text(entry.input),
        output=text(entry.output),
        cache_read=text(entry.cache_read),
        cache_write=text(entry.cache_write),
        web_search=text(entry.web_search),
    )


# The declaration of this process: the models of its settings and its environment, written to the
# database and renewed while the process runs.

_PROVIDER_NAMES: Final = UUID("0d9a5f6e-3c1b-4b6a-8a57-2f4e9b7c6d12")

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
                source="environment" if provider.is_preset else "settings",
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


class SettingsDeclaration:
    def __init__(self, own: ProviderRegistry, env: Env) -> None:
        self._own = own
        self._env = env
        self._process_id = env.new_id()
        self._renewals: dict[UUID, tuple[datetime, float]] = {}

    async def declare(self, pool: Pool) -> None:
        """Write the models to the database, and log how other running processes differ."""
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
        if found.different:
            self._env.emit("settings_differ", models=", ".join(found.different))
        if found.missing:
            self._env.emit("settings_lack_models", models=", ".join(found.missing))
        if found.shadowed:
            self._env.emit("settings_shadowed", names=", ".join(found.shadowed))

    async def withdraw(self, pool: Pool) -> None:
        """At exit: the next process to start need not wait until this one counts as dead."""
        with suppress(Unavailable):
            await model_declarations.withdraw(pool, self._process_id)

    async def renew(self, pool: Pool) -> None:
        """A process is dead if its time of renewal has not changed for long, by this process's
        own clock: the database's clock may jump."""
        now = self._env.clock.monotonic()
        renewals = await model_declarations.renew(pool, self._process_id)
        if self._process_id not in renewals:  # this process was suspended for long
            await self.declare(pool)
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
            await model_declarations.withdraw_dead(pool, dead)
