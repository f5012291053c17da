"""Connects the user's account to an MCP server: shows and opens the page where that is done, and
waits until it is.

The browser that begins a connection must be the one that comes back from the authorization server,
so the connection is begun on the server's own page and not from here.
"""

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from chatd.client.desktop import open_browser
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import McpServer
from chatd.terminal.mcp.reading import read_servers
from chatd.terminal.mcp.servers import needs_connection
from chatd.terminal.safe_text import safe_line, safe_text
from chatd.terminal.session import app_of, session_of

CONNECTIONS_PAGE: Final = "/settings/connections"
POLL_S: Final = 2.0
PATIENCE_S: Final = 600.0
"""As long as the server waits for the browser to come back."""


class ConnectScreen(ModalScreen[bool]):
    """True: the account is connected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "copy", "Copy the address"),
        Binding("o", "open", "Open the browser"),
        Binding("r", "again", "Wait again"),
        Binding("escape,q", "cancel", "Stop waiting"),
    ]
    DEFAULT_CSS = """
    ConnectScreen #connect-page { color: $text-accent; margin: 1 0; }
    ConnectScreen #connect-state { color: $text-muted; }
    """

    def __init__(
        self, server: McpServer, *, poll_s: float = POLL_S, patience_s: float = PATIENCE_S
    ) -> None:
        super().__init__()
        self._server = server
        self._name = safe_line(server.display_name or server.slug, 60)
        self._poll_s = poll_s
        self._patience_s = patience_s
        self._state = Static(id="connect-state", markup=False)

    @property
    def page(self) -> str:
        return f"{session_of(self).server.url}{CONNECTIONS_PAGE}"

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(f"Connect {self._name}", classes="title", markup=False)
            yield Static(
                f"Sign in to chatd in a browser, on this page, and choose Connect at {self._name}."
                " Its tools then act with your account there.",
                markup=False,
            )
            yield Static(safe_text(self.page), id="connect-page", markup=False)
            yield self._state
            yield Static(id="connect-keys", classes="hint", markup=False)

    def on_mount(self) -> None:
        has_browser = session_of(self).machine.has_browser
        opens = " · o opens the browser again" if has_browser else ""
        keys = f"c copies the address{opens} · Esc stops waiting"
        self.query_one("#connect-keys", Static).update(keys)
        self.action_open()
        self.action_again()

    def action_copy(self) -> None:
        app_of(self).copy_to_clipboard(self.page)
        self.notify("Copied, if your terminal allows it.", markup=False)

    def action_open(self) -> None:
        """Not without a desktop: a browser in the terminal would take it from this program."""
        machine = session_of(self).machine
        if machine.has_browser:
            open_browser(self.page, machine.program_env)

    def action_again(self) -> None:
        self.run_worker(self._wait, group="wait", exclusive=True)

    def action_cancel(self) -> None:
        """A connection that is made later counts all the same."""
        self.dismiss(result=False)

    def _say(self, text: str) -> None:
        self._state.update(text)

    async def _wait(self) -> None:
        session = session_of(self)
        give_up_at = session.clock.monotonic() + self._patience_s
        self._say("Waiting for the connection…")
        while session.clock.monotonic() < give_up_at:
            if await self._is_connected():
                if self.is_current:
                    self.dismiss(result=True)
                return
            await session.clock.sleep(self._poll_s, "mcp_connect")
        self._say("Not connected within ten minutes. r waits again, Esc goes back.")

    async def _is_connected(self) -> bool:
        """A server that does not answer now may answer the next time."""
        try:
            servers = await read_servers(session_of(self).api)
        except (ApiError, ServerUnreachable) as error:
            self._say(f"Waiting; the last look failed: {safe_text(error.message)}")
            return False
        found = next((one for one in servers if one.id == self._server.id), None)
        if found is None:
            self._say("This server is not there any more. Esc goes back.")
            return False
        has_failed = found.connection.state == "failed"
        reason = safe_line(found.connection.reason or "", 300) if has_failed else ""
        self._say(f"Waiting for the connection… {reason}".rstrip())
        return not needs_connection(found)
