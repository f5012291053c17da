"""A chat as Markdown, for reading."""

from typing import Final

from msgspec import UNSET

from chatd.domain.chat.messages import Message
from chatd.domain.chat.parts import (
    FilePart,
    FileReferencePart,
    NoticePart,
    Part,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.chat.public_messages import public_parts
from chatd.domain.text import Json, clip

MAX_TOOL_CHARS: Final = 4000
_NAMES: Final = {"user": "User", "assistant": "Assistant", "tool": "Tool", "system": "System"}


def chat_heading(title: str, *, is_root: bool) -> str:
    line = " ".join(title.split())
    return f"# {line}\n\n" if is_root else f"# Subagent: {line}\n\n"


def message_markdown(message: Message) -> str:
    """Nothing of a message that only the model sees."""
    if message.visibility == "model":
        return ""
    shown = public_parts(message.content)
    if message.role == "system":
        shown = tuple(part for part in shown if isinstance(part, NoticePart))
    pieces = [piece for part in shown if (piece := _part(part))]
    if not pieces:
        return ""
    time = message.created_at.strftime("%Y-%m-%d %H:%M")
    if message.role == "system":
        return "".join(f"> {' '.join(piece.split())} ({time} UTC)\n\n" for piece in pieces)
    return f"## {_NAMES[message.role]} ({time} UTC)\n\n" + "\n\n".join(pieces) + "\n\n"


def _part(part: Part) -> str:
    match part:
        case TextPart():
            return part.text.strip()
        case ToolCallPart():
            word = "Call that was cut off, of" if part.cut else "Call of"
            args = part.args_text or _json(part.args)
            return f"{word} `{part.tool_name}`:\n\n{_fence(args, 'json')}"
        case ToolResultPart():
            kind = "Error of" if part.is_error else "Result of"
            return f"{kind} `{part.tool_name}`:\n\n{_fence(_json(part.result), 'json')}"
        case FileReferencePart():
            place = f"{part.file_name}, lines {part.start_line} to {part.end_line}"
            return f"{place}:\n\n{_fence(part.content, '')}"
        case FilePart():
            return f"File: {part.name or part.file_id or part.media_type}"
        case NoticePart():
            return part.text
        case SourcePart():
            return f"Source: <{part.url}>"
        case _:
            return ""


def _json(raw: Json) -> str:
    return "" if raw is UNSET else bytes(raw).decode(errors="replace")


def _fence(text: str, language: str) -> str:
    """Longer than every run of backticks in the text."""
    shown, marks = clip(text, MAX_TOOL_CHARS), "```"
    while marks in shown:
        marks += "`"
    return f"{marks}{language}\n{shown}\n{marks}"
