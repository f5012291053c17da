"""What is said about the connection to the server while it is not open."""

from collections.abc import Callable
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

from textual.dom import DOMNode
from textual.widgets import Static

from chatd.client.connection import Connection
from chatd.terminal.safe_text import safe_text
from chatd.terminal.session import session_of

TICK_S: Final = 1.0


def follow_state(host: DOMNode, show: Callable[[], None]) -> Callable[[], None]:
    """Call `show` in a task of the app, now and after every change of the connection; returns how
    to stop it. The connection calls its listeners in its own task."""
    host.call_later(show)
    return session_of(host).connection.on_state(lambda: _call(host, show))


def _call(host: DOMNode, show: Callable[[], None]) -> None:
    host.call_later(show)


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
    """For the end of the last line."""
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
