"""What chatd knows of the vendors' models: capabilities by name, and the models that a key of the
environment offers.

Windows and prices come from the price list, efforts from each vendor's table. An unknown model has
unknown capabilities; the provider's own list of models, or an administrator, tells them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from chatd.domain.model.capabilities import ModelCapabilities, merge_capabilities
from chatd.domain.model.config import effort_objection
from chatd.domain.model.protocol import Effort, ModelConfig
from chatd.providers.anthropic.models import bedrock_objection, claude_facts
from chatd.providers.config import ProviderKind
from chatd.providers.gemini.models import gemini_profile
from chatd.providers.openai.model_table import find_model, is_claude, model_family
from chatd.providers.prices import listed_name

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
    kind: ProviderKind, config: ModelConfig, told: ModelCapabilities | None = None
) -> ModelObjection | None:
    """Known before a call. `told` is what an administrator says of the model."""
    if kind == "bedrock" and (text := bedrock_objection(config.model)) is not None:
        return ModelObjection(field="model", text=text)
    known = merge_capabilities(told, known_capabilities(kind, listed_name(config)))
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
