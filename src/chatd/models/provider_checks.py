"""What an administrator writes about a provider or a model, checked before it is stored. Errors
name the field and never repeat a secret."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Final, cast

import msgspec
from msgspec import UNSET, Struct

from chatd.api.schemas.models import OptionsSchemaReply
from chatd.domain.decode_errors import show_value
from chatd.domain.errors import InvalidInput
from chatd.domain.model.capabilities import ModelCapabilities
from chatd.domain.model.config import is_effort_range_empty
from chatd.domain.model.protocol import Effort, EffortRange, ModelConfig, ProviderError
from chatd.domain.text import Json
from chatd.models.configuration import KINDS_WITH_ADDRESS
from chatd.providers.known_models import find_objection
from chatd.providers.options import parse_options
from chatd.providers.provider_config import (
    ProviderConfig,
    ProviderKind,
    base_url,
    build_tls_context,
)
from chatd.providers.registry import OPTION_CLASSES
from chatd.settings.schema import SettingsError

MASK_VISIBLE_CHARS: Final = 4
MIN_MASKED_CHARS: Final = 12
"""Of a shorter key no character is shown."""


def check_storable(field: str, text: str) -> str:
    if not text.isprintable():
        raise InvalidInput(field, "must have printable characters only")
    return text


def mask_key(key: str) -> str:
    return f"…{key[-MASK_VISIBLE_CHARS:]}" if len(key) >= MIN_MASKED_CHARS else "…"


def check_config(config: ProviderConfig) -> None:
    """The address and the files. Whether a key fits shows in a test call."""
    if config.kind in KINDS_WITH_ADDRESS and not config.base_url:
        raise InvalidInput("base_url", f"is required for providers of kind {config.kind}")
    try:
        if config.base_url is not None:
            base_url(config, None)
    except ProviderError as failed:
        raise InvalidInput("base_url", failed.message) from None
    try:
        build_tls_context(config.http.tls)
    except ProviderError as failed:
        field = failed.message.partition(" ")[0]
        raise InvalidInput(field, failed.message) from None


def invalid_setting(error: SettingsError, name: str) -> InvalidInput:
    """The settings' checks are of the same fields."""
    text = error.message.removeprefix(f"providers {show_value(name)}: ")
    field, separator, detail = text.partition(": ")
    return InvalidInput(field.split()[0] if separator else "provider", detail or text)


def check_options(kind: str, options: Json) -> Json:
    """Raises InvalidInput that names the option."""
    if options is UNSET:
        return UNSET
    parse_options(OPTION_CLASSES[cast("ProviderKind", kind)], options)
    return UNSET if bytes(options).strip() == b"{}" else options


def check_effort(effort: Effort | EffortRange | None) -> EffortRange | None:
    """A word is the default."""
    if effort is None or isinstance(effort, str):
        return None if effort is None else EffortRange(default=effort)
    if is_effort_range_empty(effort):
        raise InvalidInput("reasoning_effort", "the default must not be above the max")
    return effort


def check_fits(
    config: ModelConfig, kind: ProviderKind, told: ModelCapabilities | None = None
) -> None:
    """Raises InvalidInput for what the provider, or that model, is known not to do."""
    if (found := find_objection(kind, config, told)) is not None:
        code = "effort_not_supported" if found.field == "reasoning_effort" else None
        raise InvalidInput(found.field, found.text, code=code)


def plain_price(text: str | None) -> str | None:
    return None if text is None else format(Decimal(text).normalize(), "f")


def options_schema() -> OptionsSchemaReply:
    kinds: Mapping[ProviderKind, type[Struct]] = OPTION_CLASSES
    schemas, components = msgspec.json.schema_components(
        list(kinds.values()), ref_template="#/$defs/{name}"
    )
    return OptionsSchemaReply(
        properties=dict(zip(kinds, schemas, strict=True)), definitions=components
    )
