"""A sleep that can be cut short, for loops that rest between two rounds."""

import asyncio

from chatd.domain.ports import Clock


class InterruptibleSleep:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = asyncio.Event()

    def wake(self) -> None:
        """End the sleep under way; if there is none, the next one does not begin."""
        self._over.set()

    async def sleep(self, seconds: float, tag: str) -> None:
        if not self._over.is_set():
            async with asyncio.TaskGroup() as group:
                nap = group.create_task(self._clock.sleep(seconds, tag), name=tag)
                nap.add_done_callback(lambda _: self._over.set())
                await self._over.wait()
                nap.cancel()
        self._over.clear()
