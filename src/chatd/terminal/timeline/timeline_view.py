"""What the timeline shows and where. Only the rows on the screen are drawn, and only lines that
look different are painted again."""

from collections.abc import Sequence
from typing import Final

from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.geometry import Region
from textual.selection import Selection
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from chatd.client.connection import FollowedChat
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.terminal.session import app_of, session_of
from chatd.terminal.timeline import painter
from chatd.terminal.timeline.children import Children
from chatd.terminal.timeline.palette import Palette, palette_of
from chatd.terminal.timeline.row_actions import pending_rows
from chatd.terminal.timeline.row_cache import RowCache
from chatd.terminal.timeline.rows.end_row import END_KEY
from chatd.terminal.timeline.rows.row import OlderRow, Row
from chatd.terminal.timeline.rows.row_model import BUSY, RowModel
from chatd.terminal.timeline.viewport import TOP, Place, Viewport

_TICK_S: Final = 1.0
_WHEEL_LINES: Final = 3
_LOAD_WITHIN_ROWS: Final = 3
"""Older messages are asked for when so few rows are left above."""
_PaintedLine = tuple[Text | None, bool, str]


class TimelineView(Widget, can_focus=True):
    """What is shown and where. `Timeline` adds what keys do."""

    DEFAULT_CSS = "TimelineView { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self.chat: FollowedChat | None = None
        self.selected: str | None = None
        self.view = Viewport()
        self.cache = RowCache(lambda: app_of(self).console)
        self.painted_lines = 0
        """Counts lines that were painted again, as work."""
        self._model = RowModel()
        self._children = Children(self._child_changed)
        self._places: list[Place] = []
        self._painted: list[_PaintedLine] = []
        self._problem = ""
        self._seen: tuple[int, frozenset[str]] = (0, frozenset())
        self._pending: frozenset[str] = frozenset()
        self._timer: Timer | None = None

    @property
    def rows(self) -> Sequence[Row]:
        return self.cache.rows

    def on_mount(self) -> None:
        self._timer = self.set_interval(_TICK_S, self._tick, pause=True)
        app_of(self).theme_changed_signal.subscribe(self, lambda _: self._draw())

    def on_unmount(self) -> None:
        self._children.stop()

    # What the main screen says

    def show(self, chat: FollowedChat | None) -> None:
        if chat is None or self.chat is None or chat.chat_id != self.chat.chat_id:
            self._reset()
        self.chat = chat
        if chat is not None and frozenset(one.key for one in chat.pending) - self._pending:
            # What the user sends is shown.
            self.view.is_following = True
        self._pending = frozenset(() if chat is None else (one.key for one in chat.pending))
        self._draw()

    def _reset(self) -> None:
        self._model = RowModel()
        self._children.stop()
        self.cache.clear()
        self.cache.rows = ()
        self.cache.folds.clear()
        self.view.top, self.view.is_following = TOP, True
        self.selected = None
        self._seen = (0, frozenset())
        self._problem = ""

    # Rows and their place

    def _draw(self) -> None:
        """Make the rows of the newest state, keep the place, and paint what has changed."""
        if self.size.height == 0 or self.size.width == 0:
            return
        anchor = self._anchor()
        rows: tuple[Row, ...] = ()
        if self.chat is not None:
            shown = self.chat.shown
            pending = pending_rows(self.chat.pending, is_busy=shown.status in BUSY)
            rows = self._model.rows(shown, pending, self._problem)
        self.cache.show(rows, painter.content_width(self.size.width), self._palette())
        self._tell_time()
        if anchor is not None:
            self._restore(anchor)
        self.paint()

    def _anchor(self) -> tuple[str, int, int] | None:
        """The row at the top by its key, the first visible line of it, and where it was."""
        if self.view.is_following or not self.rows:
            return None
        top = self.view.top
        if isinstance(self.rows[top.row], OlderRow) and len(self.rows) > top.row + 1:
            # The row above all others stays above: what comes is put below it.
            return self.rows[top.row + 1].key, top.line - self.cache.height(top.row), top.row + 1
        return self.rows[top.row].key, top.line, top.row

    def _restore(self, anchor: tuple[str, int, int]) -> None:
        key, line, was = anchor
        index = self.index_of(key, was)
        row = min(was, max(len(self.rows) - 1, 0)) if index is None else index
        self.view.top = Place(row, line if index is not None else 0)

    def index_of(self, key: str | None, near: int = 0) -> int | None:
        if near < len(self.rows) and self.rows[near].key == key:
            return near
        return next((at for at, row in enumerate(self.rows) if row.key == key), None)

    def paint(self) -> None:
        """Find what is visible, and paint the lines that differ from what is on the screen."""
        self.view.lines = self.size.height
        self.view.settle(self.cache)
        self._places = list(self.view.visible(self.cache))
        if self.has_focus and self.selected is None and self._places:
            self.selected = self.rows[self._places[-1].row].key
        self._note_end()
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
        self._after_paint()

    def _lines(self) -> list[_PaintedLine]:
        rows = [place.row for place in self._places] or [0]
        bar = painter.scroll_bar(self.size.height, len(self.rows), rows[0], rows[-1])
        lines: list[_PaintedLine] = []
        for y in range(self.size.height):
            if y >= len(self._places):
                lines.append((None, False, bar[y]))
                continue
            row, line = self._places[y]
            marked = self.has_focus and self.rows[row].key == self.selected
            is_marked = marked and line >= self.cache.gap(row)
            lines.append((self.cache.line(row, line), is_marked, bar[y]))
        if (marker := self.new_below) is not None and lines:
            lines[-1] = (Text(marker), False, lines[-1][2])
        return lines

    def _note_end(self) -> None:
        """Remember what was seen while the end was in sight."""
        if self.view.is_following:
            ids = (row.message_id for row in reversed(self.rows) if row.message_id is not None)
            self._seen = (next(ids, 0), frozenset(row.key for row in self.rows[-2:]))

    @property
    def new_below(self) -> str | None:
        """What is said in the last line while the end is out of sight."""
        if self.view.is_following or self.view.is_at_end(self.cache):
            return None
        last_id, keys = self._seen
        count = 0
        for row in reversed(self.rows):
            if row.message_id is not None and row.message_id <= last_id:
                break
            count += row.key not in keys and row.key != END_KEY
        is_busy = self.chat is not None and self.chat.shown.status in BUSY
        return painter.new_text(count, is_busy=is_busy)

    def _after_paint(self) -> None:
        visible = dict.fromkeys(place.row for place in self._places)
        drawn = [self.cache.drawn(row) for row in visible]
        self.cache.trim(len(visible))
        wanted = [child for row in drawn for child in row.children]
        self._children.follow(wanted, session_of(self).connection)
        if self._timer is not None:
            if any(row.ticks for row in drawn):
                self._timer.resume()
            else:
                self._timer.pause()
        if self._places and self._places[0].row < _LOAD_WITHIN_ROWS:
            self.load_older()

    # Painting

    def render_line(self, y: int) -> Strip:
        width, palette = self.size.width, self._palette()
        base = self.rich_style
        if y >= len(self._painted):
            return Strip.blank(width, base)
        text, is_selected, bar = self._painted[y]
        if text is not None and y == len(self._painted) - 1 and self.new_below is not None:
            strip = painter.new_line(text.plain, width, palette)
        else:
            place = self._places[y] if y < len(self._places) else None
            content = Strip([]) if place is None else self.cache.strip(place.row, place.line)
            strip = painter.painted_line(content, width, palette, is_selected=is_selected, bar=bar)
        strip = strip.apply_style(base).apply_offsets(0, y)
        selection = self.text_selection
        span = None if selection is None else selection.get_span(y)
        return strip if span is None else self._with_selection(strip, span, width)

    def _with_selection(self, strip: Strip, span: tuple[int, int], width: int) -> Strip:
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
        indent = " " * painter.LEFT
        return selection.extract("\n".join(indent + line for line in lines)), "\n"

    def _palette(self) -> Palette:
        return palette_of(is_dark=app_of(self).current_theme.dark)

    # What happens

    def on_resize(self) -> None:
        self._draw()

    def on_focus(self) -> None:
        self.paint()

    def on_blur(self) -> None:
        self.paint()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_lines(-_WHEEL_LINES)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_lines(_WHEEL_LINES)

    def scroll_lines(self, lines: int) -> None:
        if self.rows and self.cache.canvas is not None:
            self.view.scroll(lines, self.cache)
            self.paint()

    def place_at(self, y: int) -> Place | None:
        return self._places[y] if 0 <= y < len(self._places) else None

    def line_of(self, row: int) -> int | None:
        """Where the row begins on the screen; None if it does not."""
        first = Place(row, self.cache.gap(row))
        return self._places.index(first) if first in self._places else None

    def _tick(self) -> None:
        self._tell_time()
        self.paint()

    def _tell_time(self) -> None:
        self.cache.tick(session_of(self).clock.now().timestamp(), self._children.views())

    def _child_changed(self) -> None:
        """In the connection's task."""
        self.call_later(self._tick)

    # Older messages

    def load_older(self) -> None:
        chat = self.chat
        if chat is None or not chat.shown.has_older or chat.loading_older or self._problem:
            return
        self.run_worker(self._load_older(chat), group="older", exclusive=True)

    def retry_older(self) -> None:
        self._problem = ""
        self.load_older()

    async def _load_older(self, chat: FollowedChat) -> None:
        try:
            await session_of(self).connection.load_older(chat.chat_id)
        except (ApiError, ServerUnreachable) as error:
            if self.chat is not None and self.chat.chat_id == chat.chat_id:
                self._problem = f"Older messages could not be loaded: {error}"
                self._draw()


def _is_same(one: _PaintedLine, two: _PaintedLine) -> bool:
    same_text = one[0] is two[0] or (one[0] is not None and two[0] is not None and one[0] == two[0])
    return same_text and one[1:] == two[1:]
