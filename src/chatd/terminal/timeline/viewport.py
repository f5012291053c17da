"""Which lines of which rows are visible, and how they move. Pure: heights come from outside.

The place of the first visible line is a row and a line of it, not a count of all lines above: rows
above can come, go and change their height without moving what is read. Only rows near the place
are asked for their height, so a chat of 10,000 messages costs no more than one of ten.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from chatd.terminal.themes import Palette
from chatd.terminal.timeline.card import Canvas, ChildView
from chatd.terminal.timeline.lines import Lines
from chatd.terminal.timeline.markdown_lines import LiveMarkdown
from chatd.terminal.timeline.row import ProseRow, Row
from chatd.terminal.timeline.row_lines import DrawnRow, draw_row


class Place(NamedTuple):
    """Line `line` of the row `row`."""

    row: int
    line: int


TOP = Place(0, 0)


class Heights(Protocol):
    """How many lines each row has; at least one."""

    def __len__(self) -> int: ...

    def height(self, row: int) -> int: ...


class Viewport:
    """It follows the end while the end is in reach; any move upwards ends that at once, and only
    a move downwards to the end begins it again."""

    def __init__(self) -> None:
        self.lines = 1
        self.top = TOP
        self.is_following = True

    def settle(self, heights: Heights) -> None:
        """Rows, heights or the size of the view have changed: find a valid place near the old one.
        Goes to the end if it follows."""
        end = self._last_top(heights)
        if self.is_following:
            self.top = end
            return
        row = min(max(self.top.row, 0), max(len(heights) - 1, 0))
        line = self.top.line if row == self.top.row else 0
        if len(heights) and line >= heights.height(row):
            line = heights.height(row) - 1
        self.top = min(self._moved(Place(row, 0), line, heights), end)

    def scroll(self, lines: int, heights: Heights) -> None:
        """Down, or up if it is negative."""
        end = self._last_top(heights)
        if lines < 0:
            self.top = self._moved(self.top, lines, heights)
            self.is_following = end == TOP
            return
        self.top = min(self._moved(self.top, lines, heights), end)
        self.is_following = self.top == end

    def go_to(self, place: Place, heights: Heights) -> None:
        """Show this place as the first line, or as near to it as the end allows."""
        end = self._last_top(heights)
        self.top = min(self._moved(Place(place.row, 0), place.line, heights), end)
        self.is_following = self.top == end == TOP

    def put(self, place: Place, at: int, heights: Heights) -> None:
        """Show this place at line `at` of the view, as far as the end allows."""
        was_following = self.is_following
        self.go_to(self._moved(place, -at, heights), heights)
        self.is_following = was_following and self.is_at_end(heights)

    def follow(self, heights: Heights) -> None:
        self.is_following = True
        self.settle(heights)

    def is_at_end(self, heights: Heights) -> bool:
        return self.top >= self._last_top(heights)

    def visible(self, heights: Heights) -> Iterator[Place]:
        """As many places as the view has lines, or fewer."""
        row, line = self.top
        for _ in range(self.lines):
            if row >= len(heights):
                return
            yield Place(row, line)
            line += 1
            if line >= heights.height(row):
                row, line = row + 1, 0

    def show_row(self, row: int, heights: Heights) -> None:
        """Scroll as little as is needed to see the row; its beginning, if it is long."""
        shown = {place.row: place for place in self.visible(heights)}
        if row < self.top.row or (row == self.top.row and self.top.line > 0):
            self.go_to(Place(row, 0), heights)
            return
        height = min(heights.height(row), self.lines)
        if row not in shown or shown[row].line < height - 1:
            bottom = self._moved(Place(row, 0), height - self.lines, heights)
            self.put(max(bottom, self.top), 0, heights)

    def _last_top(self, heights: Heights) -> Place:
        """The place of the first line when the last line is at the bottom."""
        missing = self.lines
        for row in range(len(heights) - 1, -1, -1):
            height = heights.height(row)
            if height >= missing:
                return Place(row, height - missing)
            missing -= height
        return TOP

    def _moved(self, place: Place, lines: int, heights: Heights) -> Place:
        row, line = place.row, place.line + lines
        while line < 0 and row > 0:
            row -= 1
            line += heights.height(row)
        while row < len(heights) and line >= heights.height(row):
            line -= heights.height(row)
            row += 1
        if row >= len(heights):
            return Place(max(len(heights) - 1, 0), 0)
        return Place(row, max(line, 0))


# Drawn rows, kept as long as nothing that they show has changed. Bounded.

MAX_ROWS: Final = 400
MAX_LINES: Final = 20_000
"""Limit for all rows that are kept. Rows on the screen are kept in any case."""
_GAP: Final = Text()
LinePainter = Callable[[list[Segment]], Strip]


class _Entry(Struct, kw_only=True):
    row: Row
    is_open: bool | None
    canvas: Canvas
    drawn: DrawnRow
    lines: Lines
    strips: dict[tuple[int, bool, str], tuple[Text, Strip]]
    live: LiveMarkdown | None = None
    generation: int = 0


class RowCache:
    """Rows by key. `drawn_rows` counts what was drawn, as work."""

    def __init__(self, console: Callable[[], Console]) -> None:
        self._console = console
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._line_count = 0
        self._generation = 0
        self.rows: Sequence[Row] = ()
        self.canvas: Canvas | None = None
        self.folds: dict[str, bool] = {}
        self.server_url = ""
        self.drawn_rows = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def kept_rows(self) -> int:
        return len(self._entries)

    @property
    def kept_lines(self) -> int:
        return self._line_count

    def height(self, row: int) -> int:
        return len(self._entry(row).lines)

    def line(self, row: int, line: int) -> Text:
        return self._entry(row).lines[line]

    def drawn(self, row: int) -> DrawnRow:
        return self._entry(row).drawn

    def gap(self, row: int) -> int:
        """How many empty lines above the row belong to it."""
        return 0 if self.rows[row].is_tight else 1

    def strip(self, row: int, line: int, paint: LinePainter, look: tuple[bool, str]) -> Strip:
        """The line as `paint` makes it; `look` is what it depends on besides the text."""
        entry = self._entry(row)
        text = entry.lines[line]
        known = entry.strips.get((line, *look))
        # The lines of a live answer that are settled stay the same objects.
        if known is not None and known[0] is text:
            return known[1]
        strip = paint(_segments(text, self._console()))
        entry.strips[line, *look] = (text, strip)
        return strip

    def fold(self, key: str, *, is_open: bool) -> None:
        self.folds[key] = is_open
        self._generation += 1

    def show(self, rows: Sequence[Row], width: int, palette: Palette) -> None:
        self.rows = rows
        self._generation += 1
        known = self.canvas
        if known is None or known.width != width or known.palette is not palette:
            canvas = Canvas(width=width, palette=palette, server_url=self.server_url)
            if known is not None:
                canvas = replace(known, width=width, palette=palette)
            self.canvas = canvas
            self.clear()

    def tick(self, now: float, children: Mapping[str, ChildView]) -> None:
        """Rows that show a time or a subagent are drawn again when they are asked for."""
        if self.canvas is not None:
            self._generation += 1
            self.canvas = replace(self.canvas, now=now, children=children)

    def clear(self) -> None:
        """Drop all drawn rows. Also called when lines are to be painted in other colours."""
        self._entries.clear()
        self._line_count = 0

    def _entry(self, index: int) -> _Entry:
        row, canvas = self.rows[index], self.canvas
        assert canvas is not None
        entry = self._entries.get(row.key)
        if entry is not None and entry.generation == self._generation:
            return entry
        is_folded_so = entry is not None and entry.is_open is self.folds.get(row.key)
        if entry is not None and is_folded_so and _is_current(entry, row, canvas):
            entry.canvas, entry.row, entry.generation = canvas, row, self._generation
            self._entries.move_to_end(row.key)
            return entry
        return self._draw(row, canvas, entry)

    def _draw(self, row: Row, canvas: Canvas, old: _Entry | None) -> _Entry:
        self.drawn_rows += 1
        fold = self.folds.get(row.key)
        live = None if old is None else old.live
        if isinstance(row, ProseRow) and row.is_live:
            live = live or LiveMarkdown(canvas.width, canvas.palette)
            drawn = DrawnRow(lines=live.lines(row.text))
        else:
            live = None
            drawn = draw_row(row, canvas, is_open=fold)
        lines = drawn.lines or [_GAP]
        lines = lines if row.is_tight else [_GAP, *lines]
        strips = {} if old is None else old.strips
        entry = _Entry(
            row=row,
            is_open=fold,
            canvas=canvas,
            drawn=drawn,
            lines=lines,
            strips=strips,
            live=live,
            generation=self._generation,
        )
        self._line_count += len(lines) - (0 if old is None else len(old.lines))
        self._entries[row.key] = entry
        self._entries.move_to_end(row.key)
        return entry

    def trim(self, on_screen: int) -> None:
        """Drop the least recently used rows. `on_screen`: how many rows must stay."""
        while len(self._entries) > max(on_screen, 1) and (
            len(self._entries) > MAX_ROWS or self._line_count > MAX_LINES
        ):
            _, entry = self._entries.popitem(last=False)
            self._line_count -= len(entry.lines)


def _is_current(entry: _Entry, row: Row, canvas: Canvas) -> bool:
    if entry.row is not row and entry.row != row:
        return False
    if entry.canvas is canvas:
        return True
    if entry.drawn.ticks and int(entry.canvas.now) != int(canvas.now):
        return False
    before, now = entry.canvas.children, canvas.children
    return all(before.get(child) == now.get(child) for child in entry.drawn.children)


def _segments(text: Text, console: Console) -> list[Segment]:
    base = text.style if isinstance(text.style, Style) else Style()
    if not text.spans:
        return [Segment(text.plain, base)] if text.plain else []
    return [segment for segment in text.render(console) if segment.text]


# One line of the screen: the mark of the selected row, the row's line, the scroll bar.

LEFT = 2
RIGHT = 2
MAX_WIDTH = 120
"""The longest line: longer ones are hard to read."""


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

    def new_line(self, text: str) -> Strip:
        left = max(0, (self.width - len(text)) // 2)
        style = self.palette.accent + Style(reverse=True)
        pieces = [Segment(" " * left, self.base), Segment(text, self.base + style)]
        return Strip(pieces).adjust_cell_length(self.width, self.base)


def new_text(count: int, *, is_busy: bool) -> str:
    """Shown while the end is out of sight: what came below, and how to get there."""
    word = "still writing below" if is_busy else "more below"
    return f" ↓ {f'{count:,} new' if count else word} · End "


def scroll_bar(lines: int, row_count: int, first: int, last: int) -> list[str]:
    """Computed by rows, not by lines: the heights of rows that were never shown are not known."""
    if row_count <= 0 or lines <= 0 or last - first + 1 >= row_count:
        return [" "] * max(lines, 0)
    size = max(1, round(lines * (last - first + 1) / row_count))
    hidden = row_count - (last - first + 1)
    start = round((lines - size) * min(first / hidden, 1.0)) if hidden else 0
    return ["▐" if start <= line < start + size else " " for line in range(lines)]
