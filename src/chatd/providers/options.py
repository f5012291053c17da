"""Options of a model, one struct per kind of provider, and the scale of reasoning effort.

An option block is rejected as a whole with the invalid option named. Unknown options are errors.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Final, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct

from chatd.domain.decode_errors import describe_decode_error
from chatd.domain.errors import InvalidInput
from chatd.domain.model.config import EFFORT_LEVELS
from chatd.domain.model.protocol import Effort
from chatd.domain.text import Json

Domain = Annotated[str, Meta(min_length=1, max_length=253)]
Domains = Annotated[tuple[Domain, ...], Meta(max_length=100)]


class OptionBlock(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all options. Subclasses repeat `kw_only`, which msgspec does not inherit."""


PREFILL_TEXT: Final = (
    "Continue an answer that a crash has cut off from its text; unset: if the model is known to"
    " take it"
)


class ThinkingOptions(OptionBlock, frozen=True, kw_only=True):
    budget_tokens: Annotated[int, Meta(ge=1024, description="Thinking budget in tokens")]


class AnthropicOptions(OptionBlock, frozen=True, kw_only=True):
    send_reasoning: Annotated[
        bool, Meta(description="Send earlier reasoning back to the model")
    ] = True
    thinking: Annotated[
        ThinkingOptions | None, Meta(description="A fixed thinking budget, for older models")
    ] = None
    effort: Annotated[
        Literal["low", "medium", "high", "xhigh", "max"] | None,
        Meta(description="Reasoning effort of the model"),
    ] = None
    thinking_display: Annotated[
        Literal["summarized", "omitted"] | None, Meta(description="How thinking is returned")
    ] = None
    disable_parallel_tool_use: Annotated[
        bool | None, Meta(description="At most one tool call at a time")
    ] = None
    web_search_enabled: Annotated[
        bool, Meta(description="Let the provider search the web for the model")
    ] = False
    allowed_domains: Annotated[
        Domains, Meta(description="Search only these; excludes blocked_domains")
    ] = ()
    blocked_domains: Annotated[
        Domains, Meta(description="Never search these; excludes allowed_domains")
    ] = ()
    prefill: Annotated[bool | None, Meta(description=PREFILL_TEXT)] = None
    context_1m_enabled: Annotated[
        bool, Meta(description="Request the context window of a million tokens")
    ] = False

    def __post_init__(self) -> None:
        if self.allowed_domains and self.blocked_domains:
            raise ValueError("allowed_domains and blocked_domains exclude each other")


_T = TypeVar("_T", bound=Struct)


def parse_options(block: type[_T], options: Json) -> _T:
    """Raises InvalidInput that names the invalid option. UNSET gives the defaults."""
    if options is UNSET:
        return block()
    try:
        return msgspec.json.decode(options, type=block)
    except msgspec.ValidationError as error:
        field, text = describe_decode_error(error, block)
        where = f"options.{field}" if field else "options"
        raise InvalidInput(where, text, code="invalid_options") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidInput("options", "not JSON", code="invalid_options") from None


def add_extra_fields(
    body: Mapping[str, object], extra: Mapping[str, Raw] | None, required: Collection[str]
) -> dict[str, object]:
    """The body of a request with an operator's own fields. They replace chatd's, except those that
    are `required`; an object is merged with the object that chatd sends."""
    merged = dict(body)
    for name, raw in (extra or {}).items():
        if name in required and name in body:
            continue
        merged[name] = _merge_field(merged.get(name), msgspec.json.decode(raw))
    return merged


def _merge_field(own: object, extra: object) -> object:
    ours: object = msgspec.to_builtins(own)
    if not isinstance(extra, dict) or not isinstance(ours, dict):
        return cast("object", extra)
    fields = msgspec.convert(ours, dict[str, object])
    for name, value in msgspec.convert(extra, dict[str, object]).items():
        fields[name] = _merge_field(fields.get(name), value)
    return fields


MIN_THINKING_BUDGET_TOKENS: Final = 1024

# The share of the output tokens, for models that take a budget instead of an effort.
_SHARE: Final[dict[Effort, float]] = {
    "none": 0.0,
    "minimal": 0.1,
    "low": 0.2,
    "medium": 0.5,
    "high": 0.8,
    "xhigh": 0.9,
    "max": 0.95,
}


def raise_effort(effort: Effort, allowed: Collection[Effort]) -> Effort:
    """The lowest allowed effort that is at least `effort`, else the highest allowed."""
    return min(allowed, key=lambda step: (_rank(step) < _rank(effort), _distance(step, effort)))


def lower_effort(effort: Effort, allowed: Collection[Effort]) -> Effort:
    """The highest allowed effort that is at most `effort`, else the lowest allowed."""
    return min(allowed, key=lambda step: (_rank(step) > _rank(effort), _distance(step, effort)))


def _rank(effort: Effort) -> int:
    return EFFORT_LEVELS.index(effort)


def _distance(one: Effort, other: Effort) -> int:
    return abs(_rank(one) - _rank(other))


def thinking_budget_tokens(effort: Effort, max_tokens: int) -> int | None:
    """The thinking budget out of all output tokens. None without thinking, or if the output limit
    is too small to leave tokens for the answer."""
    share = _SHARE[effort]
    if share == 0 or max_tokens <= MIN_THINKING_BUDGET_TOKENS:
        return None
    return min(max(MIN_THINKING_BUDGET_TOKENS, int(max_tokens * share)), max_tokens - 1)
