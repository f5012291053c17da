"""Numbers out of samples. Pure."""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct


class Spread(Struct, frozen=True, kw_only=True):
    """Of a few runs: the one in the middle, and between which it lies."""

    middle: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{figure(self.least)} to {figure(self.most)}"


def spread(samples: Sequence[float]) -> Spread:
    return Spread(middle=median(samples), least=min(samples), most=max(samples))


def percentile(samples: Sequence[float], share: float) -> float:
    """The least sample that at least this share of all do not exceed."""
    ranked = sorted(samples)
    index = -(-len(ranked) * share // 1) - 1
    return ranked[max(0, min(len(ranked) - 1, int(index)))]


def over(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ratios of runs made side by side: what slowed the one has slowed the other."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def figure(value: float) -> str:
    """As many digits as a reader needs."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")
