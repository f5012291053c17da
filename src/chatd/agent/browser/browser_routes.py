"""The HTTP routes of the browser. Actions happen once for each key; readings have no key."""

from __future__ import annotations

import asyncio
import json

from chatd.agent.browser.browser_server import BROWSER_PACKAGE, BrowserServer, find_browser
from chatd.agent.browser.page_actions import PageActions, read_action
from chatd.agent.durable_files import Json
from chatd.agent.effect_guards import EpochFence, IdempotencyJournal
from chatd.agent.errors import AgentError
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, json_reply

BROWSER_API_PREFIX = "/api/v0/browser"
BROWSER_POLL_S = 15.0
"""A request waits this long for its action; the same request asks again."""
NO_BROWSER_TEXT = (
    "This workspace has no browser. Create one from a template with a browser, or set `browser` in"
    " its template and start the workspace again."
)


class BrowserRoutes:
    """`server` is None in a workspace whose template has no browser."""

    def __init__(
        self, server: BrowserServer | None, journal: IdempotencyJournal, fence: EpochFence
    ) -> None:
        self._server = server
        self._actions = None if server is None else PageActions(server)
        self._journal = journal
        self._fence = fence

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("GET", BROWSER_API_PREFIX, self._state),
            AgentRoute("POST", f"{BROWSER_API_PREFIX}/act", self._act),
            AgentRoute("GET", f"{BROWSER_API_PREFIX}/page", self._read),
            AgentRoute("GET", f"{BROWSER_API_PREFIX}/wait", self._wait, is_long_poll=True),
            AgentRoute("GET", f"{BROWSER_API_PREFIX}/screenshot", self._screenshot),
        ]

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    def _get(self) -> PageActions:
        if self._actions is None:
            raise AgentError(409, NO_BROWSER_TEXT, code="no_browser")
        return self._actions

    async def _state(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.query().reject_unknown()
        server = self._server
        if server is None:
            return json_reply({"enabled": False})
        missing = [] if find_browser() else [BROWSER_PACKAGE]
        return json_reply({"enabled": True, "running": server.is_running(), "missing": missing})

    async def _act(self, request: AgentRouteRequest) -> AgentHttpReply:
        actions, caller, fields = self._get(), request.caller, request.json()
        action = read_action(
            fields.text("action"),
            fields.text("url", ""),
            fields.text("ref", ""),
            fields.text("text", ""),
            submit=fields.flag("submit"),
            accept=fields.flag("accept"),
        )
        fields.reject_unknown()
        self._fence.check_owner(caller.chat_id, caller.owner)

        async def effect() -> Json:
            return await actions.act(caller.chat_id, action)

        work = asyncio.ensure_future(self._journal.run_once(caller.key, "browser act", effect))
        try:
            await asyncio.wait({work}, timeout=BROWSER_POLL_S)
        finally:
            if not work.done():
                work.cancel()  # the journal lets the action itself go on
        return json_reply({"running": True} if not work.done() else work.result())

    async def _read(self, request: AgentRouteRequest) -> AgentHttpReply:
        actions, fields = self._get(), request.query()
        offset, text = fields.count("offset"), fields.text("text", "")
        fields.reject_unknown()
        return json_reply(await actions.read(request.caller.chat_id, offset, text))

    async def _wait(self, request: AgentRouteRequest) -> AgentHttpReply:
        actions, fields = self._get(), request.query()
        text, selector = fields.text("text", ""), fields.text("selector", "")
        seconds = fields.seconds("seconds")
        fields.reject_unknown()
        return json_reply(await actions.wait(request.caller.chat_id, text, selector, seconds))

    async def _screenshot(self, request: AgentRouteRequest) -> AgentHttpReply:
        """The PNG after a line of JSON."""
        request.query().reject_unknown()
        facts, image = await self._get().screenshot(request.caller.chat_id)
        body = json.dumps(facts).encode() + b"\n" + image
        return AgentHttpReply(200, body, content_type="application/octet-stream")
