"""An HTTP/1.1 server for one careful client, by hand on asyncio's streams.

Owns connections: how many, how long each may take to ask and to take its answer, and how they
end. Requests on one connection are answered one after the other, in the order they came. Knows
neither routes nor keys: whoever answers is handed in, and judges a request by its head before
any of its body is read.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol, TypeVar

from chatd.agent.errors import AgentError
from chatd.agent.parsing import Head, parse_head

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """Seconds and bytes. `idle_s` is for a kept connection between two requests, unless its
    place is needed before."""

    head_bytes: int = 32 * 1024
    head_s: float = 20
    body_s: float = 20
    write_s: float = 20
    idle_s: float = 120
    close_s: float = 2
    connections: int = 128


@dataclass(frozen=True)
class Reply:
    """`lines` follow the body, for as long as they come and the client stays."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    lines: AsyncGenerator[bytes, None] | None = None


def json_reply(value: object, status: int = 200) -> Reply:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return Reply(status, text.encode("utf-8", "replace"))


def error_reply(error: AgentError) -> Reply:
    return json_reply(error.body(), error.status)


class Exchange(Protocol):
    """One request whose head has been read, and what is to be done about it.

    `waits`: it only waits for news, so it is cancelled if the client leaves. Anything else is
    carried to its end whether or not somebody still wants to know.
    """

    @property
    def max_body(self) -> int: ...
    @property
    def waits(self) -> bool: ...

    async def run(self, body: bytes) -> Reply:
        """Never raises, whatever goes wrong."""
        ...

    def refuse(self, error: AgentError) -> Reply:
        """The reply for an error that was found before there was a body."""
        ...


class Answers(Protocol):
    def begin(self, head: Head) -> Exchange:
        """Raises AgentError for a request that deserves no more than that."""
        ...


class _Link(asyncio.StreamReaderProtocol):
    """A connection that says when the other side has left, read from or not."""

    def __init__(self, server: Server, reader: asyncio.StreamReader) -> None:
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


class _Leave(Exception):
    """This connection is over: nothing more is to be read from it or said on it."""


class Server:
    """Closing lets what has an effect finish, and cuts off everything that only waits."""

    def __init__(self, answers: Answers, limits: Limits | None = None) -> None:
        self._answers = answers
        self._limits = limits or Limits()
        self._tasks: set[asyncio.Task[None]] = set()
        self._acting: set[asyncio.Task[None]] = set()
        # Those that have asked nothing yet, or nothing more; the one that waits longest is first.
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
    def connections(self) -> int:
        return len(self._tasks)

    @property
    def idle(self) -> int:
        return len(self._idle)

    def _link(self) -> _Link:
        return _Link(self, asyncio.StreamReader(limit=self._limits.head_bytes))

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event
    ) -> None:
        connection = _Connection(reader, writer, gone, self._limits)
        try:
            if len(self._tasks) > self._limits.connections and not self._make_room():
                busy = AgentError(503, "the agent has too many connections", code="busy")
                await connection.send(error_reply(busy), keep_alive=False)
            else:
                while await self._exchange(connection):
                    pass
            await connection.close()
        except (_Leave, OSError, EOFError):
            pass
        except Exception:  # noqa: BLE001 - one connection that breaks is only one
            report_bug("a connection")
        finally:
            connection.abort()

    def _make_room(self) -> bool:
        """Somebody in the workspace may open connections only to keep others out: who has asked
        for nothing gives way to who comes."""
        for task in self._idle:
            del self._idle[task]
            task.cancel()
            return True
        return False

    async def _next_head(self, connection: _Connection) -> Head:
        task = asyncio.current_task()
        assert task is not None
        self._idle[task] = None
        try:
            await connection.begun()
        finally:
            self._idle.pop(task, None)
        return await connection.head()

    async def _exchange(self, connection: _Connection) -> bool:
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
        body = await connection.body(head)
        reply = await self._act(connection, exchange, body)
        if reply.lines is not None:
            await connection.stream(reply, reply.lines)
            return False
        keep_alive = head.keep_alive and not self._closing
        await connection.send(reply, keep_alive=keep_alive)
        return keep_alive

    async def _act(self, connection: _Connection, exchange: Exchange, body: bytes) -> Reply:
        if exchange.waits:
            return await connection.unless_gone(exchange.run(body))
        task = asyncio.current_task()
        assert task is not None
        self._acting.add(task)
        try:
            return await exchange.run(body)
        finally:
            self._acting.discard(task)


class _Connection:
    """Reading and writing with an end to everything."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        gone: asyncio.Event,
        limits: Limits,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._gone = gone
        self._limits = limits
        self._first = b""

    async def begun(self) -> None:
        """Raises _Leave if the client has nothing more to ask."""
        self._first = await _within(self._limits.idle_s, self._reader.read(1))
        if not self._first:
            raise _Leave

    async def head(self) -> Head:
        try:
            rest = await _within(self._limits.head_s, self._reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            raise AgentError(431, "the request's headers are too large") from None
        return parse_head(self._first + rest)

    async def body(self, head: Head) -> bytes:
        if not head.length:
            return b""
        if head.expects_continue:
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return await _within(self._limits.body_s, self._reader.readexactly(head.length))

    async def unless_gone(self, work: Awaitable[T]) -> T:
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
            raise _Leave
        return task.result()

    async def send(self, reply: Reply, *, keep_alive: bool) -> None:
        length = f"Content-Length: {len(reply.body)}"
        connection = f"Connection: {'keep-alive' if keep_alive else 'close'}"
        await self._write(_head(reply, length, connection) + reply.body)

    async def stream(self, reply: Reply, lines: AsyncGenerator[bytes, None]) -> None:
        """A piece for each line. A client that takes none for long is left."""
        try:
            await self._write(_head(reply, "Transfer-Encoding: chunked", "Connection: close"))
            while (line := await self.unless_gone(_next(lines))) is not None:
                await self._write(b"%x\r\n%b\r\n" % (len(line), line))
            await self._write(b"0\r\n\r\n")
        finally:
            await lines.aclose()

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await _within(self._limits.write_s, self._writer.drain())

    async def close(self) -> None:
        """Say that nothing follows, and read a little of what still comes: closing on unread
        bytes would take the reply back."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        await _within(self._limits.close_s, self._drained())

    def abort(self) -> None:
        self._writer.transport.abort()

    async def _drained(self) -> None:
        for _ in range(1024):
            if not await self._reader.read(64 * 1024):
                return


def _head(reply: Reply, *framing: str) -> bytes:
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
    """Raises _Leave if it takes longer: a client that is too slow is one that has left."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        # Does nothing to one that is done.
        task.cancel()
    if not done:
        raise _Leave
    return task.result()


def report_bug(where: str) -> None:
    """What has been raised and should not have been, for whoever reads the agent's log."""
    say(f"bug in {where}:\n{traceback.format_exc()}")


def say(text: str) -> None:
    """A line for the agent's log, if anybody still keeps one."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
