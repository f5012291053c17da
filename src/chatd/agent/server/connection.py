"""One connection to the agent: a head, a body and a reply as bytes, with an end to everything.

Owns how long a client may take to ask and to take its answer, and how much of it is read. What the
bytes mean is in `parsing`, who is let in and who answers is up to `http`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from chatd.agent.errors import AgentError
from chatd.agent.server.http_messages import AgentHttpReply, RequestHead, parse_head

T = TypeVar("T")


@dataclass(frozen=True)
class ConnectionLimits:
    """Seconds and bytes. `idle_s` is for a kept connection between two requests, unless its
    place is needed before."""

    max_head_bytes: int = 32 * 1024
    head_timeout_s: float = 20
    body_timeout_s: float = 20
    write_timeout_s: float = 20
    idle_timeout_s: float = 120
    close_timeout_s: float = 2
    max_connections: int = 128


class ConnectionClosed(Exception):
    """This connection is over: nothing more is to be read from it or said on it."""


class ClientConnection:
    """Reading and writing, each within its time."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        gone: asyncio.Event,
        limits: ConnectionLimits,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._gone = gone
        self._limits = limits
        self._first = b""

    async def wait_for_request(self) -> None:
        """Raises Leave if the client has nothing more to ask."""
        self._first = await _within(self._limits.idle_timeout_s, self._reader.read(1))
        if not self._first:
            raise ConnectionClosed

    async def read_head(self) -> RequestHead:
        try:
            rest = await _within(self._limits.head_timeout_s, self._reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            raise AgentError(431, "the request's headers are too large") from None
        return parse_head(self._first + rest)

    async def read_body(self, head: RequestHead) -> bytes:
        if not head.length:
            return b""
        if head.expects_continue:
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return await _within(self._limits.body_timeout_s, self._reader.readexactly(head.length))

    async def run_while_connected(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if task.cancelled():
            raise ConnectionClosed
        return task.result()

    async def send(self, reply: AgentHttpReply, *, keep_alive: bool) -> None:
        length = f"Content-Length: {len(reply.body)}"
        connection = f"Connection: {'keep-alive' if keep_alive else 'close'}"
        await self._write(_head(reply, length, connection) + reply.body)

    async def stream(self, reply: AgentHttpReply, lines: AsyncGenerator[bytes, None]) -> None:
        """A piece for each line. A client that takes none for long is left."""
        try:
            await self._write(_head(reply, "Transfer-Encoding: chunked", "Connection: close"))
            while (line := await self.run_while_connected(_next(lines))) is not None:
                await self._write(b"%x\r\n%b\r\n" % (len(line), line))
            await self._write(b"0\r\n\r\n")
        finally:
            await lines.aclose()

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await _within(self._limits.write_timeout_s, self._writer.drain())

    async def close(self) -> None:
        """Say that nothing follows, and read a little of what still comes: closing on unread
        bytes would take the reply back."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        await _within(self._limits.close_timeout_s, self._drained())

    def abort(self) -> None:
        self._writer.transport.abort()

    async def _drained(self) -> None:
        for _ in range(1024):
            if not await self._reader.read(64 * 1024):
                return


def _head(reply: AgentHttpReply, *framing: str) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        f"Content-Type: {reply.content_type}",
        *framing,
        *(f"{name}: {value}" for name, value in reply.headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _next(lines: AsyncGenerator[bytes, None]) -> bytes | None:
    async for line in lines:
        return line
    return None


async def _within(seconds: float, work: Awaitable[T]) -> T:
    """Raises Leave if it takes longer: a client that is too slow is one that has left."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        # Does nothing to one that is done.
        task.cancel()
    if not done:
        raise ConnectionClosed
    return task.result()
