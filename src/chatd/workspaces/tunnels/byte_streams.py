"""Byte streams to an agent, and an HTTP connection over one.

A stream is a socket of this host, a connection to another replica, or an exchange socket of a
runner. aiohttp speaks HTTP over a socket pair, and the other end of the pair is piped to the
stream.
"""

import asyncio
import os
import socket
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

    @property
    def is_at_end(self) -> bool:
        """Whether the other side has closed it."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def read_line(self) -> bytes:
        """At most 64 KiB. Raises ConnectionError."""
        try:
            return await self._reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionError("no line") from error

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


class _PairConnector(aiohttp.BaseConnector):
    """Connects once, to a socket that is connected already."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(force_close=True)
        self._connected = connected

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        del req, traces, timeout
        _, protocol = await self._loop.create_unix_connection(self._factory, sock=self._connected)
        return protocol


@asynccontextmanager
async def http_over(stream: ByteStream) -> AsyncGenerator[aiohttp.BaseConnector]:
    """A connector for one request. Closes the stream."""
    ours, theirs = socket.socketpair()
    ours.settimeout(0)
    theirs.settimeout(0)
    try:
        end = SocketStream(*await asyncio.open_unix_connection(sock=ours))
    except BaseException:
        ours.close()
        theirs.close()
        await stream.close()
        raise
    piping = asyncio.get_running_loop().create_task(pipe(end, stream), name="agent exchange")
    try:
        yield _PairConnector(theirs)
    finally:
        theirs.close()
        piping.cancel()
        await asyncio.wait({piping})
