"""The main screen: the chat list next to the open chat, its message box below; and which screens
can be put on top of it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from chatd.client.connection import FollowedChat
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import Chat, ListedChat
from chatd.domain.ids import ChatId
from chatd.terminal.answers.answer_panel import AnswerPanel
from chatd.terminal.answers.plan_screen import PlanScreen
from chatd.terminal.chat_frame import (
    ChatHeader,
    ConnectionBanner,
    StatusLine,
    Welcome,
    WorkLine,
)
from chatd.terminal.chats.chat_directory import Alert
from chatd.terminal.chats.chat_list import ChatList
from chatd.terminal.chats.switch_screen import Choice, GoTo, RunCommand, SwitchScreen
from chatd.terminal.composer.composer import Composer
from chatd.terminal.composer.queue_view import QueueView
from chatd.terminal.dialogs import Question, ask
from chatd.terminal.keys import bindings_of
from chatd.terminal.messages import (
    EditMessage,
    FindChat,
    NewChat,
    OpenChat,
    OpenScreen,
    ShowNotice,
    telling_errors,
)
from chatd.terminal.screens.info_screens import HelpScreen, UsageScreen
from chatd.terminal.screens.mcp_screen import McpScreen
from chatd.terminal.screens.memory_screen import MemoryScreen
from chatd.terminal.screens.policy_screen import PolicyScreen
from chatd.terminal.screens.provider_screen import ProviderScreen
from chatd.terminal.session import app_of, session_of
from chatd.terminal.timeline.timeline import Timeline

FRAME_S: Final = 1 / 30
"""Minimum time between two drawings of a chat: an answer may come in a thousand pieces a second."""
AGAIN_WITHIN_S: Final = 2.0
"""How soon a second press of Esc or Ctrl-C must follow the first."""
MAX_MARKED: Final = 500
NARROW_BELOW: Final = 100
"""Columns below which the chat list replaces the chat instead of standing next to it."""
TALL_FROM: Final = 30
"""Lines from which on an empty one is shown below the title."""
_GONE: Final = (
    "This chat does not exist any more, or is not shared with you any more. Ctrl-N starts a new"
    " one."
)


log = logging.getLogger(__name__)


class DoublePress:
    """Whether a key was pressed again soon enough to mean more. Two presses count together only at
    the same place, such as a chat. Times are in seconds."""

    def __init__(self) -> None:
        self._at = float("-inf")
        self._place: object = None

    def is_waiting(self, place: object, now: float) -> bool:
        """Whether a press there now would be the second."""
        return now - self._at <= AGAIN_WITHIN_S and place == self._place

    def press(self, place: object, now: float) -> bool:
        """True for the second of two presses; a third counts as a first."""
        is_second = self.is_waiting(place, now)
        self._at = float("-inf") if is_second else now
        self._place = place
        return is_second


class OpenedChat:
    """Follows the open chat. `show` gets its newest state at most 30 times a second, and None when
    no chat is open. `host` has the timer."""

    def __init__(self, host: Screen[None], show: Callable[[FollowedChat | None], None]) -> None:
        self.chat_id: ChatId | None = None
        self._host = host
        self._connection = session_of(host).connection
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
        """Stop following it; `chat_id` still names it."""
        if self._stop is not None:
            self._stop()
        if self._timer is not None:
            self._timer.stop()
        self._newest = self._timer = self._stop = None
        self._is_asked = False

    def _changed(self, chat: FollowedChat) -> None:
        """Called in the connection's task: textual's timers must be started in a task of the
        app."""
        self._newest = chat
        if not self._is_asked:
            self._is_asked = True
            self._host.call_later(self._show_newest)

    def _show_newest(self) -> None:
        if self._timer is None:
            self._is_asked = False
            if self._newest is not None:
                self._show(self._newest)
            self._timer = self._host.set_timer(FRAME_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._is_asked:
            self._show_newest()


class MainScreen(Screen[None]):
    """Shows `first` when it opens: a chat, or None for a new one."""

    AUTO_FOCUS = ""
    BINDINGS = bindings_of("anywhere")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (NARROW_BELOW, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (TALL_FROM, "-tall")]  # noqa: RUF012

    @dataclass
    class TitleChanged(Message):
        title: str
        needing: int

    @dataclass
    class Alerted(Message):
        alert: Alert

    def __init__(self, first: ChatId | None = None) -> None:
        super().__init__()
        self._first = first
        self._opened: OpenedChat | None = None
        self._escape = DoublePress()
        self._escape_idle = DoublePress()
        self._control_c = DoublePress()
        self._marked: dict[ChatId, int] = {}
        """The last message of each chat that the server knows as read."""
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
                yield WorkLine()
                yield AnswerPanel()
                yield QueueView()
                yield Composer()
        yield StatusLine()

    def on_mount(self) -> None:
        self._opened = OpenedChat(self, self._show)
        self.watch(app_of(self), "app_focus", self._mark_read, init=False)
        self.open(self._first)

    def on_screen_resume(self) -> None:
        for panel in self.query(AnswerPanel):  # none before the first picture
            panel.take_keys()

    def on_unmount(self) -> None:
        if self._opened is not None:
            self._opened.close()

    # The open chat

    def open(self, chat_id: ChatId | None) -> None:
        """`chat_id` None opens a new chat."""
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
        self.query(Composer).focus()

    @on(EditMessage)
    def edit_message(self, message: EditMessage) -> None:
        self.query_one(Composer).opened.edit_message(message.edited)

    @on(ShowNotice)
    def show_notice(self, notice: ShowNotice) -> None:
        self.notify(notice.text, severity=notice.severity, markup=False)

    @on(OpenScreen)
    def open_screen(self, message: OpenScreen) -> None:
        app, chat_id = app_of(self), self.chat_id
        match message.name:
            case "models":
                self.query_one(Composer).choices.choose_model()
            case "connect":
                app.push_screen(ProviderScreen())
            case "mcp":
                app.push_screen(McpScreen(chat_id))
            case "memory":
                app.push_screen(MemoryScreen())
            case "plan":
                app.push_screen(PlanScreen(chat_id))
            case "policy":
                app.push_screen(PolicyScreen(chat_id))
            case "usage" if chat_id is not None:
                app.push_screen(UsageScreen(chat_id))
            case "help" | "usage":
                app.push_screen(HelpScreen())

    def _show(self, chat: FollowedChat | None) -> None:
        self._followed = chat
        is_gone = chat is not None and chat.gone
        self.query_one("#gone").display = is_gone
        self.query_one(Welcome).display = self.chat_id is None
        self.query_one(Timeline).display = self.chat_id is not None
        for area in (Timeline, WorkLine, AnswerPanel, QueueView, Composer):
            self.query_one(area).show(chat)
        self._mark_read()
        self._show_frame()

    def _mark_read(self) -> None:
        """Mark what is on the screen of a person who looks at it as read, once the chat rests."""
        chat = self._followed
        if chat is None or chat.gone or not app_of(self).app_focus:
            return
        shown = chat.shown
        last = shown.messages[-1].id if shown.messages else 0
        is_working = shown.status in ("pending", "running", "interrupting")
        if is_working or last <= self._marked.get(shown.chat_id, 0):
            return
        self._marked[shown.chat_id] = last
        while len(self._marked) > MAX_MARKED:
            del self._marked[next(iter(self._marked))]
        self.run_worker(partial(self._send_read, shown.chat_id, last), group="read")

    async def _send_read(self, chat_id: ChatId, message_id: int) -> None:
        """A failed request is not repeated: the next answer brings another."""
        try:
            await session_of(self).api.mark_read(chat_id, message_id)
        except (ApiError, ServerUnreachable) as error:
            log.info("the chat %s was not marked as read: %s", chat_id, error.code)

    @on(ChatList.Changed)
    def _show_frame(self) -> None:
        """Update what depends on the list and on the open chat."""
        listed = self.listed
        status = "" if self._followed is None else self._followed.shown.status
        self.query_one(ChatHeader).show_chat(listed, status, is_new=self.chat_id is None)
        directory = self.chat_list.directory
        self.query_one(Welcome).show_demos(wanted=directory.is_empty)
        title = "" if listed is None else listed.title
        self.post_message(self.TitleChanged(title, directory.count_needing()))

    @on(ChatList.Alerted)
    def pass_alert(self, event: ChatList.Alerted) -> None:
        """Alert, unless the person is looking at this chat."""
        if event.alert.chat_id != self.chat_id or not app_of(self).app_focus:
            self.post_message(self.Alerted(event.alert))

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether the widgets exist: a key may come before them, and while they are removed at the
        end."""
        return bool(self.query(Composer)) and super().check_action(action, parameters)

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
        """Go to the list; from there, hide it."""
        chats = self.chat_list.chats
        if chats.has_focus:
            self.add_class("-no-list")
            self.leave_list()
        else:
            self.remove_class("-no-list")
            self.add_class("-list")
            chats.focus()

    def action_interrupt(self) -> None:
        """Esc: once for the answer, twice for its subagents too. While nothing runs or is written,
        twice to edit the last message."""
        chat, listed, now = self._followed, self.listed, session_of(self).clock.monotonic()
        has_subagents = isinstance(listed, ListedChat) and bool(listed.children)
        more = "Esc again stops its subagents too." if has_subagents else ""
        if chat is not None and can_interrupt(chat):
            is_second = self._escape.press(chat.chat_id, now)
            self._interrupt(chat.chat_id, more, family=is_second)
        elif chat is not None and has_subagents and self._escape.is_waiting(chat.chat_id, now):
            # The first one has stopped the answer.
            self._escape.press(chat.chat_id, now)
            self._interrupt(chat.chat_id, family=True)
        elif chat is None or not self.query_one(Composer).can_edit_last:
            self.leave_list()
        elif self._escape_idle.press(chat.chat_id, now):
            self.query_one(Composer).opened.edit_last()
        else:
            self.query_one(StatusLine).say("Esc again edits your last message.")

    def action_interrupt_or_quit(self) -> None:
        """Ctrl-C: the first clears the draft or else interrupts what runs; a second one soon after
        leaves."""
        chat, now = self._followed, session_of(self).clock.monotonic()
        if self._control_c.press(None if chat is None else chat.chat_id, now):
            self.action_detach()
        elif self.query_one(Composer).clear_draft():
            text = "Draft cleared, ↑ brings it back. Ctrl-C again leaves; the chat stays."
            self.query_one(StatusLine).say(text)
        elif chat is not None and can_interrupt(chat):
            self._interrupt(chat.chat_id, "Ctrl-C again leaves.")
        else:
            self.query_one(StatusLine).say("Ctrl-C again leaves; the chat stays.")

    def _interrupt(self, chat_id: ChatId, more: str = "", *, family: bool = False) -> None:
        text = "Stopping the answer and the subagents" if family else f"Stopping the answer. {more}"
        self.query_one(StatusLine).say(text.rstrip())
        self.run_worker(partial(self._send_interrupt, chat_id, family=family), group="interrupt")

    async def _send_interrupt(self, chat_id: ChatId, *, family: bool) -> None:
        with telling_errors(self, "Not interrupted: "):
            await session_of(self).api.interrupt_chat(chat_id, subagents="stop" if family else None)

    def action_help(self) -> None:
        self.post_message(OpenScreen("help"))

    def action_switch(self) -> None:
        self.find_chat(FindChat())

    @on(FindChat)
    def find_chat(self, message: FindChat) -> None:
        chats = self.chat_list.directory.chats()
        app_of(self).push_screen(SwitchScreen(chats, message.words), self._go_to)

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
        """Ask first if messages would be lost that the server does not have yet."""
        app, count = app_of(self), len(session_of(self).outbox.unsent)
        if count == 0 or isinstance(app.screen, Question):
            app.exit()
            return
        what = "A message is" if count == 1 else f"{count} messages are"
        text = f"{what} not sent yet and would be lost. Leave all the same?"
        ask(self, Question(text, yes="Leave"), app.exit)


def can_interrupt(chat: FollowedChat) -> bool:
    """While something runs. An ask is answered or declined in its own place."""
    return not chat.gone and chat.shown.status in ("pending", "running")
