"""Versioned snapshots of the workspace's context, renewed when a file changes, and their route.

Polls: a poll costs a few dozen stats and, unlike inotify, has no system limits, survives deleted
directories and finds files in directories created later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from chatd.agent.context.context_sources import (
    ContextSnapshot,
    ContextSources,
    find_mcp_servers,
    fingerprint,
    read_context,
    server_resources,
)
from chatd.agent.context.mcp_servers import WorkspaceServers
from chatd.agent.errors import AgentError
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply
from chatd.agent.threads import AgentClock, ThreadRunner

CONTEXT_POLL_S = 2.0
DEBOUNCE_S = 0.25
# A file that is written without pause delays a new snapshot by at most this many debounces.
MAX_DEBOUNCES = 20
MAX_CONTEXT_WAIT_S = 300.0

Fingerprint = tuple[object, ...]


class ContextWatcher:
    """The creator runs `run` as a task; any number of callers may `wait`. The tools of `servers`,
    which `on_servers_changed` announces, are part of the snapshot.

    Versions are milliseconds of the wall clock, so that versions after a restart are newer;
    `now_ms` returns the time.
    """

    def __init__(
        self,
        sources: ContextSources,
        *,
        threads: ThreadRunner,
        clock: AgentClock,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._sources = sources
        self._threads = threads
        self._clock = clock
        self._now_ms = now_ms
        self._current: ContextSnapshot | None = None
        self._found: ContextSnapshot | None = None
        self._fingerprint: Fingerprint | None = None
        self._changed = asyncio.Event()
        self.servers: WorkspaceServers | None = None

    async def run(self) -> None:
        """Poll until cancelled. A failed poll is repeated: the disk may recover."""
        last: Fingerprint | None = None
        while True:
            try:
                last = await self._poll(last)
            except (AgentError, OSError):
                last = None  # the current snapshot stays
            await self._clock.sleep(CONTEXT_POLL_S, "context poll")

    async def refresh(self) -> None:
        """Read what has changed since the last poll now, without waiting for a pause. The next poll
        finds what changes after that."""
        with suppress(AgentError, OSError):  # the current snapshot stays
            current = await self._read_fingerprint()
            if current != self._fingerprint:
                await self._read(current)

    async def wait(self, after: int, timeout_s: float) -> ContextSnapshot:
        """A snapshot newer than `after`, or the current one after the timeout."""
        if timeout_s > 0:
            waiting = asyncio.ensure_future(self._wait_for_newer(after))
            try:
                await asyncio.wait({waiting}, timeout=timeout_s)
            finally:
                waiting.cancel()
        if self._current is None:
            raise AgentError(
                503, "the workspace's context is not read yet", code="context_not_ready"
            )
        return self._current

    async def _wait_for_newer(self, after: int) -> None:
        while self._current is None or self._current.version <= after:
            await self._changed.wait()

    async def _poll(self, last: Fingerprint | None) -> Fingerprint:
        current = await self._read_fingerprint()
        if current == last:
            return current
        if last is not None or self._current is not None:
            current = await self._debounce(current)
        await self._read(current)
        return current

    async def _read(self, current: Fingerprint) -> None:
        self._fingerprint = current
        self._found = await self._threads.run(lambda: read_context(self._sources, version=0))
        if self.servers is not None:
            configs = await self._threads.run(lambda: find_mcp_servers(self._sources))
            self.servers.apply(configs)
        self._publish(self._found)

    def on_servers_changed(self) -> None:
        if self._found is not None:
            self._publish(self._found)

    async def _debounce(self, current: Fingerprint) -> Fingerprint:
        """Wait until nothing changes for a moment: editors write a file in several steps."""
        for _ in range(MAX_DEBOUNCES):
            await self._clock.sleep(DEBOUNCE_S, "context debounce")
            previous, current = current, await self._read_fingerprint()
            if current == previous:
                break
        return current

    async def _read_fingerprint(self) -> Fingerprint:
        return await self._threads.run(lambda: fingerprint(self._sources))

    def _publish(self, found: ContextSnapshot) -> None:
        before = self._current
        if self.servers is not None:
            tools = server_resources(self.servers.reports())
            found = replace(found, resources=(*found.resources, *tools))
        if before is not None and replace(before, version=0) == found:
            return
        min_version = before.version + 1 if before is not None else 1
        self._current = replace(found, version=max(self._now_ms(), min_version))
        self._changed.set()
        self._changed = asyncio.Event()


class ContextRoutes:
    def __init__(self, watcher: ContextWatcher) -> None:
        self._watcher = watcher

    def routes(self) -> list[AgentRoute]:
        return [AgentRoute("GET", "/api/v0/context", self._context, is_long_poll=True)]

    async def _context(self, request: AgentRouteRequest) -> AgentHttpReply:
        query = request.query()
        after, wait_s = query.count("after"), query.seconds("wait_s")
        query.reject_unknown()
        if wait_s <= 0:
            await self._watcher.refresh()
        context = await self._watcher.wait(after, min(wait_s, MAX_CONTEXT_WAIT_S))
        return json_reply(context.body())
