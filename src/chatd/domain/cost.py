"""What a model call costs, in micros of a dollar.

Tokens times dollars per million tokens is micros exactly; the sum is rounded
up once. None means unpriced, which is not the same as free.
"""

from decimal import ROUND_CEILING, Decimal, InvalidOperation

from chatd.domain.messages import Usage
from chatd.domain.model import Prices, PriceTier


def cost_micros(usage: Usage | None, prices: Prices | None) -> int | None:
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


def _applied(usage: Usage, prices: Prices) -> Prices | PriceTier:
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
