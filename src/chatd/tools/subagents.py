"""The tools by which a root chat starts and leads subagents."""

from collections.abc import Sequence
from typing import Annotated, Final, get_args

from msgspec import Meta, Struct
from msgspec.structs import replace

from chatd.domain.answer.tool_output import ToolOutput, error_output
from chatd.domain.chat.row import AgentWait, Chat
from chatd.domain.errors import ToolError, Unavailable
from chatd.domain.ids import ChatId
from chatd.domain.model.protocol import Effort
from chatd.domain.ports import SpawnRequest, Subagents, Tool, ToolContext
from chatd.domain.subagents import (
    DEFAULT_AGENT_WAIT_S,
    MAX_AGENT_WAIT_S,
    MAX_SUBAGENT_PROMPT_CHARS,
    WAIT_TOOL,
    SubagentType,
    can_spawn,
)
from chatd.tools.computer import DesktopRecordings
from chatd.tools.tool import NOT_BLANK, WorkspaceTool, argument, json_output, workspace_tool

DEFAULT_LISTED_AGENTS: Final = 10
MAX_LISTED_AGENTS: Final = 50
EFFORTS: Final[tuple[str, ...]] = get_args(Effort)
AGENT_ID_TEXT: Final = "the chat_id that spawn_agent or list_agents returned."
WAIT_AWAY_TEXT: Final = (
    "chatd's own database did not answer. The subagent goes on: call wait_agent again."
)

_AgentId = Annotated[ChatId, argument("The subagent's chat_id.", AGENT_ID_TEXT)]


class SpawnAgentArguments(Struct, frozen=True, kw_only=True):
    type: Annotated[
        SubagentType,
        argument(
            "`general` can do all that you can, except start subagents. `explore` only reads."
            " `computer_use` can also use the mouse, the keyboard and the screen of the workspace's"
            " desktop, for programs with windows; the workspace's template must have a desktop.",
            '"general", "explore" or "computer_use".',
        ),
    ]
    prompt: Annotated[
        str,
        NOT_BLANK,
        argument(
            "The whole task. The subagent knows nothing of this chat: name files, goals, limits and"
            " what to report.",
            "the task for the subagent.",
        ),
    ]
    title: Annotated[str, argument("A few words for lists. Default: the first of the prompt.")] = ""
    model: Annotated[
        str, argument("A name or id from list_subagent_models. Default: chosen by the settings.")
    ] = ""
    reasoning_effort: Annotated[
        str, argument("For models that reason: how hard, such as `low` or `high`.")
    ] = ""


class WaitAgentArguments(Struct, frozen=True, kw_only=True):
    chat_id: _AgentId
    timeout_seconds: Annotated[
        int,
        argument(
            f"How long to wait. Default {DEFAULT_AGENT_WAIT_S:g}, at most {MAX_AGENT_WAIT_S:g}."
        ),
    ] = int(DEFAULT_AGENT_WAIT_S)


class MessageAgentArguments(Struct, frozen=True, kw_only=True):
    chat_id: _AgentId
    message: Annotated[str, NOT_BLANK, argument("What to tell it.", "the message.")]
    interrupt: Annotated[
        bool,
        argument("Stop what it does for this message. Default: it reads it after its turn."),
    ] = False


class InterruptAgentArguments(Struct, frozen=True, kw_only=True):
    chat_id: _AgentId


class ListAgentsArguments(Struct, frozen=True, kw_only=True):
    limit: Annotated[
        int, Meta(ge=1, le=MAX_LISTED_AGENTS), argument(f"Default {DEFAULT_LISTED_AGENTS}.")
    ] = DEFAULT_LISTED_AGENTS
    offset: Annotated[int, Meta(ge=0), argument("How many to skip. Default 0.")] = 0


class ListSubagentModelsArguments(Struct, frozen=True):
    pass


class SubagentTools:
    """Satisfies `ports.ToolFamily`: tools of root chats."""

    def __init__(self, subagents: Subagents, recordings: DesktopRecordings | None = None) -> None:
        self._tools = subagent_tools(subagents, recordings)

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        return self._tools if can_spawn(chat) else ()


