"""Waiting in the supervisor: for an event with an end to it, and for a process to end.

Standard library only. Time comes from the loop, so there is one clock.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator


async def pause(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event came; else the time has passed."""
    if event.is_set() or seconds <= 0:
        return event.is_set()
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


@contextlib.asynccontextmanager
async def ended(pid: int, wake: asyncio.Event) -> AsyncGenerator[asyncio.Event]:
    """An event for the end of a child, which also sets `wake`. The child is left to be fetched
    by its owner."""
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    descriptor = os.pidfd_open(pid)

    def tell() -> None:
        loop.remove_reader(descriptor)  # Else it would tell again and again.
        end.set()
        wake.set()

    loop.add_reader(descriptor, tell)
    try:
        yield end
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
