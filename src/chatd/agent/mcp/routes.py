"""The route by which chats call tools of the workspace's MCP servers.

A call can take longer than a request should: the route answers `running` after a while, and the
same request with the same key joins the call that runs.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from typing import cast

from chatd.agent.epochs import EpochFence
from chatd.agent.errors import AgentError
from chatd.agent.idempotency import IdempotencyJournal
from chatd.agent.json_log import Json
from chatd.agent.mcp.servers import WorkspaceServers
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply

CALL_POLL_S = 15.0
"""A request waits this long for the result."""
MAX_RECENT_RESULTS = 16
"""Results that are too large for the journal, kept in memory until they are fetched."""


class McpRoutes:
    def __init__(
        self, servers: WorkspaceServers, journal: IdempotencyJournal, fence: EpochFence
    ) -> None:
        self._servers = servers
        self._journal = journal
        self._fence = fence
        self._recent: OrderedDict[str, Json] = OrderedDict()

    def routes(self) -> list[AgentRoute]:
        return [AgentRoute("POST", "/api/v0/mcp/call", self._call)]

    async def _call(self, request: AgentRouteRequest) -> AgentHttpReply:
        caller, fields = request.caller, request.json()
        server, tool = fields.text("server"), fields.text("tool")
        args = _read_arguments(fields.text("arguments"))
        fields.reject_unknown()
        self._fence.check_owner(caller.chat_id, caller.owner)

        async def effect() -> Json:
            result: Json = {"result": dict(await self._servers.call(server, tool, args))}
            self._remember(caller.key, result)
            return result

        kind = f"mcp {server} {tool}"[:200]
        work = asyncio.ensure_future(self._journal.run_once(caller.key, kind, effect))
        try:
            await asyncio.wait({work}, timeout=CALL_POLL_S)
        finally:
            if not work.done():
                work.cancel()  # the journal lets the effect itself go on
        if not work.done():
            return json_reply({"running": True})
        return json_reply(self._result(caller.key, work))

    def _remember(self, key: str, result: Json) -> None:
        self._recent[key] = result
        while len(self._recent) > MAX_RECENT_RESULTS:
            self._recent.popitem(last=False)

    def _result(self, key: str, work: asyncio.Future[Json]) -> Json:
        try:
            return work.result()
        except AgentError as error:
            if error.code == "result_not_kept" and key in self._recent:
                return self._recent[key]
            raise


def _read_arguments(text: str) -> dict[str, object]:
    try:
        value: object = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise AgentError(400, "The arguments are not JSON.") from None
    if not isinstance(value, dict):
        raise AgentError(400, "The arguments must be a JSON object.")
    return cast("dict[str, object]", value)
