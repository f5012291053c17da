"""Clients of event streams over a real connection. They parse the bytes and keep their state
when the connection ends."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct

from chatd.domain.chat.change import Change
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.events import Event
from chatd.domain.ids import ChatId
from tests.support.api.server import ME, ApiServer, Json, authorized
from tests.support.client_state import ClientState
from tests.support.factories import prompt
from tests.support.outcomes import present
from tests.support.stream_replica import part_text

READ_TIMEOUT_S: Final = 30.0

EVENT: Final = msgspec.json.Decoder(Event)


class SseBlock(Struct, frozen=True, kw_only=True):
    """The fields between two empty lines of an event stream."""

    comment: str | None = None
    event: str | None = None
    data: bytes = b""
    id: str | None = None


class SseConnection:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def block(self) -> SseBlock | None:
        """None at the end of the stream."""
        lines: list[bytes] = []
        async with asyncio.timeout(READ_TIMEOUT_S):
            while line := await self.response.content.readline():
                if line == b"\n":
                    return _block(lines)
                lines.append(line.rstrip(b"\n"))
        assert not lines, "cut in the middle"
        return None

    async def event(self) -> SseBlock | None:
        """The next block with data."""
        while (block := await self.block()) is not None:
            if block.data:
                return block
        return None

    async def json(self) -> Json:
        block = present(await self.event())
        return msgspec.json.decode(block.data, type=Json)


def _block(lines: list[bytes]) -> SseBlock:
    found = dict(line.split(b":", 1) for line in lines)
    fields = {name: value.strip().decode() for name, value in found.items()}
    return SseBlock(
        comment=fields.get(b""),
        event=fields.get(b"event"),
        data=fields.get(b"data", "").encode(),
        id=fields.get(b"id"),
    )


@asynccontextmanager
async def event_source(
    server: ApiServer, path: str, *, token: str = ME, last_id: str | None = None
) -> AsyncGenerator[SseConnection]:
    headers = authorized(token) | ({} if last_id is None else {"Last-Event-ID": last_id})
    limits = aiohttp.ClientTimeout(total=None)
    async with server.http.get(f"/api/v1{path}", headers=headers, timeout=limits) as response:
        assert response.status == 200, await response.read()
        assert response.content_type == "text/event-stream"
        yield SseConnection(response)


class SseViewer:
    """A client of one chat, with the state that its events give."""

    def __init__(self, chat_id: ChatId) -> None:
        self.chat_id = chat_id
        self.state = ClientState()
        self.last_id: str | None = None
        self.end: str | None = None

    @property
    def path(self) -> str:
        return f"/chats/{self.chat_id}/events"

    @property
    def preview(self) -> str:
        return "".join(part_text(part.part) for part in self.state.preview)

    async def watch(self, source: SseConnection, until: Callable[["SseViewer"], bool]) -> None:
        while not until(self):
            block = await source.event()
            assert block is not None, f"ended at version {self.state.version}: {self.end}"
            self.apply(block)

    async def read_all(self, source: SseConnection) -> None:
        while (block := await source.event()) is not None:
            self.apply(block)

    def apply(self, block: SseBlock) -> None:
        if block.event == "end":
            self.end = str(msgspec.json.decode(block.data, type=Json)["code"])
            return
        assert block.event == msgspec.json.decode(block.data, type=Json)["type"]
        self.state = self.state.apply([EVENT.decode(block.data)])
        if block.id is not None:
            self.last_id = block.id

    async def connect_until(self, server: ApiServer, until: Callable[["SseViewer"], bool]) -> None:
        """Connect, with the last version if there is one, and read until the condition holds."""
        async with event_source(server, self.path, last_id=self.last_id) as source:
            await self.watch(source, until)


def reached(version: int) -> Callable[[SseViewer], bool]:
    return lambda watcher: watcher.state.version >= version


def narrow_socket(_to: object = None) -> socket.socket:
    """A socket with a small receive buffer, so that the sender soon has to wait."""
    narrow = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    narrow.settimeout(0)
    return narrow


async def write_large(server: ApiServer, chat_id: ChatId) -> int:
    """Append a message of a megabyte; return the new version."""
    large = prompt("x" * 1024 * 1024)

    def decide(chat: Chat) -> Change:
        return Change.of(chat).append(large.draft())

    return (await server.act(chat_id, decide)).snapshot_version
