"""Runs the roles of `RandomActors` concurrently in many tasks, with or without an outage."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from chatd.domain.errors import Unavailable
from tests.support.eventually import eventually
from tests.support.random_actors import RandomActors
from tests.support.random_operations import RetriedOperation

Role: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class ConcurrentRun:
    """The database and the event loop decide the order.

    With `outage`, a task ends when the database is unavailable, and its operation is retried later.
    Without it, an unavailable database fails the test.
    """

    def __init__(self, actors: RandomActors, *, outage: bool = False) -> None:
        self._actors = actors
        self._outage = outage
        self._left = 0
        self._done = 0
        self._progress = asyncio.Condition()
        self.retried = 0

    async def run(self, roles: dict[Role, int], *, max_actions: int, timeout_s: float) -> None:
        """Run each role in that many tasks, until `max_actions` actions are done or the time is
        up."""
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
        """Wait until that many more actions are done."""
        goal = self._done + deeds
        async with asyncio.timeout(30), self._progress:
            await self._progress.wait_for(lambda: self._done >= goal)

    def stop(self) -> None:
        self._left = 0

    async def finish_unknown(self) -> None:
        """Retry all operations with an unknown outcome concurrently, until each is known."""
        unknown, self._actors.unknown = self._actors.unknown, []
        self.retried += len(unknown)
        async with asyncio.TaskGroup() as group:
            for operation in unknown:
                group.create_task(self._until_known(operation))

    async def _until_known(self, operation: RetriedOperation) -> None:
        async def attempt() -> bool:
            try:
                await self._actors.run(operation)
            except Unavailable:
                return False
            return True

        await eventually(attempt, within_s=30)
