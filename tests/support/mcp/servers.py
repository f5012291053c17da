"""`chatd` processes behind one address that does not change, and clients of the official SDK."""

import asyncio
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client import stdio
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from tests.support.chaos.servers import TOKEN
from tests.support.providers.openai_chat import DONE, FakeCompatible, chunk
from tests.support.providers.server import Gate, RecordedRequest, Reply

CHATD: Final = Path(sys.executable).with_name("chatd")
Mode = Literal["auto", "legacy"]
"""`auto` agrees on the newest version of the protocol, `legacy` on the last one with sessions."""


class FrontDoor:
    """Passes connections on to the server that is named, and can cut them all."""

    def __init__(self) -> None:
        self._target: tuple[str, int] | None = None
        self._writers: set[StreamWriter] = set()
        self.url = ""
        self.lost_replies = 0
        """How many of the next replies are lost on the way."""

    def lead_to(self, url: str | None) -> None:
        """None: refuse connections."""
        parts = None if url is None else urlsplit(url)
        self._target = None if parts is None else (parts.hostname or "", parts.port or 0)

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self._target is None:
            writer.transport.abort()
            return
        with suppress(OSError):
            there, back = await asyncio.open_connection(*self._target)
            both = {writer, back}
            self._writers |= both
            try:
                await asyncio.gather(_pass(reader, back), self._reply(there, writer))
            finally:
                self._writers -= both
                for one in both:
                    one.transport.abort()

    async def _reply(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self.lost_replies:
            self.lost_replies -= 1
            await reader.read(1 << 16)
            writer.transport.abort()
        await _pass(reader, writer)


async def _pass(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def front_door() -> AsyncGenerator[FrontDoor]:
    door = FrontDoor()
    listener = await asyncio.start_server(door.serve, "127.0.0.1", 0)
    door.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield door
    finally:
        listener.close()
        door.cut()


class HeldModel(FakeCompatible):
    """Says "Half ", waits at the gate, and says the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def answer(self, request: RecordedRequest) -> Reply:
        del request
        first, rest = chunk(role="assistant", content="Half "), chunk(content="and whole.")
        return Reply(steps=(first, self.gate, rest, chunk("stop"), DONE))


@asynccontextmanager
async def http_client(url: str, mode: Mode, token: str = TOKEN) -> AsyncGenerator[Client]:
    headers = {"Authorization": f"Bearer {token}"}
    timeout = httpx2.Timeout(30, read=120)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


@asynccontextmanager
async def stdio_client(url: str, mode: Mode, token: str = TOKEN) -> AsyncGenerator[Client]:
    env = {"HOME": "/nonexistent", "PATH": "/usr/bin:/bin", "CHATD_TOKEN": token}
    command = StdioServerParameters(command=str(CHATD), args=["mcp", "--url", url], env=env)
    # By default the package takes the errors of its import, which a forked test process has closed.
    transport = stdio.stdio_client(command, errlog=sys.stderr)
    async with Client(transport, mode=mode) as client:
        yield client


async def run(client: Client, tool: str, **arguments: object) -> Mapping[str, Any]:
    """The structured result of a call, which succeeds."""
    return structured(await client.call_tool(tool, arguments))


def structured(result: CallToolResult) -> Mapping[str, Any]:
    assert not result.is_error, result.content
    found: Mapping[str, Any] | None = result.structured_content
    assert found is not None
    return found


async def refusal(client: Client, tool: str, **arguments: object) -> str:
    """The text of a result that is an error."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result
    return str(getattr(result.content[0], "text", ""))
