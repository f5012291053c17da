"""The main screen: the chat list beside the open chat, its message box below; and which screens can
be put on top of it."""

from collections.abc import Callable, Mapping
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from chatd.client.connection import Connection, FollowedChat
from chatd.client.resources import Chat, ListedChat
from chatd.domain.ids import ChatId
from chatd.terminal.answers.answer_panel import AnswerPanel
from chatd.terminal.answers.plan_screen import PlanScreen
from chatd.terminal.chat_frame import ChatHeader, ConnectionBanner, StatusLine, Welcome
from chatd.terminal.chats.chat_directory import Alert
from chatd.terminal.chats.chat_list import ChatList
from chatd.terminal.chats.interrupts import Interrupts, ReadMarks
from chatd.terminal.chats.switch_screen import Choice, GoTo, RunCommand, SwitchScreen
from chatd.terminal.composer.composer import Composer
from chatd.terminal.composer.queue_view import QueueView
from chatd.terminal.dialogs import Question
from chatd.terminal.keys import bindings_of
from chatd.terminal.messages import (
    EditMessage,
    NewChat,
    OpenChat,
    OpenScreen,
    ScreenName,
    ShowNotice,
)
from chatd.terminal.screens.changes_screen import ChangesScreen
from chatd.terminal.screens.info_screens import HelpScreen, UsageScreen
from chatd.terminal.screens.mcp_screen import McpScreen
from chatd.terminal.screens.policy_screen import PolicyScreen
from chatd.terminal.session import app_of, session_of
from chatd.terminal.timeline.timeline import Timeline

# The chat that is open: follows it, and passes on its newest state at most 30 times a second.

FRAME_S: Final = 1 / 30
"""Between two states of a chat on the screen: an answer may come in a thousand pieces a second."""


