"""An HTTP/1.1 server for one careful client, by hand on asyncio's streams.

Owns connections: how many, who gives way when there are too many, and how they end. Requests on
one connection are answered one after the other, in the order they came. Knows neither routes nor
keys: whoever answers is handed in, and judges a request by its head before any of its body is read.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Protocol

from chatd.agent.errors import AgentError
from chatd.agent.server.connection import ClientConnection, ConnectionClosed, ConnectionLimits
from chatd.agent.server.http_messages import AgentHttpReply, RequestHead, error_reply


class RequestExchange(Protocol):
    """One request whose head has been read, and what is to be done about it.

    `waits`: it only waits for news, so it is cancelled if the client leaves. Anything else is
    carried to its end whether or not somebody still wants to know.
    """

    @property
    def max_body(self) -> int: ...
    @property
    def waits(self) -> bool: ...

    async def run(self, body: bytes) -> AgentHttpReply:
        """Never raises, whatever goes wrong."""
        ...

    def refuse(self, error: AgentError) -> AgentHttpReply:
        """The reply for an error that was found before there was a body."""
        ...


class RequestDispatcher(Protocol):
    def begin(self, head: RequestHead) -> RequestExchange:
        """Raises AgentError for a request that deserves no more than that."""
        ...


class _Link(asyncio.StreamReaderProtocol):
    """A connection that says when the other side has left, read from or not."""

    def __init__(self, server: AgentHttpServer, reader: asyncio.StreamReader) -> None:
        super().__init__(reader, server.connected)
        self._server = server
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._server.links[transport] = self
        super().connection_made(transport)

    def eof_received(self) -> bool | None:
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        super().connection_lost(exc)


class AgentHttpServer:
    """Closing lets what has an effect finish, and cuts off everything that only waits."""

    def __init__(self, answers: RequestDispatcher, limits: ConnectionLimits | None = None) -> None:
        self._answers = answers
        self._limits = limits or ConnectionLimits()
        self._tasks: set[asyncio.Task[None]] = set()
        self._acting: set[asyncio.Task[None]] = set()
        # Those that have not asked yet, or nothing more; the one that waits longest is first.
        self._idle: dict[asyncio.Task[None], None] = {}
        self._listening: asyncio.AbstractServer | None = None
        self._closing = False
        self.links: dict[asyncio.BaseTransport, _Link] = {}

    async def listen_unix(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_unix_server(self._link, path, backlog=64)

    async def listen_tcp(self, host: str, port: int) -> int:
        """The port that was bound, for whoever asked for any."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._link, host, port, backlog=64)
        self._listening = server
        return server.sockets[0].getsockname()[1]

    async def close(self, grace_s: float = 5) -> None:
        self._closing = True
        if self._listening is not None:
            self._listening.close()
        for task in self._tasks - self._acting:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = self.links.pop(writer.transport)
        # Nothing is handed to the system that has not been waited for.
        writer.transport.set_write_buffer_limits(high=0)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer, link.gone))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def connection_count(self) -> int:
        return len(self._tasks)

    @property
    def idle_count(self) -> int:
        return len(self._idle)

    def _link(self) -> _Link:
        return _Link(self, asyncio.StreamReader(limit=self._limits.max_head_bytes))

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event
    ) -> None:
        connection = ClientConnection(reader, writer, gone, self._limits)
        try:
            if len(self._tasks) > self._limits.max_connections and not self._make_room():
                busy = AgentError(503, "the agent has too many connections", code="busy")
                await connection.send(error_reply(busy), keep_alive=False)
            else:
                while await self._exchange(connection):
                    pass
            with self._giving_way():
                await connection.close()
        except (ConnectionClosed, OSError, EOFError):
            pass
        except Exception:  # noqa: BLE001 - one connection that breaks is only one
            log_exception("a connection")
        finally:
            connection.abort()

    def _make_room(self) -> bool:
        """Somebody in the workspace may open connections only to keep others out: who has not
        shown yet that it may ask, or has no more to ask, gives way to who comes."""
        for task in self._idle:
            del self._idle[task]
            task.cancel()
            return True
        return False

    @contextmanager
    def _giving_way(self) -> Generator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._idle[task] = None
        try:
            yield
        finally:
            self._idle.pop(task, None)

    async def _next_head(self, connection: ClientConnection) -> RequestHead:
        with self._giving_way():
            await connection.wait_for_request()
            return await connection.read_head()

    async def _exchange(self, connection: ClientConnection) -> bool:
        """One request and its reply. Whether another may follow."""
        try:
            head = await self._next_head(connection)
            exchange = self._answers.begin(head)
        except AgentError as error:
            await connection.send(error_reply(error), keep_alive=False)
            return False
        if head.length > exchange.max_body:
            error = AgentError(413, f"the body is larger than {exchange.max_body} bytes")
            await connection.send(exchange.refuse(error), keep_alive=False)
            return False
        body = await connection.read_body(head)
        reply = await self._act(connection, exchange, body)
        if reply.lines is not None:
            await connection.stream(reply, reply.lines)
            return False
        keep_alive = head.keep_alive and not self._closing
        await connection.send(reply, keep_alive=keep_alive)
        return keep_alive

    async def _act(
        self, connection: ClientConnection, exchange: RequestExchange, body: bytes
    ) -> AgentHttpReply:
        if exchange.waits:
            return await connection.run_while_connected(exchange.run(body))
        task = asyncio.current_task()
        assert task is not None
        self._acting.add(task)
        try:
            return await exchange.run(body)
        finally:
            self._acting.discard(task)


def log_exception(where: str) -> None:
    """What has been raised and should not have been, for whoever reads the agent's log."""
    log_line(f"bug in {where}:\n{traceback.format_exc()}")


def log_line(text: str) -> None:
    """A line for the agent's log, if anybody still keeps one."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
