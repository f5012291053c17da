"""`Timeline`: the messages of the open chat. Keys and clicks; `TimelineView` shows them."""

from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

from textual import events

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.outbox import OutboxFull
from chatd.domain.ids import ChatId
from chatd.terminal.keys import bindings_of
from chatd.terminal.messages import COPY_READY, EditMessage, OpenChat, OpenScreen, ShowNotice
from chatd.terminal.session import app_of, session_of
from chatd.terminal.timeline.copied_text import code_blocks, copied_text
from chatd.terminal.timeline.duration import counted
from chatd.terminal.timeline.row_actions import RowActions
from chatd.terminal.timeline.rows.row import OlderRow, Row, UserRow
from chatd.terminal.timeline.timeline_view import TimelineView
from chatd.terminal.timeline.viewport import TOP, Place


class Timeline(TimelineView):
    BINDINGS = bindings_of("timeline")

    def __init__(self) -> None:
        super().__init__()
        self._copied: tuple[str, int] = ("", 0)

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
        """Its first line stays where it is on the screen, unless what unfolds would not be seen."""
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

    def action_copy_code(self) -> None:
        """The next code block of the row, with each press."""
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
        """The composer takes the text of the user's message."""
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
        if row is None or row.message_id is None:
            self.post_message(ShowNotice("Select a message to fork the chat from.", "warning"))
        else:
            message_id = row.message_id
            self._ask(lambda actions: self._fork(actions, message_id))

    async def _fork(self, actions: RowActions, message_id: int) -> None:
        copy = await actions.fork(message_id)
        is_here = self.chat is not None and self.chat.chat_id == actions.chat_id
        self.post_message(OpenChat(copy) if is_here else ShowNotice(COPY_READY))

    def action_again(self) -> None:
        """Of the selected row or, if it has nothing to try again, of the last one."""
        rows = [row for row in (self._row(), *reversed(self.rows[-2:])) if row is not None]
        if rows and isinstance(rows[0], OlderRow):
            self.retry_older()
        else:
            self._ask(lambda actions: self._again(actions, rows))

    async def _again(self, actions: RowActions, rows: list[Row]) -> None:
        for row in rows:
            if await actions.try_again(row):
                return

    def action_discard(self) -> None:
        row = self._row()
        if row is not None and self.chat is not None:
            RowActions(session_of(self), self.chat).discard(row)

    def action_models(self) -> None:
        self.post_message(OpenScreen("models"))

    def _row(self) -> Row | None:
        at = self.chosen
        return None if at is None else self.rows[at]

    def _ask(self, request: Callable[[RowActions], Awaitable[None]]) -> None:
        if self.chat is not None:
            actions = RowActions(session_of(self), self.chat)
            self.run_worker(partial(self._run, request, actions), group="actions")

    async def _run(
        self, request: Callable[[RowActions], Awaitable[None]], actions: RowActions
    ) -> None:
        try:
            await request(actions)
        except (ApiError, ServerUnreachable, OutboxFull) as error:
            self.post_message(ShowNotice(str(error), "error"))
