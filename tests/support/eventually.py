"""Waiting for something that announces itself to nobody, such as a row in a system view.

Where there is an event to wait for, wait for that instead.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(look: Callable[[], Awaitable[T | None]], *, within_s: float = 30) -> T:
    """Look again and again until there is something to see, and return it."""
    async with asyncio.timeout(within_s):
        while True:
            if seen := await look():
                return seen
            await asyncio.sleep(0.005)
