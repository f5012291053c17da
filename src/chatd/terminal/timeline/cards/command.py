"""Cards of commands: execute, process_output, process_list, process_signal."""

import re
from collections.abc import Mapping
from typing import Final

from rich.text import Text

from chatd.terminal.timeline.cards.card import (
    Canvas,
    Card,
    failure_body,
    failure_lines,
    time_text,
    verb_of,
)
from chatd.terminal.timeline.cards.output import output_lines
from chatd.terminal.timeline.duration import duration_text
from chatd.terminal.timeline.lines import Lines, headline, one_line
from chatd.terminal.timeline.rows.json_values import number_of, objects_of, text_of
from chatd.terminal.timeline.rows.tool_call import CallFacts

_FAILED_LINES: Final = 20
_LIVE_LINES: Final = 12
_LONG_COMMAND: Final = 90
_MAX_PROCESSES: Final = 50
_LINE_FEEDS: Final = re.compile(r"\s*\n\s*")


def command_card(facts: CallFacts, canvas: Canvas) -> Card:
    is_wait = facts.call.name == "process_output"
    command = text_of(facts.args, "process_id" if is_wait else "command")
    verb = verb_of(facts, "Waiting for", "Output of", "Output of") if is_wait else _verb(facts)
    return Card(
        verb=verb,
        subject=joined(command),
        meta=_meta(facts, canvas),
        opens=facts.state == "failed" or (facts.state == "running" and facts.live_output != ""),
        body=(lambda inner: _body(facts, inner)) if _has_body(facts) else None,
        foot=_foot(facts),
    )


def _verb(facts: CallFacts) -> str:
    if facts.state == "background":
        return capitalize(text_of(facts.args, "model_intent")) or "Started"
    return verb_of(facts, "Running", "Ran", "Ran")


def _output(facts: CallFacts) -> str:
    return facts.live_output or text_of(facts.result, "output")


def _is_long(facts: CallFacts) -> bool:
    command = text_of(facts.args, "command")
    return "\n" in command or len(command) > _LONG_COMMAND


def _has_body(facts: CallFacts) -> bool:
    return _output(facts) != "" or facts.error != "" or _is_long(facts)


def _body(facts: CallFacts, canvas: Canvas) -> Lines:
    lines: Lines = []
    width, palette = canvas.width, canvas.palette
    if _is_long(facts):
        lines += output_lines(f"$ {text_of(facts.args, 'command')}", width, palette)
    output = _output(facts)
    if output:
        tail = _LIVE_LINES if facts.live_output else 0
        tail = _FAILED_LINES if facts.state == "failed" else tail
        lines += output_lines(output, width, palette, tail)
    if facts.error and facts.state != "interrupted":
        lines += failure_lines(capitalize(facts.error), canvas)
    return lines


def _meta(facts: CallFacts, canvas: Canvas) -> str:
    ended = _ended_text(facts.result)
    if facts.state != "failed" or not ended:
        return time_text(facts, canvas.now)
    took = facts.duration_s
    return ended + ("" if took is None else f" · {duration_text(took)}")


def _ended_text(result: Mapping[str, object]) -> str:
    """How a command ended; empty for one that has not, and for a result of an earlier version
    whose exit code is -1."""
    signal, code = text_of(result, "signal"), number_of(result, "exit_code")
    if signal:
        return "ended by a signal" if signal == "unknown" else f"ended by {one_line(signal)}"
    return "" if code is None or code < 0 else f"exit {int(code)}"


def _foot(facts: CallFacts) -> str:
    process = text_of(facts.result, "background_process_id")
    if facts.state == "background":
        name = f" as process {process}" if process else ""
        return f"Goes on in the workspace{name}."
    if facts.state == "interrupted" and process:
        return f"Its process may still run ({process})."
    return text_of(facts.result, "note")


def process_list_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
    processes = objects_of(facts.result, "processes")
    running = sum(process.get("running") is True for process in processes)

    def body(inner: Canvas) -> Lines:
        lines: Lines = []
        for process in processes[:_MAX_PROCESSES]:
            ended = _ended_text(process) or "ended"
            state = "running" if process.get("running") is True else ended
            left = Text(one_line(joined(text_of(process, "command"))), inner.palette.code)
            lines.append(headline(left, Text(state, inner.palette.muted), inner.width))
        return lines

    return Card(
        verb=verb_of(facts, "Listing processes", "Listed processes"),
        meta=f"{running} running" if facts.state == "done" else None,
        body=body if processes else failure_body(facts),
    )


def process_signal_card(facts: CallFacts, canvas: Canvas) -> Card:
    del canvas
    is_kill = text_of(facts.args, "signal") == "kill"
    going, done = ("Killing", "Killed") if is_kill else ("Ending", "Ended")
    return Card(
        verb=verb_of(facts, f"{going} process", f"{done} process", "Process not ended"),
        subject=text_of(facts.args, "process_id"),
        opens=facts.state == "failed",
        body=failure_body(facts),
    )


def joined(text: str) -> str:
    """A text of several lines as one, with its line breaks marked."""
    return _LINE_FEEDS.sub(" ↵ ", text[:2000]).strip()


def capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
