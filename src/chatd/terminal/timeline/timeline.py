"""`Timeline`: the messages of the open chat."""

from collections.abc import Sequence
from functools import partial
from typing import Final
from uuid import UUID

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
from chatd.client.exchange import file_url
from chatd.client.outbox import OutboxFull
from chatd.client.state import ShownChat
from chatd.domain.ids import ChatId
from chatd.terminal.composer.drafts import WrittenDraft
from chatd.terminal.composer.message_content import NOTHING_TO_CONTINUE, continue_chat
from chatd.terminal.keys import bindings_of
from chatd.terminal.messages import (
    COPY_READY,
    EditMessage,
    OpenChat,
    OpenScreen,
    ShowNotice,
    telling_errors,
)
from chatd.terminal.session import app_of, session_of
from chatd.terminal.themes import palette_of
from chatd.terminal.timeline.lines import counted
from chatd.terminal.timeline.pictures import (
    MAX_PICTURE_BYTES,
    Picture,
    PictureProblem,
    picture_of,
    show_picture,
)
from chatd.terminal.timeline.row import (
    FailedRow,
    HeldRow,
    MarkRow,
    NoteRow,
    NoticeMark,
    OlderRow,
    PendingNote,
    Row,
    UserRow,
)
from chatd.terminal.timeline.row_actions import Children, code_blocks, copied_text, pending_rows
from chatd.terminal.timeline.row_model import BUSY, END_KEY, RowModel
from chatd.terminal.timeline.viewport import (
    LEFT,
    TOP,
    LinePaint,
    Place,
    RowCache,
    Viewport,
    content_width,
    new_text,
    scroll_bar,
)

_TICK_S: Final = 1.0
_WHEEL_LINES: Final = 3
_LOAD_WITHIN_ROWS: Final = 3
"""Older messages are requested when this few rows are left above."""
_PaintedLine = tuple[Text | None, bool, str]


