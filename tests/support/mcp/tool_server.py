"""An MCP server of the official SDK: on standard input and output with
`python -m tests.support.mcp.tool_server stdio`, over HTTP as a process of `server_forks`.

Its tools do what servers do well and badly: `/calls` tells how often each ran.
"""

import argparse
import asyncio
import os
import socket
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

PNG = b"\x89PNG\r\n\x1a\n a picture"
READ = ToolAnnotations(read_only_hint=True)


def build_server(many: int = 0) -> MCPServer:
    server = MCPServer("tool server", log_level="CRITICAL")
    calls: Counter[str] = Counter()
    add_plain_tools(server, calls)
    add_bad_tools(server, calls)
    add_talking_tools(server)
    for number in range(many):
        server.add_tool(_numbered(number), name=f"tool_{number:04}", description="x" * 200)

    @server.custom_route("/calls", methods=["GET"])
    async def count(_: Request) -> Response:
        return JSONResponse(dict(calls))

    return server


def add_plain_tools(server: MCPServer, calls: Counter[str]) -> None:
    @server.tool(annotations=READ)
    def echo(text: str) -> str:
        """Says the text again."""
        calls["echo"] += 1
        return f"you said {text}"

    @server.tool()
    def bump(amount: int = 1) -> str:
        """Counts."""
        calls["bump"] += 1
        return f"bumped by {amount}"

    @server.tool(annotations=READ, structured_output=False)
    def picture() -> ImageContent:
        """A picture."""
        return ImageContent(type="image", data=b64encode(PNG).decode(), mime_type="image/png")

    @server.tool(annotations=READ, structured_output=False)
    def everything() -> CallToolResult:
        """All kinds of content."""
        data = b64encode(b"sound").decode()
        page = TextResourceContents(uri="note://a", text="a page")
        blob = BlobResourceContents(uri="note://b", blob=data, mime_type="application/zip")
        return CallToolResult(
            content=[
                TextContent(type="text", text="a text"),
                AudioContent(type="audio", data=data, mime_type="audio/wav"),
                EmbeddedResource(type="resource", resource=page),
                EmbeddedResource(type="resource", resource=blob),
                ResourceLink(
                    type="resource_link", name="Log", uri="note://log", description="today"
                ),
            ]
        )


def add_bad_tools(server: MCPServer, calls: Counter[str]) -> None:
    released = asyncio.Event()

    @server.tool(annotations=READ)
    def fail() -> str:
        """Fails."""
        raise ValueError("no such row")

    @server.tool()
    async def hang(ctx: Context) -> str:
        """Waits until it is released."""
        calls["hang"] += 1
        try:
            await released.wait()
        except asyncio.CancelledError:
            calls["hang cancelled"] += 1
            raise
        return "released"

    @server.tool()
    def die() -> str:
        """Ends the server's process."""
        os._exit(3)

    @server.tool(annotations=READ)
    def huge(megabytes: int) -> str:
        """A long text."""
        return "x" * (megabytes * 1024 * 1024)

    @server.custom_route("/release", methods=["POST"])
    async def release(_: Request) -> Response:
        released.set()
        return JSONResponse({})


def add_talking_tools(server: MCPServer) -> None:
    @server.tool(annotations=READ)
    async def steps(ctx: Context) -> str:
        """Tells its progress."""
        for number in (1, 2):
            await ctx.report_progress(number, 2, f"step {number}")
        return "done"

    @server.tool(annotations=READ)
    async def grow(ctx: Context) -> str:
        """Adds a tool."""
        server.add_tool(lambda: "late", name="late", description="Came later.")
        await ctx.notify_tools_changed()
        await ctx.session.send_tool_list_changed()
        return "grown"

    @server.tool(annotations=READ)
    def who(ctx: Context) -> str:
        """The caller's credential."""
        return str((ctx.headers or {}).get("authorization"))


def _numbered(number: int) -> Any:
    def numbered(first: str, second: int = 0) -> str:
        return f"{number} {first} {second}"

    return numbered


class TokenGate:
    """401 for all but the token, if there is one."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"bearer {token}".encode()
        self._is_open = not token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", [])).get(b"authorization", b"").lower()
        is_control = scope.get("path") in ("/calls", "/release")
        if self._is_open or is_control or scope["type"] != "http" or given == self._expected:
            await self._app(scope, receive, send)
            return
        await JSONResponse({"error": "unauthorized"}, 401)(scope, receive, send)


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=["http", "json", "sse", "stdio"])
    parser.add_argument("--token", default="")
    parser.add_argument("--many", type=int, default=0)
    parser.add_argument("--port", type=int, default=0)
    return parser.parse_args(words)


def listen(options: argparse.Namespace) -> socket.socket:
    return socket.create_server(("127.0.0.1", options.port))


def build_web_server(options: argparse.Namespace) -> uvicorn.Server:
    server = build_server(options.many)
    app: ASGIApp
    if options.transport == "sse":
        app = server.sse_app()
    else:
        app = server.streamable_http_app(json_response=options.transport == "json")
    config = uvicorn.Config(TokenGate(app, options.token), log_level="critical", lifespan="on")
    return uvicorn.Server(config)


if __name__ == "__main__":
    build_server(read_options().many).run("stdio")
