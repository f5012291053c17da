"""The tools and instructions of a chat. A subagent has no tools that change its workspace."""

from collections.abc import Awaitable, Callable, Sequence

from chatd.domain.chat.row import Chat
from chatd.domain.ports import Clock, Provisioner, Tool, WorkspaceAccess
from chatd.domain.prompt.instructions import Instructions
from chatd.tools.execute import execute
from chatd.tools.files import file_tools
from chatd.tools.processes import process_tools
from chatd.tools.workspaces import workspace_tools

LoadInstructions = Callable[[Chat], Awaitable[Instructions]]


class ChatTools:
    """Satisfies `ports.ToolSource`. Tools are sorted by name: providers cache a prompt only while
    it starts with the same tools in the same order."""

    def __init__(
        self,
        access: WorkspaceAccess,
        provisioner: Provisioner,
        load_instructions: LoadInstructions,
        clock: Clock,
    ) -> None:
        shared = (*file_tools(access), execute(access, clock), *process_tools(access))
        self._subagent_tools = _sorted(shared)
        self._root_tools = _sorted((*shared, *workspace_tools(provisioner)))
        self._load_instructions = load_instructions

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        return self._root_tools if chat.parent_chat_id is None else self._subagent_tools

    async def instructions(self, chat: Chat) -> Instructions:
        return await self._load_instructions(chat)


def _sorted(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    return tuple(sorted(tools, key=lambda tool: tool.spec.name))
