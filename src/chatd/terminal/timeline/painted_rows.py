"""A widget that shows rows: it paints the visible lines, and only those that look different."""

from collections.abc import Sequence

from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.geometry import Region
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from chatd.terminal.session import app_of
from chatd.terminal.timeline.painter import LEFT, LinePaint, scroll_bar
from chatd.terminal.timeline.palette import palette_of
from chatd.terminal.timeline.row_cache import RowCache
from chatd.terminal.timeline.rows.row import Row
from chatd.terminal.timeline.viewport import Place, Viewport

_PaintedLine = tuple[Text | None, bool, str]


class PaintedRows(Widget, can_focus=True):
    """`painted_lines` counts lines that were painted again, as work."""

    DEFAULT_CSS = "PaintedRows { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self.selected: str | None = None
        self.view = Viewport()
        self.cache = RowCache(lambda: app_of(self).console)
        self.painted_lines = 0
        self._places: list[Place] = []
        self._painted: list[_PaintedLine] = []
        self._paint: LinePaint | None = None
        self._has_mouse = False

    @property
    def rows(self) -> Sequence[Row]:
        return self.cache.rows

    @property
    def new_below(self) -> str | None:
        """What the last line says while the end is out of sight."""
        return None

    def after_paint(self, places: Sequence[Place]) -> None:
        """These are visible now."""

    def paint(self) -> None:
        """Find what is visible, and paint the lines that differ from what is on the screen."""
        if self.cache.canvas is None:
            return
        self.view.lines = self.size.height
        self.view.settle(self.cache)
        self._places = list(self.view.visible(self.cache))
        if self.has_focus and self.selected is None and self._places:
            self.selected = self.rows[self._places[-1].row].key
        lines = self._lines()
        if len(lines) != len(self._painted):
            self.painted_lines += len(lines)
            self.refresh()
        else:
            changed = [y for y, line in enumerate(lines) if not _is_same(line, self._painted[y])]
            self.painted_lines += len(changed)
            if changed:
                self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))
        self._painted = lines
        self.after_paint(self._places)

    def renew_paint(self) -> LinePaint:
        """The size or the theme may have changed: then all lines are painted anew."""
        palette = palette_of(is_dark=app_of(self).current_theme.dark)
        paint = LinePaint(width=self.size.width, palette=palette, base=self.rich_style)
        if paint != self._paint:
            self._paint = paint
            self._painted = []
            self.cache.clear()
        return paint

    def _lines(self) -> list[_PaintedLine]:
        rows = [place.row for place in self._places] or [0]
        bar = scroll_bar(self.size.height, len(self.rows), rows[0], rows[-1])
        lines: list[_PaintedLine] = []
        for y in range(self.size.height):
            if y >= len(self._places):
                lines.append((None, False, bar[y]))
                continue
            row, line = self._places[y]
            is_marked = self.has_focus and self.rows[row].key == self.selected
            is_marked = is_marked and line >= self.cache.gap(row)
            lines.append((self.cache.line(row, line), is_marked, bar[y]))
        if (marker := self.new_below) is not None and lines:
            lines[-1] = (Text(marker), False, "")
        return lines

    def render_line(self, y: int) -> Strip:
        paint = self._paint
        if paint is None or y >= len(self._painted):
            return Strip.blank(self.size.width, self.rich_style)
        strip = self._strip(y, paint)
        if not self._has_mouse:
            return strip
        selection = self.text_selection
        span = None if selection is None else selection.get_span(y)
        strip = strip if span is None else self._with_selection(strip, span)
        return strip.apply_offsets(0, y)

    def _strip(self, y: int, paint: LinePaint) -> Strip:
        text, is_selected, bar = self._painted[y]
        if text is None or y >= len(self._places):
            return paint.line([], is_selected=False, bar=bar or " ")
        if bar == "":
            return paint.new_line(text.plain)
        row, line = self._places[y]
        return self.cache.strip(
            row,
            line,
            lambda content: paint.line(content, is_selected=is_selected, bar=bar),
            (is_selected, bar),
        )

    # Selecting text with the mouse

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Positions of characters are needed for the mouse alone: without one they cost nothing."""
        del event
        if not self._has_mouse:
            self._has_mouse = True
            self.refresh()

    def _with_selection(self, strip: Strip, span: tuple[int, int]) -> Strip:
        width = strip.cell_length
        start, end = span[0], width if span[1] == -1 else min(span[1], width)
        if end <= start:
            return strip
        style = self.screen.get_component_rich_style("screen--selection")
        before, inside, after = strip.crop(0, start), strip.crop(start, end), strip.crop(end, width)
        marked = [Segment(one.text, (one.style or style) + style) for one in inside]
        return Strip.join([before, Strip(marked, inside.cell_length), after])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text of the screen. It was made safe before it was drawn."""
        lines = [(text.plain if text is not None else "") for text, _, _ in self._painted]
        return selection.extract("\n".join(" " * LEFT + line for line in lines)), "\n"

    # Places on the screen

    def place_at(self, y: int) -> Place | None:
        return self._places[y] if 0 <= y < len(self._places) else None

    def line_of(self, row: int) -> int | None:
        """Where the row begins on the screen; None if it does not."""
        first = Place(row, self.cache.gap(row))
        return self._places.index(first) if first in self._places else None


def _is_same(one: _PaintedLine, two: _PaintedLine) -> bool:
    same_text = one[0] is two[0] or (one[0] is not None and two[0] is not None and one[0] == two[0])
    return same_text and one[1:] == two[1:]
