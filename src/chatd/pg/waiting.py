"""Waiting for other processes.

They live in real time, so these waits do too: under a clock that a test can stop, a lock that
another process holds would never be seen to become free.
"""

import asyncio
import contextlib
from typing import Final

FIRST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 0.1


class Patience:
    """How long we go on asking: `while not done: if not await patience.again(): give up`."""

    def __init__(self, within_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + within_s
        self._pause_s = FIRST_PAUSE_S

    async def again(self) -> bool:
        """Pause, a little longer each time; False when the time is up."""
        if self._loop.time() >= self._deadline:
            return False
        await pause(self._pause_s)
        self._pause_s = min(self._pause_s * 1.5, LONGEST_PAUSE_S)
        return True


async def pause(seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().create_future()
