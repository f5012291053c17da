"""Drawn rows, kept as long as nothing that they show has changed. Bounded."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from chatd.terminal.timeline.cards.card import Canvas
from chatd.terminal.timeline.cards.child import ChildView
from chatd.terminal.timeline.lines import Lines
from chatd.terminal.timeline.markdown.live import LiveMarkdown
from chatd.terminal.timeline.palette import Palette
from chatd.terminal.timeline.row_lines import DrawnRow, draw_row
from chatd.terminal.timeline.rows.row import ProseRow, Row

MAX_ROWS: Final = 400
MAX_LINES: Final = 20_000
"""Of all rows that are kept. Rows on the screen are kept in any case."""
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
        """Empty lines above the row that belong to it."""
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
            self.canvas = Canvas(
                width=width,
                palette=palette,
                now=0.0 if known is None else known.now,
                children={} if known is None else known.children,
            )
            self.clear()

    def tick(self, now: float, children: Mapping[str, ChildView]) -> None:
        """Rows that show a time or a subagent are drawn again when they are asked for."""
        if self.canvas is not None:
            self._generation += 1
            self.canvas = Canvas(
                width=self.canvas.width, palette=self.canvas.palette, now=now, children=children
            )

    def clear(self) -> None:
        """Also when lines are to be painted in other colours."""
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
        """Forget what was not asked for the longest. `on_screen`: how many rows must stay."""
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
