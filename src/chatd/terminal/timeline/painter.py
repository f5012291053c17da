"""One line of the screen: the mark of the selected row, the row's line, the scroll bar."""

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from chatd.terminal.themes import Palette

LEFT = 2
RIGHT = 2
MAX_WIDTH = 120
"""Longer lines are hard to read."""


def content_width(width: int) -> int:
    return max(1, min(width - LEFT - RIGHT, MAX_WIDTH))


class LinePaint(Struct, frozen=True, kw_only=True):
    """How lines of rows are painted: the width of the timeline, and the style beneath."""

    width: int
    palette: Palette
    base: Style

    def line(self, content: list[Segment], *, is_selected: bool, bar: str) -> Strip:
        mark = Segment("┃ " if is_selected else "  ", self.palette.accent)
        body = Strip([mark, *content]).adjust_cell_length(max(self.width - 1, 0))
        whole = [*body, Segment(bar, self.palette.faint)]
        styled = [Segment(one.text, self.base + (one.style or Style())) for one in whole]
        return Strip(Segment.simplify(styled), self.width)

    def blank(self) -> Strip:
        return Strip.blank(self.width, self.base)

    def new_line(self, text: str) -> Strip:
        left = max(0, (self.width - len(text)) // 2)
        style = self.palette.accent + Style(reverse=True)
        pieces = [Segment(" " * left, self.base), Segment(text, self.base + style)]
        return Strip(pieces).adjust_cell_length(self.width, self.base)


def new_text(count: int, *, is_busy: bool) -> str:
    """Said while the end is out of sight: what came below, and how to get there."""
    word = "still writing below" if is_busy else "more below"
    return f" ↓ {f'{count:,} new' if count else word} · End "


def scroll_bar(lines: int, row_count: int, first: int, last: int) -> list[str]:
    """By rows, not by lines: the heights of rows that were never shown are not known."""
    if row_count <= 0 or lines <= 0 or last - first + 1 >= row_count:
        return [" "] * max(lines, 0)
    size = max(1, round(lines * (last - first + 1) / row_count))
    hidden = row_count - (last - first + 1)
    start = round((lines - size) * min(first / hidden, 1.0)) if hidden else 0
    return ["▐" if start <= line < start + size else " " for line in range(lines)]
