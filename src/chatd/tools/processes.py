"""The tools for commands in the background: their output, their list, and signals to them."""

import asyncio
from typing import Annotated, Final, get_args

from msgspec import Meta, Struct, structs

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.ports import ToolContext, WorkspaceAccess
from chatd.domain.workspace.agent_api import (
    AgentApi,
    AgentRefused,
    AgentUnreachable,
    ProcessInfo,
    ProcessOutput,
    ProcessSignal,
)
from chatd.tools.arguments import NOT_BLANK, Ignored, Seconds, argument
from chatd.tools.command_output import CommandReport, finished_report, report_output
from chatd.tools.execute import RECONNECT_TIMEOUT_S
from chatd.tools.tool import WorkspaceTool, json_output, workspace_tool

DEFAULT_WAIT_S: Final = 10.0
MAX_WAIT_S: Final = 3600.0
PROCESS_ID_TEXT: Final = "the id that execute gave, or one of process_list."
STILL_RUNNING_TEXT: Final = "Still running. Wait for more with process_output."

_ProcessId = Annotated[str, NOT_BLANK, argument("Its id.", PROCESS_ID_TEXT)]


class ProcessOutputArguments(Struct, frozen=True, kw_only=True):
    process_id: _ProcessId
    wait_timeout: Annotated[
        Seconds,
        argument(
            'How long to wait for its end, such as "30s"; "0s" does not wait. Default 10s, at'
            " most 1h."
        ),
    ] = DEFAULT_WAIT_S
    model_intent: Annotated[
        Ignored, argument("What this is for, in a few words for a person who watches.")
    ] = None


class ProcessListArguments(Struct, frozen=True):
    pass


class ProcessSignalArguments(Struct, frozen=True, kw_only=True):
    process_id: _ProcessId
    signal: Annotated[
        ProcessSignal,
        Meta(extra_json_schema={"enum": get_args(ProcessSignal)}),  # msgspec sorts: "kill" first
        argument("terminate asks it to end, kill ends it.", '"terminate" or "kill".'),
    ]


def process_tools(access: WorkspaceAccess) -> tuple[WorkspaceTool, ...]:
    return (_process_output(access), _process_list(access), _process_signal(access))


def _process_output(access: WorkspaceAccess) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ProcessOutputArguments) -> ToolOutput:
        conn = await access.connect(context)
        wait_s = min(args.wait_timeout, MAX_WAIT_S)
        try:
            output = await _wait_for_output(conn, args.process_id.strip(), wait_s)
        except AgentRefused as error:
            return json_output({"success": False, "error": error.message})
        if not output.running:
            return report_output(finished_report(output, None))
        report = CommandReport(
            success=True,
            output=output.output,
            running=True,
            truncated=output.truncated,
            output_file=output.file,
            note=STILL_RUNNING_TEXT,
        )
        return report_output(report)

    return workspace_tool(
        "process_output",
        "Wait for a command that runs in the background, and read what it has printed.",
        ProcessOutputArguments,
        handle,
        effect="read",
        timeout_s=MAX_WAIT_S + RECONNECT_TIMEOUT_S + 60,
    )


async def _wait_for_output(conn: AgentApi, process_id: str, wait_s: float) -> ProcessOutput:
    try:
        return await conn.output(process_id, wait_s=wait_s)
    except AgentUnreachable:
        if not wait_s:
            raise
        # The connection was lost during the wait; ask once for the current state.
        try:
            async with asyncio.timeout(RECONNECT_TIMEOUT_S):
                return await conn.output(process_id)
        except TimeoutError:
            raise AgentUnreachable("The workspace does not answer.") from None


def _process_list(access: WorkspaceAccess) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ProcessListArguments) -> ToolOutput:
        del args
        conn = await access.connect(context)
        return json_output({"processes": [_shown(info) for info in await conn.processes()]})

    return workspace_tool(
        "process_list",
        "The commands that this chat has started in the workspace: those that run first, then"
        " the newest. At most ten.",
        ProcessListArguments,
        handle,
        effect="read",
    )


def _shown(info: ProcessInfo) -> ProcessInfo:
    """A command that a signal ended has no exit code."""
    has_exited = info.exit_code is None or info.exit_code >= 0
    return info if has_exited else structs.replace(info, exit_code=None)


def _process_signal(access: WorkspaceAccess) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ProcessSignalArguments) -> ToolOutput:
        process_id = args.process_id.strip()
        conn = await access.connect(context)
        try:
            await conn.signal(process_id, args.signal)
        except AgentRefused as error:
            return json_output({"success": False, "error": error.message})
        text = f"{args.signal} was sent to {process_id}. process_output tells whether it has ended."
        return json_output({"success": True, "message": text})

    return workspace_tool(
        "process_signal",
        "End a command that runs in the background, with all that it has started.",
        ProcessSignalArguments,
        handle,
    )
