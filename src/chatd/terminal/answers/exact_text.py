r"""Text by which a person decides: nothing is left out, nothing can hide.

`safe_text` removes what the eye cannot see. A person who approves a command must see that it is
there, so here it becomes an escape such as `\u200b`. Rows are cut here and not by the widget: the
first row of each line has its own mark, so that a wrapped row never looks like a new line.
"""

import json
import re
from collections.abc import Iterator
from typing import Final
from unicodedata import category

from msgspec import Struct
from rich.cells import get_character_cell_size

from chatd.terminal.safe_text import character_width, safe_text

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_MARKS: Final = frozenset({"Mn", "Me"})
_BLANK: Final = frozenset("\u2800\u3164\u115f\u1160\uffa0\u034f\u17b4\u17b5")
_WORD: Final = re.compile(r"\w+")
_NAME: Final = re.compile(r"[\w.$@/-]+")

HEAD_ROWS: Final = 3
TAIL_ROWS: Final = 3
"""Of a text that is folded. The end is always shown: a long command could hide its effect there."""


class ExactRow(Struct, frozen=True):
    """One row on the screen. `starts` is false if the line began in a row above; `hidden` counts
    the rows that are folded in its place."""

    text: str
    starts: bool = True
    hidden: int = 0


def exact_text(text: str) -> str:
    """The text with every character that cannot be seen as an escape. Line feeds stay."""
    return "\n".join(map(_exact_line, text.split("\n")))


def exact_line(text: str) -> str:
    """The same in one line: line feeds are escapes too."""
    return exact_text(text).replace("\n", "\\n")


def exact_name(name: str) -> str:
    """A name in one line; in quotes if it could be taken for words of this program."""
    return exact_line(name if _NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False))


def _exact_line(line: str) -> str:
    if line.isascii() and line.isprintable():
        return line
    shown: list[str] = []
    before = ""
    for character in line:
        shown.append(_escape(character) if _is_hidden(character, before) else character)
        before = character
    return "".join(shown)


def _is_hidden(character: str, before: str) -> bool:
    if character == " ":
        return False
    kind = category(character)
    if kind in _MARKS:  # a mark belongs on a letter; alone, or as a selector, it is not seen
        return not before.isalnum() or safe_text(character) != character
    return kind in _HIDDEN or character in _BLANK or safe_text(character) != character


def _escape(character: str) -> str:
    code = ord(character)
    if character in "\t\r":
        return "\\t" if character == "\t" else "\\r"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def exact_rows(text: str, width: int) -> list[ExactRow]:
    """All rows of the text, none wider than `width` cells."""
    lines = exact_text(text).split("\n")
    return [row for line in lines for row in _cut(line, max(width, 2))]


def _cut(line: str, width: int) -> Iterator[ExactRow]:
    if line.isascii():  # the usual case, and much faster
        for begin in range(0, len(line) or 1, width):
            yield ExactRow(line[begin : begin + width], starts=begin == 0)
        return
    begin, used = 0, 0
    for index, character in enumerate(line):
        # The wider of both: a row must not be cut again where it is drawn.
        cells = max(character_width(character), get_character_cell_size(character))
        if used + cells > width:
            yield ExactRow(line[begin:index], starts=begin == 0)
            begin, used = index, 0
        used += cells
    yield ExactRow(line[begin:], starts=begin == 0)


def folded(rows: list[ExactRow]) -> list[ExactRow]:
    """The beginning and the end of long texts, with the number of rows between them."""
    hidden = len(rows) - HEAD_ROWS - TAIL_ROWS
    if hidden <= 1:
        return rows
    return [*rows[:HEAD_ROWS], ExactRow("", hidden=hidden), *rows[-TAIL_ROWS:]]


def mixed_words(text: str) -> list[str]:
    """Words that have letters of ASCII beside others, which may look the same."""
    return [
        word
        for word in dict.fromkeys(_WORD.findall(text))
        if any(one.isascii() and one.isalpha() for one in word)
        and any(not one.isascii() and one.isalpha() for one in word)
    ]
