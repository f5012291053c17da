"""The main screen: the chat list beside the open chat, its message box below."""

from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from chatd.client.connection import FollowedChat
from chatd.client.resources import Chat
from chatd.domain.ids import ChatId
from chatd.terminal.areas import AnswerPanel, Composer, QueueView, Timeline
from chatd.terminal.chat_header import ChatHeader
from chatd.terminal.chat_list import ChatList
from chatd.terminal.connection_banner import ConnectionBanner
from chatd.terminal.keys import bindings_of
from chatd.terminal.messages import NewChat, OpenChat, OpenScreen, ShowNotice
from chatd.terminal.open_chat import OpenedChat
from chatd.terminal.screens import SCREENS
from chatd.terminal.session import app_of, session_of
from chatd.terminal.status_line import StatusLine
from chatd.terminal.welcome import Welcome

NARROW_BELOW: Final = 100
"""Columns below which the chat list takes the place of the chat instead of standing beside it."""


class MainScreen(Screen[None]):
    """Shows `first` when it opens: a chat, or None for a new one."""

    BINDINGS = bindings_of("anywhere")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (NARROW_BELOW, "-wide")]  # noqa: RUF012

    def __init__(self, first: ChatId | None = None) -> None:
        super().__init__()
        self._first = first
        self._opened: OpenedChat | None = None
        self._followed: FollowedChat | None = None
        self._stop_states = _nothing

    @property
    def chat_id(self) -> ChatId | None:
        return None if self._opened is None else self._opened.chat_id

    @property
    def chat_list(self) -> ChatList:
        return self.query_one(ChatList)

    @property
    def listed(self) -> Chat | None:
        """What the list says of the open chat."""
        return None if self.chat_id is None else self.chat_list.directory.find(self.chat_id)

    def compose(self) -> ComposeResult:
        with Horizontal(id="columns"):
            yield ChatList()
            with Vertical(id="chat"):
                yield ChatHeader()
                yield ConnectionBanner()
                yield Welcome()
                yield Timeline()
                yield AnswerPanel()
                yield QueueView()
                yield Composer()
        yield StatusLine()

    def on_mount(self) -> None:
        connection = session_of(self).connection
        self._opened = OpenedChat(self, connection, self._show)
        self._stop_states = connection.on_state(self._on_connection)
        self._show_connection()
        self.open(self._first)

    def on_unmount(self) -> None:
        self._stop_states()
        if self._opened is not None:
            self._opened.close()

    # The open chat

    def open(self, chat_id: ChatId | None) -> None:
        """None: a new chat."""
        if self._opened is None or (chat_id is not None and chat_id == self.chat_id):
            return
        self.chat_list.chats.open_chat = chat_id
        self.remove_class("-list")
        self._opened.open(chat_id)
        self.query_one(Composer).focus()

    @on(OpenChat)
    def open_asked(self, message: OpenChat) -> None:
        self.open(message.chat_id)

    @on(NewChat)
    def open_new(self) -> None:
        self.open(None)

    @on(ShowNotice)
    def show_notice(self, notice: ShowNotice) -> None:
        self.notify(notice.text, severity=notice.severity, markup=False)

    @on(OpenScreen)
    def open_screen(self, message: OpenScreen) -> None:
        make = SCREENS.get(message.name)
        if make is not None:
            app_of(self).push_screen(make(self.chat_id))

    def _show(self, chat: FollowedChat | None) -> None:
        self._followed = chat
        self.query_one(Welcome).display = self.chat_id is None
        self.query_one(Timeline).display = self.chat_id is not None
        for area in (Timeline, AnswerPanel, QueueView, Composer):
            self.query_one(area).show(chat)
        self._show_header()

    @on(ChatList.Changed)
    def _show_header(self) -> None:
        status = "" if self._followed is None else self._followed.shown.status
        self.query_one(ChatHeader).show_chat(self.listed, status)
        self.query_one(Welcome).show_demos(wanted=len(self.chat_list.directory) == 0)

    def _on_connection(self) -> None:
        """In the connection's task."""
        self.call_later(self._show_connection)

    def _show_connection(self) -> None:
        self.query_one(ConnectionBanner).show_state()
        self.query_one(StatusLine).show_connection()

    @on(Welcome.Chosen)
    def start_demo(self, event: Welcome.Chosen) -> None:
        self.run_worker(self._start_demo(event.prompt))

    async def _start_demo(self, prompt: str) -> None:
        del prompt

    # Keys

    def action_new_chat(self) -> None:
        self.open(None)

    def action_previous_chat(self) -> None:
        self._open_neighbour(-1)

    def action_next_chat(self) -> None:
        self._open_neighbour(1)

    def _open_neighbour(self, by: int) -> None:
        chat = self.chat_list.chats.neighbour(self.chat_id, by)
        if chat is not None:
            self.open(chat.id)

    def action_toggle_list(self) -> None:
        self.toggle_class("-list" if self.has_class("-narrow") else "-no-list")

    def action_help(self) -> None:
        app_of(self).push_screen(SCREENS["help"](self.chat_id))

    def action_retry(self) -> None:
        session_of(self).connection.retry_now()

    def action_detach(self) -> None:
        app_of(self).exit()


def _nothing() -> None:
    return
