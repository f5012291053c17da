"""The tools and instructions of a chat, from all families. A subagent has no tools that change its
workspace."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.row import Chat
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChatId
from chatd.domain.mcp.tools import mcp_origin
from chatd.domain.ports import (
    Clock,
    Env,
    Tool,
    ToolContext,
    ToolFamily,
)
from chatd.domain.prompt.instructions import Instructions, mode_texts, plan_path
from chatd.domain.subagents import subagent_instructions
from chatd.domain.tool_modes import offers_tool
from chatd.store.database.conn import Conn
from chatd.store.deployment import mcp_servers
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.execute import execute, process_tools
from chatd.tools.files import SaveResult, attach_file, file_tools
from chatd.tools.memory import REMEMBER_TOOL, MemoryDirectory
from chatd.tools.memory import UNREADABLE as UNREADABLE_NOTES
from chatd.tools.plans import propose_plan
from chatd.tools.projects import UNREADABLE, ProjectDirectory
from chatd.tools.skills import SKILL_TOOLS, SkillDirectory
from chatd.tools.tool import WorkspaceAccess
from chatd.tools.workspaces import workspace_tools
from chatd.workspaces.provisioner import WorkspaceProvisioner

MAX_KNOWN_ORDERS: Final = 10_000
"""Of chats, in memory."""

_LATER_TOOLS: Final = SKILL_TOOLS | {REMEMBER_TOOL}

LoadInstructions = Callable[[Chat], Awaitable[Instructions]]


class WorkspaceTools:
    """Satisfies `ports.ToolFamily`: files, commands and workspaces."""

    def __init__(
        self, access: WorkspaceAccess, provisioner: WorkspaceProvisioner, clock: Clock
    ) -> None:
        shared = (*file_tools(access), *process_tools(access))
        self._subagent_tools = (*shared, execute(access, clock))
        with_start = execute(access, clock, provisioner.start)
        self._root_tools = (*shared, with_start, *workspace_tools(provisioner))

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        return self._root_tools if chat.parent_chat_id is None else self._subagent_tools


class ChatFileTools:
    """Satisfies `ports.ToolFamily`: tools that put files of the workspace into the chat."""

    def __init__(self, access: WorkspaceAccess, files: ChatFileWriter) -> None:
        self._tools = (attach_file(access, files), propose_plan(access, files))

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        del chat
        return self._tools


class ToolOrders:
    """The order in which chats have got their MCP servers, as this process knows it and as the
    database keeps it for others. Without the database the step has the order that is known here."""

    def __init__(self, conn: Conn, env: Env) -> None:
        self._conn = conn
        self._env = env
        self._known: dict[ChatId, tuple[str, ...]] = {}

    async def order(self, chat: Chat, servers: Sequence[str]) -> list[str]:
        known = self._known.pop(chat.id, ())
        if not set(servers) <= set(known):
            try:
                known = await mcp_servers.keep_order(self._conn, chat.id, servers)
            except Unavailable as error:
                self._env.emit("tool_order_not_kept", chat_id=chat.id, error_kind=error.code)
        self._known[chat.id] = known
        while len(self._known) > MAX_KNOWN_ORDERS:
            del self._known[next(iter(self._known))]
        return [
            *(each for each in known if each in servers),
            *(s for s in servers if s not in known),
        ]


def _server_of(tool: Tool) -> str:
    """Empty for a tool that a chat has from its beginning. Those for skills come with the first
    skill, and `remember` when its owner wants it."""
    origin = mcp_origin(tool)
    if origin is None:
        return f"chatd:{tool.spec.name}" if tool.spec.name in _LATER_TOOLS else ""
    return origin.config_id or f"workspace:{origin.name}"


def _is_of_server(group: str) -> bool:
    return not group.startswith("chatd:")


class ChatTools:
    """Satisfies `ports.ToolSource`. Providers cache a prompt only while it starts with the same
    tools in the same order: chatd's own by name, then those for skills and of each MCP server, in
    the order in which the chat has got them (`orders`). Of two tools with one name the first
    family's counts."""

    def __init__(
        self,
        families: Sequence[ToolFamily],
        load_instructions: LoadInstructions,
        skills: SkillDirectory | None = None,
        orders: ToolOrders | None = None,
        save: SaveResult | None = None,
        *,
        projects: ProjectDirectory | None = None,
        memory: MemoryDirectory | None = None,
    ) -> None:
        self._families = families
        self._projects = projects
        self._memory = memory
        self._load_instructions = load_instructions
        self._skills = skills
        self.orders = orders
        self._save = save

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        found: dict[str, Tool] = {}
        for family in self._families:
            for tool in await family.tools(chat):
                if offers_tool(chat.mode, tool.spec.name, tool.origin, is_root=chat.is_root):
                    found.setdefault(tool.spec.name, tool)
        by_server: dict[str, list[Tool]] = {}
        for name in sorted(found):
            by_server.setdefault(_server_of(found[name]), []).append(found[name])
        # Those of chatd first: the order of a chat without MCP servers need not be kept.
        servers = sorted((each for each in by_server if each), key=_is_of_server)
        if any(map(_is_of_server, servers)) and self.orders is not None:
            servers = await self.orders.order(chat, servers)
        return tuple(tool for each in ("", *servers) for tool in by_server.get(each, ()))

    async def save_result(self, context: ToolContext, output: ToolOutput) -> ToolOutput:
        return output if self._save is None else await self._save(context, output)

    async def instructions(self, chat: Chat) -> Instructions:
        found = await self._load_instructions(chat)
        index = None if self._skills is None else await self._skills.index(chat)
        project = UNREADABLE if self._projects is None else await self._projects.texts(chat)
        notes = UNREADABLE_NOTES if self._memory is None else await self._memory.texts(chat)
        return replace(
            found,
            skills=None if index is None else index.block(),
            project=project.instructions,
            project_files=project.files,
            project_notes=notes.project,
            notes=notes.user,
            subagent=subagent_instructions(chat),
            modes=mode_texts(chat.mode, is_root=chat.is_root),
            plan_path=plan_path(chat.id),
        )
