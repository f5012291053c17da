"""Which tools a chat has.

Owns who gets what. Where the tools act and what the model is told of it is the workspaces' to say.
"""

from collections.abc import Awaitable, Callable, Sequence

from chatd.domain.chat import Chat
from chatd.domain.hands import Hands
from chatd.domain.ports import Clock, Tool
from chatd.domain.prompt_text import Instructions
from chatd.domain.provisioning import Provisioner
from chatd.tools.execute import execute
from chatd.tools.files import file_tools
from chatd.tools.processes import process_tools
from chatd.tools.workspaces import workspace_tools

Briefing = Callable[[Chat], Awaitable[Instructions]]


class ChatTools:
    """Satisfies `ports.ToolSource`. Sorted by name: a prompt that begins with the same tools in
    the same order is cheaper."""

    def __init__(
        self, hands: Hands, provisioner: Provisioner, briefing: Briefing, clock: Clock
    ) -> None:
        acting = (*file_tools(hands), execute(hands, clock), *process_tools(hands))
        self._child = _sorted(acting)
        self._root = _sorted((*acting, *workspace_tools(provisioner)))
        self._briefing = briefing

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        return self._root if chat.parent_chat_id is None else self._child

    async def instructions(self, chat: Chat) -> Instructions:
        return await self._briefing(chat)


def _sorted(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    return tuple(sorted(tools, key=lambda tool: tool.spec.name))