class OpenedChat:
    """`show` gets the newest state, and None when no chat is open. `host` has the timer."""

    def __init__(
        self,
        host: Widget,
        connection: Connection,
        show: Callable[[FollowedChat | None], None],
    ) -> None:
        self.chat_id: ChatId | None = None
        self._host = host
        self._connection = connection
        self._show = show
        self._newest: FollowedChat | None = None
        self._timer: Timer | None = None
        self._is_asked = False
        self._stop: Callable[[], None] | None = None

    def open(self, chat_id: ChatId | None) -> None:
        self.close()
        self.chat_id = chat_id
        # At once, as far as it is known: until then keys would act on the chat before it.
        self._show(None if chat_id is None else self._connection.chat(chat_id))
        if chat_id is not None:
            self._stop = self._connection.follow_chat(chat_id, self._changed)

    def close(self) -> None:
        """It is not followed any more; `chat_id` still names it."""
        if self._stop is not None:
            self._stop()
        if self._timer is not None:
            self._timer.stop()
        self._newest = self._timer = self._stop = None
        self._is_asked = False

    def _changed(self, chat: FollowedChat) -> None:
        """In the connection's task: textual's timers need to be started in a task of the app."""
        self._newest = chat
        if not self._is_asked:
            self._is_asked = True
            self._host.call_later(self._start_timer)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._flush()
            self._timer = self._host.set_timer(FRAME_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._is_asked:
            self._start_timer()

    def _flush(self) -> None:
        self._is_asked = False
        if self._newest is not None:
            self._show(self._newest)


# The widgets of the open chat, by the names under which the main screen uses them. Each has
# `show(chat)`: the newest state of the open chat, or None while none is open.

__all__ = ["AnswerPanel", "Composer", "QueueView", "Timeline"]


# The screens that a message `OpenScreen` or a key puts on top of the chat.

MakeScreen = Callable[[ChatId | None], Screen[None]]


def _help(_: ChatId | None) -> Screen[None]:
    return HelpScreen()


def _changes(chat_id: ChatId | None) -> Screen[None]:
    return HelpScreen() if chat_id is None else ChangesScreen(chat_id)


def _usage(chat_id: ChatId | None) -> Screen[None]:
    return HelpScreen() if chat_id is None else UsageScreen(chat_id)


SCREENS: Final[Mapping[ScreenName, MakeScreen]] = {
    "help": _help,
    "changes": _changes,
    "mcp": McpScreen,
    "plan": PlanScreen,
    "policy": PolicyScreen,
    "usage": _usage,
}


# The main screen: the chat list beside the open chat, its message box below.

NARROW_BELOW: Final = 100
"""Columns below which the chat list takes the place of the chat instead of standing beside it."""
TALL_FROM: Final = 30
"""Lines from which there is room for an empty one below the title."""
_GONE: Final = (
    "This chat does not exist any more, or is not shared with you any more. Ctrl-N starts a new"
    " one."
)


class MainScreen(Screen[None]):
    """Shows `first` when it opens: a chat, or None for a new one."""

    AUTO_FOCUS = ""
    BINDINGS = bindings_of("anywhere")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (NARROW_BELOW, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (TALL_FROM, "-tall")]  # noqa: RUF012

    class TitleChanged(Message):
        def __init__(self, title: str, needing: int) -> None:
            super().__init__()
            self.title = title
            self.needing = needing

    class Alerted(Message):
        def __init__(self, alert: Alert) -> None:
            super().__init__()
            self.alert = alert

    def __init__(self, first: ChatId | None = None) -> None:
        super().__init__()
        self._first = first
        self._opened: OpenedChat | None = None
        self._interrupts: Interrupts | None = None
        self._marks: ReadMarks | None = None
        self._followed: FollowedChat | None = None

    @property
    def chat_id(self) -> ChatId | None:
        return None if self._opened is None else self._opened.chat_id

    @property
    def chat_list(self) -> ChatList:
        return self.query_one(ChatList)

    @property
    def listed(self) -> Chat | None:
        """The open chat as the list knows it."""
        return None if self.chat_id is None else self.chat_list.find(self.chat_id)

    def compose(self) -> ComposeResult:
        with Horizontal(id="columns"):
            yield ChatList()
            with Vertical(id="chat"):
                yield ChatHeader()
                yield ConnectionBanner()
                yield Static(_GONE, id="gone", markup=False)
                yield Welcome()
                yield Timeline()
                yield AnswerPanel()
                yield QueueView()
                yield Composer()
        yield StatusLine()

    def on_mount(self) -> None:
        session = session_of(self)
        self._opened = OpenedChat(self, session.connection, self._show)
        self._interrupts = Interrupts(
            self, session, say=self.query_one(StatusLine).say, leave=self.action_detach
        )
        self._marks = ReadMarks(self, session.api)
        self.watch(app_of(self), "app_focus", self._mark_read, init=False)
        self.open(self._first)

    def on_unmount(self) -> None:
        if self._opened is not None:
            self._opened.close()

    # The open chat

    def open(self, chat_id: ChatId | None) -> None:
        """None: a new chat."""
        if self._opened is None:
            return
        self.remove_class("-list")
        if chat_id is None or chat_id != self.chat_id:
            self.chat_list.show_open(chat_id)
            self._opened.open(chat_id)
        self.query_one(Composer).focus()

    @on(OpenChat)
    def open_asked(self, message: OpenChat) -> None:
        self.open(message.chat_id)

    @on(NewChat)
    def open_new(self) -> None:
        self.open(None)

    @on(ChatList.Deleted)
    def leave_deleted(self, event: ChatList.Deleted) -> None:
        if event.chat_id == self.chat_id:
            self.open(None)

    @on(ChatList.Left)
    def leave_list(self) -> None:
        self.remove_class("-list")
        self.query_one(Composer).focus()

    @on(EditMessage)
    def edit_message(self, message: EditMessage) -> None:
        self.query_one(Composer).opened.edit_message(message.edited)

    @on(ShowNotice)
    def show_notice(self, notice: ShowNotice) -> None:
        self.notify(notice.text, severity=notice.severity, markup=False)

    @on(OpenScreen)
    def open_screen(self, message: OpenScreen) -> None:
        if message.name == "models":
            self.query_one(Composer).choices.choose_model()
        elif message.name == "modes":
            self.query_one(Composer).run_line("/mode")
        elif (make := SCREENS.get(message.name)) is not None:
            app_of(self).push_screen(make(self.chat_id))

    def _show(self, chat: FollowedChat | None) -> None:
        self._followed = chat
        is_gone = chat is not None and chat.gone
        self.query_one("#gone").display = is_gone
        self.query_one(Welcome).display = self.chat_id is None
        self.query_one(Timeline).display = self.chat_id is not None
        for area in (Timeline, AnswerPanel, QueueView, Composer):
            self.query_one(area).show(chat)
        self._mark_read()
        self._show_frame()

    def _mark_read(self) -> None:
        """What is on the screen of a person who looks at it is read."""
        if self._marks is not None and self._followed is not None and app_of(self).app_focus:
            self._marks.show(self._followed)

    @on(ChatList.Changed)
    def _show_frame(self) -> None:
        """What depends on the list and on the open chat."""
        listed = self.listed
        status = "" if self._followed is None else self._followed.shown.status
        self.query_one(ChatHeader).show_chat(listed, status, is_new=self.chat_id is None)
        directory = self.chat_list.directory
        self.query_one(Welcome).show_demos(wanted=directory.is_empty)
        title = "" if listed is None else listed.title
        self.post_message(self.TitleChanged(title, directory.count_needing()))

    @on(ChatList.Alerted)
    def pass_alert(self, event: ChatList.Alerted) -> None:
        """Not about a chat that is being looked at."""
        if event.alert.chat_id != self.chat_id or not app_of(self).app_focus:
            self.post_message(self.Alerted(event.alert))

    # Keys

    def action_messages(self) -> None:
        self.query_one(Timeline).focus()

    def action_scroll_chat(self, pages: int) -> None:
        self.query_one(Timeline).action_page(pages)

    def action_new_chat(self) -> None:
        self.open(None)

    def action_previous_chat(self) -> None:
        self._open_neighbour(-1)

    def action_next_chat(self) -> None:
        self._open_neighbour(1)

    def _open_neighbour(self, by: int) -> None:
        if (chat := self.chat_list.chats.neighbour(self.chat_id, by)) is not None:
            self.open(chat.id)

    def action_toggle_list(self) -> None:
        """Goes to the list; from there, hides it."""
        chats = self.chat_list.chats
        if chats.has_focus:
            self.add_class("-no-list")
            self.leave_list()
        else:
            self.remove_class("-no-list")
            self.add_class("-list")
            chats.focus()

    def action_interrupt(self) -> None:
        listed = self.listed
        has_subagents = isinstance(listed, ListedChat) and bool(listed.children)
        if self._interrupts is None or not self._interrupts.on_escape(
            self._followed, has_subagents=has_subagents
        ):
            self.leave_list()

    def action_interrupt_or_quit(self) -> None:
        if self._interrupts is not None:
            self._interrupts.on_control_c(self._followed)

    def action_help(self) -> None:
        self.post_message(OpenScreen("help"))

    def action_switch(self) -> None:
        chats = self.chat_list.directory.chats()
        app_of(self).push_screen(SwitchScreen(chats), self._go_to)

    def _go_to(self, choice: Choice | None) -> None:
        match choice:
            case GoTo(chat_id=chat_id):
                self.open(chat_id)
            case RunCommand(line=line):
                self.query_one(Composer).run_line(line)
            case None:
                return

    def action_answer(self) -> None:
        self.query_one(AnswerPanel).take_focus()

    def action_retry(self) -> None:
        session_of(self).connection.retry_now()

    def action_detach(self) -> None:
        """Messages that the server does not have yet would be lost."""
        app, count = app_of(self), len(session_of(self).outbox.unsent)
        if count == 0 or isinstance(app.screen, Question):
            app.exit()
            return
        what = "A message is" if count == 1 else f"{count} messages are"
        text = f"{what} not sent yet and would be lost. Leave all the same?"
        app.push_screen(Question(text, yes="Leave"), lambda sure: app.exit() if sure else None)
