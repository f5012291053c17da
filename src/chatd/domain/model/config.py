"""How hard a model is asked to think: what was wished for, within what is configured.

What a model call costs, in micros of a dollar.

Tokens times dollars per million tokens is micros exactly; the sum is rounded
up once. None means unpriced, which is not the same as free.

The size of a model's context, as far as a provider tells it with an answer.

Vendors and gateways put it anywhere, under many names, so the names are what is recognized:
a few exact ones, and any that says in words that it is a limit of the context.
"""

import re
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Final, get_args

import msgspec

from chatd.domain.chat.messages import TokenUsage
from chatd.domain.model.protocol import Effort, EffortRange, Prices, PriceTier
from chatd.domain.text import Json, parse_json

EFFORT_LEVELS: Final[tuple[Effort, ...]] = get_args(Effort)


def resolve_effort(requested: str | None, configured: EffortRange | None) -> Effort | None:
    """The wish if it is one of the scale, else the default; never above the maximum. A model
    without a configured range is not asked at all."""
    if configured is None:
        return None
    wishes: list[Effort] = [effort for effort in EFFORT_LEVELS if effort == requested]
    wished = wishes[0] if wishes else configured.default
    if wished is None or configured.max is None:
        return wished
    return EFFORT_LEVELS[min(EFFORT_LEVELS.index(wished), EFFORT_LEVELS.index(configured.max))]


def cost_micros(usage: TokenUsage | None, prices: Prices | None) -> int | None:
    """None without prices, without usage, or if no kind of token that was used has a price.
    Reasoning is part of the output and not counted again."""
    if usage is None or prices is None:
        return None
    applied = _applied(usage, prices)
    lines = (
        (usage.input_tokens, _price(applied.input)),
        (usage.output_tokens, _price(applied.output)),
        (usage.cache_read_tokens, _price(applied.cache_read)),
        (usage.cache_creation_tokens, _price(applied.cache_write)),
    )
    priced = [(tokens, price) for tokens, price in lines if price is not None]
    if not priced:
        return None
    used = any(tokens for tokens, _ in lines)
    if used and not any(tokens for tokens, _ in priced):
        return None
    total = sum((tokens * price for tokens, price in priced), Decimal(0))
    return int(total.to_integral_value(rounding=ROUND_CEILING))


def _applied(usage: TokenUsage, prices: Prices) -> Prices | PriceTier:
    """Long prompts cost more, and then all of their tokens do."""
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens
    reached = [tier for tier in prices.tiers if read > tier.above]
    return max(reached, key=lambda tier: tier.above, default=prices)


def _price(text: str | None) -> Decimal | None:
    """What is no price counts as none: an answer is worth more than its bill."""
    try:
        price = Decimal(text or "")
    except InvalidOperation:
        return None
    return price if price.is_finite() and price >= 0 else None


MAX_CONTEXT_LIMIT_TOKENS: Final = 1_000_000_000
"""A number beyond it is something else: no model has such a context."""

_EXACT: Final = frozenset(
    {
        "contextlimit",
        "contextwindow",
        "contextlength",
        "maxcontext",
        "maxcontexttokens",
        "maxinputtokens",
        "maxinputtoken",
        "inputtokenlimit",
    }
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SIZES: Final = (
    frozenset({"limit"}),
    frozenset({"window", "size"}),
    frozenset({"window", "max"}),
    frozenset({"length", "max"}),
    frozenset({"token", "max"}),
    frozenset({"tokens", "max"}),
    frozenset({"token", "limit"}),
    frozenset({"tokens", "limit"}),
)
# Not how large it is, but what became of it.
_OTHER: Final = frozenset({"used", "usage", "remaining", "left", "exceeded", "version"})


def effective_context_limit(metadata: Json, configured: int | None) -> int | None:
    """What the provider said, else what is configured, else nothing."""
    found = read_context_limit(metadata)
    if found is not None:
        return found
    return configured if configured is not None and configured > 0 else None


def read_context_limit(metadata: Json) -> int | None:
    """The largest number under any name that means the context's size."""
    found = 0
    left: list[object] = [parse_json(metadata)]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left.extend(msgspec.convert(value, list[object]))
        elif isinstance(value, dict):
            for key, item in msgspec.convert(value, dict[str, object]).items():
                left.append(item)
                if _means_limit(key):
                    found = max(found, _number(item))
    return found or None


def _means_limit(key: str) -> bool:
    if re.sub(r"[^a-z0-9]", "", key.lower()) in _EXACT:
        return True
    words = {word.lower() for word in _WORD.findall(key)}
    sized = any(size <= words for size in _SIZES)
    return "context" in words and sized and not words & _OTHER


def _number(value: object) -> int:
    """0 for what is no size: not positive, not whole, not a number, or absurd."""
    match value:
        case bool():
            return 0
        case int():
            number = value
        case float():
            number = int(value) if value.is_integer() else 0
        case str():
            digits = value.strip()
            number = int(digits) if re.fullmatch(r"[0-9]{1,12}", digits) else 0
        case _:
            return 0
    return number if 0 < number <= MAX_CONTEXT_LIMIT_TOKENS else 0
