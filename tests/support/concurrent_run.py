"""A crowd's roles played all at once, by many tasks, with or without an outage in the middle."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from chatd.domain.errors import Unavailable
from tests.support.eventually import eventually
from tests.support.random_actors import RandomActors
from tests.support.random_operations import RetriedOperation

Role: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class ConcurrentRun:
    """Nobody takes turns: what the database and the event loop make of it is what happens.

    `outage`: when the database is gone a task ends, and what it was at is tried again later.
    Otherwise its going is a failure.
    """

    def __init__(self, actors: RandomActors, *, outage: bool = False) -> None:
        self._actors = actors
        self._outage = outage
        self._left = 0
        self._done = 0
        self._progress = asyncio.Condition()
        self.retried = 0

    async def run(self, roles: dict[Role, int], *, max_actions: int, timeout_s: float) -> None:
        """Each role, by as many tasks, until `most` things were done or the time is up."""
        self._left = max_actions
        until = asyncio.get_running_loop().time() + timeout_s
        async with asyncio.TaskGroup() as group:
            for role, count in roles.items():
                for _ in range(count):
                    group.create_task(self._repeat(role, until))

    async def _repeat(self, role: Role, until: float) -> None:
        clock = asyncio.get_running_loop().time
        while self._left > 0 and clock() < until:
            self._left -= 1
            try:
                await role()
            except Unavailable:
                if self._outage:
                    return
                raise
            self._done += 1
            async with self._progress:
                self._progress.notify_all()

    async def wait_done(self, deeds: int) -> None:
        """Wait until that much more has been done."""
        goal = self._done + deeds
        async with asyncio.timeout(30), self._progress:
            await self._progress.wait_for(lambda: self._done >= goal)

    def stop(self) -> None:
        self._left = 0

    async def finish_unknown(self) -> None:
        """Try again what nobody knows the outcome of, all at once, until it is known."""
        unknown, self._actors.unknown = self._actors.unknown, []
        self.retried += len(unknown)
        async with asyncio.TaskGroup() as group:
            for errand in unknown:
                group.create_task(self._until_known(errand))

    async def _until_known(self, errand: RetriedOperation) -> None:
        async def attempt() -> bool:
            try:
                await self._actors.run(errand)
            except Unavailable:
                return False
            return True

        await eventually(attempt, within_s=30)
