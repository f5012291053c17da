"""A small HTTP/1.1 server on asyncio streams.

Owns the connections: how many there may be, which are closed for a new one, and how they end. The
requests of one connection are answered in order. A dispatcher decides on a request by its head,
before the body is read.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Protocol

from chatd.agent.errors import AgentError
from chatd.agent.server.connection import ClientConnection, ConnectionClosed, ConnectionLimits
from chatd.agent.server.http_messages import AgentHttpReply, RequestHead, error_reply


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
    """Sets `gone` when the client disconnects, also while nothing reads from the connection."""

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
        """Processes in the workspace may open connections to block others. A connection without a
        verified request, or idle after one, is closed for a new connection."""
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
