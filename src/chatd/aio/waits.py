"""Waits that end early: a sleep that can be interrupted, and the first of several waits."""

import asyncio
from collections.abc import Coroutine

from chatd.domain.ports import Clock


class InterruptibleSleep:
    """For loops that sleep between two rounds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = asyncio.Event()

    def wake(self) -> None:
        """End the current sleep; if there is none, the next one returns at once."""
        self._over.set()

    async def sleep(self, seconds: float, tag: str) -> None:
        if not self._over.is_set():
            await first_of(self._clock.sleep(seconds, tag), self._over.wait())
        self._over.clear()


async def first_of(*waits: Coroutine[object, None, object]) -> int:
    """Run all of them until one ends, cancel the others, and return the index of that one.

    Raises what that one raised. For plain waits only (a sleep, an event): the others are cancelled
    and not awaited.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    first = next(number for number, task in enumerate(tasks) if task.done())
    tasks[first].result()
    return first
