"""One client connection: reads request heads and bodies and writes replies, each with a timeout."""

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
    """`idle_timeout_s` is the time between two requests; the server may close an idle connection
    earlier to accept a new one."""

    max_head_bytes: int = 32 * 1024
    head_timeout_s: float = 20
    body_timeout_s: float = 20
    write_timeout_s: float = 20
    idle_timeout_s: float = 120
    close_timeout_s: float = 2
    max_connections: int = 128


class ConnectionClosed(Exception):
    """The client has disconnected or was too slow; the connection is not used any more."""


class ClientConnection:
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
        self._first_byte = b""

    async def wait_for_request(self) -> None:
        """Raises ConnectionClosed if the client sends no further request."""
        self._first_byte = await _within(self._limits.idle_timeout_s, self._reader.read(1))
        if not self._first_byte:
            raise ConnectionClosed

    async def read_head(self) -> RequestHead:
        try:
            rest = await _within(self._limits.head_timeout_s, self._reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            raise AgentError(431, "the request's headers are too large") from None
        return parse_head(self._first_byte + rest)

    async def read_body(self, head: RequestHead) -> bytes:
        if not head.length:
            return b""
        if head.expects_continue:
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return await _within(self._limits.body_timeout_s, self._reader.readexactly(head.length))

    async def run_while_connected(self, work: Awaitable[T]) -> T:
        """Cancels the work and raises ConnectionClosed if the client disconnects."""
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
        await self._write(_encode_head(reply, length, connection) + reply.body)

    async def stream(self, reply: AgentHttpReply, lines: AsyncGenerator[bytes, None]) -> None:
        """Send one chunk per line, until the lines end or the client stops reading."""
        try:
            head = _encode_head(reply, "Transfer-Encoding: chunked", "Connection: close")
            await self._write(head)
            while (line := await self.run_while_connected(_next_line(lines))) is not None:
                await self._write(b"%x\r\n%b\r\n" % (len(line), line))
            await self._write(b"0\r\n\r\n")
        finally:
            await lines.aclose()

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await _within(self._limits.write_timeout_s, self._writer.drain())

    async def close(self) -> None:
        """Send end of file, then read what the client still sends: closing a socket with unread
        bytes resets it, and the client would lose the reply."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        await _within(self._limits.close_timeout_s, self._read_rest())

    def abort(self) -> None:
        self._writer.transport.abort()

    async def _read_rest(self) -> None:
        for _ in range(1024):
            if not await self._reader.read(64 * 1024):
                return


def _encode_head(reply: AgentHttpReply, *framing: str) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        f"Content-Type: {reply.content_type}",
        *framing,
        *(f"{name}: {value}" for name, value in reply.headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _next_line(lines: AsyncGenerator[bytes, None]) -> bytes | None:
    async for line in lines:
        return line
    return None


async def _within(timeout_s: float, work: Awaitable[T]) -> T:
    """Raises ConnectionClosed after the timeout."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    finally:
        task.cancel()  # no effect on a finished task
    if not done:
        raise ConnectionClosed
    return task.result()
