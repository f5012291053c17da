"""Pure functions around a command: the command line that runs, and the report of its outcome."""

import re
from typing import Final

import msgspec
from msgspec import Struct

from chatd.domain.answer.tool_output import ToolOutput
from chatd.domain.workspace.agent_api import OutputTruncation, ProcessOutput

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
