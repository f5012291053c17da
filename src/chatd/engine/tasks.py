"""Ending tasks that may not listen.

A tool is somebody's code: told to stop, it may go on for ever. Nobody waits for it longer than
a moment; it is kept here until it ends, so that it is neither lost nor complained of. Whatever
it still does to a chat is refused by the fence.

Where a failure stops: work whose bugs must not take down whoever runs it.

The only place in this room that catches everything. Being cancelled is not a failure.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from chatd.domain.ports import Env

CANCEL_GRACE_S: Final = 2.0
SHUTDOWN_CANCEL_GRACE_S: Final = 0.5


class TaskReaper:
    def __init__(self, env: Env) -> None:
        self._env = env
        self._tasks: set[asyncio.Task[Any]] = set()
        self._within_s = CANCEL_GRACE_S

    def __len__(self) -> int:
        """How many were told to stop and have not stopped yet."""
        return len(self._tasks)

    def shorten_grace(self) -> None:
        """The process is about to end."""
        self._within_s = SHUTDOWN_CANCEL_GRACE_S

    async def stop(self, task: asyncio.Task[Any]) -> None:
        """Cancel it and give it a moment. Being cancelled here changes nothing about that."""
        if task.done():
            _hear_out(task)
            return
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        task.cancel()
        await asyncio.wait({task}, timeout=self._within_s)
        if not task.done():
            self._env.emit("task_left_behind", task=task.get_name(), count=len(self._tasks))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        _hear_out(task)


def _hear_out(task: asyncio.Task[Any]) -> None:
    """An exception that nobody asks for is complained of."""
    if not task.cancelled():
        task.exception()


async def run_contained(work: Awaitable[object], failed: Callable[[Exception], None]) -> bool:
    """True if the work was done; else `failed` was told why it was not."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - this is the wall
        failed(error)
        return False
    return True
