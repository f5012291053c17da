"""Background work of a replica: periodic tasks, and tasks submitted once.

None of it can end the replica. A shutdown cancels it; another replica, or a later run, does the
rest.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Final

from msgspec import Struct

from chatd.aio.tasks import run_contained
from chatd.domain.ports import Env

MAX_SUBMITTED_TASKS: Final = 32


class PeriodicTask(Struct, frozen=True, kw_only=True):
    """Runs at start, and again `interval_s` after each end."""

    name: str
    interval_s: float
    work: Callable[[], Awaitable[None]]


class BackgroundTasks:
    """Accepts submitted tasks only while `run` runs."""

    def __init__(
        self,
        env: Env,
        periodic: Sequence[PeriodicTask] = (),
        *,
        max_submitted: int = MAX_SUBMITTED_TASKS,
    ) -> None:
        self._env = env
        self._periodic = periodic
        self._max_submitted = max_submitted
        self._submitted = 0
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            for task in self._periodic:
                group.create_task(self._repeat(task), name=f"periodic {task.name}")
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None

    def submit(self, name: str, work: Callable[[], Coroutine[None, None, None]]) -> bool:
        """Run it once in the background. False if too many are running."""
        if self._group is None or self._submitted >= self._max_submitted:
            self._env.emit("background_task_refused", task=name)
            return False
        self._submitted += 1
        self._group.create_task(self._run_once(name, work), name=f"background {name}")
        return True

    async def _run_once(self, name: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await run_contained(work(), lambda error: self._on_failed(name, error))
        finally:
            self._submitted -= 1
            self._env.emit("background_task_done", task=name)

    async def _repeat(self, task: PeriodicTask) -> None:
        while True:
            if await run_contained(task.work(), lambda error: self._on_failed(task.name, error)):
                self._env.emit("periodic_task_done", task=task.name)
            await self._env.clock.sleep(task.interval_s, f"periodic_{task.name}")

    def _on_failed(self, name: str, error: Exception) -> None:
        kind = getattr(error, "code", type(error).__name__)
        self._env.emit("periodic_task_failed", task=name, error_kind=kind, error=error)
