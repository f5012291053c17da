"""The screen of MCP servers: which ones a chat uses, and connecting an account."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final, Literal

from msgspec import Struct
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from chatd.client.desktop import open_browser
from chatd.client.drafts import ChatChange
from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.resources import (
    ChatDetail,
    McpServer,
    McpTrial,
    WorkspaceMcpServer,
)
from chatd.client.server import ServerApi
from chatd.domain.ids import ChatId, McpServerId
from chatd.terminal.dialogs import Question, ask
from chatd.terminal.keys import bindings_of
from chatd.terminal.safe_text import safe_line, safe_text
from chatd.terminal.session import app_of, session_of

MAX_SERVERS: Final = 1000


async def read_servers(api: ServerApi) -> tuple[McpServer, ...]:
    """All servers by name. Raises ApiError and ServerUnreachable."""
    found = await api.list_mcp_servers().items(MAX_SERVERS)
    return tuple(sorted(found, key=lambda one: (one.display_name or one.slug).casefold()))


# What the list of MCP servers shows, and what a choice means. Pure.

Tone = Literal["success", "warning", "error", "muted"]
Chosen = Sequence[McpServerId] | None
"""The servers of a chat; None: those that are on by default."""

NAME_CELLS: Final = 24
MAX_TOOL_NAMES: Final = 12
NO_SERVERS: Final = "No MCP servers are set up. An administrator can add them."
WORKSPACE_NOTE: Final = "Of the workspace (its .mcp.json), used by all its chats:"
MAX_WORKSPACE_SERVERS: Final = 12
_WORDS: Final[dict[str, tuple[str, Tone]]] = {
    "ready": ("Ready", "success"),
    "connected": ("Connected", "success"),
    "needs_connect": ("Not connected", "warning"),
    "failed": ("Connection ended", "error"),
}


class ServerRow(Struct, frozen=True, kw_only=True):
    """One line of the list; `detail` stands below it."""

    mark: str
    name: str
    state: str
    tone: Tone
    note: str
    detail: str


def is_used(server: McpServer, chosen: Chosen) -> bool:
    """Whether it is used: forced, chosen, or on by default if nothing was chosen."""
    if server.availability == "force_on":
        return True
    return server.availability == "default_on" if chosen is None else server.id in chosen


def with_server(
    servers: Sequence[McpServer], chosen: Chosen, server: McpServer
) -> tuple[McpServerId, ...]:
    """The whole choice after this server was switched. Forced ones are never part of it."""
    return tuple(
        one.id
        for one in servers
        if one.availability != "force_on" and is_used(one, chosen) != (one.id == server.id)
    )


def needs_connection(server: McpServer) -> bool:
    return server.connection.state in ("needs_connect", "failed")


def can_disconnect(server: McpServer) -> bool:
    """Whether there is a record to remove; an ended connection has one too."""
    return server.auth == "oauth2" and server.connection.state in ("connected", "failed")


def row_of(server: McpServer, chosen: Chosen, *, has_chat: bool) -> ServerRow:
    state, tone = _WORDS.get(server.connection.state, (server.connection.state, "muted"))
    is_forced = server.availability == "force_on"
    mark = "[x]" if is_used(server, chosen) else "[ ]"
    notes = {
        "force_on": "every chat uses it",
        "default_on": "on by default",
        "default_off": "",
    }
    reason = server.connection.reason if server.connection.state == "failed" else ""
    return ServerRow(
        mark="   " if not has_chat else " ● " if is_forced else mark,
        name=safe_line(server.display_name or server.slug, NAME_CELLS),
        state=safe_line(state, NAME_CELLS),
        tone=tone,
        note=notes.get(server.availability, ""),
        detail=safe_line(reason or server.description or "", 400),
    )


def workspace_text(servers: Sequence[WorkspaceMcpServer]) -> str:
    """The servers of the running workspace, one a line. Empty without one."""
    if not servers:
        return ""
    lines = [f"  {_workspace_line(one)}" for one in servers[:MAX_WORKSPACE_SERVERS]]
    more = len(servers) - MAX_WORKSPACE_SERVERS
    return "\n".join([WORKSPACE_NOTE, *lines, *([f"  and {more} more"] if more > 0 else [])])


def _workspace_line(server: WorkspaceMcpServer) -> str:
    name = safe_line(server.name, NAME_CELLS)
    if server.error:
        return f"{name}  cannot be used: {safe_line(server.error, 200)}"
    return f"{name}  {server.tools} tool{'' if server.tools == 1 else 's'}"


def trial_text(server: McpServer, trial: McpTrial) -> str:
    """What a test found, in one or two lines."""
    name = safe_line(server.display_name or server.slug, NAME_CELLS)
    if not trial.ok:
        return f"{name}: {safe_line(trial.problem, 600)}"
    used = [tool.name for tool in trial.tools if tool.is_used]
    shown = ", ".join(safe_line(one, 40) for one in used[:MAX_TOOL_NAMES])
    more = f" and {len(used) - MAX_TOOL_NAMES} more" if len(used) > MAX_TOOL_NAMES else ""
    count = f"{len(used)} tool{'' if len(used) == 1 else 's'}"
    left = f", {len(trial.tools) - len(used)} not allowed" if len(used) < len(trial.tools) else ""
    names = f": {shown}{more}" if used else ""
    return f"{name} answered in {trial.duration_ms} ms. {count}{left}{names}"


# Connects the user's account to an MCP server: shows and opens the page where that is done, and
# waits until it is.
#
# The browser that begins a connection must be the one that comes back from the authorization
# server, so the connection is begun on the server's own page and not from here.

CONNECTIONS_PAGE: Final = "/settings/connections"
POLL_S: Final = 2.0
PATIENCE_S: Final = 600.0
"""As long as the server itself waits for the browser to come back."""


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
        """Only with a desktop: a browser in the terminal would take it from this program."""
        machine = session_of(self).machine
        if machine.has_browser:
            open_browser(self.page, machine.program_env)

    def action_again(self) -> None:
        self.run_worker(self._wait, group="wait", exclusive=True)

    def action_cancel(self) -> None:
        """Stop waiting. A connection that is made later still counts."""
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


# The MCP servers: which of them the chat uses, and the user's connections to them.


class McpScreen(Screen[None]):
    """Without a chat the servers can be connected, and not chosen."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_of("mcp")
    DEFAULT_CSS = """
    McpScreen #mcp-head { height: 1; padding: 0 1; background: $panel; text-style: bold; }
    McpScreen #mcp-list, McpScreen #mcp-list:focus { height: auto; max-height: 80%;
        border: none; padding: 1 1 0 1; background: $background; background-tint: transparent; }
    McpScreen #mcp-list > .option-list--option-highlighted { background: $selected;
        color: $foreground; text-style: none; }
    McpScreen .mcp-text { padding: 1 2 0 2; color: $text-muted; height: auto; }
    McpScreen #mcp-found { color: $foreground; }
    """

    def __init__(self, chat_id: ChatId | None, *, poll_s: float = POLL_S) -> None:
        super().__init__()
        self._chat_id = chat_id
        self._poll_s = poll_s
        self._chat: ChatDetail | None = None
        self._servers: tuple[McpServer, ...] = ()
        self._chosen: Chosen = None
        self._unsaved = False
        self._is_saving = False
        # Held, and not searched for: a request may end after the screen was closed.
        self._head = Static("MCP servers", id="mcp-head", markup=False)
        self._list = OptionList(id="mcp-list", markup=False)
        self._below = Static("Reading…", classes="mcp-text", markup=False)
        self._said = Static(id="mcp-found", classes="mcp-text", markup=False)

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._list
        yield self._below
        yield self._said
        yield Footer()

    def on_mount(self) -> None:
        self._list.focus()
        self.action_read()

    # What is shown

    def action_read(self) -> None:
        self.run_worker(self._read, group="read", exclusive=True)

    async def _read(self) -> None:
        api = session_of(self).api
        try:
            if self._chat_id is not None:
                self._chat = await api.get_chat(self._chat_id)
            self._servers = await read_servers(api)
        except (ApiError, ServerUnreachable) as error:
            self._note(f"{error.message} r reads again.")
            return
        if self._chat is not None and not self._unsaved:
            self._chosen = self._chat.mcp_server_ids
        self._draw()

    def _draw(self) -> None:
        listed, at = self._list, self._list.highlighted
        listed.clear_options()
        listed.add_options([Option(self._line(server)) for server in self._servers])
        listed.highlighted = (at or 0) if self._servers else None
        listed.display = bool(self._servers)
        title = "" if self._chat is None else f" of «{safe_line(self._chat.title, 60)}»"
        self._head.update(f"MCP servers{title}")
        of_workspace = () if self._chat is None else self._chat.workspace_mcp_servers
        texts = ("" if self._servers else NO_SERVERS, workspace_text(of_workspace))
        self._note("\n\n".join(text for text in texts if text))

    def _line(self, server: McpServer) -> Content:
        row = row_of(server, self._chosen, has_chat=self._chat is not None)
        note = f"  {row.note}" if row.note else ""
        detail = f"\n    {row.detail}" if row.detail else ""
        return Content.assemble(
            f"{row.mark} ",
            (f"{row.name:<{NAME_CELLS}} ", "bold"),
            (row.state, f"$text-{row.tone}"),
            (f"{note}{detail}", "$text-muted"),
        )

    def _note(self, text: str) -> None:
        self._below.update(safe_text(text))

    def _say(self, text: str) -> None:
        self._said.update(safe_text(text))

    @property
    def _server(self) -> McpServer | None:
        """The one under the cursor."""
        at = self._list.highlighted
        return self._servers[at] if at is not None and at < len(self._servers) else None

    # Which servers the chat uses

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_choose()

    def action_choose(self) -> None:
        server = self._server
        if server is None:
            return
        if self._chat is None:
            self._say("Open a chat first: servers are chosen for a chat.")
        elif self._chat.is_owner is False:
            self._say("Only the owner of the chat chooses its servers.")
        elif server.availability == "force_on":
            self._say("Every chat uses this server: an administrator has forced it on.")
        else:
            self._choose(with_server(self._servers, self._chosen, server))

    def action_use_default(self) -> None:
        if self._chat is not None and self._chat.is_owner is not False:
            self._choose(None)

    def _choose(self, chosen: tuple[McpServerId, ...] | None) -> None:
        """Shown at once; one request at a time, and the last choice is the last that is sent."""
        self._chosen, self._unsaved = chosen, True
        self._say("")
        self._draw()
        if not self._is_saving:
            self._is_saving = True
            self.run_worker(self._save, group="save")

    async def _save(self) -> None:
        chat_id = self._chat_id
        assert chat_id is not None
        try:
            while self._unsaved:
                self._unsaved = False
                change = ChatChange(mcp_server_ids=self._chosen)
                await session_of(self).api.amend_chat(chat_id, change)
        except (ApiError, ServerUnreachable) as error:
            self._unsaved = False
            self._say(f"Not saved: {error.message}")
            self.action_read()
        finally:
            self._is_saving = False

    # Connections

    def action_connect(self) -> None:
        server = self._server
        if server is None:
            return
        if server.auth != "oauth2":
            self._say("This server needs no connection of yours.")
        elif not needs_connection(server):
            self._say("You are connected. d ends the connection.")
        else:
            screen = ConnectScreen(server, poll_s=self._poll_s)
            app_of(self).push_screen(screen, self._on_connected)

    def _on_connected(self, is_connected: bool | None) -> None:  # noqa: FBT001
        if is_connected:
            self._say("Connected. Your chats can use it from their next step on.")
        self.action_read()

    def action_disconnect(self) -> None:
        server = self._server
        if server is None:
            return
        if not can_disconnect(server):
            self._say("You have no connection to this server.")
            return
        text = (
            f"Disconnect {server.display_name or server.slug}? Your chats can no longer use its"
            " tools. The tokens are deleted here and revoked there."
        )
        question = Question(text, yes="Disconnect", is_dangerous=True)
        disconnect = partial(self._disconnect, server)
        ask(self, question, lambda: self.run_worker(disconnect, group="disconnect"))

    async def _disconnect(self, server: McpServer) -> None:
        try:
            ended = await session_of(self).api.disconnect_mcp_server(server.id)
        except (ApiError, ServerUnreachable) as error:
            self._say(f"Not disconnected: {error.message}")
        else:
            failure = ended.failure
            self._say(f"Disconnected. Not revoked there: {failure}" if failure else "Disconnected.")
        self.action_read()

    # Tests

    def action_test(self) -> None:
        server = self._server
        if server is not None:
            self._say("Connecting; this takes at most half a minute…")
            self.run_worker(partial(self._test, server), group="test", exclusive=True)

    async def _test(self, server: McpServer) -> None:
        try:
            trial = await session_of(self).api.test_mcp_server(server.id)
        except (ApiError, ServerUnreachable) as error:
            self._say(error.message)
        else:
            self._say(trial_text(server, trial))
