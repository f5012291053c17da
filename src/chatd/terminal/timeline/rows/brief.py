"""A row in a few words: for the card of a parent, and for names of tools."""

import re
from typing import Final

from chatd.terminal.timeline.rows.json_values import objects_of, text_of
from chatd.terminal.timeline.rows.row import ProseRow, ReadsRow, ReasoningRow, Row, ToolRow
from chatd.terminal.timeline.rows.tool_call import ToolCall, read_call

_CAMEL: Final = re.compile(r"([a-z0-9])([A-Z])")
_PUNCTUATION: Final = re.compile(r"[_\-.]+")
_SUBJECTS: Final = ("command", "path", "title", "query", "pattern", "name", "process_id")
_MAX_CHARS: Final = 400


def brief_of(row: Row) -> tuple[str, bool] | None:
    """What the agent did or does, and whether it still does; None for rows that are no step."""
    match row:
        case ToolRow(call=call):
            return call_text(call), call.state in ("running", "streaming")
        case ReadsRow(calls=calls):
            text = call_text(calls[0]) if len(calls) == 1 else f"Read {len(calls)} files"
            return text, False
        case ProseRow(text=text, is_live=is_live):
            return _first_line(text), is_live
        case ReasoningRow(title=title, is_live=is_live):
            return title or "Thought", is_live
        case _:
            return None


def call_text(call: ToolCall) -> str:
    facts = read_call(call)
    files = objects_of(facts.args, "files")
    subject = text_of(facts.args, *_SUBJECTS) or (text_of(files[0], "path") if files else "")
    return _first_line(f"{humanize(call.name)} {subject}")


def server_of(name: str) -> str:
    """The MCP server of `github__create_issue`. A repository names its servers as it likes, so
    those say where they are from."""
    first, _, rest = name.partition("__")
    if first == "workspace" and "__" in rest:
        return f"workspace: {rest.partition('__')[0]}"
    return first if rest else ""


def humanize(name: str) -> str:
    """`github__create_issue` is "Create issue"."""
    own = _CAMEL.sub(r"\1 \2", name[:_MAX_CHARS].rsplit("__", 1)[-1])
    words = _PUNCTUATION.sub(" ", own).strip().lower()
    return words[:1].upper() + words[1:] if words else name[:_MAX_CHARS]


def _first_line(text: str) -> str:
    return text[: _MAX_CHARS * 4].strip().partition("\n")[0][:_MAX_CHARS]
