"""A tool for models: its description, its arguments and its handler.

Every failure is a result that tells the model what to do next: a refusal by the workspace, an
unreachable workspace, wrong arguments.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec import Raw, Struct

from chatd.domain.answer.tool_output import ToolOutput, error_output
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ToolError, Unavailable
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.ports import ToolContext, ToolEffect
from chatd.domain.tool_modes import ToolOrigin
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable, WorkspaceUnavailable
from chatd.tools.arguments import A, read_arguments, schema_of

_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
_ROOT_TOOL: Final = re.compile(r"\b(?:list_templates|(?:create|start|stop)_workspace)\b")

ToolHandler = Callable[[ToolContext, A], Awaitable[ToolOutput]]

RETRY_ADVICE_TEXT: Final = (
    "Try again in a moment; if it goes on, call stop_workspace, then start_workspace."
)
SUBAGENT_ADVICE_TEXT: Final = (
    "You cannot create or start a workspace: if it does not help to try again in a moment, say so"
    " in your report."
)
DATABASE_AWAY_TEXT: Final = (
    "chatd's own database did not answer, so the outcome of this call is unknown. Check what the"
    " call has changed before you repeat it."
)


class WorkspaceTool(Struct, frozen=True, kw_only=True):
    """Satisfies `ports.Tool`. The call key names each effect, so that a repeat after a crash has no
    second effect."""

    spec: ToolSpec
    handle: Callable[[ToolContext, Raw], Awaitable[ToolOutput]]
    effect: ToolEffect = "idempotent"
    serial: bool = False
    origin: ToolOrigin = "chatd"
    stops_turn: bool = False
    timeout_s: float = 60.0

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        try:
            return await self.handle(context, args)
        except (ToolError, WorkspaceUnavailable, AgentRefused) as error:
            return error_output(_told_to(context.chat, error.message))
        except AgentUnreachable as error:
            text = f"{error.message} {RETRY_ADVICE_TEXT}"
            return error_output(_told_to(context.chat, text))
        except Unavailable:
            # Its message is for operators: it may name hosts.
            return error_output(DATABASE_AWAY_TEXT)

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return None


def _told_to(chat: Chat, text: str) -> str:
    return text if chat.is_root else subagent_text(text)


def subagent_text(text: str) -> str:
    """An error without the advice to call tools that only root chats have."""
    sentences = _SENTENCE_END.split(text)
    kept = [sentence for sentence in sentences if not _ROOT_TOOL.search(sentence)]
    return text if len(kept) == len(sentences) else " ".join([*kept, SUBAGENT_ADVICE_TEXT])


def workspace_tool(
    name: str,
    description: str,
    arguments: type[A],
    handler: ToolHandler[A],
    *,
    effect: ToolEffect = "idempotent",
    serial: bool = False,
    stops_turn: bool = False,
    timeout_s: float = 60.0,
) -> WorkspaceTool:
    async def handle(context: ToolContext, args: Raw) -> ToolOutput:
        return await handler(context, read_arguments(arguments, args))

    spec = ToolSpec(name=name, description=description, input_schema=schema_of(arguments))
    return WorkspaceTool(
        spec=spec,
        handle=handle,
        effect=effect,
        serial=serial,
        stops_turn=stops_turn,
        timeout_s=timeout_s,
    )


def json_output(value: object) -> ToolOutput:
    return ToolOutput(text=msgspec.json.encode(value).decode())
