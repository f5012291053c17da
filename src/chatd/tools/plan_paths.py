"""Paths in a workspace: the plan of a chat, and what a chat in plan mode may write.

The agent resolves links, so that a link cannot lead a write out of the plan. A command can still
write anywhere: plan mode tells the model not to, and is no sandbox.
"""

from collections.abc import Sequence
from typing import Final

from chatd.domain.chat.row import Chat
from chatd.domain.errors import ToolError
from chatd.domain.prompt.instructions import plan_path
from chatd.domain.workspace.agent_api import AgentApi

_HOME: Final = "~/"


async def expand_home(conn: AgentApi, path: str) -> str:
    """The path without blanks around it; `~/` at its beginning becomes the home directory."""
    path = path.strip()
    if not path.startswith(_HOME):
        return path
    return f"{(await conn.home()).rstrip('/')}/{path.removeprefix(_HOME).lstrip('/')}"


async def find_plan(conn: AgentApi, chat: Chat) -> str:
    """The absolute path of the chat's plan."""
    return await expand_home(conn, plan_path(chat.id))


async def require_writable_paths(conn: AgentApi, chat: Chat, paths: Sequence[str]) -> None:
    """Raises ToolError if the chat is in plan mode and a path is not its plan."""
    if chat.mode is None:
        return
    plan = await find_plan(conn, chat)
    for path in paths:
        await require_plan(conn, chat, path, plan)


async def require_plan(conn: AgentApi, chat: Chat, path: str, plan: str) -> None:
    """Raises ToolError, also if a link leads from the plan to another file."""
    leads_to = await conn.resolve_path(path)
    if leads_to == plan:
        return
    if path == plan:
        raise ToolError(
            f"{plan} leads to {leads_to} by a link. Remove the link, then write the plan again."
        )
    raise ToolError(
        f"In plan mode only the plan can be written: {plan_path(chat.id)}. Nothing was changed."
        " Put what you would do to other files into the plan."
    )
