"""How long to stay away from a database that has just failed us.

Owns the arithmetic only: doubling, bounded, spread out so that replicas which lost the same
database do not come back in step.
"""

from collections.abc import Callable

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    first_s: float = 0.05
    most_s: float = 1.0

    def delay(self, failures: int, draw: Callable[[], float]) -> float:
        """After that many failures in a row; `draw` gives a number in [0, 1)."""
        grown = self.first_s * 2 ** min(failures - 1, 16)
        return min(grown, self.most_s) * (0.5 + draw() / 2)
