"""The real clock and the source of change ids.

Other code takes both in a `domain.ports.Env`, so that a test can pass fake ones.
"""

import asyncio
import secrets
import time
from datetime import UTC, datetime

from chatd.domain.ids import ChangeId


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


def new_change_id() -> ChangeId:
    """Never 0, which marks changes that are not looked up again."""
    return ChangeId(secrets.randbits(62) + 1)
