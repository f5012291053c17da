"""The lines around the open chat: its title, the connection, the keys; and what is shown while no
chat is open."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.dom import DOMNode
from textual.timer import Timer
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from chatd.client.connection import Connection, FollowedChat
from chatd.client.drafts import Draft, TextInput
from chatd.client.resources import Chat
from chatd.client.state import ShownChat
from chatd.domain.chat.parts import ReasoningPart, TextPart
from chatd.domain.chat.states import PublicStatus
from chatd.terminal.chats.chat_directory import SIGNS, StatusSign, is_subagent, sign_of
from chatd.terminal.composer.model_texts import size_text
from chatd.terminal.messages import OpenChat, telling_errors
from chatd.terminal.safe_text import cell_width, safe_line, safe_text
from chatd.terminal.session import app_of, session_of

# The line above the open chat: its title, what it does, and whose it is.


class ChatHeader(Static):
    """`status` is the newest that is known of the open chat: the list may lag behind."""

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


# The line above the message box while the chat works: since when, and how many tokens.

TICK_S: Final = 1.0
CHARS_PER_TOKEN: Final = 4
"""For an answer whose tokens the provider has not reported yet."""


WORKING: Final[frozenset[PublicStatus]] = frozenset({"pending", "running", "interrupting"})


class Work(Struct, frozen=True):
    """The tokens of the running turn. `is_estimated`: the provider has not counted some of them."""

    began_at: datetime | None
    read: int = 0
    written: int = 0
    is_estimated: bool = False


def work_of(chat: ShownChat) -> Work | None:
    """None while the chat does not work."""
    if chat.status not in WORKING:
        return None
    began_at, read, written = None, 0, 0
    for message in reversed(chat.messages):
        if message.role == "user":
            began_at = message.created_at
            break
        if (usage := message.usage) is not None:
            cached = usage.cache_read_tokens + usage.cache_creation_tokens
            read += usage.input_tokens + cached
            written += usage.output_tokens
    parts = () if chat.live is None else chat.live.parts
    chars = sum(len(one.text) for one in parts if isinstance(one, TextPart | ReasoningPart))
    live = chars // CHARS_PER_TOKEN
    return Work(began_at, read, written + live, is_estimated=live > 0)


def work_text(work: Work, now: datetime) -> str:
    passed = 0 if work.began_at is None else max(int((now - work.began_at).total_seconds()), 0)
    minutes, seconds = divmod(passed, 60)
    hours, minutes = divmod(minutes, 60)
    time = f"{minutes}m {seconds}s" if minutes else f"{seconds}s"
    time = f"{hours}h {minutes}m" if hours else time
    about = "~" if work.is_estimated else ""
    tokens = [f"{size_text(work.read)} tokens in"] if work.read else []
    tokens += [f"{about}{size_text(work.written)} tokens out"] if work.written else []
    return " · ".join((f"Working for {time}", *tokens))


def _turn_of(chat: ShownChat | None) -> object:
    """Changes with the chat and with the messages of the turn: then the line is drawn at once."""
    return None if chat is None else (chat.chat_id, chat.status in WORKING, len(chat.messages))


class WorkLine(Static):
    """Hidden, and without a timer, while the chat does not work."""

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self.display = False
        self._chat: ShownChat | None = None
        self._timer: Timer | None = None

    def show(self, chat: FollowedChat | None) -> None:
        shown = None if chat is None or chat.gone else chat.shown
        is_working = shown is not None and shown.status in WORKING
        before, self._chat = self._chat, shown
        if self._timer is not None and not is_working:
            self._timer.stop()
            self._timer = None
        elif is_working and self._timer is None:
            self._timer = self.set_interval(TICK_S, self._tick)
        if is_working and _turn_of(before) != _turn_of(shown):
            self._tick()
        self.display = is_working

    def _tick(self) -> None:
        work = None if self._chat is None else work_of(self._chat)
        if work is not None:
            self.update(work_text(work, session_of(self).clock.now()))


# What is said about the connection to the server while it is not open.


def follow_state(host: DOMNode, show: Callable[[], None]) -> Callable[[], None]:
    """Call `show` in a task of the app, now and after every change of the connection; the returned
    function stops that. The connection calls its listeners in its own task."""
    host.call_later(show)

    def changed() -> None:
        host.call_later(show)

    return session_of(host).connection.on_state(changed)


class ConnectionBanner(Static):
    """Shown from the loss of the connection until it is open again."""

    def __init__(self) -> None:
        super().__init__("", markup=False)
        self.display = False
        self._stop: Callable[[], None] | None = None

    def on_mount(self) -> None:
        self._stop = follow_state(self, self.show_state)
        self.set_interval(TICK_S, self.show_state)

    def on_unmount(self) -> None:
        if self._stop is not None:
            self._stop()

    def on_click(self) -> None:
        session_of(self).connection.retry_now()

    def show_state(self) -> None:
        session = session_of(self)
        connection = session.connection
        match connection.state:
            case "open" | "signed_out":
                self.display = False
            case "waiting":
                self.update(waiting_text(connection, session.clock.now()))
                self.display = True
            case "connecting":
                self.update("Not connected. Chats go on; trying now")


def waiting_text(connection: Connection, now: datetime) -> str:
    retry_at = connection.retry_at or now
    left = max(round((retry_at - now).total_seconds()), 0)
    why = safe_text(connection.problem).rstrip(".") or "the connection was lost"
    return f"Not connected: {why}. Chats go on; next try in {left} s (F5: now)"


def connection_word(connection: Connection, url: str, *, is_short: bool) -> str:
    """The word about the connection at the end of the last line."""
    host = safe_text(urlsplit(url).netloc)
    match connection.state:
        case "open":
            return "●" if is_short else f"● {host}"
        case "connecting":
            return "◌" if is_short else f"◌ {host}"
        case "waiting":
            return "✗ offline" if is_short else f"✗ {host}"
        case "signed_out":
            return "✗ signed out"


# The last line of the terminal: the main keys of the place with the focus, and the connection.
#
# A sentence about what a key has just done takes the place of the keys for some seconds.

SAY_S: Final = 3.0
WIDE_FROM: Final = 100
"""Columns from which on the name of the server is shown."""


class StatusLine(Horizontal):
    def __init__(self) -> None:
        super().__init__()
        self._timer: Timer | None = None
        self._stop: Callable[[], None] | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="status-words", markup=False)
        yield Footer(show_command_palette=False, compact=True)
        yield Static("", id="connection-word", markup=False)

    def on_mount(self) -> None:
        self._show_words("")
        self._stop = follow_state(self, self.show_connection)

    def on_unmount(self) -> None:
        if self._stop is not None:
            self._stop()

    def on_resize(self) -> None:
        self.show_connection()

    def say(self, text: str) -> None:
        self._show_words(text)
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(SAY_S, lambda: self._show_words(""))

    def show_connection(self) -> None:
        session = session_of(self)
        word = self.query_one("#connection-word", Static)
        is_short = self.size.width < WIDE_FROM
        word.update(connection_word(session.connection, session.server.url, is_short=is_short))
        word.set_class(session.connection.state in ("waiting", "signed_out"), "lost")

    def _show_words(self, text: str) -> None:
        words = self.query_one("#status-words", Static)
        words.update(text)
        words.display = bool(text)
        self.query_one(Footer).display = not text


# What is shown instead of messages while no chat is open: what there is to try.


class DemoPrompt(Struct, frozen=True):
    title: str
    text: str
    prompt: str


DEMOS: Final = (
    DemoPrompt(
        "Fix a failing test",
        "It writes a small project, runs its tests, finds the bug and fixes it.",
        "fix the failing test",
    ),
    DemoPrompt(
        "Lose a worker",
        "A long story: kill the server in mid-sentence, and see it go on.",
        "tell me a long story",
    ),
    DemoPrompt(
        "Work with subagents",
        "Two agents look at the code and the tests at the same time, and report.",
        "review this with subagents",
    ),
)
"""The demos of the page's first screen (`ui/src/demo`); the demo model has a script for each."""


class Welcome(Vertical):
    """The demos are offered while there is no chat yet; later the empty chat is enough."""

    def compose(self) -> ComposeResult:
        with Vertical(id="welcome-box"):
            yield Static("chatd", id="welcome-name", markup=False)
            yield Static("What should it do?", id="welcome-text", markup=False)
            yield OptionList(*map(_option, DEMOS), id="welcome-demos", compact=True)
            yield Static(
                "Write below, or Shift-Tab to a demo: no key, scripted answers.",
                id="welcome-hint",
                markup=False,
            )

    def show_demos(self, *, wanted: bool) -> None:
        self.query_one("#welcome-demos").display = wanted
        self.query_one("#welcome-hint").display = wanted

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        demo = DEMOS[event.option_index]
        self.run_worker(partial(self._start, demo.prompt), group="demo", exclusive=True)

    async def _start(self, prompt: str) -> None:
        with telling_errors(self):
            chat = await session_of(self).api.create_chat(Draft(content=(TextInput(prompt),)))
            self.post_message(OpenChat(chat.id))


def _option(demo: DemoPrompt) -> Option:
    return Option(Text.assemble((demo.title, "bold"), "\n", (demo.text, "dim")))
