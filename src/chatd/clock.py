"""The real clock: the one place, beside the roof, where time comes from the machine.

Code that reads the time or waits for it takes a clock as an argument (`domain.ports.Clock`), so a
test can hand it one that moves only when told to.
"""

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """Satisfies `domain.ports.Clock`."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float, tag: str) -> None:
        """The tag is for a test's clock, which finds the sleeper by it."""
        del tag
        await asyncio.sleep(seconds)
