"""Servers that do not behave: they accept and never answer, redirect, compress, or refuse."""

import asyncio
import gzip
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Answer = Callable[[bytes], bytes | None]


@asynccontextmanager
async def raw_server(answer: Answer) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Replies to each request with `answer(head)`; None: never. Yields its URL and the heads."""
    heads: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                heads.append(head)
                length = _content_length(head)
                await reader.readexactly(length)
                reply = answer(head)
                if reply is not None:
                    writer.write(reply)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/mcp", heads
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


def never(head: bytes) -> None:
    del head


def reply(status: str, body: bytes = b"", *headers: str) -> Callable[[bytes], bytes]:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    whole = ("\r\n".join(lines) + "\r\n\r\n").encode() + body
    return lambda _head: whole


def compressed(megabytes: int) -> Callable[[bytes], bytes]:
    body = gzip.compress(b" " * (megabytes * 1024 * 1024))
    return reply("200 OK", body, "content-type: application/json", "content-encoding: gzip")


@asynccontextmanager
async def impatient_gateway(status: int, body: str, media_type: str) -> AsyncGenerator[str]:
    """Before a server with the tool `bump`: calls get this reply. Yields its URL."""
    info = {"name": "slow", "version": "1"}
    version: dict[str, object] = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": info,
    }
    tools = [{"name": "bump", "inputSchema": {"type": "object"}}]
    results: dict[object, object] = {"initialize": version, "tools/list": {"tools": tools}}

    async def handle(request: web.Request) -> web.Response:
        message: dict[str, Any] = await request.json() if request.method == "POST" else {}
        method, number = message.get("method"), message.get("id")
        if method == "tools/call":
            return web.Response(status=status, text=body, content_type=media_type)
        if method in results:
            return web.json_response({"jsonrpc": "2.0", "id": number, "result": results[method]})
        return web.Response(status=202 if number is None and method else 405)

    app = web.Application()
    app.router.add_route("*", "/mcp", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()
