"""How hard a model is asked to think, fitted to what a model family understands.

Owns the scale and the ways of moving along it. Which values a model takes is
the business of that model's wire.
"""

from collections.abc import Collection
from typing import Final

from chatd.domain.model.protocol import Effort

SCALE: Final[tuple[Effort, ...]] = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

MIN_BUDGET_TOKENS: Final = 1024

# For models that are given a number of tokens instead of a word: the share of the output.
_SHARE: Final[dict[Effort, float]] = {
    "none": 0.0,
    "minimal": 0.1,
    "low": 0.2,
    "medium": 0.5,
    "high": 0.8,
    "xhigh": 0.9,
    "max": 0.95,
}


def raised(effort: Effort, allowed: Collection[Effort]) -> Effort:
    """The least of `allowed` that is at least `effort`, else the highest there is."""
    return min(allowed, key=lambda step: (_rank(step) < _rank(effort), _distance(step, effort)))


def lowered(effort: Effort, allowed: Collection[Effort]) -> Effort:
    """The most of `allowed` that is at most `effort`, else the lowest there is."""
    return min(allowed, key=lambda step: (_rank(step) > _rank(effort), _distance(step, effort)))


def _rank(effort: Effort) -> int:
    return SCALE.index(effort)


def _distance(one: Effort, other: Effort) -> int:
    return abs(_rank(one) - _rank(other))


def budget_tokens(effort: Effort, max_tokens: int) -> int | None:
    """Tokens for thinking out of all the output. None if there is no thinking, or no room for it:
    a budget must leave something to say."""
    share = _SHARE[effort]
    if share == 0 or max_tokens <= MIN_BUDGET_TOKENS:
        return None
    return min(max(MIN_BUDGET_TOKENS, int(max_tokens * share)), max_tokens - 1)
