"""Dials under way: each ends in a connection that somebody takes, or in one that is released.

Owns the tasks of all dials of a replica, and that no connection is forgotten, also if whoever
wanted it has gone away. Whom to dial, and when to give up, is decided in `dialling`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Final, Generic, TypeVar

from chatd.domain.errors import ChatdError
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.workspaces.transport import Dialled

_CLOSE_S: Final = 5.0

C = TypeVar("C")


class Stop:
    """A cancellation that says why. Cancelling a task says nothing of the kind."""

    def __init__(self) -> None:
        self._called = asyncio.Event()
        self.cause: ChatdError = AgentUnreachable("The dial was stopped.")

    @property
    def is_set(self) -> bool:
        return self._called.is_set()

    def set(self, cause: ChatdError) -> None:
        if not self.is_set:
            self.cause = cause
            self._called.set()

    async def wait(self) -> None:
        await self._called.wait()


class Attempt(Generic[C]):
    """One dial under way. Whoever does not take its connection must abandon it."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[Dialled[C]]],
        own: Callable[["_Work"], asyncio.Task[None]],
    ) -> None:
        self._dial = dial
        self._own = own
        self._abandoned = False
        self._taken = False
        self._outcome: Dialled[C] | ChatdError | None = None
        self.task = own(self._run())

    @property
    def failure(self) -> ChatdError | None:
        """Why it has failed; None while it is under way or if it has not."""
        return self._outcome if isinstance(self._outcome, ChatdError) else None

    @property
    def succeeded(self) -> bool:
        return isinstance(self._outcome, Dialled)

    def take(self) -> Dialled[C]:
        """What it has led to. Raises what it failed with."""
        if isinstance(self._outcome, Dialled):
            self._taken = True
            return self._outcome
        if self._outcome is None:
            # Cancelled by whoever owns all dials, or broken by a bug, which is told here.
            if not self.task.cancelled():
                self.task.result()
            raise AgentUnreachable("The dial was cut off.")
        raise self._outcome

    def abandon(self) -> None:
        """Returns at once. A connection that is there, or comes yet, is released behind it."""
        if self._abandoned or self._taken:
            return
        self._abandoned = True
        if isinstance(self._outcome, Dialled):
            self._own(_let_go(self._outcome))
        else:
            self.task.cancel()

    async def _run(self) -> None:
        try:
            outcome = await self._dial()
        except ChatdError as error:
            self._outcome = error
            return
        if self._abandoned:
            await _let_go(outcome)
        else:
            self._outcome = outcome


_Work = Coroutine[None, None, None]


async def _let_go(dialled: Dialled[C]) -> None:
    # Whatever closing may raise: there is nobody left who could do anything about it.
    with suppress(ChatdError, OSError):
        await dialled.release()


class Dials:
    """Owns the tasks of all dials of a replica, also of those that nobody waits for any more."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, dial: Callable[[], Awaitable[Dialled[C]]]) -> Attempt[C]:
        return Attempt(dial, self._own)

    async def close(self) -> None:
        """Let releases end, cut off everything else."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)

    def _own(self, work: _Work) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="dial")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()
