"""The pure half of running commands: what is really run, and what is told of it."""

import re
from typing import Final

from msgspec import Struct

from chatd.domain.hands import Output, Truncated

MAX_OUTPUT: Final = 32 * 1024

ENVIRONMENT: Final = {
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
"""Nothing may wait for a person who is not there: no editor, no pager, no prompt."""

_DUMPS: Final = (
    re.compile(r"^cat\s"),
    re.compile(r"^(?:rg|grep)\s(?:.*\s)?--include-all(?:\s|$)"),
    re.compile(r"^(?:rg|grep)\s+-l\s"),
)
PREFER_READ: Final = "To look at a file, read_file is better: it numbers the lines and can page."


class Told(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model is told of a command. The first two are always there."""

    success: bool | None = None
    exit_code: int | None = None
    output: str = ""
    wall_duration_ms: int | None = None
    error: str = ""
    running: bool = False
    backgrounded: bool = False
    background_process_id: str = ""
    truncated: Truncated | None = None
    note: str = ""


class Wanted(Struct, frozen=True, kw_only=True):
    command: str
    background: bool


def wanted(command: str, *, background: bool) -> Wanted:
    """A single `&` at the end means: in the background. `&&` and `|&` are something else."""
    stripped = command.rstrip()
    alone = stripped.endswith("&") and not stripped.endswith(("&&", "|&"))
    if background or not alone:
        return Wanted(command=command, background=background)
    return Wanted(command=stripped[:-1].rstrip(), background=True)


def advice(command: str) -> str:
    return PREFER_READ if any(dump.match(command.strip()) for dump in _DUMPS) else ""


def finished(output: Output, ms: int | None, note: str = "") -> Told:
    code = output.exit_code if output.exit_code is not None else -1
    return Told(
        success=code == 0,
        exit_code=code,
        output=capped(output.output),
        wall_duration_ms=ms,
        truncated=output.truncated,
        note=note,
    )


def still_running(output: Output | None, process_id: str, error: str, ms: int | None) -> Told:
    """It was not killed: whoever is told this can look after it."""
    return Told(
        success=False,
        exit_code=-1,
        output="" if output is None else capped(output.output),
        wall_duration_ms=ms,
        error=error,
        running=True,
        background_process_id=process_id,
        truncated=None if output is None else output.truncated,
        note="The command is still running. Wait for it with process_output, or end it with"
        " process_signal.",
    )


def capped(text: str) -> str:
    """The agent keeps no more than this; one that is not ours might."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_OUTPUT:
        return text
    half = MAX_OUTPUT // 2
    head = data[:half].decode("utf-8", "ignore")
    tail = data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[{len(data) - 2 * half} bytes left out here]\n{tail}"
