"""The real clock. Code that reads the time or sleeps takes a `domain.ports.Clock` as an argument,
so that a test can pass a fake one.
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
        """A test's clock finds the sleeping task by the tag."""
        del tag
        await asyncio.sleep(seconds)
