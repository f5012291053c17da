"""Code with syntax colours, by pygments. Bounded: long code and long lines are plain."""

from functools import lru_cache
from pathlib import PurePosixPath
from typing import Final

from pygments.lexer import Lexer
from pygments.lexers import (
    get_lexer_by_name,  # pyright: ignore[reportUnknownVariableType]
    get_lexer_for_filename,  # pyright: ignore[reportUnknownVariableType]
)
from pygments.token import (
    Comment,
    Generic,
    Keyword,
    Name,
    Number,
    Operator,
    String,
    _TokenType,  # pyright: ignore[reportPrivateUsage]
)
from pygments.util import ClassNotFound
from rich.style import Style
from rich.text import Text

from chatd.terminal.timeline.lines import Lines, fold, padded, shown_line
from chatd.terminal.timeline.palette import Palette

MAX_COLOURED_CHARS: Final = 20_000
_MAX_COLOURED_LINE: Final = 1000
_MAX_NAME: Final = 40


def code_lines(code: str, language: str, width: int, palette: Palette) -> Lines:
    """The lines of a code block, on its background, folded at the width."""
    inner = max(width - 2, 1)
    lines: Lines = []
    for line in coloured(code, language, palette):
        for piece in fold(line, inner):
            lines.append(padded(Text.assemble(" ", piece), width, palette.code_block))
    return lines


def coloured(code: str, language: str, palette: Palette) -> Lines:
    """One `Text` for each line of the code."""
    lines = [shown_line(line) for line in code.rstrip("\n").split("\n")]
    text = "\n".join(lines)
    lexer = _lexer(language[:_MAX_NAME])
    if lexer is None or len(text) > MAX_COLOURED_CHARS or max(map(len, lines)) > _MAX_COLOURED_LINE:
        return [Text(line) for line in lines]
    return _lexed(text, lexer, palette)


def _lexed(text: str, lexer: Lexer, palette: Palette) -> Lines:
    lines = [Text()]
    for kind, value in lexer.get_tokens(text):
        style = _style(kind, palette)
        for index, piece in enumerate(value.split("\n")):
            if index > 0:
                lines.append(Text())
            if piece:
                lines[-1].append(piece, style)
    # A lexer adds a line feed at the end.
    count = text.count("\n") + 1
    return (lines + [Text()] * count)[:count]


def _style(kind: _TokenType, palette: Palette) -> Style | None:
    for group, style in (
        (Comment, palette.comment),
        (Generic.Inserted, palette.ok),
        (Generic.Deleted, palette.danger),
        (Generic.Subheading, palette.name),
    ):
        if kind in group:
            return style
    if kind in Keyword or kind in Operator.Word:
        return palette.keyword
    if kind in String:
        return palette.string
    if kind in Number:
        return palette.number
    if kind in Name.Function or kind in Name.Class or kind in Name.Decorator or kind in Name.Tag:
        return palette.name
    return None


@lru_cache(64)
def _lexer(name: str) -> Lexer | None:
    """By the language that a code block names."""
    if not name:
        return None
    try:
        return get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(256)
def language_of(path: str) -> str:
    """The language of a file, by its name; empty if it is not known."""
    name = PurePosixPath(path[-200:]).name
    if not name:
        return ""
    try:
        return get_lexer_for_filename(name).aliases[0]
    except (ClassNotFound, IndexError):
        return ""
