"""What chatd knows about models: capabilities by name, the models that a key in the environment
offers, and the list that a provider itself publishes.

Context windows and prices come from the price list, efforts from each vendor's table. An unknown
model has unknown capabilities, until the provider's own list or an administrator supplies them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.model.config import MAX_CONTEXT_LIMIT_TOKENS, effort_objection, read_context_limit
from chatd.domain.model.protocol import (
    Effort,
    ModelCapabilities,
    ModelConfig,
    ProviderError,
    ProviderFault,
    merge_capabilities,
)
from chatd.domain.ports import Provider
from chatd.providers.anthropic.anthropic_client import AnthropicProvider
from chatd.providers.anthropic.anthropic_models import bedrock_objection, claude_facts
from chatd.providers.gemini.gemini_client import GeminiProvider
from chatd.providers.gemini.gemini_models import gemini_profile
from chatd.providers.openai.openai_models import find_model, is_claude, model_family
from chatd.providers.openai.openai_provider import OpenAIProvider
from chatd.providers.prices import listed_name
from chatd.providers.provider_config import ProviderKind

# The longest answer by the start of the name; the first match counts.
_MAX_OUTPUT_TOKENS: Final[Sequence[tuple[re.Pattern[str], int]]] = tuple(
    (re.compile(pattern), tokens)
    for pattern, tokens in (
        (r"claude-3-(opus|sonnet|haiku)", 4_096),
        (r"claude-3-5", 8_192),
        (r"claude-3-7", 64_000),
        (r"claude-opus-4(-[01])?($|-\d{8})", 32_000),
        (r"claude-(sonnet|haiku|opus)-4-5", 64_000),
        (r"claude-sonnet-4(-0)?($|-\d{8})", 64_000),
        (r"claude-opus-4-[6-9]", 128_000),
        (r"gpt-3\.5", 4_096),
        (r"gpt-4o|chatgpt-4o", 16_384),
        (r"gpt-4\.1", 32_768),
        (r"gpt-4-turbo", 4_096),
        (r"gpt-5|gpt-6", 128_000),
        (r"o[134](-|$)", 100_000),
        (r"gemini-1|gemini-2\.0", 8_192),
        (r"gemini-", 65_536),
    )
)

PRESET_MODELS: Final[Mapping[ProviderKind, Sequence[str]]] = {
    "anthropic": ("claude-opus-5", "claude-sonnet-5", "claude-haiku-4-5"),
    "openai": ("gpt-5.2", "gpt-5-mini"),
    "google": ("gemini-2.5-pro", "gemini-2.5-flash"),
}
"""The models of a provider that has only a key in the environment; the first is the default."""


def suggest_model(kind: ProviderKind, offered: Sequence[str]) -> str | None:
    """The model to begin with: one of the environment's, else one that is known to chat, else the
    first."""
    presets = [name for name in PRESET_MODELS.get(kind, ()) if name in offered]
    known = [name for name in offered if known_capabilities(kind, name).max_output_tokens]
    return next(iter([*presets, *known, *offered]), None)


def known_capabilities(kind: ProviderKind, model: str) -> ModelCapabilities:
    name = model_family(model)
    if kind == "demo":
        return ModelCapabilities(images=False, pdfs=False, web_search=False, efforts=())
    if kind in {"anthropic", "bedrock"} or is_claude(name):
        return _claude(kind, name)
    if kind == "google" or name.startswith("gemini-"):
        return _gemini(kind, name)
    return _openai(kind, name)


class ModelObjection(Struct, frozen=True, kw_only=True):
    """Why a provider cannot serve a model as it is configured. `field` is the wrong setting."""

    field: str
    text: str


class _SearchOption(Struct, frozen=True):
    web_search_enabled: bool = False


def find_objection(
    kind: ProviderKind, config: ModelConfig, declared: ModelCapabilities | None = None
) -> ModelObjection | None:
    """Reasons against a model, before any call. `declared`: what an administrator says about it."""
    if kind == "bedrock" and (text := bedrock_objection(config.model)) is not None:
        return ModelObjection(field="model", text=text)
    known = merge_capabilities(declared, known_capabilities(kind, listed_name(config)))
    wanted = config.reasoning_effort
    effort = None if wanted is None else wanted.default or wanted.max
    if (text := effort_objection(config.model, effort, known.efforts)) is not None:
        return ModelObjection(field="reasoning_effort", text=text)
    if kind == "google" and known.web_search is False and _wants_search(config):
        text = (
            "cannot search the web in a request with tools: use Gemini 3 or later, or leave it out"
        )
        return ModelObjection(field="options.web_search_enabled", text=f"{config.model} {text}")
    return None


def _wants_search(config: ModelConfig) -> bool:
    if config.options is UNSET:
        return False
    try:
        return msgspec.json.decode(config.options, type=_SearchOption).web_search_enabled
    except msgspec.DecodeError:
        return False  # the check of the options reports it


def _claude(kind: ProviderKind, name: str) -> ModelCapabilities:
    short = name.rpartition("anthropic.")[2]
    facts = claude_facts(name)
    is_known = bool(facts.family)
    can_reason = facts.has_thinking_budget or facts.has_adaptive_thinking
    return ModelCapabilities(
        max_output_tokens=_max_output(short),
        efforts=(facts.efforts if can_reason else ()) if is_known else None,
        images=True if is_known else None,
        pdfs=(kind in {"anthropic", "bedrock"} and facts.version >= (3, 5)) if is_known else None,
        web_search=(kind == "anthropic" and facts.version >= (3, 5)) if is_known else None,
    )


def _gemini(kind: ProviderKind, name: str) -> ModelCapabilities:
    if not name.startswith("gemini-"):
        return ModelCapabilities()
    profile = gemini_profile(name)
    efforts: tuple[Effort, ...] = profile.levels
    if profile.thinking == "budget":
        efforts = ("minimal", "low", "medium", "high")
    return ModelCapabilities(
        max_output_tokens=_max_output(name),
        efforts=efforts,
        images=True,
        pdfs=kind == "google",
        # Beside functions, which a chat nearly always has, older models cannot search.
        web_search=kind == "google" and profile.mixes_tools,
    )


def _openai(kind: ProviderKind, name: str) -> ModelCapabilities:
    found = find_model(name)
    if found is None:
        return ModelCapabilities()
    is_vendor = kind in {"openai", "azure"}
    has_vision = not name.startswith(("gpt-3", "gpt-oss", "o1-mini", "o3-mini"))
    return ModelCapabilities(
        max_output_tokens=_max_output(name),
        efforts=found.efforts,
        images=has_vision,
        pdfs=is_vendor and has_vision,
        web_search=is_vendor and (found.searches or found.transport == "responses"),
    )


def _max_output(name: str) -> int | None:
    return next((tokens for start, tokens in _MAX_OUTPUT_TOKENS if start.match(name)), None)


# The provider's own list.
#
# Vendors and local servers publish it in three shapes, with many names for the same facts. A fact
# that is missing or has an unexpected type counts as unknown.

MAX_OFFERED_MODELS: Final = 5_000
MAX_NAME_CHARS: Final = 200


class OfferedModel(Struct, frozen=True, kw_only=True):
    """`capabilities` are those that the provider lists."""

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
    listed = msgspec.convert(modalities, list[object]) if isinstance(modalities, list) else None
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
        images=images if listed is None else "image" in listed,
        pdfs=None if listed is None else "file" in listed,
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
