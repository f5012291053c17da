"""The lines of the chat list on the screen. Only the visible ones are drawn, so that thousands of
chats stay quick."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from chatd.client.resources import Chat
from chatd.domain.ids import ChatId
from chatd.domain.ports import Clock
from chatd.terminal.chats.chat_rows import ChatRow, DetailRow, Row, SectionRow, draw_row
from chatd.terminal.keys import bindings_of

TURN_S: Final = 0.25
"""Time between two frames of the sign of a working chat."""
END_ROWS: Final = 20
"""How many rows before the end the next page is requested."""


class ChatTree(ScrollView, can_focus=True):
    """The cursor stays on its chat when rows come and go."""

    BINDINGS = bindings_of("chat list")
    COMPONENT_CLASSES = {  # noqa: RUF012
        "chat-tree--section",
        "chat-tree--title",
        "chat-tree--unread",
        "chat-tree--detail",
        "chat-tree--open",
        "chat-tree--cursor",
        "chat-tree--text-muted",
        "chat-tree--text-accent",
        "chat-tree--text-warning",
        "chat-tree--text-error",
        "chat-tree--text-success",
    }
    DEFAULT_CSS = """
    ChatTree {
        width: 100%; height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1;
        .chat-tree--section { color: $text-muted; text-style: bold; }
        .chat-tree--title { color: $foreground; }
        .chat-tree--unread { color: $foreground; text-style: bold; }
        .chat-tree--detail { color: $text-muted; }
        .chat-tree--open { background: $panel; }
        .chat-tree--cursor { background: $primary-muted; }
        .chat-tree--text-muted { color: $text-muted; }
        .chat-tree--text-accent { color: $text-accent; }
        .chat-tree--text-warning { color: $text-warning; }
        .chat-tree--text-error { color: $text-error; }
        .chat-tree--text-success { color: $text-success; }
    }
    """

    open_chat: reactive[ChatId | None] = reactive(None)

    @dataclass
    class Chosen(Message):
        chat: Chat

    @dataclass
    class Asked(Message):
        """Posted for an action on the list, or on the chat under the cursor."""

        what: str
        chat: Chat | None

    @dataclass
    class Folded(Message):
        """Hide the subagents of a chat, or show them."""

        chat_id: ChatId
        is_open: bool

    class NearEnd(Message):
        """The next page is wanted."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._rows: Sequence[Row] = ()
        self._cursor: ChatId | None = None
        self._turn = 0

    def on_mount(self) -> None:
        self.set_interval(TURN_S, self._turn_signs)

    # What is shown

    def show_rows(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.virtual_size = Size(self.size.width, len(rows))
        if self._row_of(self._cursor) is None:
            self._cursor = self.open_chat if self._row_of(self.open_chat) is not None else None
        if self.has_focus:
            self._choose_first()
        self.refresh()
        self._ask_for_more()

    @property
    def selected(self) -> Chat | None:
        index = self._row_of(self._cursor)
        row = None if index is None else self._rows[index]
        return row.chat if isinstance(row, ChatRow) else None

    def neighbour(self, of: ChatId | None, by: int) -> Chat | None:
        """The chat above (-1) or below (1) one in the list; without one, the first or last."""
        chats = [row.chat for row in self._rows if isinstance(row, ChatRow)]
        if not chats:
            return None
        here = next((place for place, chat in enumerate(chats) if chat.id == of), None)
        if here is None:
            return chats[0 if by > 0 else -1]
        place = here + by
        return chats[place] if 0 <= place < len(chats) else None

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        index = y + self.scroll_offset.y
        base = self.rich_style
        if index >= len(self._rows):
            return Strip.blank(width, base)
        row = self._rows[index]
        mark, back = self._mark_of(row)
        now = self._clock.now()
        segments = draw_row(row, width, self._style, now=now, turn=self._turn, mark=mark)
        style = base + back
        return Strip(segments).adjust_cell_length(width, style).apply_style(style)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"chat-tree--{name}", partial=True)

    def _mark_of(self, row: Row) -> tuple[str, Style]:
        """How the line under the cursor and that of the open chat are set apart."""
        chat_id = _chat_of(row)
        if chat_id is not None and chat_id == self._cursor and self.has_focus:
            return ">", self._style("cursor")
        if chat_id is not None and chat_id == self.open_chat:
            return "▌", self._style("open")
        return "", Style.null()

    def _turn_signs(self) -> None:
        visible = self._rows[self.scroll_offset.y : self.scroll_offset.y + self.size.height]
        if any(isinstance(row, ChatRow) and row.chat.status == "running" for row in visible):
            self._turn += 1
            self.refresh()

    def watch_open_chat(self, chat_id: ChatId | None) -> None:
        if chat_id is not None:
            # A new chat is listed a moment later: the cursor is there then.
            self._move_to(chat_id)
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._ask_for_more()

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._rows))

    # What keys and clicks do

    def on_focus(self) -> None:
        self._choose_first()

    def action_cursor_up(self) -> None:
        self._step(-1)

    def action_cursor_down(self) -> None:
        self._step(1)

    def action_page_up(self) -> None:
        self._step(-max(self.size.height - 2, 1))

    def action_page_down(self) -> None:
        self._step(max(self.size.height - 2, 1))

    def action_first(self) -> None:
        self._step(-len(self._rows))

    def action_last(self) -> None:
        self._step(len(self._rows))

    def action_choose(self) -> None:
        if (chat := self.selected) is not None:
            self.post_message(self.Chosen(chat))

    def action_ask(self, what: str) -> None:
        self.post_message(self.Asked(what, self.selected))

    def action_fold(self) -> None:
        self._fold(is_open=False)

    def action_unfold(self) -> None:
        self._fold(is_open=True)

    def on_click(self, event: events.Click) -> None:
        index = event.y + self.scroll_offset.y
        row = self._rows[index] if 0 <= index < len(self._rows) else None
        if row is not None and (chat_id := _chat_of(row)) is not None:
            self._move_to(chat_id)
            self.action_choose()

    def _fold(self, *, is_open: bool) -> None:
        index = self._row_of(self._cursor)
        row = None if index is None else self._rows[index]
        if not isinstance(row, ChatRow):
            return
        if row.is_open is None or row.is_open == is_open:
            if not is_open and row.chat.parent_chat_id is not None:
                self._move_to(row.chat.parent_chat_id)
            return
        self.post_message(self.Folded(row.chat.id, is_open=is_open))

    def _choose_first(self) -> None:
        """Enter opens something, even when no chat is open."""
        if self.selected is None:
            self._step(1)

    def _step(self, by: int) -> None:
        places = [index for index, row in enumerate(self._rows) if isinstance(row, ChatRow)]
        if not places:
            return
        here = self._row_of(self._cursor)
        at = -1 if here is None and by > 0 else 0 if here is None else places.index(here)
        index = places[min(max(at + by, 0), len(places) - 1)]
        row = self._rows[index]
        if isinstance(row, ChatRow):
            self._move_to(row.chat.id)

    def _move_to(self, chat_id: ChatId | None) -> None:
        self._cursor = chat_id
        if (index := self._row_of(chat_id)) is not None:
            # The heading above the first chat comes into sight with it.
            top = 0 if index == 1 else index
            self.scroll_to_region(Region(0, top, 1, index - top + 1), animate=False)
        self.refresh()

    def _row_of(self, chat_id: ChatId | None) -> int | None:
        if chat_id is None:
            return None
        rows = enumerate(self._rows)
        return next(
            (at for at, row in rows if isinstance(row, ChatRow) and row.chat.id == chat_id), None
        )

    def _ask_for_more(self) -> None:
        if self.scroll_offset.y + self.size.height + END_ROWS >= len(self._rows):
            self.post_message(self.NearEnd())


def _chat_of(row: Row) -> ChatId | None:
    match row:
        case ChatRow():
            return row.chat.id
        case DetailRow():
            return row.chat_id
        case SectionRow():
            return None