class Timeline(Widget, can_focus=True):
    """Only the rows on the screen are drawn, and only lines that look different are painted again:
    `painted_lines` counts these, as work."""

    BINDINGS = bindings_of("timeline")
    DEFAULT_CSS = "Timeline { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self.chat: FollowedChat | None = None
        self.selected: str | None = None
        self.view = Viewport()
        self.cache = RowCache(lambda: app_of(self).console)
        self.painted_lines = 0
        self._model = RowModel()
        self._children = Children(self._child_changed)
        self._problem = ""
        self._seen: tuple[int, frozenset[str]] = (0, frozenset())
        self._selected_at = 0
        self._pending: frozenset[str] = frozenset()
        self._timer: Timer | None = None
        self._places: list[Place] = []
        self._painted: list[_PaintedLine] = []
        self._paint: LinePaint | None = None
        self._has_mouse = False
        self._copied: tuple[str, int] = ("", 0)

    def on_mount(self) -> None:
        self.cache.server_url = session_of(self).server.url
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
        """Unselect a row that is gone, such as the one that said that the chat works."""
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

    @property
    def new_below(self) -> str | None:
        """The text of the last line while the end is out of sight."""
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

    def _after_paint(self) -> None:
        places = self._places
        if self.view.is_following:
            # What was seen while the end was in sight.
            ids = (row.message_id for row in reversed(self.rows) if row.message_id is not None)
            self._seen = (next(ids, 0), frozenset(row.key for row in self.rows[-2:]))
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
        """Called in the connection's task."""
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

    # Painting

    @property
    def rows(self) -> Sequence[Row]:
        return self.cache.rows

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
        self._after_paint()

    def renew_paint(self) -> LinePaint:
        """The size or the theme may have changed: then all lines are painted anew."""
        palette = palette_of(app_of(self).current_theme)
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

    @property
    def chosen(self) -> int | None:
        """The index of the selected row."""
        return None if self.selected is None else self.index_of(self.selected)

    # Moving

    def action_line(self, by: int) -> None:
        self.scroll_lines(by)

    def action_page(self, by: int) -> None:
        self.scroll_lines(by * max(1, self.view.lines - 2))

    def action_top(self) -> None:
        if self.rows:
            self.view.is_following = False
            self.view.go_to(TOP, self.cache)
            self._select(0)

    def action_bottom(self) -> None:
        if self.rows:
            self.view.follow(self.cache)
            self._select(len(self.rows) - 1)

    def action_row(self, by: int) -> None:
        """Select the row before or after."""
        if not self.rows:
            return
        at = self.chosen
        at = self._row_on_screen(last=by < 0) if at is None else at + by
        self._go_to_row(min(max(at, 0), len(self.rows) - 1))

    def action_prompt(self, by: int) -> None:
        """Select the user's message before or after, and show it at the top."""
        at = self._row_on_screen(last=False) if self.chosen is None else self.chosen
        end = len(self.rows) if by > 0 else -1
        found = (i for i in range(at + by, end, by) if isinstance(self.rows[i], UserRow))
        index = next(found, None)
        if index is None:
            (self.action_bottom if by > 0 else self.action_top)()
            return
        self.view.is_following = False
        self.view.go_to(Place(index, 0), self.cache)
        self._select(index)

    def _row_on_screen(self, *, last: bool) -> int:
        place = self.place_at(0)
        if last:
            shown = [self.place_at(y) for y in range(self.view.lines)]
            place = next((one for one in reversed(shown) if one is not None), place)
        return 0 if place is None else place.row

    def _go_to_row(self, index: int) -> None:
        self.view.is_following = index == len(self.rows) - 1
        if not self.view.is_following:
            self.view.show_row(index, self.cache)
        self._select(index)

    def _select(self, index: int) -> None:
        self.selected = self.rows[index].key
        self.paint()

    def action_leave(self) -> None:
        """To the message box, by its name: it is not there in every screen with a timeline."""
        for box in self.screen.query("Composer"):
            box.focus()

    # Folding and opening

    def action_open(self) -> None:
        """Enter: open the subagent's chat, or fold and unfold."""
        at = self.chosen
        if at is None:
            return
        if isinstance(self.rows[at], OlderRow):
            self.retry_older()
        elif (child := self.cache.drawn(at).child) != "":
            self.post_message(OpenChat(ChatId(UUID(child))))
        else:
            self._toggle(at)

    def action_fold(self) -> None:
        if (at := self.chosen) is not None:
            self._toggle(at)

    def _toggle(self, index: int) -> None:
        """Keep its first line where it is on the screen, unless what unfolds would not be seen."""
        drawn = self.cache.drawn(index)
        if not drawn.can_fold:
            return
        line = self.line_of(index)
        self.cache.fold(self.rows[index].key, is_open=not drawn.is_open)
        if line is not None:
            self.view.put(Place(index, self.cache.gap(index)), line, self.cache)
        if not drawn.is_open:
            self.view.show_row(index, self.cache)
        self._select(index)

    def on_click(self, event: events.Click) -> None:
        if self.new_below is not None and event.y == self.view.lines - 1:
            self.action_bottom()
            return
        place = self.place_at(event.y)
        if place is None or self.text_selection is not None:
            return
        self.selected = self.rows[place.row].key
        drawn = self.cache.drawn(place.row)
        is_last_line = place.line == self.cache.height(place.row) - 1
        if place.line == self.cache.gap(place.row):
            self._toggle(place.row)
        elif drawn.child and drawn.is_open and is_last_line:
            self.action_open()
        self.paint()

    # Copying

    def action_copy(self) -> None:
        """What was selected with the mouse, else the text of the row."""
        row = self._row()
        text = self.screen.get_selected_text() or ("" if row is None else copied_text(row))
        if text:
            app_of(self).copy_to_clipboard(text)
            self.post_message(ShowNotice(f"Copied {counted(len(text), 'character')}."))

    def action_picture(self) -> None:
        """Show it on the whole terminal, until a key is pressed."""
        picture = picture_of(self._row())
        if picture is None:
            self.post_message(ShowNotice("This row has no picture."))
        elif not session_of(self).machine.shows_pictures:
            self.post_message(ShowNotice("Pictures are off: CHATD_PICTURES."))
        else:
            show = partial(self._show_picture, picture)
            self.run_worker(show, group="picture", exclusive=True)

    async def _show_picture(self, picture: Picture) -> None:
        data, session, link = picture.data, session_of(self), ""
        try:
            if picture.file_id is not None:
                link = f" Open {file_url(session.server.url, str(picture.file_id))}"
                content = session.api.load_content(picture.file_id)
                data = await content.read(max_bytes=MAX_PICTURE_BYTES)
            await show_picture(app_of(self), data)
        except PictureProblem as problem:
            self.post_message(ShowNotice(f"{problem}{link}"))
        except (ApiError, ServerUnreachable) as error:
            self.post_message(ShowNotice(f"The picture was not read: {error}"))

    def action_copy_code(self) -> None:
        """Copy the next code block of the row, with each press."""
        row = self._row()
        blocks = [] if row is None else code_blocks(row)
        if row is None or not blocks:
            self.post_message(ShowNotice("This row has no code.", "warning"))
            return
        key, number = self._copied
        number = number % len(blocks) if key == row.key else 0
        self._copied = (row.key, number + 1)
        app_of(self).copy_to_clipboard(blocks[number])
        which = "" if len(blocks) == 1 else f" {number + 1} of {len(blocks)}"
        self.post_message(ShowNotice(f"Copied code block{which}."))

    # What the server is asked for

    def action_edit(self) -> None:
        """Give the text of the user's message to the composer."""
        row, chat = self._row(), self.chat
        wanted = row.message_id if isinstance(row, UserRow) else None
        messages = () if chat is None else chat.shown.messages
        message = next((one for one in messages if one.id == wanted), None)
        if message is None:
            notice = "Only your own messages can be edited: select one with J or K."
            self.post_message(ShowNotice(notice, "warning"))
        else:
            self.post_message(EditMessage(message))

    def action_fork(self) -> None:
        row = self._row()
        if row is None or row.message_id is None or self.chat is None:
            self.post_message(ShowNotice("Select a message to fork the chat from.", "warning"))
        else:
            fork = partial(self._fork, self.chat.chat_id, row.message_id)
            self.run_worker(fork, group="actions")

    async def _fork(self, chat_id: ChatId, message_id: int) -> None:
        with telling_errors(self):
            copy = await session_of(self).api.fork_chat(chat_id, message_id)
            is_here = self.chat is not None and self.chat.chat_id == chat_id
            self.post_message(OpenChat(copy.id) if is_here else ShowNotice(COPY_READY))

    def action_again(self) -> None:
        """Try the selected row again or, if it has nothing to try again, the last one."""
        outbox = session_of(self).outbox
        for row in (self._row(), *reversed(self.rows[-2:])):
            match row:
                case OlderRow():
                    self.retry_older()
                case UserRow(pending=PendingNote(id=key)) if outbox.retry(key) is not None:
                    return
                case HeldRow() if self.chat is not None:
                    self.run_worker(partial(self._resume, self.chat.chat_id), group="actions")
                case (
                    FailedRow()
                    | NoteRow(can_continue=True, note="length" | "error")
                    | MarkRow(mark=NoticeMark(can_continue=True))
                ) if self.chat is not None:
                    self.run_worker(partial(self._continue, self.chat.shown), group="actions")
                case _:
                    continue
            return

    async def _continue(self, chat: ShownChat) -> None:
        try:
            if not await continue_chat(session_of(self), chat, WrittenDraft()):
                self.post_message(ShowNotice(NOTHING_TO_CONTINUE))
        except (ApiError, ServerUnreachable, OutboxFull) as error:
            self.post_message(ShowNotice(str(error), "error"))

    async def _resume(self, chat_id: ChatId) -> None:
        try:
            await session_of(self).api.resume_chat(chat_id)
        except (ApiError, ServerUnreachable) as error:
            self.post_message(ShowNotice(str(error), "error"))

    def action_discard(self) -> None:
        match self._row():
            case UserRow(pending=PendingNote(id=key)):
                session_of(self).outbox.dismiss(key)
            case _:
                return

    def action_models(self) -> None:
        self.post_message(OpenScreen("models"))

    def _row(self) -> Row | None:
        at = self.chosen
        return None if at is None else self.rows[at]


def _is_same(one: _PaintedLine, two: _PaintedLine) -> bool:
    same_text = one[0] is two[0] or (one[0] is not None and two[0] is not None and one[0] == two[0])
    return same_text and one[1:] == two[1:]
