"""Lines of the timeline: `rich.text.Text` objects, each at most as wide as it was asked for.

Every foreign text goes through `shown` or `one_line` (both call `safe_text`) and is put into a
`Text` as it is: nothing here reads markup.
"""

import io
from collections.abc import Iterable, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from chatd.terminal.safe_text import safe_line, safe_text

Lines = list[Text]

MAX_CHARS: Final = 100_000
"""Limit for one text that is shown whole; the rest is counted."""
MAX_FACT_CHARS: Final = 8000
"""Limit for a reason, a note, a detail."""
MAX_LINE_CHARS: Final = 4000
"""Limit for one line of output, code or a diff; the rest is counted."""
TAB_SIZE: Final = 4

# Only for wrapping: nothing is written to it.
_CONSOLE: Final = Console(file=io.StringIO(), width=200, color_system=None, legacy_windows=False)


def shown(text: str, max_chars: int = MAX_CHARS) -> str:
    """A foreign text, safe and bounded, with its tabs as spaces."""
    rest = len(text) - max_chars
    safe = safe_text(text[:max_chars]).expandtabs(TAB_SIZE)
    return safe if rest <= 0 else f"{safe}… ({rest:,} more characters)"


def one_line(text: str, width: int = 400) -> str:
    return safe_line(text, width)


def shown_line(line: str) -> str:
    """One line of a longer text, safe and bounded."""
    rest = len(line) - MAX_LINE_CHARS
    safe = safe_text(line[:MAX_LINE_CHARS]).expandtabs(TAB_SIZE).replace("\n", " ")
    return safe if rest <= 0 else f"{safe}… ({rest:,} more characters)"


def wrap(text: Text, width: int) -> Lines:
    """Break at words; a longer word is broken. Never empty."""
    if "\n" not in text.plain and cell_len(text.plain) <= width:
        return [text]
    lines = text.wrap(_CONSOLE, max(width, 1), tab_size=TAB_SIZE, no_wrap=False)
    for line in lines:
        line.rstrip()
    return list(lines) or [Text()]


def fold(text: Text, width: int) -> Lines:
    """Break at the width, without regard to words: code and output keep their columns."""
    if cell_len(text.plain) <= width:
        return [text]
    return list(text.divide(_cuts(text.plain, max(width, 2))))


def _cuts(text: str, width: int) -> Iterable[int]:
    """Where pieces of at most `width` cells end."""
    if text.isascii():
        yield from range(width, len(text), width)
        return
    used = 0
    for index, character in enumerate(text):
        cells = cell_len(character)
        if used + cells > width:
            yield index
            used = 0
        used += cells


def prefixed(lines: Iterable[Text], first: Text, rest: Text | None = None) -> Lines:
    """Put `first` before the first line and `rest` before the others."""
    after = first if rest is None else rest
    return [Text.assemble(first if index == 0 else after, line) for index, line in enumerate(lines)]


def padded(line: Text, width: int, style: Style) -> Text:
    """The line filled to the width, all of it in this style beneath its own."""
    filled = Text(style=style)
    filled.append_text(line)
    filled.append(" " * max(0, width - cell_len(line.plain)))
    return filled


def cut(line: Text, width: int) -> Text:
    """The line, with an ellipsis if it is longer than the width."""
    if cell_len(line.plain) <= width:
        return line
    short = line.copy()
    short.truncate(max(width, 1), overflow="ellipsis")
    return short


def headline(left: Text, right: Text, width: int) -> Text:
    """One line: `left`, cut if needed, and `right` at the right edge."""
    room = width - cell_len(right.plain) - (2 if right.plain else 0)
    if room < 8:
        return cut(left, width)
    left = cut(left, room)
    gap = width - cell_len(left.plain) - cell_len(right.plain)
    return Text.assemble(left, " " * gap, right) if right.plain else left


def paragraph(text: str, width: int, style: Style, max_chars: int = MAX_FACT_CHARS) -> Lines:
    """A foreign text, wrapped, in one style; its own line breaks stay."""
    return [
        piece
        for line in shown(text, max_chars).split("\n")
        for piece in wrap(Text(line.rstrip(), style=style), width)
    ]


def plain_text(lines: Sequence[Text]) -> str:
    return "\n".join(line.plain.rstrip() for line in lines)


# Words for durations and counts.


def duration_text(seconds: float) -> str:
    """ "0.8 s", "41 s", "2 m 14 s", "1 h 5 m", "3 d"."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m" + (f" {whole % 60} s" if whole % 60 else "")
    if whole < 86400:
        minutes = whole % 3600 // 60
        return f"{whole // 3600} h" + (f" {minutes} m" if minutes else "")
    return f"{whole // 86400} d"


def elapsed_text(seconds: float) -> str:
    """A duration that still grows, in whole seconds: "4 s", "2 m 14 s"."""
    whole = int(max(0.0, seconds))
    return f"{whole} s" if whole < 10 else duration_text(whole)


def counted(count: int, one: str, many: str = "") -> str:
    """ "1 file", "3 files"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
