"""The agent's route for what the workspace tells a model. Finding and watching it is next door."""

from __future__ import annotations

from chatd.agent.answering import Request, Route
from chatd.agent.replies import Reply, json_reply
from chatd.agent.watching import Watcher

MAX_WAIT_S = 300.0


class ContextRoutes:
    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def routes(self) -> list[Route]:
        return [Route("GET", "/api/v0/context", self._context, waits=True)]

    async def _context(self, request: Request) -> Reply:
        """The snapshot that is newer than `after`, or the one there is after `wait_s`."""
        query = request.query()
        after, wait_s = query.count("after"), query.seconds("wait_s")
        query.done()
        context = await self._watcher.wait(after, min(wait_s, MAX_WAIT_S))
        return json_reply(context.body())
