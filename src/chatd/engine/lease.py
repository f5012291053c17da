"""This worker's lease, as far as it can be sure of it.

Owns when it was last renewed, and who waits for that. What its age allows is judged in the
domain; renewing it is the tick's business.
"""

import asyncio

from chatd.domain.lease import LEASE_S, Health, lease_health
from chatd.domain.ports import Clock


class Lease:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renewed_at: float | None = None
        self._renewed = asyncio.Event()

    @property
    def health(self) -> Health:
        """Before it was first taken nothing may be begun."""
        if self._renewed_at is None:
            return "no_new_work"
        return lease_health(self._renewed_at, self._clock.monotonic())

    @property
    def age_s(self) -> float | None:
        """How long ago it was renewed, for whoever watches over this process. None: never."""
        if self._renewed_at is None:
            return None
        return self._clock.monotonic() - self._renewed_at

    def renew(self, asked_at: float) -> None:
        """From when the database was asked: when it has answered we only learn later."""
        self._renewed_at = asked_at
        self._renewed.set()

    async def good(self) -> None:
        """Until new work may be begun."""
        while self.health != "ok":
            self._renewed.clear()
            await self._renewed.wait()

    async def run_out(self) -> None:
        """Until somebody else may own our chats."""
        while self._renewed_at is None:
            self._renewed.clear()
            await self._renewed.wait()
        while self.health != "cancel_runs":
            left = self._renewed_at + LEASE_S - self._clock.monotonic()
            await self._clock.sleep(max(left, 0.0), "lease")
