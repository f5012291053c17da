"""The models that a provider offers, as its own list tells.

Vendors and local servers list their models in three shapes, with many names for the same facts. A
fact that is missing or has an unexpected type is unknown.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from chatd.domain.model.capabilities import ModelCapabilities
from chatd.domain.model.config import MAX_CONTEXT_LIMIT_TOKENS, read_context_limit
from chatd.domain.model.protocol import Effort, ProviderError, ProviderFault
from chatd.domain.ports import Provider
from chatd.providers.anthropic.client import AnthropicProvider
from chatd.providers.config import ProviderKind
from chatd.providers.gemini.client import GeminiProvider
from chatd.providers.openai.provider import OpenAIProvider

MAX_OFFERED_MODELS: Final = 5_000
MAX_NAME_CHARS: Final = 200


class OfferedModel(Struct, frozen=True, kw_only=True):
    """`capabilities` are what the provider tells."""

    model: str
    display_name: str
    capabilities: ModelCapabilities = ModelCapabilities()


class _List(Struct):
    data: list[Raw] | None = None
    models: list[Raw] | None = None


_LIST: Final = msgspec.json.Decoder(_List)


class _Entry(Struct):
    """Any field may have an unexpected type."""

    id: object = None
    name: object = None
    display_name: object = None
    displayName: object = None  # noqa: N815 - the vendor's name
    max_model_len: object = None
    max_context_length: object = None
    context_window: object = None
    inputTokenLimit: object = None  # noqa: N815
    outputTokenLimit: object = None  # noqa: N815
    max_tokens: object = None
    max_completion_tokens: object = None
    meta: object = None
    top_provider: object = None
    architecture: object = None
    capabilities: object = None
    supportedGenerationMethods: object = None  # noqa: N815
    supported_parameters: object = None


async def list_offered(provider: Provider, kind: ProviderKind) -> Sequence[OfferedModel]:
    """Raises ProviderError."""
    match provider:
        case AnthropicProvider() | GeminiProvider() | OpenAIProvider():
            return parse_offered(await provider.read_model_list())
        case _ if kind == "demo":
            return (OfferedModel(model="demo", display_name="demo"),)
        case _:
            text = f"providers of kind {kind} do not list their models: name the model yourself"
            raise ProviderError(ProviderFault(message=text, type="config"))


def parse_offered(body: bytes) -> Sequence[OfferedModel]:
    """Entries that name no model, or one that cannot chat, are left out. Sorted by name."""
    try:
        found = _LIST.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = "the provider's list of models is not in a known form: check the base URL"
        raise ProviderError(ProviderFault(message=text, type="config")) from None
    entries = found.data or found.models or []
    models = [one for raw in entries[:MAX_OFFERED_MODELS] if (one := _offered(raw)) is not None]
    return sorted({one.model: one for one in models}.values(), key=lambda one: one.model)


def _offered(raw: Raw) -> OfferedModel | None:
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except (msgspec.DecodeError, RecursionError):
        return None
    name = _text(entry.id) or _text(entry.name)
    methods = entry.supportedGenerationMethods
    if name is None or (isinstance(methods, list) and "generateContent" not in methods):
        return None
    name = name.removeprefix("models/")
    shown = _text(entry.display_name) or _text(entry.displayName)
    shown = shown or (_text(entry.name) if entry.id is not None else None)
    return OfferedModel(
        model=name, display_name=shown or name, capabilities=_capabilities(entry, raw)
    )


def _capabilities(entry: _Entry, raw: Raw) -> ModelCapabilities:
    top, meta = _fields(entry.top_provider), _fields(entry.meta)
    modalities = _fields(entry.architecture).get("input_modalities")
    told = msgspec.convert(modalities, list[object]) if isinstance(modalities, list) else None
    vision = _fields(entry.capabilities).get("vision")
    images = vision if isinstance(vision, bool) else None
    return ModelCapabilities(
        context_limit=_first_number(
            entry.max_model_len,
            entry.inputTokenLimit,
            entry.max_context_length,
            entry.context_window,
            meta.get("n_ctx"),
            meta.get("n_ctx_train"),
        )
        or read_context_limit(raw),
        max_output_tokens=_first_number(
            entry.outputTokenLimit,
            entry.max_tokens,
            entry.max_completion_tokens,
            top.get("max_completion_tokens"),
        ),
        efforts=_efforts(entry.supported_parameters),
        images=images if told is None else "image" in told,
        pdfs=None if told is None else "file" in told,
    )


def _efforts(parameters: object) -> tuple[Effort, ...] | None:
    """A gateway that lists the parameters of its models, OpenRouter, takes these efforts for each
    model that reasons."""
    if not isinstance(parameters, list):
        return None
    named = msgspec.convert(parameters, list[object])
    return ("low", "medium", "high") if "reasoning" in named else ()


def _text(value: object) -> str | None:
    """None unless it is a printable name of usual length."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS:
        return None
    return value if value.isprintable() else None


def _fields(value: object) -> dict[str, object]:
    return msgspec.convert(value, dict[str, object]) if isinstance(value, dict) else {}


def _first_number(*values: object) -> int | None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        if 0 < value <= MAX_CONTEXT_LIMIT_TOKENS:
            return value
    return None
