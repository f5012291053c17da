"""The tools of the MCP servers of a chat."""

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from msgspec import Raw, Struct

from chatd.domain.answer.tool_output import ToolOutput, error_output
from chatd.domain.chat.row import Chat
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChatId, McpServerId, UserId
from chatd.domain.mcp.results import OUTCOME_UNKNOWN_TEXT, McpFault, error_text
from chatd.domain.mcp.servers import (
    McpDirectory,
    McpServer,
    ServerToolKey,
    assign_names,
    is_allowed,
)
from chatd.domain.mcp.tools import ListedTool, McpOrigin, unwrap_intent, wrap_with_intent
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.ports import Env, ToolContext, ToolEffect
from chatd.domain.text import parse_json
from chatd.domain.tool_modes import ToolOrigin
from chatd.mcp.sessions import McpSessions

MCP_TOOL_TIMEOUT_S: Final = 90.0
"""For a call with what precedes it: a connection, or a refreshed credential."""
MAX_KEPT_LISTS: Final = 256

NOT_AN_OBJECT_TEXT: Final = "The arguments must be a JSON object. Send the call again with one."

_Offered = tuple[McpServer, tuple[ListedTool, ...]]


class McpTool(Struct, frozen=True, kw_only=True):
    """Satisfies `ports.Tool`."""

    spec: ToolSpec
    effect: ToolEffect
    server: McpServer
    routing_name: str
    sessions: McpSessions
    mcp_origin: McpOrigin
    origin: ToolOrigin
    serial: bool = False
    exclusive: bool = False
    stops_turn: bool = False
    timeout_s: float = MCP_TOOL_TIMEOUT_S

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        value = parse_json(unwrap_intent(args) if self.server.model_intent else args)
        if not isinstance(value, dict):
            return error_output(NOT_AN_OBJECT_TEXT)
        given = cast("dict[str, object]", value)
        try:
            return await self.sessions.call(
                self.server, context.chat, self.routing_name, given, context.show
            )
        except McpFault as fault:
            is_unknown = fault.may_have_run and self.effect != "read"
            note = f" {OUTCOME_UNKNOWN_TEXT}" if is_unknown else ""
            return error_output(f"{self.server.display_name}: {fault.message}{note}")

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return None


class _KeptList(Struct, frozen=True, kw_only=True):
    offered: tuple[_Offered, ...]
    tools: tuple[McpTool, ...]


class McpTools:
    """Satisfies `ports.ToolFamily`. A server that does not answer keeps the tools that it listed
    last, also at another replica: a changed list of tools costs the whole prompt cache, and calls
    say what is wrong."""

    def __init__(self, directory: McpDirectory, sessions: McpSessions, env: Env) -> None:
        self._directory = directory
        self._sessions = sessions
        self._env = env
        self._kept: dict[ChatId, _KeptList] = {}
        self._listed: dict[tuple[UserId, McpServerId], tuple[int, tuple[ListedTool, ...]]] = {}

    async def tools(self, chat: Chat) -> Sequence[McpTool]:
        servers = await self._servers(chat)
        if not servers:
            return ()
        found = await asyncio.gather(*(self._offered(server, chat) for server in servers))
        offered = tuple(each for each in found if each[1])
        kept = self._kept.pop(chat.id, None)
        if kept is None or not _is_same(kept.offered, offered):
            tools = _make_tools(offered, self._sessions)
            kept = _KeptList(offered=offered, tools=tools)
        self._kept[chat.id] = kept
        while len(self._kept) > MAX_KEPT_LISTS:
            del self._kept[next(iter(self._kept))]
        return kept.tools

    async def _servers(self, chat: Chat) -> list[McpServer]:
        if chat.mode == "plan" and not chat.is_root:  # it may use none of them
            return []
        try:
            found = await self._directory.servers(chat)
        except Exception as error:  # noqa: BLE001 - without the list a chat has its other tools
            self._env.emit(
                "mcp_directory_failed",
                chat_id=chat.id,
                error_kind=type(error).__name__,
                reason=error_text(error),
            )
            return []
        return [each for each in found if each.enabled]

    async def _offered(self, server: McpServer, chat: Chat) -> _Offered:
        """Written to the database when the list is new here, read from it when it is not known
        here. Without the database the step has what this process knows. A server without a
        credential, such as one that the user disconnected, has no tools."""
        connection = await self._sessions.for_step(server, chat)
        version, tools = self._listed.pop((chat.owner_id, server.id), (0, ()))
        is_known = version == server.version
        try:
            if connection is None and (await self._directory.access(server, chat)).problem:
                tools = ()
            elif connection is None:
                tools = tools if is_known else await self._directory.known_tools(server, chat)
            elif not is_known or tools != connection.tools:
                tools = connection.tools
                await self._directory.keep_tools(server, chat, tools)
        except Unavailable as error:
            self._env.emit("mcp_tools_not_kept", server=server.slug, error_kind=error.code)
        if connection is not None or tools:
            self._listed[chat.owner_id, server.id] = server.version, tools
        while len(self._listed) > MAX_KEPT_LISTS:
            del self._listed[next(iter(self._listed))]
        return server, tools


def _is_same(one: Sequence[_Offered], other: Sequence[_Offered]) -> bool:
    return len(one) == len(other) and all(
        a[0] == b[0] and a[1] is b[1] for a, b in zip(one, other, strict=True)
    )


def _make_tools(offered: Sequence[_Offered], sessions: McpSessions) -> tuple[McpTool, ...]:
    by_key = {
        ServerToolKey(slug=server.slug, server_id=str(server.id), tool=tool.name): (server, tool)
        for server, tools in offered
        for tool in tools
        if is_allowed(tool.name, server.allow, server.deny)
    }
    return tuple(_make_tool(name, *by_key[key], sessions) for name, key in assign_names(by_key))


def _make_tool(name: str, server: McpServer, tool: ListedTool, sessions: McpSessions) -> McpTool:
    schema = wrap_with_intent(tool.schema) if server.model_intent else tool.schema
    description = tool.description or f"A tool of {server.display_name}."
    return McpTool(
        spec=ToolSpec(name=name, description=description, input_schema=schema),
        effect=tool.effect,
        server=server,
        routing_name=tool.name,
        sessions=sessions,
        mcp_origin=McpOrigin(name=server.slug, config_id=str(server.id)),
        origin="mcp_in_plans" if server.allow_in_plan_mode else "mcp",
    )
