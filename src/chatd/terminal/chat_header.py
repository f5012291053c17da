"""The line above the open chat: its title, what it does, and whose it is."""

from collections.abc import Callable

from rich.text import Text
from textual.widgets import Static

from chatd.client.resources import Chat
from chatd.terminal.chats.signs import SIGNS, StatusSign, is_subagent, sign_of
from chatd.terminal.safe_text import cell_width, safe_line
from chatd.terminal.session import app_of


class ChatHeader(Static):
    """`status` is the newest that is known of the open chat: the list may be behind it."""

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self._chat: Chat | None = None
        self._status = ""
        self._is_new = False

    def show_chat(self, chat: Chat | None, status: str = "", *, is_new: bool = False) -> None:
        """`chat` is None while nothing is known of it; with `is_new` there is none yet."""
        if (chat, status, is_new) != (self._chat, self._status, self._is_new):
            self._chat, self._status, self._is_new = chat, status, is_new
            self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        width = self.content_size.width
        if self._chat is None or width <= 0:
            self.update("New chat" if self._is_new else "")
            return
        self.update(header_line(self._chat, self._status, width, self._color_of))

    def _color_of(self, tone: str) -> str:
        return app_of(self).theme_variables.get(tone, "")


def header_line(chat: Chat, status: str, width: int, color_of: Callable[[str], str]) -> Text:
    sign = _sign(chat, status)
    hint = "  Esc interrupts" if (status or chat.status) == "running" and width > 60 else ""
    end = f"{sign.sign} {sign.word}{hint}"
    lead = "↳ " if is_subagent(chat) else ""
    notes = "".join(f"  {note}" for note in _notes(chat))
    room = max(width - cell_width(end) - 2, 8)
    title = safe_line(lead + (chat.title or "New chat"), room)
    note_room = room - cell_width(title)
    note = safe_line(notes, note_room - 2) if note_room > 6 else ""
    note = f"  {note}" if note else ""
    gap = " " * max(room + 2 - cell_width(title) - cell_width(note), 1)
    return Text.assemble(
        (title, "bold"), (note, color_of("text-muted")), gap, (end, color_of(sign.tone))
    )


def _sign(chat: Chat, status: str) -> StatusSign:
    if status and status != chat.status:
        return SIGNS.get(status, SIGNS["waiting"])
    return sign_of(chat)


def _notes(chat: Chat) -> list[str]:
    notes = [] if chat.mode is None else [f"{chat.mode} mode"]
    if chat.is_owner is False and chat.owner_username:
        notes.append(f"of {chat.owner_username}")
    elif chat.shared:
        notes.append("shared")
    if chat.archived:
        notes.append("archived")
    return notes
