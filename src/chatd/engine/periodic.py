"""Work on the side, bound to the server's life: things done now and then, and things done once.

None of it writes history, and none of it can take the server down. When the server stops it is
cut off; whatever it was about is done by another replica, or later, or not at all.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.ports import Env
from chatd.engine.tasks import run_contained
from chatd.store import made_by, requests, usage
from chatd.store.conn import Conn

MAX_SUBMITTED_TASKS: Final = 32
_BATCH: Final = 1000
_MOST_BATCHES: Final = 100


class PeriodicTask(Struct, frozen=True, kw_only=True):
    """Done at start, and again a fixed time after it has ended: one that takes long is not
    begun anew at once."""

    name: str
    interval_s: float
    work: Callable[[], Awaitable[None]]


class BackgroundTasks:
    """`run` must be running; nothing is taken on before it does, nor after."""

    def __init__(
        self,
        env: Env,
        periodic: Sequence[PeriodicTask] = (),
        *,
        max_submitted: int = MAX_SUBMITTED_TASKS,
    ) -> None:
        self._env = env
        self._chores = periodic
        self._most = max_submitted
        self._group: asyncio.TaskGroup | None = None
        self._errands = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            for chore in self._chores:
                group.create_task(self._again_and_again(chore), name=f"chore {chore.name}")
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None

    def submit(self, name: str, work: Callable[[], Coroutine[None, None, None]]) -> bool:
        """Do it once, beside everything else. False if there is too much of that already."""
        if self._group is None or self._errands >= self._most:
            self._env.emit("errand_refused", task=name)
            return False
        self._errands += 1
        self._group.create_task(self._errand(name, work), name=f"errand {name}")
        return True

    async def _errand(self, name: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await run_contained(work(), lambda error: self._failed(name, error))
        finally:
            self._errands -= 1
            self._env.emit("errand_done", task=name)

    async def _again_and_again(self, chore: PeriodicTask) -> None:
        while True:
            if await run_contained(chore.work(), lambda error: self._failed(chore.name, error)):
                self._env.emit("chore_done", task=chore.name)
            await self._env.clock.sleep(chore.interval_s, f"chore_{chore.name}")

    def _failed(self, name: str, error: Exception) -> None:
        kind = getattr(error, "code", type(error).__name__)
        self._env.emit("chore_failed", task=name, error_kind=kind, error=error)


def maintenance_tasks(conn: Conn) -> tuple[PeriodicTask, ...]:
    """What every replica does; the statements see to it that they do not do it twice."""

    async def forget_requests() -> None:
        for forget_old in (requests.forget_old, made_by.forget_old):
            for _ in range(_MOST_BATCHES):
                if await forget_old(conn, most=_BATCH) < _BATCH:
                    break

    async def roll_up_usage() -> None:
        for _ in range(_MOST_BATCHES):
            if not await usage.roll_up(conn):
                return

    return (
        PeriodicTask(name="forget_requests", interval_s=600, work=forget_requests),
        PeriodicTask(name="roll_up_usage", interval_s=60, work=roll_up_usage),
    )
