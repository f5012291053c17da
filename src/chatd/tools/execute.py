"""The tool that runs a command in the workspace.

The agent owns the process, not the call: when the call ends early, the command continues, and the
report contains its process id.
"""

import asyncio
from typing import Annotated, Final

import msgspec
from msgspec import Struct

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.ports import Clock, ToolContext, WorkspaceAccess
from chatd.domain.workspace.agent_api import (
    AgentApi,
    AgentRefused,
    AgentUnreachable,
    ProcessOutput,
    WorkspaceUnavailable,
)
from chatd.tools.arguments import NOT_BLANK, Ignored, Seconds, argument
from chatd.tools.command_output import (
    COMMAND_ENVIRONMENT,
    CommandReport,
    finished_report,
    parse_command,
    read_file_advice,
    report_output,
    running_report,
)
from chatd.tools.tool import WorkspaceTool, json_output, workspace_tool

DEFAULT_TIMEOUT_S: Final = 10.0
MAX_TIMEOUT_S: Final = 3600.0
FIRST_OUTPUT_AFTER_S: Final = 1.0
"""Delay until viewers see the first output of a running command."""
OUTPUT_POLL_INTERVAL_S: Final = 3.0
RECONNECT_TIMEOUT_S: Final = 30.0


class ExecuteArguments(Struct, frozen=True, kw_only=True):
    command: Annotated[str, NOT_BLANK, argument("The command.", "the shell command to run.")]
    timeout: Annotated[
        Seconds,
        argument('How long to wait for it, such as "30s" or "5m". Default 10s, at most 1h.'),
    ] = DEFAULT_TIMEOUT_S
    workdir: Annotated[str, argument("Directory to run it in. Default: the workspace's own.")] = ""
    run_in_background: Annotated[bool, argument("Start it and do not wait. Default false.")] = False
    model_intent: Annotated[
        Ignored,
        argument(
            "What this is for, in a few words for a person who watches, such as"
            ' "running the tests".'
        ),
    ] = None


def execute(access: WorkspaceAccess, clock: Clock) -> WorkspaceTool:
    async def handle(context: ToolContext, args: ExecuteArguments) -> ToolOutput:
        parsed = parse_command(args.command, background=args.run_in_background)
        conn = await access.connect(context)
        try:
            started = await conn.start_process(
                parsed.command,
                key=context.call_key,
                workdir=args.workdir.strip() or None,
                env={**COMMAND_ENVIRONMENT, "CHATD_CHAT_ID": str(context.chat.id)},
                background=parsed.background,
            )
        except AgentRefused as error:
            return json_output(CommandReport(success=False, error=error.message))
        if parsed.background:
            report = CommandReport(
                success=True,
                backgrounded=True,
                running=True,
                background_process_id=started.id,
                note="Read its output with process_output, end it with process_signal.",
            )
            return json_output(report)
        run = _ForegroundCommand(conn, clock, context, started.id)
        timeout_s = min(args.timeout, MAX_TIMEOUT_S)
        return report_output(await run.follow(timeout_s, read_file_advice(parsed.command)))

    return workspace_tool(
        "execute",
        "Run a command with sh -c in the workspace. It has no terminal and no input. A command"
        " that takes longer than its timeout is not killed: it goes on in the background, and"
        " process_output waits for it. Start servers and watchers with run_in_background.",
        ExecuteArguments,
        handle,
        timeout_s=MAX_TIMEOUT_S + RECONNECT_TIMEOUT_S + 60,
    )


class _ForegroundCommand:
    """Waits for one command and shows viewers its output meanwhile."""

    def __init__(self, conn: AgentApi, clock: Clock, context: ToolContext, process: str) -> None:
        self._conn = conn
        self._clock = clock
        self._context = context
        self._process = process
        self._started_at = clock.monotonic()
        self._last_output: ProcessOutput | None = None

    async def follow(self, timeout_s: float, note: str) -> CommandReport:
        try:
            output = await self._wait(timeout_s)
        except asyncio.CancelledError:
            # The turn was interrupted: report the output so far without another request.
            return running_report(
                self._last_output,
                self._process,
                "stopped before it ended",
                self._elapsed_ms(),
                interrupted=True,
            )
        except (AgentUnreachable, AgentRefused, WorkspaceUnavailable) as error:
            return await self._report_after_loss(error.message, note)
        if output.running:
            error = f"timed out after {timeout_s:g}s"
            output = await self._whole_output(output)
            return running_report(output, self._process, error, self._elapsed_ms(), timed_out=True)
        return finished_report(output, self._elapsed_ms(), note)

    async def _wait(self, timeout_s: float) -> ProcessOutput:
        """Return when the command has ended or the timeout has passed."""
        until, poll_s, cursor = self._started_at + timeout_s, FIRST_OUTPUT_AFTER_S, 0
        while True:
            left_s = max(0.0, until - self._clock.monotonic())
            wait_s = min(left_s, poll_s)
            output = await self._conn.output(self._process, wait_s=wait_s, after=cursor)
            if not output.running:
                return output if cursor == 0 else await self._whole_output(output)
            if output.output:
                self._context.show(output.output)
            self._last_output = output if cursor == 0 else await self._whole_output(output)
            if self._clock.monotonic() >= until:
                return self._last_output
            poll_s, cursor = OUTPUT_POLL_INTERVAL_S, output.cursor

    async def _whole_output(self, part: ProcessOutput) -> ProcessOutput:
        if part is self._last_output:
            return part
        return await self._conn.output(self._process)

    async def _report_after_loss(self, reason: str, note: str) -> CommandReport:
        """The connection was lost; the command may still run. Ask for its state once."""
        try:
            async with asyncio.timeout(RECONNECT_TIMEOUT_S):
                output = await self._conn.output(self._process)
        except (AgentUnreachable, AgentRefused, WorkspaceUnavailable, TimeoutError):
            report = running_report(self._last_output, self._process, reason, self._elapsed_ms())
            return msgspec.structs.replace(
                report,
                note="It is not known whether the command still runs. Ask with process_output.",
            )
        if output.running:
            return running_report(output, self._process, reason, self._elapsed_ms())
        return finished_report(output, self._elapsed_ms(), note)

    def _elapsed_ms(self) -> int:
        return round((self._clock.monotonic() - self._started_at) * 1000)
