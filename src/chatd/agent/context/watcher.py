"""Versioned snapshots of the workspace's context, made anew when something has changed.

Looks again every so often: a look costs a few dozen stats, and unlike notifications it needs
nothing of the system, survives deleted directories and sees files that come late.

The agent's route for what the workspace tells a model. Finding and watching it is next door.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from chatd.agent.context.resolver import ContextSnapshot, read_context
from chatd.agent.context.sources import ContextSources, fingerprint
from chatd.agent.errors import AgentError
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply

CONTEXT_POLL_S = 2.0
DEBOUNCE_S = 0.25
# Somebody who writes without end shall not keep the news from everybody else.
MAX_DEBOUNCES = 20

T = TypeVar("T")
Look = tuple[object, ...]


class WatchClock(Protocol):
    async def sleep(self, seconds: float, tag: str) -> None: ...


class SystemClock:
    async def sleep(self, seconds: float, tag: str) -> None:
        del tag
        await asyncio.sleep(seconds)


class ThreadRunner(Protocol):
    """Where blocking work is done."""

    def run(self, work: Callable[[], T]) -> Awaitable[T]: ...


class ContextWatcher:
    """`run` is a task of whoever starts this; `wait` may be called by many at once.

    Versions are milliseconds of the wall clock, so that one after a restart is newer than any
    before; `now_ms` gives them.
    """

    def __init__(
        self,
        places: ContextSources,
        *,
        threads: ThreadRunner,
        clock: WatchClock,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._places = places
        self._threads = threads
        self._clock = clock
        self._now_ms = now_ms
        self._current: ContextSnapshot | None = None
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. A look that fails is repeated: the disk may come back."""
        seen: Look | None = None
        while True:
            try:
                seen = await self._look(seen)
            except (AgentError, OSError):
                seen = None  # the snapshot that is there stays
            await self._clock.sleep(CONTEXT_POLL_S, "context poll")

    async def wait(self, after: int, timeout: float) -> ContextSnapshot:
        """A snapshot newer than `after`, or what there is when the time is over."""
        if timeout > 0:
            waiting = asyncio.ensure_future(self._newer_than(after))
            try:
                await asyncio.wait({waiting}, timeout=timeout)
            finally:
                waiting.cancel()
        if self._current is None:
            raise AgentError(503, "the workspace is not yet read", code="context_not_ready")
        return self._current

    async def _newer_than(self, after: int) -> None:
        while self._current is None or self._current.version <= after:
            await self._changed.wait()

    async def _look(self, seen: Look | None) -> Look:
        look = await self._threads.run(lambda: fingerprint(self._places))
        if look == seen:
            return look
        if seen is not None or self._current is not None:
            look = await self._settled(look)
        self._publish(await self._threads.run(lambda: read_context(self._places, version=0)))
        return look

    async def _settled(self, look: Look) -> Look:
        """What it is once nothing has changed for a moment: an editor writes in steps."""
        for _ in range(MAX_DEBOUNCES):
            await self._clock.sleep(DEBOUNCE_S, "context debounce")
            again = await self._threads.run(lambda: fingerprint(self._places))
            if again == look:
                break
            look = again
        return look

    def _publish(self, found: ContextSnapshot) -> None:
        before = self._current
        if before is not None and replace(before, version=0) == found:
            return
        floor = before.version + 1 if before is not None else 1
        self._current = replace(found, version=max(self._now_ms(), floor))
        self._changed.set()
        self._changed = asyncio.Event()


MAX_CONTEXT_WAIT_S = 300.0


class ContextRoutes:
    def __init__(self, watcher: ContextWatcher) -> None:
        self._watcher = watcher

    def routes(self) -> list[AgentRoute]:
        return [AgentRoute("GET", "/api/v0/context", self._context, is_long_poll=True)]

    async def _context(self, request: AgentRouteRequest) -> AgentHttpReply:
        """The snapshot that is newer than `after`, or the one there is after `wait_s`."""
        query = request.query()
        after, wait_s = query.count("after"), query.seconds("wait_s")
        query.reject_unknown()
        context = await self._watcher.wait(after, min(wait_s, MAX_CONTEXT_WAIT_S))
        return json_reply(context.body())
