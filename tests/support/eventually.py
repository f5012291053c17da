"""Polling for what sends no event, such as a row in a system view. If there is an event, wait
for it instead."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(look: Callable[[], Awaitable[T | None]], *, within_s: float = 30) -> T:
    """Call `look` until it returns something true, and return that."""
    async with asyncio.timeout(within_s):
        while True:
            if seen := await look():
                return seen
            await asyncio.sleep(0.005)
