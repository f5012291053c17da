"""The work of `chatd mcp list`, `connect` and `disconnect`: the user's MCP servers.

A connection begins in the browser that comes back from the authorization server: so `connect` opens
the page of the server where the user connects, and waits until it is done.
"""

import asyncio
import os
import sys
from contextlib import suppress
from typing import Final

from chatd.cli.api_session import ExitCode, UsageProblem, patient
from chatd.cli.output import print_json, print_notice, print_table
from chatd.client.desktop import can_open_browser, open_browser
from chatd.client.resources import McpServer
from chatd.client.server import ServerApi

CONNECTIONS_PAGE: Final = "/settings/connections"
MAX_SERVERS: Final = 500
POLL_INTERVAL_S: Final = 2.0
CONNECTED: Final = frozenset({"ready", "connected"})
_HEADINGS: Final = ("SLUG", "NAME", "CHATS USE IT", "CONNECTION", "")
_AVAILABILITY: Final = {
    "force_on": "always",
    "default_on": "by default",
    "default_off": "if chosen",
}
_STATES: Final = {
    "ready": "not needed",
    "connected": "connected",
    "needs_connect": "not connected",
    "failed": "failed",
}


async def list_servers(api: ServerApi, *, as_json: bool) -> None:
    listed = api.list_mcp_servers()
    if as_json:
        print_json(await listed.raw_items(MAX_SERVERS))
        return
    print_table(_HEADINGS, [server_row(server) for server in await listed.items(MAX_SERVERS)])


def server_row(server: McpServer) -> tuple[str, ...]:
    return (
        server.slug,
        server.display_name,
        _AVAILABILITY.get(server.availability, server.availability),
        _STATES.get(server.connection.state, server.connection.state),
        server.connection.reason or server.description,
    )


async def connect(
    api: ServerApi, slug: str, *, timeout_s: float, may_open: bool, as_json: bool
) -> ExitCode:
    server = await _find(api, slug)
    if server.connection.state not in CONNECTED:
        _show_page(api, server, may_open=may_open)
        found = await _wait_until_connected(api, slug, timeout_s)
        if found is None:
            print_notice("chatd: the time is over, and it is not connected yet")
            return ExitCode.TIME_OUT
        server = found
    if as_json:
        print_json(server)
    else:
        print_notice(f"{server.slug}: {_STATES[server.connection.state]}")
    return ExitCode.DONE


async def disconnect(api: ServerApi, slug: str, *, as_json: bool) -> None:
    server = await _find(api, slug)
    ended = await api.disconnect_mcp_server(server.id)
    if as_json:
        print_json(ended)
        return
    print_notice(f"{slug}: disconnected; the tokens are deleted here")
    if ended.failure:
        print_notice(f"  They were not revoked there: {ended.failure}")


def _show_page(api: ServerApi, server: McpServer, *, may_open: bool) -> None:
    page = f"{api.server.url}{CONNECTIONS_PAGE}"
    name = server.display_name or server.slug
    print_notice(f"Sign in there and choose Connect at {name}:\n  {page}")
    if server.connection.state == "failed" and server.connection.reason:
        print_notice(f"  ({server.connection.reason})")
    is_desktop = can_open_browser(
        os.environ,
        platform=sys.platform,
        is_terminal=sys.stderr.isatty(),
        is_wanted=may_open,
    )
    if is_desktop:
        open_browser(page, os.environ)


async def _wait_until_connected(api: ServerApi, slug: str, timeout_s: float) -> McpServer | None:
    """None if the time is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                await asyncio.sleep(POLL_INTERVAL_S)
                server = await _find(patient(api), slug)
                if server.connection.state in CONNECTED:
                    return server
    return None


async def _find(api: ServerApi, slug: str) -> McpServer:
    """Raises UsageProblem."""
    servers = await api.list_mcp_servers().items(MAX_SERVERS)
    for server in servers:
        if server.slug == slug:
            return server
    there = ", ".join(sorted(server.slug for server in servers)) or "none"
    raise UsageProblem(f"there is no MCP server {slug!r}; there are: {there}")
