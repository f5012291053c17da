"""HTTP routes for terminals. Output is a streamed reply of signed JSON lines."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from chatd.agent.errors import AgentError
from chatd.agent.server.dispatcher import AgentRoute, AgentRouteRequest
from chatd.agent.server.http_messages import AgentHttpReply, RequestFields, json_reply
from chatd.agent.terminals.shell import TerminalSize
from chatd.agent.terminals.table import TerminalTable
from chatd.agent.terminals.terminal import Terminal

TERMINAL_API_PREFIX = "/api/v0/terminals"
MAX_INPUT_BYTES = 64 * 1024


class TerminalRoutes:
    """A terminal belongs to a chat: every request names one."""

    def __init__(self, terminals: TerminalTable) -> None:
        self._terminals = terminals

    def routes(self) -> list[AgentRoute]:
        return [
            AgentRoute("GET", f"{TERMINAL_API_PREFIX}/list", self._list),
            AgentRoute("POST", f"{TERMINAL_API_PREFIX}/{{}}/open", self._open),
            AgentRoute("GET", f"{TERMINAL_API_PREFIX}/{{}}/output", self._output),
            AgentRoute(
                "POST",
                f"{TERMINAL_API_PREFIX}/{{}}/input",
                self._input,
                max_body=MAX_INPUT_BYTES,
            ),
            AgentRoute("POST", f"{TERMINAL_API_PREFIX}/{{}}/resize", self._resize),
            AgentRoute("POST", f"{TERMINAL_API_PREFIX}/{{}}/close", self._close),
        ]

    async def _list(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.query().reject_unknown()
        return json_reply({"terminals": self._terminals.list(_chat(request))})

    async def _open(self, request: AgentRouteRequest) -> AgentHttpReply:
        size = _size(request.json())
        again = await self._terminals.open(_chat(request), request.parameter, size)
        return json_reply({"again": again})

    async def _output(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.query().reject_unknown()
        terminal = self._find(request)
        return AgentHttpReply(200, content_type="application/x-ndjson", lines=_lines(terminal))

    async def _input(self, request: AgentRouteRequest) -> AgentHttpReply:
        await self._find(request).write(request.body)
        return json_reply({"ok": True})

    async def _resize(self, request: AgentRouteRequest) -> AgentHttpReply:
        size = _size(request.json())
        self._find(request).resize(size)
        return json_reply({"ok": True})

    async def _close(self, request: AgentRouteRequest) -> AgentHttpReply:
        request.json().reject_unknown()
        self._terminals.close_terminal(_chat(request), request.parameter)
        return json_reply({"ok": True})

    def _find(self, request: AgentRouteRequest) -> Terminal:
        return self._terminals.find(_chat(request), request.parameter)


async def _lines(terminal: Terminal) -> AsyncGenerator[bytes, None]:
    events = terminal.follow()
    try:
        async for event in events:
            yield json.dumps(event, separators=(",", ":")).encode()
    finally:
        await events.aclose()


def _size(fields: RequestFields) -> TerminalSize:
    size = TerminalSize(fields.count("cols"), fields.count("rows"))
    fields.reject_unknown()
    return size


def _chat(request: AgentRouteRequest) -> str:
    if not request.caller.chat_id:
        raise AgentError(400, "a terminal belongs to a chat: name one")
    return request.caller.chat_id
