"""A clock that moves only when a test advances it.

Code sleeps on it under a tag. The test waits for the sleeper by that tag and then advances, so it
never guesses whether the code has reached its timer.
"""

import asyncio
from datetime import UTC, datetime, timedelta

_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class _Sleeper:
    def __init__(self, tag: str, due: float) -> None:
        self.tag = tag
        self.due = due
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class FakeClock:
    """Satisfies `domain.ports.Clock`."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._sleepers: list[_Sleeper] = []
        self._parked = asyncio.Condition()

    def monotonic(self) -> float:
        return self._now

    def now(self) -> datetime:
        return _BEGINNING + timedelta(seconds=self._now)

    async def sleep(self, seconds: float, tag: str) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper = _Sleeper(tag, self._now + seconds)
        self._sleepers.append(sleeper)
        try:
            async with self._parked:
                self._parked.notify_all()
            await sleeper.woken
        finally:
            self._sleepers.remove(sleeper)

    def sleeping(self, tag: str) -> list[float]:
        """Remaining seconds of each sleeper under this tag, soonest first."""
        return sorted(
            s.due - self._now for s in self._sleepers if s.tag == tag and not s.woken.done()
        )

    async def wait_for_sleeper(self, tag: str, *, within_s: float = 30) -> float:
        """Wait until a task sleeps under this tag; return its remaining seconds."""
        async with asyncio.timeout(within_s), self._parked:
            await self._parked.wait_for(lambda: bool(self.sleeping(tag)))
        return self.sleeping(tag)[0]

    def advance(self, seconds: float) -> None:
        """Sleepers that are due wake at the new time."""
        self._now += seconds
        for sleeper in self._sleepers:
            if sleeper.due <= self._now and not sleeper.woken.done():
                sleeper.woken.set_result(None)

    async def advance_past(self, tag: str) -> float:
        """Wait for a sleeper under this tag and advance by exactly its time."""
        seconds = await self.wait_for_sleeper(tag)
        self.advance(seconds)
        return seconds
