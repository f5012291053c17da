"""How long to stay away from a database that has just failed us.

Owns the arithmetic only: doubling, bounded, spread out so that replicas which lost the same
database do not come back in step.

Trying again while the database is away, for as long as somebody may be made to wait.

Every try must carry the same change id (`store.transact`): one that was applied although its
reply was lost is then found, not repeated.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from chatd.domain.errors import Unavailable
from chatd.domain.ports import Clock


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    first_delay_s: float = 0.05
    max_delay_s: float = 1.0

    def delay(self, failures: int, draw: Callable[[], float]) -> float:
        """After that many failures in a row; `draw` gives a number in [0, 1)."""
        grown = self.first_delay_s * 2 ** min(failures - 1, 16)
        return min(grown, self.max_delay_s) * (0.5 + draw() / 2)


T = TypeVar("T")

UNAVAILABLE_RETRY_BUDGET_S: Final = 2.0
UNAVAILABLE_FIRST_DELAY_S: Final = 0.05


async def retry_unavailable(clock: Clock, attempt: Callable[[], Awaitable[T]]) -> T:
    """Raises the last Unavailable. No try is begun when the time is over; one under way is
    bounded by the database's own time-outs."""
    until = clock.monotonic() + UNAVAILABLE_RETRY_BUDGET_S
    wait_s = UNAVAILABLE_FIRST_DELAY_S
    while True:
        try:
            return await attempt()
        except Unavailable:
            if clock.monotonic() + wait_s > until:
                raise
        await clock.sleep(wait_s, "request_retry")
        wait_s *= 2
