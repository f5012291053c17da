"""Output of commands: colours become ours, everything else that a terminal obeys is dropped."""

import re
from typing import Final

from rich.style import Style
from rich.text import Text

from chatd.terminal.safe_text import safe_text
from chatd.terminal.timeline.lines import (
    MAX_LINE_CHARS,
    TAB_SIZE,
    Lines,
    fold,
    shown_line,
)
from chatd.terminal.timeline.palette import Palette

_MAX_LINES: Final = 200
_EDGE_LINES: Final = 80
_MAX_TAIL_CHARS: Final = 64_000
_MAX_FOLDS: Final = 8
"""Lines of the screen that one line of output may fill."""
_COLOUR: Final = re.compile("\x1b\\[([0-9;:]*)m")
_HUES: Final = {1: "danger", 2: "ok", 3: "warn", 4: "info", 5: "accent", 6: "info"}


def output_lines(text: str, width: int, palette: Palette, tail: int = 0) -> Lines:
    """The beginning and the end of a text; with `tail` so many lines of its end."""
    if tail:
        text = text[-_MAX_TAIL_CHARS:]
    rows = text.rstrip("\n").split("\n")
    head, end = (0, tail) if tail else (_EDGE_LINES, _EDGE_LINES)
    if len(rows) <= (tail or _MAX_LINES):
        return _coloured(rows, width, palette)
    hidden = len(rows) - head - end
    note = Text(f"… {hidden:,} lines are not shown …", palette.faint)
    first = _coloured(rows[:head], width, palette)
    return [*first, note, *_coloured(rows[-end:], width, palette)]


def _coloured(rows: list[str], width: int, palette: Palette) -> Lines:
    style = _OutputStyle(palette)
    lines: Lines = []
    for row in rows:
        pieces = fold(_one_row(_written_over(row), style), width)
        lines += pieces[:_MAX_FOLDS]
        if len(pieces) > _MAX_FOLDS:
            lines.append(Text("… the rest of this line is not shown …", palette.faint))
    return lines


def _written_over(row: str) -> str:
    """A carriage return writes over the line: a progress bar leaves only its last state."""
    if "\r" not in row:
        return row
    return row.rstrip("\r").rpartition("\r")[2]


def _one_row(row: str, style: "_OutputStyle") -> Text:
    if "\x1b" not in row:
        return Text(shown_line(row), style=style.current)
    text = Text()
    start = 0
    row = row[: MAX_LINE_CHARS * 2]
    for found in _COLOUR.finditer(row):
        text.append(_safe(row[start : found.start()]), style.current)
        style.apply(found[1])
        start = found.end()
    text.append(_safe(row[start:]), style.current)
    return text


def _safe(piece: str) -> str:
    return safe_text(piece).expandtabs(TAB_SIZE).replace("\n", " ")


class _OutputStyle:
    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._hue = ""
        self._is_bold = False
        self._is_dim = False

    @property
    def current(self) -> Style:
        style = self._palette.hue(self._hue) if self._hue else self._palette.plain
        if self._is_dim and not self._hue:
            style = self._palette.muted
        return style + Style(bold=True) if self._is_bold else style

    def apply(self, codes: str) -> None:
        numbers = [int(code) if code.isdecimal() else 0 for code in re.split("[;:]", codes[:200])]
        index = 0
        while index < len(numbers):
            if numbers[index] in (38, 48):
                index += 2 if numbers[index + 1 : index + 2] == [5] else 4
            else:
                self._apply_one(numbers[index])
            index += 1

    def _apply_one(self, code: int) -> None:
        if code in (0, 22):
            self._is_bold = self._is_dim = False
        if code in (0, 39):
            self._hue = ""
        elif code == 1:
            self._is_bold = True
        elif code == 2:
            self._is_dim = True
        elif 30 <= code <= 37 or 90 <= code <= 97:
            self._hue = _HUES.get(code % 10, "")
