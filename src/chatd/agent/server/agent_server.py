"""A small HTTP/1.1 server on asyncio streams.

Owns the connections: how many there may be, which are closed for a new one, and how they end. The
requests of one connection are answered in order. A dispatcher decides on a request by its head,
before the body is read.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol, TypeVar

from chatd.agent.errors import AgentError
from chatd.agent.server.http_messages import AgentHttpReply, RequestHead, error_reply, parse_head

# One connection: reads request heads and bodies and writes replies, each with a timeout.

T = TypeVar("T")
RELAY_CHUNK_BYTES = 64 * 1024


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
    relay_timeout_s: float = 60
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
            if reply.release is not None:
                reply.release()
            await lines.aclose()

    async def relay(
        self, reply: AgentHttpReply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Copy bytes both ways until either side ends. Closes the other connection."""
        try:
            await self._write(_encode_head(reply, "Connection: Upgrade", "Upgrade: chatd-bytes"))
            ways = {
                asyncio.ensure_future(self._copy(self._reader, writer)),
                asyncio.ensure_future(self._copy(reader, self._writer)),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.wait(ways)
        finally:
            writer.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """A side that takes nothing for too long ends the connection."""
        with suppress(OSError, ConnectionClosed):
            while data := await source.read(RELAY_CHUNK_BYTES):
                target.write(data)
                await _within(self._limits.relay_timeout_s, target.drain())

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


# The server


class RequestExchange(Protocol):
    """The handling of one request after its head was read.

    A long poll is cancelled when the client disconnects. Any other request runs to completion.
    """

    @property
    def max_body(self) -> int: ...
    @property
    def is_long_poll(self) -> bool: ...

    async def run(self, body: bytes) -> AgentHttpReply:
        """Never raises."""
        ...

    def refuse(self, error: AgentError) -> AgentHttpReply:
        """The reply for an error found before the body was read."""
        ...


class RequestDispatcher(Protocol):
    def begin(self, head: RequestHead) -> RequestExchange:
        """Raises AgentError for a request that gets an unsigned refusal."""
        ...


class _DisconnectProtocol(asyncio.StreamReaderProtocol):
    """Sets `gone` when the client disconnects, even while nothing reads from the connection."""

    def __init__(self, server: AgentHttpServer, reader: asyncio.StreamReader) -> None:
        super().__init__(reader, server.on_connected)
        self._server = server
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._server.protocols[transport] = self
        super().connection_made(transport)

    def eof_received(self) -> bool | None:
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        super().connection_lost(exc)


class AgentHttpServer:
    """`close` lets requests with an effect finish, and cancels long polls and idle connections."""

    def __init__(
        self, dispatcher: RequestDispatcher, limits: ConnectionLimits | None = None
    ) -> None:
        self._dispatcher = dispatcher
        self._limits = limits or ConnectionLimits()
        self._tasks: set[asyncio.Task[None]] = set()
        self._acting: set[asyncio.Task[None]] = set()
        # Connections without a verified request, the longest idle first.
        self._idle: dict[asyncio.Task[None], None] = {}
        self._listener: asyncio.AbstractServer | None = None
        self._socket: os.stat_result | None = None
        self._is_closing = False
        self.protocols: dict[asyncio.BaseTransport, _DisconnectProtocol] = {}

    async def listen_unix(self, path: str) -> None:
        """The socket appears under its name when it accepts connections. Between bind and listen
        it would refuse them, and the supervisor takes its appearance for a ready agent. A second
        call replaces the socket; connections stay."""
        loop = asyncio.get_running_loop()
        early = os.path.join(os.path.dirname(path), "new")
        before = self._listener
        self._listener = await loop.create_unix_server(self._create_protocol, early, backlog=64)
        self._socket = os.lstat(early)
        os.replace(early, path)
        if before is not None:
            before.close()

    async def listen_fd(self, fd: int) -> None:
        """Listen on a Unix socket that already listens. This server must not remove it."""
        os.set_inheritable(fd, False)  # noqa: FBT003 - positional only
        loop = asyncio.get_running_loop()
        listener = socket.socket(fileno=fd)
        self._listener = await loop.create_unix_server(self._create_protocol, sock=listener)

    def has_socket(self, path: str) -> bool:
        """Whether the socket still stands under its name."""
        try:
            found = os.lstat(path)
        except OSError:
            return False
        return self._socket is not None and os.path.samestat(found, self._socket)

    async def listen_tcp(self, host: str, port: int) -> int:
        """Returns the bound port, which the system chooses if `port` is 0."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._create_protocol, host, port, backlog=64)
        self._listener = server
        return server.sockets[0].getsockname()[1]

    async def close(self, grace_s: float = 5) -> None:
        self._is_closing = True
        if self._listener is not None:
            self._listener.close()
        for task in self._tasks - self._acting:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)

    def on_connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone = self.protocols.pop(writer.transport).gone
        # `drain` then waits until the system has taken every byte.
        writer.transport.set_write_buffer_limits(high=0)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer, gone))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def connection_count(self) -> int:
        return len(self._tasks)

    @property
    def idle_count(self) -> int:
        return len(self._idle)

    def _create_protocol(self) -> _DisconnectProtocol:
        return _DisconnectProtocol(self, asyncio.StreamReader(limit=self._limits.max_head_bytes))

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event
    ) -> None:
        connection = ClientConnection(reader, writer, gone, self._limits)
        try:
            if len(self._tasks) > self._limits.max_connections and not self._close_one_idle():
                busy = AgentError(503, "the agent has too many connections", code="busy")
                await connection.send(error_reply(busy), keep_alive=False)
            else:
                while await self._exchange(connection):
                    pass
            with self._counted_as_idle():
                await connection.close()
        except (ConnectionClosed, OSError, EOFError):
            pass
        except Exception:  # noqa: BLE001 - a bug in one connection must not stop the server
            log_exception("a connection")
        finally:
            connection.abort()

    def _close_one_idle(self) -> bool:
        """Close a connection without a verified request, or idle after one, for a new connection:
        processes in the workspace may open connections to block others."""
        for task in self._idle:
            del self._idle[task]
            task.cancel()
            return True
        return False

    @contextmanager
    def _counted_as_idle(self) -> Generator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._idle[task] = None
        try:
            yield
        finally:
            self._idle.pop(task, None)

    async def _exchange(self, connection: ClientConnection) -> bool:
        """Handle one request. Returns whether the connection stays open for another."""
        try:
            with self._counted_as_idle():
                await connection.wait_for_request()
                head = await connection.read_head()
            exchange = self._dispatcher.begin(head)
        except AgentError as error:
            await connection.send(error_reply(error), keep_alive=False)
            return False
        if head.length > exchange.max_body:
            error = AgentError(413, f"the body is larger than {exchange.max_body} bytes")
            await connection.send(exchange.refuse(error), keep_alive=False)
            return False
        body = await connection.read_body(head)
        reply = await self._run(connection, exchange, body)
        if reply.lines is not None:
            await connection.stream(reply, reply.lines)
            return False
        if reply.relay is not None:
            await connection.relay(reply, *reply.relay)
            return False
        keep_alive = head.keep_alive and not self._is_closing
        await connection.send(reply, keep_alive=keep_alive)
        return keep_alive

    async def _run(
        self, connection: ClientConnection, exchange: RequestExchange, body: bytes
    ) -> AgentHttpReply:
        if exchange.is_long_poll:
            return await connection.run_while_connected(exchange.run(body))
        task = asyncio.current_task()
        assert task is not None
        self._acting.add(task)
        try:
            return await exchange.run(body)
        finally:
            self._acting.discard(task)


def log_exception(where: str) -> None:
    log_line(f"bug in {where}:\n{traceback.format_exc()}")


def log_line(text: str) -> None:
    """Write to stderr, which may be closed."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
