"""The last line of the terminal: the main keys of the place with the focus, and the connection."""

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Footer, Static

from chatd.terminal.connection_banner import connection_word
from chatd.terminal.session import session_of


class StatusLine(Horizontal):
    def compose(self) -> ComposeResult:
        yield Footer(show_command_palette=False, compact=True)
        yield Static("", id="connection-word", markup=False)

    def show_connection(self) -> None:
        session = session_of(self)
        word = self.query_one("#connection-word", Static)
        word.update(connection_word(session.connection, session.server.url))
        word.set_class(session.connection.state in ("waiting", "signed_out"), "lost")
