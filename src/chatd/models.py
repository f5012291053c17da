"""From the settings to the models of this deployment. The demo model is always among them."""

from collections.abc import Mapping
from typing import Final, cast, get_args
from uuid import UUID, uuid5

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.effort import SCALE
from chatd.domain.ids import ModelConfigId
from chatd.domain.model import EffortRange, ModelConfig, Prices
from chatd.domain.ports import Clock
from chatd.providers.directory import Directory
from chatd.providers.secret import Secret
from chatd.providers.settings import KEY_VARIABLES, Kind, ProviderSettings
from chatd.settings.tree import ModelEntry, PriceEntry, ProviderEntry, Settings, SettingsError

_NAMES: Final = UUID("5c3f1a52-9d0e-4f6e-9a63-6f5d1b0c7a11")
DEMO: Final = ModelEntry(name="demo", provider="demo", model="demo")


def directory(settings: Settings, env: Mapping[str, str], clock: Clock) -> Directory:
    """Raises SettingsError if a model names a provider that is not there."""
    providers = {entry.name: _provider(entry, env) for entry in settings.providers}
    providers.setdefault("demo", ProviderSettings(kind="demo", name="demo"))
    for entry in settings.models:
        if entry.provider not in providers:
            raise SettingsError(f"models: {entry.name}: there is no provider {entry.provider!r}")
    named = {entry.name: entry for entry in (*settings.models, DEMO)}
    chosen = sorted(named.values(), key=lambda entry: not entry.default)
    return Directory([_model(entry) for entry in chosen], providers, clock)


def _provider(entry: ProviderEntry, env: Mapping[str, str]) -> ProviderSettings:
    if entry.kind not in get_args(Kind):
        known = ", ".join(sorted(get_args(Kind)))
        raise SettingsError(f"providers: {entry.name}: kind must be one of {known}")
    kind = cast("Kind", entry.kind)
    variable = entry.api_key_env or KEY_VARIABLES.get(kind, "")
    key = entry.api_key or env.get(variable)
    return ProviderSettings(
        kind=kind,
        name=entry.name,
        base_url=entry.base_url,
        api_key=None if not key else Secret(key),
    )


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
        known = ", ".join(SCALE)
        raise SettingsError(f"models: {name}: reasoning_effort must be one of {known}") from None


def _prices(entry: PriceEntry) -> Prices:
    def text(price: str | float | None) -> str | None:
        return None if price is None else str(price)

    return Prices(
        input=text(entry.input),
        output=text(entry.output),
        cache_read=text(entry.cache_read),
        cache_write=text(entry.cache_write),
    )
