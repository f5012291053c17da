"""Dialling a bound agent without asking first whether it is still the right one.

The binding of a chat is a guess that is nearly always right, so the dial starts at once; only one
that is slow or fails has the guess checked against the latest build. Owns that decision and that
every connection that nobody takes is released, once. Knows neither sockets nor rows: both come in
as functions.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Final, Generic, TypeVar

from msgspec import Struct

from chatd.domain.errors import ChatdError
from chatd.domain.hands import AgentLost
from chatd.domain.ports import Clock
from chatd.domain.workspace import AgentId
from chatd.domain.workspace_rules import NoAgent
from chatd.workspaces.transport import Dialled

DELAY_S: Final = 5.0
_CLOSE_S: Final = 5.0

C = TypeVar("C")
T = TypeVar("T")


class Stop:
    """A cancellation that says why. Cancelling a task says nothing of the kind."""

    def __init__(self) -> None:
        self._called = asyncio.Event()
        self.cause: ChatdError = AgentLost("The dial was stopped.")

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
            raise AgentLost("The dial was cut off.")
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


class Reached(Struct, Generic[C], frozen=True, kw_only=True):
    """`switched`: it is not the agent that was asked for, but the one of the latest build."""

    agent_id: AgentId
    dialled: Dialled[C]
    switched: bool = False


class Dialler(Generic[C]):
    """One dial to one chat's agent.

    `dial` opens a connection; `validate` says which agent the latest build has, and raises
    NoAgent if it has none. `stop` ends everything with its cause, unless there is a connection
    already.
    """

    def __init__(
        self,
        *,
        dials: Dials,
        dial: Callable[[AgentId], Awaitable[Dialled[C]]],
        validate: Callable[[], Awaitable[AgentId]],
        clock: Clock,
        stop: Stop,
        delay_s: float = DELAY_S,
    ) -> None:
        self._dials = dials
        self._dial = dial
        self._validate = validate
        self._clock = clock
        self._stop = stop
        self._delay_s = delay_s

    async def reach(self, agent_id: AgentId) -> Reached[C]:
        attempt = self._dials.begin(lambda: self._dial(agent_id))
        try:
            return await self._reach(agent_id, attempt)
        finally:
            attempt.abandon()

    async def _reach(self, agent_id: AgentId, attempt: Attempt[C]) -> Reached[C]:
        is_slow = not await self._done_within_delay(attempt)
        if is_slow and not attempt.succeeded:
            return await self._slow(agent_id, attempt)
        if attempt.failure is None or self._stop.is_set:
            return Reached(agent_id=agent_id, dialled=self._taken(attempt))
        return await self._failed(agent_id, attempt.failure)

    async def _slow(self, agent_id: AgentId, attempt: Attempt[C]) -> Reached[C]:
        try:
            current = await self._unless_stopped(self._validate())
        except NoAgent:
            raise
        except ChatdError:
            if self._stop.is_set:
                raise
            # That the agent is not the right one has not been shown: go on waiting for it.
            current = agent_id
        if current != agent_id:
            attempt.abandon()
            return await self._dial_now(current, switched=True)
        await self._wait(attempt)
        return Reached(agent_id=agent_id, dialled=self._taken(attempt))

    async def _failed(self, agent_id: AgentId, failure: ChatdError) -> Reached[C]:
        try:
            current = await self._unless_stopped(self._validate())
        except NoAgent:
            raise
        except ChatdError as error:
            if self._stop.is_set:
                raise
            text = f"{failure.message} Nor could the workspace be looked up: {error.message}"
            raise AgentLost(text) from error
        return await self._dial_now(current, switched=current != agent_id)

    async def _dial_now(self, agent_id: AgentId, *, switched: bool) -> Reached[C]:
        attempt = self._dials.begin(lambda: self._dial(agent_id))
        try:
            await self._wait(attempt)
            dialled = self._taken(attempt)
        finally:
            attempt.abandon()
        return Reached(agent_id=agent_id, dialled=dialled, switched=switched)

    async def _done_within_delay(self, attempt: Attempt[C]) -> bool:
        """Also true if the stop came first."""
        loop = asyncio.get_running_loop()
        delay = loop.create_task(self._clock.sleep(self._delay_s, "dial_delay"))
        stopped = loop.create_task(self._stop.wait())
        try:
            waits = {attempt.task, delay, stopped}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return attempt.task.done() or stopped.done()
        finally:
            delay.cancel()
            stopped.cancel()

    async def _wait(self, attempt: Attempt[C]) -> None:
        """Until it is done, or there is a stop."""
        stopped = asyncio.get_running_loop().create_task(self._stop.wait())
        try:
            await asyncio.wait({attempt.task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()

    def _taken(self, attempt: Attempt[C]) -> Dialled[C]:
        """A connection that is there is taken even after a stop; else the stop says why not."""
        if self._stop.is_set and not attempt.succeeded:
            raise self._stop.cause
        return attempt.take()

    async def _unless_stopped(self, work: Awaitable[T]) -> T:
        loop = asyncio.get_running_loop()
        task = loop.create_task(_awaited(work))
        # If it is left behind, its error is nobody's surprise.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        stopped = loop.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self._stop.cause
            return task.result()
        finally:
            task.cancel()
            stopped.cancel()


async def _awaited(work: Awaitable[T]) -> T:
    return await work
