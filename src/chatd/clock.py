"""The real clock: the one place, beside the roof, where time comes from the machine.

Owns reading the time and waiting for it to pass. Code that needs either takes a clock as an
argument, so a test can hand it a clock that only moves when told to.
"""

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """Wall time in UTC, a monotonic reading for durations, and waiting."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float, tag: str) -> None:
        """Wait. The tag says what for; a test's clock finds the sleeper by it."""
        del tag
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        return asyncio.timeout(seconds)
