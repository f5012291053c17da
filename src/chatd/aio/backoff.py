"""Retry while the database is unavailable: growing delays, spread out and bounded."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from chatd.domain.errors import Unavailable
from chatd.domain.ports import Clock

T = TypeVar("T")


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Delays double, up to a bound. Randomness keeps replicas that lost the same database from
    reconnecting at the same moment."""

    first_delay_s: float = 0.05
    max_delay_s: float = 1.0

    def delay(self, failures: int, draw: Callable[[], float] = lambda: 1.0) -> float:
        """The delay after that many failures in a row; `draw` returns a number in [0, 1].
        Without it there is no randomness."""
        grown = self.first_delay_s * 2 ** min(failures - 1, 16)
        return min(grown, self.max_delay_s) * (0.5 + draw() / 2)


UNAVAILABLE_RETRY_BUDGET_S: Final = 2.0
_REQUEST_BACKOFF: Final = Backoff(max_delay_s=UNAVAILABLE_RETRY_BUDGET_S)


async def retry_unavailable(
    clock: Clock,
    attempt: Callable[[], Awaitable[T]],
    *,
    tag: str = "request_retry",
    delay: Callable[[int], float] = _REQUEST_BACKOFF.delay,
    budget_s: float | None = UNAVAILABLE_RETRY_BUDGET_S,
    on_failure: Callable[[Unavailable, int], None] | None = None,
) -> T:
    """Repeat `attempt` while it raises Unavailable; raise the last one when the budget is spent.

    Every attempt of a write must carry the same change id: a write that was applied although its
    reply was lost is then found and not repeated. `budget_s` bounds the start of an attempt (None:
    no bound); the database's own timeouts bound its length. `on_failure` receives the error and
    the number of failures so far.
    """
    started, failures = clock.monotonic(), 0
    while True:
        try:
            return await attempt()
        except Unavailable as error:
            failures += 1
            wait_s = delay(failures)
            if budget_s is not None and clock.monotonic() + wait_s > started + budget_s:
                raise
            if on_failure is not None:
                on_failure(error, failures)
        await clock.sleep(wait_s, tag)
