"""The tools that create, start and stop a chat's workspace, which only root chats have, and the
tools of the MCP servers that a workspace declares.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Final, Literal, cast

import msgspec
from msgspec import Raw, Struct, field

from chatd.domain.answer.tool_output import ToolOutput, error_output
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId
from chatd.domain.mcp.results import convert_result
from chatd.domain.mcp.servers import ServerToolKey, assign_names, workspace_slug
from chatd.domain.mcp.tools import ListedTool, McpOrigin, read_listed_tool
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.ports import (
    Env,
    ToolContext,
    ToolEffect,
    WorkspaceRequest,
)
from chatd.domain.text import clip, parse_json
from chatd.domain.workspace.agent_api import (
    AgentRefused,
    AgentUnreachable,
    WorkspaceMcpServer,
    WorkspaceUnavailable,
)
from chatd.tools.tool import (
    AT_LEAST_1,
    NOT_BLANK,
    RETRY_ADVICE_TEXT,
    WorkspaceAccess,
    WorkspaceTool,
    argument,
    json_output,
    workspace_tool,
)
from chatd.workspaces.provisioner import WorkspaceProvisioner

WORKSPACE_TOOL_TIMEOUT_S: Final = 25 * 60.0
"""More than the limits of a build, its agent and its start-up scripts together."""
TEMPLATE_ID_TEXT: Final = "the id or the name of a template, from list_templates."

_Parameters = Annotated[
    dict[str, str],
    argument("Answers to the template's parameters, by name; see read_template."),
]


class ListTemplatesArguments(Struct, frozen=True, kw_only=True):
    query: Annotated[str, argument("Words to look for in names and descriptions.")] = ""
    page: Annotated[int, AT_LEAST_1, argument("Which page, from 1. Default 1.")] = 1


class ReadTemplateArguments(Struct, frozen=True, kw_only=True):
    template_id: Annotated[str, NOT_BLANK, argument("Its id or its name.", TEMPLATE_ID_TEXT)]


class CreateWorkspaceArguments(Struct, frozen=True, kw_only=True):
    template_id: Annotated[
        str, NOT_BLANK, argument("Id or name of the template.", TEMPLATE_ID_TEXT)
    ]
    name: Annotated[str, argument("A name for it. Default: one is made up.")] = ""
    parameters: _Parameters = field(default_factory=dict[str, str])


class StartWorkspaceArguments(Struct, frozen=True, kw_only=True):
    parameters: _Parameters = field(default_factory=dict[str, str])


class StopWorkspaceArguments(Struct, frozen=True):
    pass


def workspace_tools(provisioner: WorkspaceProvisioner) -> tuple[WorkspaceTool, ...]:
    """The tools that build are serial: two in one step must not race for the chat's workspace."""
    return (
        _list_templates(provisioner),
        _read_template(provisioner),
        _create_workspace(provisioner),
        _start_workspace(provisioner),
        _stop_workspace(provisioner),
    )


def _list_templates(provisioner: WorkspaceProvisioner) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ListTemplatesArguments) -> ToolOutput:
        query = args.query.strip()
        listing = await provisioner.list_templates(context.chat, query=query, page=args.page)
        return json_output(listing)

    return workspace_tool(
        "list_templates",
        "The templates that a workspace can be made from, best first. Choose one, then call"
        " create_workspace.",
        ListTemplatesArguments,
        handle,
        effect="read",
    )


def _read_template(provisioner: WorkspaceProvisioner) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ReadTemplateArguments) -> ToolOutput:
        return json_output(await provisioner.read_template(context.chat, args.template_id))

    return workspace_tool(
        "read_template",
        "What a template makes, and the parameters that it takes.",
        ReadTemplateArguments,
        handle,
        effect="read",
    )


def _create_workspace(provisioner: WorkspaceProvisioner) -> WorkspaceTool:
    async def handle(context: ToolContext, args: CreateWorkspaceArguments) -> ToolOutput:
        request = WorkspaceRequest(
            template=args.template_id,
            name=args.name.strip(),
            parameters=args.parameters,
            key=context.call_key,
        )
        return json_output(await provisioner.create(context, request))

    return workspace_tool(
        "create_workspace",
        "Make a workspace for this chat and wait until it can be used. If the chat has one"
        " that works, that one is kept.",
        CreateWorkspaceArguments,
        handle,
        serial=True,
        timeout_s=WORKSPACE_TOOL_TIMEOUT_S,
    )


def _start_workspace(provisioner: WorkspaceProvisioner) -> WorkspaceTool:
    async def handle(context: ToolContext, args: StartWorkspaceArguments) -> ToolOutput:
        return json_output(await provisioner.start(context, args.parameters))

    return workspace_tool(
        "start_workspace",
        "Start this chat's workspace if it is stopped, and wait until it can be used.",
        StartWorkspaceArguments,
        handle,
        serial=True,
        timeout_s=WORKSPACE_TOOL_TIMEOUT_S,
    )


def _stop_workspace(provisioner: WorkspaceProvisioner) -> WorkspaceTool:
    async def handle(context: ToolContext, args: StopWorkspaceArguments) -> ToolOutput:
        del args
        return json_output(await provisioner.stop(context))

    return workspace_tool(
        "stop_workspace",
        "Stop this chat's workspace. Its files are kept, everything that runs in it ends.",
        StopWorkspaceArguments,
        handle,
        serial=True,
        timeout_s=WORKSPACE_TOOL_TIMEOUT_S,
    )


