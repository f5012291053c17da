"""Byte streams to an agent, and an HTTP connection over one.

A stream is a socket of this host, or an exchange on a socket of a runner or of another replica.
aiohttp speaks HTTP over it by a transport of its own.
"""

import asyncio
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.tracing import Trace

from chatd.workspaces.tunnels.wire import MAX_BYTES_FRAME, MessageSocket

CLOSE_TIMEOUT_S: Final = 2.0
MAX_UNSENT_BYTES: Final = 128 * 1024
"""A request's body waits while more than this has not been passed on."""


class ByteStream(Protocol):
    """A writer waits while the other side does not read."""

    async def read(self) -> bytes:
        """Empty at the end. Raises ConnectionError if the stream broke."""
        ...

    async def write(self, data: bytes) -> None:
        """Raises ConnectionError."""
        ...

    async def close(self) -> None:
        """Never raises."""
        ...


class SocketStream:
    """A connected socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        return await self._reader.read(MAX_BYTES_FRAME)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._writer.wait_closed()


class MessageStream:
    """The binary messages of a WebSocket."""

    def __init__(self, messages: MessageSocket) -> None:
        self._messages = messages

    async def read(self) -> bytes:
        while (message := await self._messages.receive()) is not None:
            if isinstance(message, bytes) and message:
                return message
            if isinstance(message, str):
                raise ConnectionError("a text where bytes were expected")
        return b""

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_BYTES_FRAME):
            await self._messages.send(data[start : start + MAX_BYTES_FRAME])

    async def close(self) -> None:
        await self._messages.close()


async def open_socket(path: str) -> SocketStream:
    """Connect to a Unix socket of this host. A process in the workspace can replace the agent's
    socket by a link to another socket of this host, so the file is opened without following links,
    and that file is connected to. Raises OSError."""
    pinned = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(pinned).st_mode):
            raise OSError(0, "its endpoint is not a socket")
        return SocketStream(*await asyncio.open_unix_connection(f"/proc/self/fd/{pinned}"))
    finally:
        os.close(pinned)


async def is_answered(path: str) -> bool:
    """Whether an agent at this socket answers within a second. The request is not signed: it is
    refused. The socket alone proves nothing: it outlives agents."""
    try:
        async with asyncio.timeout(1):
            stream = await open_socket(path)
            try:
                await stream.write(
                    b"GET /healthz HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n"
                )
                return bool(await stream.read())
            finally:
                await stream.close()
    except OSError:  # TimeoutError is one too
        return False


async def pipe(one: ByteStream, other: ByteStream) -> None:
    """Copy both ways until either side ends, then close both. Never raises but CancelledError."""
    loop = asyncio.get_running_loop()
    ways = {loop.create_task(_copy(one, other)), loop.create_task(_copy(other, one))}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        await asyncio.gather(one.close(), other.close())


async def _copy(source: ByteStream, target: ByteStream) -> None:
    with suppress(OSError):
        while data := await source.read():
            await target.write(data)


class _StreamTransport(asyncio.Transport):
    """A stream as the transport of a protocol. Two tasks copy; `finish` ends them."""

    def __init__(self, stream: ByteStream, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._stream = stream
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_paused = False
        self._is_closing = False
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._writing: asyncio.Task[None] | None = None
        protocol.connection_made(self)
        self._reading = self._loop.create_task(self._read())

    async def finish(self) -> None:
        """Ends the copying: nothing reads or writes the stream afterwards."""
        self.close()
        tasks = {self._reading} if self._writing is None else {self._reading, self._writing}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        if self._unsent_bytes > MAX_UNSENT_BYTES and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()
        if self._writing is None:
            self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._unsent:
                data = b"".join(self._unsent)
                self._unsent.clear()
                await self._stream.write(data)
                self._unsent_bytes -= len(data)
                if self._is_paused and self._unsent_bytes <= MAX_UNSENT_BYTES:
                    self._is_paused = False
                    self._protocol.resume_writing()
        except OSError as error:
            self._lose(error)
        finally:
            self._writing = None

    async def _read(self) -> None:
        lost: OSError | None = None
        try:
            while True:
                await self._may_read.wait()
                if not (data := await self._stream.read()):
                    break
                if self._is_closing:
                    return
                self._protocol.data_received(data)
            self._protocol.eof_received()
        except OSError as error:
            lost = error
        self._lose(lost)

    def _lose(self, error: OSError | None) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._protocol.connection_lost, error)


class _StreamConnector(aiohttp.BaseConnector):
    """Connects once, over a stream that is open already."""

    def __init__(self, stream: ByteStream) -> None:
        super().__init__(force_close=True)
        self._stream = stream
        self.transport: _StreamTransport | None = None

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        del req, traces, timeout
        protocol = self._factory()
        self.transport = _StreamTransport(self._stream, protocol)
        return protocol


@asynccontextmanager
async def http_over(stream: ByteStream) -> AsyncGenerator[aiohttp.BaseConnector]:
    """A connector for one request. Closes the stream."""
    connector = _StreamConnector(stream)
    try:
        yield connector
    finally:
        try:
            if connector.transport is not None:
                await connector.transport.finish()
        finally:
            await stream.close()
