"""Messages as bounded text for another model to read. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct, UnsetType

from chatd.domain.chat.messages import PublicMessage
from chatd.domain.chat.parts import (
    FilePart,
    FileReferencePart,
    KnownPart,
    NoticePart,
    SourcePart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from chatd.domain.text import Json

MAX_ANSWER_CHARS: Final = 20_000
"""Of the answer in the result of a wait."""
MAX_MESSAGE_CHARS: Final = 8_000
"""Of one message in a page; the rest is read by its id and an offset."""
MAX_PAGE_CHARS: Final = 40_000
MAX_ARGUMENTS_CHARS: Final = 500
MAX_RESULT_CHARS: Final = 2_000
LAST_WORDS_CHARS: Final = 120


class Excerpt(Struct, frozen=True, kw_only=True):
    """A piece of a text that has `total_chars`. `next_offset` is where the rest begins."""

    text: str
    total_chars: int
    next_offset: int | None = None


def cut(text: str, limit: int, offset: int = 0) -> Excerpt:
    piece = text[offset : offset + limit]
    end = offset + len(piece)
    return Excerpt(text=piece, total_chars=len(text), next_offset=end if end < len(text) else None)


def message_text(parts: Iterable[KnownPart]) -> str:
    """Without reasoning, and with tool calls and results in one line each."""
    return "\n".join(text for part in parts if (text := _part_text(part)))


def spoken_text(parts: Iterable[KnownPart]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart) and part.text)


def answer_text(messages: Sequence[PublicMessage]) -> str:
    """What the model said since the last message of a user."""
    said: list[str] = []
    for message in reversed(messages):
        if message.role == "user":
            break
        if message.role == "assistant" and (text := spoken_text(message.content)):
            said.append(text)
    return "\n\n".join(reversed(said))


def last_words(text: str) -> str:
    line = " ".join(text[-4 * LAST_WORDS_CHARS :].split())
    return line if len(line) <= LAST_WORDS_CHARS else "…" + line[-LAST_WORDS_CHARS:]


def _part_text(part: KnownPart) -> str:
    match part:
        case TextPart():
            return part.text
        case ToolCallPart():
            return f"[calls {part.tool_name} {_clipped(part.args, MAX_ARGUMENTS_CHARS)}]"
        case ToolResultPart():
            word = "failed" if part.is_error else "returned"
            return f"[{part.tool_name} {word} {_clipped(part.result, MAX_RESULT_CHARS)}]"
        case NoticePart():
            return f"[notice: {part.text}]"
        case FilePart():
            return f"[file {part.name or part.file_id or part.media_type}]"
        case FileReferencePart():
            return f"[{part.file_name}:{part.start_line}-{part.end_line}]\n{part.content}"
        case SourcePart():
            return f"[source {part.url}]"
        case _:
            return ""


def _clipped(value: Json, limit: int) -> str:
    text = "" if isinstance(value, UnsetType) else bytes(value).decode(errors="replace")
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"
