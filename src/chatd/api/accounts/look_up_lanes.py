"""How many look-ups of unknown secrets this replica makes at once.

An address whose secrets were wrong too often is not refused: other users may share it, behind a
proxy that this server does not trust. Its look-ups take a slow lane, one at a time, and a bounded
number waits. A secret that was valid here before never takes it.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

from chatd.api.accounts.rate_limits import Buckets, address_group
from chatd.api.errors import RateLimited
from chatd.domain.ports import Clock

WRONG_SECRETS_PER_MINUTE: Final = 60
"""Of one address. Only the first request with each secret is looked up."""
MAX_LOOKUPS_AT_ONCE: Final = 4
"""Of secrets: the other connections of the pool stay free for callers that are known."""
MAX_SLOW_LOOKUPS_WAITING: Final = 64
SLOW_LOOKUP_RETRY_S: Final = 2.0


class LookUpLanes:
    def __init__(self, clock: Clock) -> None:
        self._wrong = Buckets(clock)
        self._usual = asyncio.Semaphore(MAX_LOOKUPS_AT_ONCE)
        self._slow = asyncio.Semaphore(1)
        self._waiting = 0

    @asynccontextmanager
    async def lane(self, address: str | None, *, is_known: bool = False) -> AsyncGenerator[None]:
        """Hold it during the look-up. Raises RateLimited if too many wait in the slow lane."""
        group = address_group(address)
        if is_known or not self._wrong.is_empty(group, WRONG_SECRETS_PER_MINUTE):
            async with self._usual:
                yield
            return
        if self._waiting >= MAX_SLOW_LOOKUPS_WAITING:
            raise RateLimited(SLOW_LOOKUP_RETRY_S)
        self._waiting += 1
        try:
            async with self._slow:
                yield
        finally:
            self._waiting -= 1

    def count_wrong(self, address: str | None) -> None:
        with suppress(RateLimited):
            self._wrong.take(address_group(address), WRONG_SECRETS_PER_MINUTE)
