"""The tools that propose a plan and ask the user questions, and what a chat in plan mode may write.

A plan becomes a file of the chat, so that it can be read while the workspace is down, and stays as
it was proposed.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Final

from msgspec import Raw, Struct

from chatd.domain.answer.tool_output import ToolOutput, error_output
from chatd.domain.chat.call_waits import QUESTION_TOOL, read_questions
from chatd.domain.chat.row import Chat
from chatd.domain.computer_use import COMPUTER_MODE
from chatd.domain.errors import ToolError
from chatd.domain.files import StoredFile
from chatd.domain.ids import ChatId
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.ports import Tool, ToolContext, ToolEffect
from chatd.domain.prompt.instructions import plan_path
from chatd.domain.tool_modes import ToolOrigin
from chatd.domain.workspace.agent_api import AgentRefused
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.tool import (
    NOT_BLANK,
    WorkspaceAccess,
    WorkspaceTool,
    argument,
    json_output,
    schema_of,
    workspace_tool,
)
from chatd.workspaces.agents.agent_client import AgentClient

# Paths in a workspace: the plan of a chat, and what a chat in plan mode may write.
#
# The agent resolves links, so that a link cannot lead a write out of the plan. A command can still
# write anywhere: plan mode tells the model not to, and is no sandbox.

_HOME: Final = "~/"


async def expand_home(conn: AgentClient, path: str) -> str:
    """The path without blanks around it; `~/` at its beginning becomes the home directory."""
    path = path.strip()
    if not path.startswith(_HOME):
        return path
    return f"{(await conn.home()).rstrip('/')}/{path.removeprefix(_HOME).lstrip('/')}"


async def find_plan(conn: AgentClient, chat: Chat) -> str:
    """The absolute path of the chat's plan."""
    return await expand_home(conn, plan_path(chat.id))


async def require_writable_paths(conn: AgentClient, chat: Chat, paths: Sequence[str]) -> None:
    """Raises ToolError if the chat is in plan mode and a path is not its plan."""
    if chat.mode is None or chat.mode == COMPUTER_MODE:
        return
    plan = await find_plan(conn, chat)
    for path in paths:
        await require_plan(conn, chat, path, plan)


async def require_plan(conn: AgentClient, chat: Chat, path: str, plan: str) -> None:
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


MAX_PLAN_BYTES: Final = 32 * 1024
PLAN_TYPE: Final = "text/markdown"


class ProposePlanArguments(Struct, frozen=True, kw_only=True):
    path: Annotated[str, argument("The plan. Default: the path that the instructions name.")] = ""


class ProposedPlan(Struct, frozen=True, kw_only=True):
    ok: bool = True
    path: str
    kind: str = "plan"
    file_id: str
    media_type: str = PLAN_TYPE


def propose_plan(access: WorkspaceAccess, files: ChatFileWriter) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ProposePlanArguments) -> ToolOutput:
        given = args.path.strip() or plan_path(context.chat.id)
        if not given.lower().endswith(".md"):
            raise ToolError("path must name the plan, a file that ends with .md.")
        stored = await files.find(context)
        if stored is not None:
            return _proposed(given, stored)
        conn = await access.connect(context)
        path, plan = await expand_home(conn, given), await find_plan(conn, context.chat)
        await require_plan(conn, context.chat, path, plan)
        content = await _read_plan(conn, plan)
        stored = await files.store(context, _plan_name(context.chat.id), PLAN_TYPE, _once(content))
        return _proposed(plan, stored)

    return workspace_tool(
        "propose_plan",
        "In plan mode only: show the plan to the user, who reads it and decides. Call it when the"
        " plan is complete: it ends your turn.",
        ProposePlanArguments,
        handle,
        serial=True,  # after a write_file of the same step
        stops_turn=True,
    )


def _proposed(path: str, stored: StoredFile) -> ToolOutput:
    return json_output(ProposedPlan(path=path, file_id=str(stored.id)))


def _plan_name(chat_id: ChatId) -> str:
    return plan_path(chat_id).rpartition("/")[2]


async def _once(content: bytes) -> AsyncGenerator[bytes]:
    yield content


async def _read_plan(conn: AgentClient, plan: str) -> bytes:
    try:
        content = await conn.read_file(plan, limit=MAX_PLAN_BYTES + 1)
    except AgentRefused as error:
        if error.status != 404:
            raise
        raise ToolError(
            f"There is no plan yet. Write it to {plan} with write_file first."
        ) from None
    if len(content) > MAX_PLAN_BYTES:
        raise ToolError(
            f"The plan is longer than {MAX_PLAN_BYTES} bytes. Shorten it: a person reads it."
        )
    if not content.strip():
        raise ToolError(f"The plan is empty. Write it to {plan} with write_file first.")
    return content


# The tool by which a model asks the user. The engine asks valid questions, and the user's answers
# are the call's result; the tool itself runs only for questions that cannot be asked.

DESCRIPTION: Final = (
    "Ask the user one or more questions with options to choose from, when you need a decision that"
    " you cannot make from what you know. The turn waits for the answers. The user can also answer"
    " in own words. Ask all your questions in one call; do not ask what you can find out yourself."
)


class OptionArguments(Struct, frozen=True, kw_only=True):
    label: Annotated[str, NOT_BLANK, argument("The option in a few words.")]
    description: Annotated[str, argument("What choosing it means.")] = ""


class OneQuestion(Struct, frozen=True, kw_only=True):
    header: Annotated[str, argument("The subject in one or two words.")] = ""
    question: Annotated[str, NOT_BLANK, argument("The question, as a sentence.")]
    options: Annotated[list[OptionArguments], argument("2 to 4 options, each with its own label.")]
    multi_select: Annotated[bool, argument("Whether several may be chosen. Default false.")] = False


class QuestionArguments(Struct, frozen=True, kw_only=True):
    questions: Annotated[list[OneQuestion], argument("1 to 8 questions.")]


class QuestionTool(Struct, frozen=True, kw_only=True):
    """Satisfies `ports.Tool`."""

    spec: ToolSpec
    effect: ToolEffect = "read"
    serial: bool = False
    origin: ToolOrigin = "chatd"
    stops_turn: bool = False
    timeout_s: float = 10.0

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        del context
        try:
            read_questions(args)
        except ToolError as error:
            return error_output(error.message)
        return error_output("The questions could not be asked. Continue with your best judgement.")

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return None


class QuestionTools:
    """Satisfies `ports.ToolFamily`. A subagent reports to its parent and asks nobody else."""

    def __init__(self) -> None:
        spec = ToolSpec(
            name=QUESTION_TOOL,
            description=DESCRIPTION,
            input_schema=schema_of(QuestionArguments),
        )
        self._tools = (QuestionTool(spec=spec),)

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        return self._tools if chat.is_root and chat.mode != "explore" else ()
