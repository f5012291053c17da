"""What the timeline shows and where. Only the rows on the screen are drawn, and only lines that
look different are painted again."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from textual import events
from textual.timer import Timer

from chatd.client.connection import FollowedChat
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.terminal.session import app_of, session_of
from chatd.terminal.timeline.children import Children
from chatd.terminal.timeline.painted_rows import PaintedRows
from chatd.terminal.timeline.painter import content_width, new_text
from chatd.terminal.timeline.row_actions import pending_rows
from chatd.terminal.timeline.rows.end_row import END_KEY
from chatd.terminal.timeline.rows.row import OlderRow, Row
from chatd.terminal.timeline.rows.row_model import BUSY, RowModel
from chatd.terminal.timeline.viewport import TOP, Place

_TICK_S: Final = 1.0
_WHEEL_LINES: Final = 3
_LOAD_WITHIN_ROWS: Final = 3
"""Older messages are asked for when so few rows are left above."""


class TimelineView(PaintedRows):
    """What is shown and where. `Timeline` adds what keys do."""

    def __init__(self) -> None:
        super().__init__()
        self.chat: FollowedChat | None = None
        self._model = RowModel()
        self._children = Children(self._child_changed)
        self._problem = ""
        self._seen: tuple[int, frozenset[str]] = (0, frozenset())
        self._selected_at = 0
        self._pending: frozenset[str] = frozenset()
        self._timer: Timer | None = None

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
        self.cache.show(rows, content_width(self.size.width), self.renew_paint().palette)
        self._keep_selected()
        self._tell_time()
        if anchor is not None:
            self._restore(anchor)
        self.paint()

    def _keep_selected(self) -> None:
        """A row that is gone, such as the one that said that the chat works, is not selected."""
        at = None if self.selected is None else self.index_of(self.selected, self._selected_at)
        self._selected_at = at or 0
        self.selected = None if at is None else self.selected

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
        return new_text(count, is_busy=is_busy)

    def after_paint(self, places: Sequence[Place]) -> None:
        self._note_end()
        visible = dict.fromkeys(place.row for place in places)
        drawn = [self.cache.drawn(row) for row in visible]
        self.cache.trim(len(visible))
        wanted = [child for row in drawn for child in row.children]
        self._children.follow(wanted, session_of(self).connection)
        if self._timer is not None:
            if any(row.ticks for row in drawn):
                self._timer.resume()
            else:
                self._timer.pause()
        if places and places[0].row < _LOAD_WITHIN_ROWS:
            self.load_older()

    # What happens

    def on_resize(self) -> None:
        self._draw()

    def watch_has_focus(self, value: bool) -> None:  # noqa: FBT001
        """The selected row is marked only while keys act on it."""
        super().watch_has_focus(value)
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
        self.run_worker(partial(self._load_older, chat), group="older", exclusive=True)

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