# Tools of the MCP servers that a workspace declares in `.mcp.json`. Its agent runs the servers and
# makes the calls; the call key keeps a repeated call from running twice.

WORKSPACE_MCP_TIMEOUT_S: Final = 100.0
"""For a call of 60 s and a server that is started before it (30 s)."""
MCP_LIST_RECHECK_S: Final = 5.0
MAX_CHATS_WITH_TOOLS: Final = 256
MAX_PROBLEMS: Final = 5
"""Servers that a model is told about when they cannot be used."""
MAX_PROBLEM_CHARS: Final = 200

ListServers = Callable[[Chat], Awaitable[Sequence[WorkspaceMcpServer]]]


class WorkspaceMcpTool(Struct, frozen=True, kw_only=True):
    """Satisfies `ports.Tool`."""

    spec: ToolSpec
    server: str
    routing_name: str
    access: WorkspaceAccess
    mcp_origin: McpOrigin
    effect: ToolEffect = "idempotent"
    origin: Literal["workspace_mcp"] = "workspace_mcp"
    serial: bool = False
    exclusive: bool = False
    stops_turn: bool = False
    timeout_s: float = WORKSPACE_MCP_TIMEOUT_S

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        try:
            agent = await self.access.connect(context)
            result = await agent.call_mcp_tool(
                self.server, self.routing_name, args, key=context.call_key
            )
        except (WorkspaceUnavailable, AgentRefused) as error:
            return error_output(error.message)
        except AgentUnreachable as error:
            return error_output(f"{error.message} {RETRY_ADVICE_TEXT}")
        value = parse_json(result)
        return convert_result(
            cast("Mapping[str, object]", value if isinstance(value, dict) else {})
        )

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return None


class _KeptTools(Struct, kw_only=True):
    servers: tuple[WorkspaceMcpServer, ...]
    tools: tuple[WorkspaceMcpTool, ...]
    checked_at_s: float


class WorkspaceMcpTools:
    """Satisfies `ports.ToolFamily`. `list_servers` reads rows only: no step waits for a
    workspace."""

    def __init__(self, list_servers: ListServers, access: WorkspaceAccess, env: Env) -> None:
        self._list_servers = list_servers
        self._access = access
        self._env = env
        self._kept: OrderedDict[ChatId, _KeptTools] = OrderedDict()

    def on_bound(self, chat_id: ChatId) -> None:
        """The chat has another workspace, or it was built again."""
        self._kept.pop(chat_id, None)
        self._keep(chat_id, _KeptTools(servers=(), tools=(), checked_at_s=float("-inf")))

    def problems(self, chat: Chat) -> str:
        """For the model: which servers cannot be used, as of the last list. Empty if all can."""
        kept = self._kept.get(chat.id)
        failed = [each for each in kept.servers if each.error] if kept is not None else []
        if not failed or not (chat.is_root or chat.mode is None):
            return ""
        shown = "; ".join(
            f"{each.name} ({clip(' '.join(each.error.split()), MAX_PROBLEM_CHARS)})"
            for each in failed[:MAX_PROBLEMS]
        )
        return f"MCP servers of the workspace's .mcp.json that cannot be used now: {shown}."

    async def tools(self, chat: Chat) -> Sequence[WorkspaceMcpTool]:
        kept = self._kept.get(chat.id)
        if chat.workspace_id is None and kept is None:
            return ()
        now = self._env.clock.monotonic()
        if kept is not None and now < kept.checked_at_s + MCP_LIST_RECHECK_S:
            return kept.tools
        try:
            servers = await self._list_servers(chat)
        except ChatdError as error:
            self._env.emit("workspace_mcp_failed", chat_id=chat.id, error_kind=error.code)
            return () if kept is None else kept.tools
        found = tuple(servers)
        if kept is None or kept.servers != found:
            tools = _make_tools([each for each in found if each.tools], self._access)
            kept = _KeptTools(servers=found, tools=tools, checked_at_s=now)
        kept.checked_at_s = now
        self._keep(chat.id, kept)
        return kept.tools

    def _keep(self, chat_id: ChatId, kept: _KeptTools) -> None:
        self._kept[chat_id] = kept
        self._kept.move_to_end(chat_id)
        while len(self._kept) > MAX_CHATS_WITH_TOOLS:
            self._kept.popitem(last=False)


def _make_tools(
    servers: Sequence[WorkspaceMcpServer], access: WorkspaceAccess
) -> tuple[WorkspaceMcpTool, ...]:
    by_key = {
        ServerToolKey(slug=workspace_slug(server.name), server_id=server.name, tool=tool.name): tool
        for server in servers
        for tool in _listed(server.tools)
    }
    return tuple(
        WorkspaceMcpTool(
            spec=ToolSpec(
                name=name,
                description=by_key[key].description or f"A tool of {key.server_id}.",
                input_schema=by_key[key].schema,
            ),
            server=key.server_id,
            routing_name=key.tool,
            access=access,
            mcp_origin=McpOrigin(name=key.slug),
        )
        for name, key in assign_names(by_key)
    )


def _listed(tools: str) -> list[ListedTool]:
    try:
        entries = msgspec.json.decode(tools, type=list[object])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return []
    return [tool for entry in entries if (tool := read_listed_tool(entry)) is not None]
