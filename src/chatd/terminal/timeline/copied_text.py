"""What is copied of a row: what its author wrote, without anything that acts on a terminal."""

from typing import Final

import msgspec

from chatd.terminal.safe_text import safe_text
from chatd.terminal.timeline.markdown.blocks import PARSER
from chatd.terminal.timeline.rows.brief import call_text
from chatd.terminal.timeline.rows.json_values import text_of
from chatd.terminal.timeline.rows.row import (
    CompactedMark,
    FailedRow,
    FilesRow,
    MarkRow,
    NoticeMark,
    ProseRow,
    ReadsRow,
    ReasoningRow,
    Row,
    SourcesRow,
    ToolRow,
    UserRow,
)
from chatd.terminal.timeline.rows.tool_call import ToolCall, read_call

MAX_COPIED_CHARS: Final = 1_000_000
"""Terminals refuse a longer OSC 52; most refuse shorter ones already."""


def copied_text(row: Row) -> str:
    """Empty if the row has nothing to copy."""
    return safe_text(_text_of(row)[:MAX_COPIED_CHARS])


def code_blocks(row: Row) -> list[str]:
    """The code of a message; of a command the command itself."""
    if isinstance(row, ToolRow):
        command = text_of(read_call(row.call).args, "command")
        return [safe_text(command[:MAX_COPIED_CHARS])] if command else []
    if not isinstance(row, ProseRow):
        return []
    tokens = PARSER.parse(safe_text(row.text[:MAX_COPIED_CHARS]))
    return [token.content for token in tokens if token.type in ("fence", "code_block")]


def _text_of(row: Row) -> str:
    match row:
        case UserRow(text=text) | ProseRow(text=text) | ReasoningRow(text=text):
            return text
        case ToolRow(call=call):
            return _call_text(call)
        case ReadsRow(calls=calls):
            return "\n".join(text_of(read_call(call).args, "path") for call in calls)
        case SourcesRow(sources=sources):
            return "\n".join(source.url for source in sources)
        case FilesRow(files=files):
            return "\n".join(file.name or "" for file in files)
        case MarkRow(mark=CompactedMark(summary=summary)):
            return summary
        case MarkRow(mark=NoticeMark(text=text)):
            return text
        case FailedRow(error=error):
            return "\n".join(text for text in (error.message, error.detail) if text)
        case _:
            return ""


def _call_text(call: ToolCall) -> str:
    """What the tool gave; what it was asked for if it gave no text."""
    facts = read_call(call)
    found = facts.live_output or text_of(
        facts.result, "output", "report", "content", "body", "text", "error"
    )
    if found:
        return found
    diffs = facts.result.get("files")
    if diffs:
        return msgspec.json.format(msgspec.json.encode(diffs), indent=2).decode()
    return text_of(facts.args, "content", "message") or call_text(call)
