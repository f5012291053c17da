"""The MCP servers: which of them the chat uses, and the user's connections to them."""

from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from chatd.client.errors import ApiError, ServerUnreachable
from chatd.client.mcp_resources import McpChat, McpTrial
from chatd.client.resources import Chat, McpDisconnectAnswer, McpServer
from chatd.domain.ids import ChatId, McpServerId
from chatd.terminal.dialogs import Question
from chatd.terminal.keys import bindings_of
from chatd.terminal.mcp.connect_screen import POLL_S, ConnectScreen
from chatd.terminal.mcp.reading import read_servers
from chatd.terminal.mcp.servers import (
    NAME_CELLS,
    NO_SERVERS,
    Chosen,
    can_disconnect,
    needs_connection,
    row_of,
    trial_text,
    with_server,
    workspace_text,
)
from chatd.terminal.safe_text import safe_line, safe_text
from chatd.terminal.session import app_of, session_of


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
        self._chat: McpChat | None = None
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
                self._chat = await api.get(f"/chats/{self._chat_id}", McpChat)
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
        path = f"/chats/{self._chat_id}"
        try:
            while self._unsaved:
                self._unsaved = False
                body = {"mcp_server_ids": self._chosen}
                await session_of(self).api.patch(path, body, Chat)
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

        def decide(is_wanted: bool | None) -> None:  # noqa: FBT001
            if is_wanted:
                self.run_worker(partial(self._disconnect, server), group="disconnect")

        question = Question(text, yes="Disconnect", is_dangerous=True)
        app_of(self).push_screen(question, decide)

    async def _disconnect(self, server: McpServer) -> None:
        path = f"/mcp-servers/{server.id}/connection"
        try:
            ended = await session_of(self).api.delete_for(path, McpDisconnectAnswer)
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
        path = f"/mcp-server-configs/{server.id}/test"
        try:
            trial = await session_of(self).api.post(path, None, McpTrial)
        except (ApiError, ServerUnreachable) as error:
            self._say(error.message)
        else:
            self._say(trial_text(server, trial))
