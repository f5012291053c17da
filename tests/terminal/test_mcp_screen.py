"""MCP servers in the terminal: chosen for a chat, connected by OAuth and disconnected."""

from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.client.resources import (
    McpConnection,
    McpServer,
    McpTrial,
    McpTrialTool,
    WorkspaceMcpServer,
)
from chatd.domain.ids import McpServerId
from chatd.settings.schema import McpSettings, Settings
from chatd.terminal.screens.mcp_screen import (
    McpScreen,
    is_used,
    row_of,
    trial_text,
    with_server,
    workspace_text,
)
from tests.support.mcp.authorization_server import (
    AuthorizationServer,
    authorization_server,
    plain_resource,
)
from tests.support.terminal import (
    SMALL,
    TerminalServer,
    run_terminal,
    screen_text,
    serve_terminal,
    until,
    until_shown,
)

FORCED = McpServer(id=McpServerId(UUID(int=1)), slug="a", availability="force_on")
DEFAULT = McpServer(id=McpServerId(UUID(int=2)), slug="b", availability="default_on")
CHOSEN = McpServer(id=McpServerId(UUID(int=3)), slug="c", availability="default_off")
ALL = (FORCED, DEFAULT, CHOSEN)


def test_forced_servers_are_used_and_never_part_of_a_choice() -> None:
    assert [is_used(one, None) for one in ALL] == [True, True, False]
    assert [is_used(one, ()) for one in ALL] == [True, False, False]
    assert with_server(ALL, None, CHOSEN) == (DEFAULT.id, CHOSEN.id)
    assert with_server(ALL, None, DEFAULT) == ()
    assert with_server(ALL, (CHOSEN.id,), DEFAULT) == (DEFAULT.id, CHOSEN.id)


def test_a_row_says_why_a_connection_ended() -> None:
    ended = McpConnection(state="failed", reason="The grant was\x1b[31m revoked.")
    row = row_of(replace(CHOSEN, connection=ended), None, has_chat=True)
    assert (row.mark, row.state, row.detail) == (
        "[ ]",
        "Connection ended",
        "The grant was revoked.",
    )
    assert row_of(FORCED, None, has_chat=True).mark == " ● "


def test_a_test_says_how_many_tools_there_are() -> None:
    tools = (McpTrialTool(name="list"), McpTrialTool(name="drop", is_used=False))
    trial = McpTrial(ok=True, duration_ms=12, tools=tools)
    assert trial_text(CHOSEN, trial) == "c answered in 12 ms. 1 tool, 1 not allowed: list"
    assert trial_text(CHOSEN, McpTrial(problem="It refused.")) == "c: It refused."


@pytest.fixture
async def open_server(dsn: str, tmp_path: Path) -> AsyncGenerator[TerminalServer]:
    def change(settings: Settings) -> Settings:
        return replace(settings, mcp=McpSettings(private_hosts=("127.0.0.1",)))

    async with serve_terminal(dsn, tmp_path, change) as server:
        yield server


async def connect_in_a_browser(
    server: TerminalServer, server_id: object, authorization: AuthorizationServer
) -> None:
    """What the page does when its user chooses Connect."""
    async with server.http.post(f"/api/v1/mcp-servers/{server_id}/connect") as reply:
        assert reply.status == 200, await reply.text()
        cookie = reply.headers["set-cookie"].partition(";")[0]
        url = (await reply.json())["authorization_url"]
    back = urlsplit(await authorization.consent(url))
    headers = {"cookie": cookie, "accept": "text/html"}
    async with server.http.get(f"{back.path}?{back.query}", headers=headers) as reply:
        assert reply.status == 200, await reply.text()


async def test_a_server_is_chosen_connected_and_disconnected(open_server: TerminalServer) -> None:
    server = open_server
    chat_id = await server.create_chat("answer fast")
    async with authorization_server() as authorization, plain_resource(authorization) as url:
        body = {"slug": "notes", "url": url, "auth": "oauth2", "availability": "default_off"}
        made = await server.call("POST", "/mcp-server-configs", body)
        plain = {"slug": "plain", "url": url, "availability": "force_on"}
        await server.call("POST", "/mcp-server-configs", plain)
        async with run_terminal(server, chat_id, size=SMALL) as pilot:
            pilot.app.push_screen(McpScreen(chat_id, poll_s=0.01))
            await until_shown(pilot, "[ ] notes                    Not connected")
            assert "●  plain" in await until_shown(pilot, "every chat uses it")
            await pilot.press("space")
            await until_shown(pilot, "[x] notes")
            await pilot.press("down", "space")
            await until_shown(pilot, "an administrator has forced it on")
            await pilot.press("up", "c")
            shown = await until_shown(pilot, "Waiting for the connection")
            assert f"{server.address.url}/settings/connections" in shown
            await connect_in_a_browser(server, made["id"], authorization)
            await until_shown(pilot, "notes                    Connected")
            await pilot.press("d")
            await until_shown(pilot, "Disconnect notes?")
            await pilot.press("y")
            await until_shown(pilot, "notes                    Not connected")
            await until(pilot, lambda: "Disconnected." in screen_text(pilot))
    chat = await server.call("GET", f"/chats/{chat_id}")
    assert chat["mcp_server_ids"] == [made["id"]]
    assert authorization.active_refresh_tokens() == [], "revoked there"


async def test_waiting_for_a_connection_can_be_stopped(open_server: TerminalServer) -> None:
    server = open_server
    async with authorization_server() as authorization, plain_resource(authorization) as url:
        body = {"slug": "notes", "url": url, "auth": "oauth2"}
        await server.call("POST", "/mcp-server-configs", body)
        async with run_terminal(server, size=SMALL) as pilot:
            pilot.app.push_screen(McpScreen(None, poll_s=0.01))
            await until_shown(pilot, "Not connected")
            await pilot.press("space")
            await until_shown(pilot, "Open a chat first")
            await pilot.press("c")
            shown = await until_shown(pilot, "stops waiting")
            assert "opens" not in shown, "there is no desktop here"
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(pilot.app.screen, McpScreen))
            await pilot.press("t")
            await until_shown(pilot, "notes:")


def test_the_servers_of_a_workspace_are_listed_with_what_is_wrong_with_them() -> None:
    shown = workspace_text(
        [
            WorkspaceMcpServer(name="linear", tools=12),
            WorkspaceMcpServer(name="one\x1b[2J", tools=1),
            WorkspaceMcpServer(name="broken", error="the command npx was not found"),
        ]
    )
    assert shown.splitlines()[1:] == [
        "  linear  12 tools",
        "  one  1 tool",
        "  broken  cannot be used: the command npx was not found",
    ]
    assert workspace_text([]) == ""
    many = [WorkspaceMcpServer(name=str(number)) for number in range(20)]
    assert workspace_text(many).endswith("  and 8 more")
