"""Pure functions around a command: the command line that runs, and the report of its outcome."""

import re
from typing import Final

from msgspec import Struct

from chatd.domain.workspace.agent_api import OutputTruncation, ProcessOutput

MAX_OUTPUT_BYTES: Final = 32 * 1024

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
PREFER_READ_FILE_TEXT: Final = (
    "To look at a file, read_file is better: it numbers the lines and can page."
)


class CommandReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The report of a command to the model."""

    success: bool | None = None
    exit_code: int | None = None
    output: str = ""
    wall_duration_ms: int | None = None
    error: str = ""
    running: bool = False
    backgrounded: bool = False
    background_process_id: str = ""
    truncated: OutputTruncation | None = None
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
    code = output.exit_code if output.exit_code is not None else -1
    return CommandReport(
        success=code == 0,
        exit_code=code,
        output=clip_output(output.output),
        wall_duration_ms=ms,
        truncated=output.truncated,
        note=note,
    )


def running_report(
    output: ProcessOutput | None, process_id: str, error: str, ms: int | None
) -> CommandReport:
    """The command was not killed; the report tells the model how to follow it."""
    return CommandReport(
        success=False,
        exit_code=-1,
        output="" if output is None else clip_output(output.output),
        wall_duration_ms=ms,
        error=error,
        running=True,
        background_process_id=process_id,
        truncated=None if output is None else output.truncated,
        note="The command is still running. Wait for it with process_output, or end it with"
        " process_signal.",
    )


def clip_output(text: str) -> str:
    """chatd's agent sends no more than this; another agent might."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_OUTPUT_BYTES:
        return text
    half = MAX_OUTPUT_BYTES // 2
    head = data[:half].decode("utf-8", "ignore")
    tail = data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[{len(data) - 2 * half} bytes left out here]\n{tail}"
