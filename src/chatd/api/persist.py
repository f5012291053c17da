"""Trying again while the database is away, for as long as somebody may be made to wait.

Every try must carry the same change id (`store.transact`): one that was applied although its
reply was lost is then found, not repeated.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from chatd.domain.errors import Unavailable
from chatd.domain.ports import Clock

T = TypeVar("T")

WITHIN_S: Final = 2.0
FIRST_WAIT_S: Final = 0.05


async def persist(clock: Clock, attempt: Callable[[], Awaitable[T]]) -> T:
    """Raises the last Unavailable. No try is begun when the time is over; one under way is
    bounded by the database's own time-outs."""
    until = clock.monotonic() + WITHIN_S
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return await attempt()
        except Unavailable:
            if clock.monotonic() + wait_s > until:
                raise
        await clock.sleep(wait_s, "request_retry")
        wait_s *= 2
