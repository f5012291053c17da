"""Dialling a bound agent without asking first whether it is still the right one.

The binding of a chat is a guess that is nearly always right, so the dial starts at once; only one
that is slow or fails has the guess checked against the latest build. Owns that decision. Knows
neither sockets nor rows: both come in as functions. What a dial has led to is kept by `dials`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from msgspec import Struct

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.domain.workspace.agent_api import AgentUnreachable
from chatd.domain.workspace.entities import AgentId
from chatd.domain.workspace.rules import NoAgent
from chatd.workspaces.dials import Attempt, Dials, Stop
from chatd.workspaces.transport import Dialled

DELAY_S: Final = 5.0

C = TypeVar("C")
T = TypeVar("T")


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
            # Why not is for operators to hear.
            text = f"{failure.message} Nor could the workspace be looked up."
            raise AgentUnreachable(text) from error
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
