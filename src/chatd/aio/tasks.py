"""Tasks that fail or ignore cancellation without harm to their owner."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from chatd.domain.ports import Env

CANCEL_GRACE_S: Final = 2.0
SHUTDOWN_CANCEL_GRACE_S: Final = 0.5


async def run_contained(work: Awaitable[object], on_error: Callable[[Exception], None]) -> bool:
    """Whether the work succeeded; if not, `on_error` got the exception. Cancellation passes."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - the one place that contains every failure
        on_error(error)
        return False
    return True


class TaskReaper:
    """Cancels tasks that may ignore cancellation. A tool may run third-party code that never
    returns: wait for a bounded grace period, then keep a reference to the task until it ends.
    The fence refuses any write it still makes."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._tasks: set[asyncio.Task[Any]] = set()
        self._grace_s = CANCEL_GRACE_S

    def __len__(self) -> int:
        """The number of cancelled tasks that have not ended."""
        return len(self._tasks)

    def shorten_grace(self) -> None:
        """The process is about to end."""
        self._grace_s = SHUTDOWN_CANCEL_GRACE_S

    async def stop(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task and wait for the grace period, unless the caller is cancelled too."""
        if task.done():
            _retrieve_exception(task)
            return
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        task.cancel()
        await asyncio.wait({task}, timeout=self._grace_s)
        if not task.done():
            self._env.emit("task_not_cancelled", task=task.get_name(), count=len(self._tasks))

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        _retrieve_exception(task)


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """asyncio logs an exception that is never retrieved."""
    if not task.cancelled():
        task.exception()
