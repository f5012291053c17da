"""The tools that run commands in the workspace and attend to those in the background; what of a
command's output the model is sent.

The agent owns the process, not the call: when the call ends early, the command continues, and the
report contains its process id.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Annotated, Final, get_args

import msgspec
from msgspec import Meta, Struct, structs

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.chat.person_commands import is_persons_call
from chatd.domain.ports import Clock, ToolContext
from chatd.domain.workspace.agent_api import (
    AgentRefused,
    AgentUnreachable,
    OutputTruncation,
    ProcessInfo,
    ProcessOutput,
    ProcessSignal,
    StartedProcess,
    WorkspaceUnavailable,
)
from chatd.tools.tool import (
    NOT_BLANK,
    Ignored,
    Seconds,
    WorkspaceAccess,
    WorkspaceTool,
    argument,
    json_output,
    workspace_tool,
)
from chatd.workspaces.agents.agent_client import AgentClient

# Pure functions around a command: the command line that runs, and the report of its outcome.

COMMAND_ENVIRONMENT: Final = {
    "CHATD_CHAT_AGENT": "true",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
}
"""Commands have no terminal: no editor, pager or prompt may wait for input."""

_FILE_DUMPS: Final = (
    re.compile(r"^cat\s"),
    re.compile(r"^(?:rg|grep)\s(?:.*\s)?--include-all(?:\s|$)"),
    re.compile(r"^(?:rg|grep)\s+-l\s"),
)
UNKNOWN_SIGNAL: Final = "unknown"
"""Of a command that did not exit by itself, when its agent does not tell what ended it."""
PREFER_READ_FILE_TEXT: Final = (
    "To look at a file, read_file is better: it numbers the lines and can page."
)


MAX_FILED_BYTES: Final = 8 * 1024 * 1024
"""The agent writes no more of a command's output to its file."""
READ_TEXT: Final = "read parts of it with read_file, or search it with execute and grep."
LONG_OUTPUT_TEXT: Final = (
    "The output was too long to keep all of it. If the rest matters, write it to a file, such as"
    " command > /tmp/output 2>&1, and read parts of that with read_file or grep."
)


class CommandReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The report of a command to the model. It has an exit code only if the command ended by
    itself. `signal` ended it otherwise; `timed_out` and `interrupted` say why the report came
    before the end. Reports of earlier versions had the exit code -1 in all these cases.
    `output_file` of the workspace has the whole output, if it is long."""

    success: bool | None = None
    exit_code: int | None = None
    signal: str = ""
    timed_out: bool = False
    interrupted: bool = False
    output: str = ""
    wall_duration_ms: int | None = None
    error: str = ""
    running: bool = False
    backgrounded: bool = False
    background_process_id: str = ""
    truncated: OutputTruncation | None = None
    output_file: str = ""
    note: str = ""


class ParsedCommand(Struct, frozen=True, kw_only=True):
    command: str
    background: bool


def parse_command(command: str, *, background: bool) -> ParsedCommand:
    """A single `&` at the end requests a background command; `&&` and `|&` do not."""
    stripped = command.rstrip()
    has_ampersand = stripped.endswith("&") and not stripped.endswith(("&&", "|&"))
    if background or not has_ampersand:
        return ParsedCommand(command=command, background=background)
    return ParsedCommand(command=stripped[:-1].rstrip(), background=True)


def read_file_advice(command: str) -> str:
    dumps_file = any(dump.match(command.strip()) for dump in _FILE_DUMPS)
    return PREFER_READ_FILE_TEXT if dumps_file else ""


def finished_report(output: ProcessOutput, ms: int | None, note: str = "") -> CommandReport:
    code = output.exit_code
    has_exited = code is not None and code >= 0
    return CommandReport(
        success=code == 0,
        exit_code=code if has_exited else None,
        signal="" if has_exited else output.signal or UNKNOWN_SIGNAL,
        output=output.output,
        wall_duration_ms=ms,
        truncated=output.truncated,
        output_file=output.file,
        note=note or long_output_note(output),
    )


def long_output_note(output: ProcessOutput) -> str:
    if output.truncated is None:
        return ""
    return saved_text(output.file, output.cursor) if output.file else LONG_OUTPUT_TEXT


def saved_text(path: str, size: int) -> str:
    what = "The whole output is" if size <= MAX_FILED_BYTES else "Its first 8 MiB are"
    return f"{what} in {path} of the workspace: {READ_TEXT}"


def report_output(report: CommandReport) -> ToolOutput:
    """A step with many results may cut the output of this one."""
    text = msgspec.json.encode(report).decode()
    if not report.output_file:
        return ToolOutput(text=text)
    size = 0 if report.truncated is None else report.truncated.original_bytes
    return ToolOutput(text=text, saved=saved_text(report.output_file, size))


def running_report(
    output: ProcessOutput | None,
    process_id: str,
    error: str,
    ms: int | None,
    *,
    timed_out: bool = False,
    interrupted: bool = False,
) -> CommandReport:
    """The command was not killed; the report tells the model how to follow it."""
    return CommandReport(
        success=False,
        timed_out=timed_out,
        interrupted=interrupted,
        output="" if output is None else output.output,
        wall_duration_ms=ms,
        error=error,
        running=True,
        background_process_id=process_id,
        truncated=None if output is None else output.truncated,
        output_file="" if output is None else output.file,
        note="The command is still running. Wait for it with process_output, or end it with"
        " process_signal.",
    )


def stopped_report(output: ProcessOutput | None, process_id: str, ms: int | None) -> CommandReport:
    text = "stopped before it ended"
    return running_report(output, process_id, text, ms, interrupted=True)


DEFAULT_TIMEOUT_S: Final = 10.0
MAX_TIMEOUT_S: Final = 3600.0
QUICK_COMMAND_S: Final = 0.2
"""A command that ends within this time needs one request."""
STOPPED_START_S: Final = 0.4
"""How long a stopped turn waits for the reply that names its command."""
FIRST_OUTPUT_AFTER_S: Final = 1.0
"""Delay until viewers see the first output of a running command."""
OUTPUT_POLL_INTERVAL_S: Final = 3.0
RECONNECT_TIMEOUT_S: Final = 30.0


StartWorkspace = Callable[[ToolContext, Mapping[str, str]], Awaitable[object]]


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


def _command_environment(context: ToolContext) -> dict[str, str]:
    """With the place in the trace, so that programs with traces of their own continue it."""
    own = {**COMMAND_ENVIRONMENT, "CHATD_CHAT_ID": str(context.chat.id)}
    if context.traceparent is not None:
        own["TRACEPARENT"] = context.traceparent
    return own


def execute(
    access: WorkspaceAccess, clock: Clock, start_workspace: StartWorkspace | None = None
) -> WorkspaceTool:
    """A command of a person starts a workspace that is stopped; a model is told to."""

    async def begin(
        context: ToolContext, args: ExecuteArguments, parsed: ParsedCommand
    ) -> tuple[AgentClient, StartedProcess, bool]:
        conn = await access.connect(context)
        start = conn.start_process(
            parsed.command,
            key=context.call_key,
            workdir=args.workdir.strip() or None,
            env=_command_environment(context),
            background=parsed.background,
            wait_s=0 if parsed.background else QUICK_COMMAND_S,
        )
        return conn, *(await _start(start))

    async def begin_somehow(
        context: ToolContext, args: ExecuteArguments, parsed: ParsedCommand
    ) -> tuple[AgentClient, StartedProcess, bool]:
        try:
            return await begin(context, args, parsed)
        except WorkspaceUnavailable:
            # Nothing was sent; an earlier worker may have, so that it is not for this one to say.
            if start_workspace is None or context.may_have_run:
                raise
            if not is_persons_call(context.call_id):
                raise
        await context.wait_for("The workspace is stopped and is being started.")
        await start_workspace(context, {})
        await context.wait_for("")
        return await begin(context, args, parsed)

    async def handle(context: ToolContext, args: ExecuteArguments) -> ToolOutput:
        parsed = parse_command(args.command, background=args.run_in_background)
        began_at = clock.monotonic()
        try:
            conn, started, is_stopped = await begin_somehow(context, args, parsed)
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
        by_person = is_persons_call(context.call_id)
        advice = "" if by_person else read_file_advice(parsed.command)
        if started.output is not None:
            took_ms = round((clock.monotonic() - began_at) * 1000)
            return report_output(finished_report(started.output, took_ms, advice))
        if is_stopped:
            return report_output(stopped_report(None, started.id, None))
        run = _ForegroundCommand(conn, clock, context, started.id)
        return report_output(await run.follow(min(args.timeout, MAX_TIMEOUT_S), advice))

    return workspace_tool(
        "execute",
        "Run a command with sh -c in the workspace. It has no terminal and no input. A command"
        " that takes longer than its timeout is not killed: it goes on in the background, and"
        " process_output waits for it. Start servers and watchers with run_in_background.",
        ExecuteArguments,
        handle,
        timeout_s=MAX_TIMEOUT_S + RECONNECT_TIMEOUT_S + 60,
    )


async def _start(start: Coroutine[object, None, StartedProcess]) -> tuple[StartedProcess, bool]:
    """Whether the turn was stopped meanwhile: then the reply is still waited for, for a moment."""
    starting = asyncio.get_running_loop().create_task(start, name="start of a command")
    try:
        return await asyncio.shield(starting), False
    except asyncio.CancelledError:
        await asyncio.wait({starting}, timeout=STOPPED_START_S)
        if not starting.done() or starting.cancelled() or starting.exception() is not None:
            raise
        return starting.result(), True
    finally:
        starting.cancel()


class _ForegroundCommand:
    """Waits for one command and shows viewers its output meanwhile."""

    def __init__(self, conn: AgentClient, clock: Clock, context: ToolContext, process: str) -> None:
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
            return stopped_report(self._last_output, self._process, self._elapsed_ms())
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


# The tools for commands in the background: their output, their list, and signals to them.

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


async def _wait_for_output(conn: AgentClient, process_id: str, wait_s: float) -> ProcessOutput:
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
