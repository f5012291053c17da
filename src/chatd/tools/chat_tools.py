"""The tools and instructions of a chat, from all families. A subagent has no tools that change its
workspace."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from chatd.domain.chat.row import Chat
from chatd.domain.ports import Clock, Provisioner, Tool, ToolFamily, WorkspaceAccess
from chatd.domain.prompt.instructions import Instructions
from chatd.domain.prompt.modes import mode_texts, plan_path
from chatd.domain.subagents import subagent_instructions
from chatd.domain.tool_modes import offers_tool
from chatd.tools.attachments import attach_file
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.execute import execute
from chatd.tools.files import file_tools
from chatd.tools.plans import propose_plan
from chatd.tools.processes import process_tools
from chatd.tools.skill_directory import SkillDirectory
from chatd.tools.workspaces import workspace_tools

LoadInstructions = Callable[[Chat], Awaitable[Instructions]]


class WorkspaceTools:
    """Satisfies `ports.ToolFamily`: files, commands and workspaces."""

    def __init__(self, access: WorkspaceAccess, provisioner: Provisioner, clock: Clock) -> None:
        shared = (*file_tools(access), execute(access, clock), *process_tools(access))
        self._subagent_tools = shared
        self._root_tools = (*shared, *workspace_tools(provisioner))

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        return self._root_tools if chat.parent_chat_id is None else self._subagent_tools


class ChatFileTools:
    """Satisfies `ports.ToolFamily`: tools that put files of the workspace into the chat."""

    def __init__(self, access: WorkspaceAccess, files: ChatFileWriter) -> None:
        self._tools = (attach_file(access, files), propose_plan(access, files))

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        del chat
        return self._tools


class ChatTools:
    """Satisfies `ports.ToolSource`. Tools are sorted by name: providers cache a prompt only while
    it starts with the same tools in the same order. Of two tools with one name the first family's
    counts."""

    def __init__(
        self,
        families: Sequence[ToolFamily],
        load_instructions: LoadInstructions,
        skills: SkillDirectory | None = None,
    ) -> None:
        self._families = families
        self._load_instructions = load_instructions
        self._skills = skills

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        found: dict[str, Tool] = {}
        for family in self._families:
            for tool in await family.tools(chat):
                if offers_tool(chat.mode, tool.spec.name, tool.origin, is_root=chat.is_root):
                    found.setdefault(tool.spec.name, tool)
        return tuple(found[name] for name in sorted(found))

    async def instructions(self, chat: Chat) -> Instructions:
        found = await self._load_instructions(chat)
        index = None if self._skills is None else await self._skills.index(chat)
        return replace(
            found,
            skills=None if index is None else index.block(),
            subagent=subagent_instructions(chat),
            modes=mode_texts(chat.mode, is_root=chat.is_root),
            plan_path=plan_path(chat.id),
        )
