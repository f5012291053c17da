"""Polling for what sends no event, such as a row in a system view: if there is an event, wait for
it instead. And whether a piece of work lets other tasks run."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from chatd.aio import run_other_tasks

T = TypeVar("T")
FIRST_DELAY_S: Final = 0.005
MAX_DELAY_S: Final = 0.05


async def eventually(look: Callable[[], Awaitable[T | None]], *, within_s: float = 30) -> T:
    """Call `look` until it returns something true, and return that."""
    delays = poll_delays()
    async with asyncio.timeout(within_s):
        while True:
            if seen := await look():
                return seen
            await asyncio.sleep(next(delays))


def poll_delays() -> Iterator[float]:
    """Seconds between two looks: few at first, and more for what takes long, so that the looks of a
    busy machine do not make it busier."""
    delay = FIRST_DELAY_S
    while True:
        yield delay
        delay = min(delay * 1.4, MAX_DELAY_S)


class Ticker:
    """Counts how often another task ran."""

    def __init__(self) -> None:
        self.ticks = 0

    async def tick(self) -> None:
        while True:
            self.ticks += 1
            await run_other_tasks()


@asynccontextmanager
async def ticking() -> AsyncGenerator[Ticker]:
    """Another task that runs whenever this one lets others run."""
    ticker = Ticker()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ticker.tick())
        await run_other_tasks()
        ticker.ticks = 0
        yield ticker
        task.cancel()
