"""The diff of one file, drawn line by line: only what is on the screen costs time."""

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from chatd.terminal.changes.changed_files import DiffRow, hunk_places
from chatd.terminal.safe_text import cell_width

_SIGNS = {"add": "+", "del": "-", "context": " ", "hunk": "", "note": ""}


class DiffBody(ScrollView, can_focus=True):
    """Signs and numbers say what the colours say."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "diff--add",
        "diff--del",
        "diff--context",
        "diff--hunk",
        "diff--note",
        "diff--number",
    }
    DEFAULT_CSS = """
    DiffBody {
        height: 1fr;
        background: $background;
        & .diff--add { color: $text-success; background: $success-muted; }
        & .diff--del { color: $text-error; background: $error-muted; }
        & .diff--context { color: $foreground; }
        & .diff--hunk { color: $text-accent; text-style: bold; }
        & .diff--note { color: $text-muted; text-style: italic; }
        & .diff--number { color: $text-muted; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: tuple[DiffRow, ...] = ()
        self._digits = 1

    def show_rows(self, rows: tuple[DiffRow, ...]) -> None:
        self._rows = rows
        numbers = [max(row.old or 0, row.new or 0) for row in rows]
        self._digits = len(str(max(numbers, default=1)))
        longest = max((cell_width(row.text) for row in rows), default=0)
        self.virtual_size = Size(longest + 2 * self._digits + 5, len(rows))
        self.scroll_to(0, 0, animate=False)
        self.refresh()

    def step_hunk(self, by: int) -> bool:
        """To the hunk below the first line on the screen, or above it. False: none is left."""
        places = hunk_places(self._rows)
        top = round(self.scroll_target_y)
        found = (
            [place for place in places if place > top]
            if by > 0
            else [place for place in reversed(places) if place < top]
        )
        if not found or (by > 0 and top >= self.max_scroll_y):
            return False
        self.scroll_to(y=found[0], animate=False)
        return True

    def render_line(self, y: int) -> Strip:
        scroll_x, scroll_y = self.scroll_offset
        width = self.size.width
        at = y + scroll_y
        if at >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        strip = self._strip(self._rows[at], max(width + scroll_x, self.virtual_size.width))
        return strip.crop(scroll_x, scroll_x + width)

    def _strip(self, row: DiffRow, width: int) -> Strip:
        style = self.get_component_rich_style(f"diff--{row.kind}")
        if row.kind in ("hunk", "note"):
            return _line([Segment(row.text, style)], width, style)
        number = self.get_component_rich_style("diff--number")
        gutter = f"{_text(row.old, self._digits)} {_text(row.new, self._digits)} "
        text = f"{_SIGNS[row.kind]} {row.text}"
        return _line([Segment(gutter, number), Segment(text, style)], width, style)


def _text(number: int | None, digits: int) -> str:
    return ("" if number is None else str(number)).rjust(digits)


def _line(segments: list[Segment], width: int, style: Style) -> Strip:
    return Strip(segments).extend_cell_length(width, style)
