"""The last line of the terminal: the main keys of the place with the focus, and the connection.

A sentence about what a key has just done takes the place of the keys for some seconds.
"""

from collections.abc import Callable
from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.timer import Timer
from textual.widgets import Footer, Static

from chatd.terminal.connection_banner import connection_word, follow_state
from chatd.terminal.session import session_of

SAY_S: Final = 3.0
WIDE_FROM: Final = 100
"""Columns from which there is room for the name of the server."""


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
