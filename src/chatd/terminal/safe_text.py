"""Text that cannot act on the terminal: every text of a server, model, tool or file passes here.

`safe_text` removes what a terminal obeys (escape sequences, control characters), what reorders the
line (bidi controls) and what the eye cannot see (zero-width characters, variation selectors, tags).
It knows nothing of markup: callers put its result into `rich.text.Text` or `Content`, never into a
markup string.
"""

import re
from functools import lru_cache
from typing import Final
from unicodedata import category, east_asian_width

MAX_MARKS: Final = 4
"""Combining marks on one character; more would be drawn over the neighbouring lines."""

ELLIPSIS: Final = "…"

# Each body excludes ESC and the C1 introducers, so that a scan for a missing terminator ends at the
# next sequence: linear on any input. A string without its terminator loses its introducer only; a
# real terminal would swallow what follows, and the reader would not see it.
_SEQUENCES: Final = (
    "(?:\x1b\\]|\x9d)[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\\\|\x9c)"  # OSC
    "|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x80-\x9f]*(?:\x1b\\\\|\x9c)"  # DCS, SOS, PM, APC
    "|(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI
    "|\x1b[ -/]+[0-~]?"  # character sets and the like
    "|\x1b[0-~]"
)
_UNSEEN: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 controls but tab and line feed
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f"  # zero width, bidi
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ud800-\udfff"  # lone surrogates: a str has no others
)
_MARKS: Final = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"

_UNSAFE: Final = re.compile(f"{_SEQUENCES}|[{_UNSEEN}]")
_TOO_MANY_MARKS: Final = re.compile(f"([{_MARKS}]{{{MAX_MARKS}}})[{_MARKS}]+")
_LINE_ENDS: Final = re.compile("[\u2028\u2029]")
_SPACES: Final = re.compile(r"\s+")

_CHARACTERS_PER_CELL: Final = 16
"""How much of a long text `safe_line` reads for each cell it may fill."""


def safe_text(text: str) -> str:
    """The text without anything that acts or hides; line feeds and tabs stay. Idempotent."""
    if text.isascii() and text.isprintable():
        return text
    shown = _LINE_ENDS.sub("\n", _UNSAFE.sub("", text))
    return _TOO_MANY_MARKS.sub(r"\1", shown)


def safe_line(text: str, width: int) -> str:
    """The text as one line of at most `width` cells; a longer one ends with an ellipsis.

    Runs of white space, line feeds too, become one space. Reads a bounded beginning of the text.
    """
    bound = max(width, 1) * _CHARACTERS_PER_CELL
    cut = len(text) > bound
    line = _SPACES.sub(" ", safe_text(text[:bound])).strip()
    return fit_line(line + ELLIPSIS if cut else line, width)


def fit_line(line: str, width: int) -> str:
    """A safe line cut to `width` cells, with an ellipsis if something was cut."""
    if len(line) * 2 <= width or cell_width(line) <= width:
        return line
    used = 0
    for index, character in enumerate(line):
        used += character_width(character)
        if used > width - 1:
            return line[:index].rstrip() + ELLIPSIS if width > 0 else ""
    return line


def cell_width(line: str) -> int:
    """How many cells a safe line fills on a terminal."""
    if line.isascii():
        return len(line)
    return sum(map(character_width, line))


@lru_cache(4096)
def character_width(character: str) -> int:
    if character.isascii():
        return 1
    if category(character) in ("Mn", "Me"):
        return 0
    return 2 if east_asian_width(character) in ("W", "F") else 1
