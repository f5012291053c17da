"""The tool that proposes the plan of a chat. The plan becomes a file of the chat, so that it can be
read while the workspace is down, and stays as it was proposed."""

from collections.abc import AsyncGenerator
from typing import Annotated, Final

from msgspec import Struct

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.errors import ToolError
from chatd.domain.files import StoredFile
from chatd.domain.ids import ChatId
from chatd.domain.ports import ToolContext, WorkspaceAccess
from chatd.domain.prompt.instructions import plan_path
from chatd.domain.workspace.agent_api import AgentApi, AgentRefused
from chatd.tools.arguments import argument
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.plan_paths import expand_home, find_plan, require_plan
from chatd.tools.tool import WorkspaceTool, json_output, workspace_tool

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


async def _read_plan(conn: AgentApi, plan: str) -> bytes:
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