def subagent_tools(
    subagents: Subagents, recordings: DesktopRecordings | None = None
) -> tuple[Tool, ...]:
    return (
        _spawn_agent(subagents),
        _wait_agent(subagents, recordings),
        _message_agent(subagents),
        _interrupt_agent(subagents),
        _list_agents(subagents),
        _list_subagent_models(subagents),
    )


def _spawn_agent(subagents: Subagents) -> WorkspaceTool:
    async def handle(context: ToolContext, args: SpawnAgentArguments) -> ToolOutput:
        if len(args.prompt) > MAX_SUBAGENT_PROMPT_CHARS:
            raise ToolError(
                f"prompt has {len(args.prompt)} characters, and at most"
                f" {MAX_SUBAGENT_PROMPT_CHARS} are allowed. Put long text into a file of the"
                " workspace and name the file."
            )
        effort = args.reasoning_effort.strip()
        if effort and effort not in EFFORTS:
            allowed = ", ".join(EFFORTS)
            raise ToolError(f"reasoning_effort must be one of {allowed}, not {effort!r}.")
        request = SpawnRequest(
            type=args.type,
            prompt=args.prompt,
            title=args.title,
            model=args.model.strip(),
            reasoning_effort=effort,
        )
        return json_output(await subagents.spawn(context, request))

    return workspace_tool(
        "spawn_agent",
        "Start a subagent that works on a task by itself, in this chat's workspace, while you go"
        " on. Start several at once for tasks that do not depend on each other. Then call"
        " wait_agent for its report.",
        SpawnAgentArguments,
        handle,
    )


def _wait_agent(subagents: Subagents, recordings: DesktopRecordings | None) -> WorkspaceTool:
    async def handle(context: ToolContext, args: WaitAgentArguments) -> ToolOutput:
        """Does not wait itself: it tells what to wait for, and is run again when the subagent is
        settled or the time is over."""
        try:
            found = await subagents.wait(context, args.chat_id, args.timeout_seconds)
        except Unavailable:
            return error_output(WAIT_AWAY_TEXT)
        if isinstance(found, AgentWait):
            return ToolOutput(text="", wait=found)
        is_over = not found.timed_out and not found.interrupted
        if recordings is None or found.type != "computer_use" or not is_over:
            return json_output(found)
        return replace(json_output(found), files=await recordings.collect(context, found.chat_id))

    return workspace_tool(
        WAIT_TOOL,
        "Wait until a subagent has finished, and get its report. If the time is over first, it goes"
        " on working, and you can wait again. To wait for several, call this for each of them in"
        " one step.",
        WaitAgentArguments,
        handle,
        effect="read",
    )


def _message_agent(subagents: Subagents) -> WorkspaceTool:
    async def handle(context: ToolContext, args: MessageAgentArguments) -> ToolOutput:
        sent = await subagents.send(context, args.chat_id, args.message, interrupt=args.interrupt)
        return json_output(sent)

    return workspace_tool(
        "message_agent",
        "Send a subagent a message: more work, a correction, or a new start after an error. It"
        " keeps what it knows.",
        MessageAgentArguments,
        handle,
    )


def _interrupt_agent(subagents: Subagents) -> WorkspaceTool:
    async def handle(context: ToolContext, args: InterruptAgentArguments) -> ToolOutput:
        return json_output(await subagents.interrupt(context, args.chat_id))

    return workspace_tool(
        "interrupt_agent",
        "Stop a subagent. What it has done stays, and a message lets it go on.",
        InterruptAgentArguments,
        handle,
    )


def _list_agents(subagents: Subagents) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ListAgentsArguments) -> ToolOutput:
        limit = min(args.limit, MAX_LISTED_AGENTS)
        page = await subagents.list_page(context.chat, limit=limit, offset=args.offset)
        return json_output(page)

    return workspace_tool(
        "list_agents",
        "The subagents of this chat with their status, last changed first.",
        ListAgentsArguments,
        handle,
        effect="read",
    )


def _list_subagent_models(subagents: Subagents) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ListSubagentModelsArguments) -> ToolOutput:
        del args
        return json_output({"models": await subagents.list_models(context.chat)})

    return workspace_tool(
        "list_subagent_models",
        "The models that a subagent can use.",
        ListSubagentModelsArguments,
        handle,
        effect="read",
    )
