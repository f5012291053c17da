"""A proxy to PostgreSQL that a test can cut, stall, or let drop notifications.

It passes bytes, and parses just enough of them to drop notifications only. It runs in the test's
own event loop.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, quote, urlencode, urlsplit

CHUNK = 1 << 16


class _Link:
    """One connection. While a direction is shut nothing passes on it, not even the end of the
    connection."""

    def __init__(self, *, shut: bool) -> None:
        self.to_server = asyncio.Event()
        self.to_client = asyncio.Event()
        self.deaf = False
        self._unread = b""
        if not shut:
            self.to_server.set()
            self.to_client.set()

    def without_notifications(self, data: bytes) -> bytes:
        """Each message of the server is a letter, a length that includes itself, and a body."""
        data = self._unread + data
        passed: list[bytes] = []
        while len(data) >= 5 and len(data) > (size := int.from_bytes(data[1:5], "big")):
            message, data = data[: size + 1], data[size + 1 :]
            if not (self.deaf and message.startswith(b"A")):
                passed.append(message)
        self._unread = data
        return b"".join(passed)


class Proxy:
    def __init__(self, upstream: str, directory: Path) -> None:
        self._upstream = urlsplit(upstream)
        self._directory = directory
        self._links: set[_Link] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._stalled = False
        self._refusing = False
        self.accepted = 0
        self.withheld = 0

    @property
    def dsn(self) -> str:
        query = {"host": str(self._directory), "port": "5432", "sslmode": "disable"}
        return self._upstream._replace(query=urlencode(query, safe="/", quote_via=quote)).geturl()

    def disconnect(self) -> None:
        """Cut what is open and refuse what is new."""
        self.refuse(new=True)
        self.cut()

    def cut(self) -> None:
        """Close all connections now, in both directions."""
        for writer in self._writers:
            writer.transport.abort()

    def stall(self) -> None:
        """Stop passing data without closing anything; new connections get no data either."""
        self._stalled = True
        for link in self._links:
            link.to_server.clear()
            link.to_client.clear()

    def strand(self) -> None:
        """Stop passing data on the present connections; new ones work."""
        self.stall()
        self._links.clear()
        self._stalled = False

    def deafen(self) -> None:
        """Pass everything but notifications."""
        for link in self._links:
            link.deaf = True

    def hold_replies(self) -> None:
        """Pass requests, hold replies."""
        for link in self._links:
            link.to_client.clear()

    def resume(self) -> None:
        self._stalled = False
        for link in self._links:
            link.to_server.set()
            link.to_client.set()

    def refuse(self, *, new: bool) -> None:
        """Close new connections at once, like a server that is down."""
        self._refusing = new

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await self._dial()
        except OSError:
            writer.transport.abort()
            return
        link = _Link(shut=self._stalled)
        ends = {writer, server_writer}
        self._links.add(link)
        self._writers |= ends
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, server_writer, link.to_server, bytes))
                group.create_task(
                    self._pump(server_reader, writer, link.to_client, link.without_notifications)
                )
        finally:
            self._links.discard(link)
            self._writers -= ends
            for end in ends:
                # In Python 3.11 a transport that was closed with unsent data has no loop any more
                # once the data is sent.
                with suppress(AttributeError):
                    end.transport.abort()

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        way: asyncio.Event,
        sift: Callable[[bytes], bytes],
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(CHUNK):
                if not way.is_set():
                    self.withheld += len(data)
                    await way.wait()
                sink.write(sift(data))
                await sink.drain()
        await way.wait()
        sink.close()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        query = parse_qs(self._upstream.query)
        host = query.get("host", [self._upstream.hostname or "localhost"])[0]
        port = int(query.get("port", [str(self._upstream.port or 5432)])[0])
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


@asynccontextmanager
async def proxy_to(upstream: str) -> AsyncGenerator[Proxy]:
    with tempfile.TemporaryDirectory(prefix="chatd-proxy-", dir="/tmp") as directory:
        proxy = Proxy(upstream, Path(directory))
        path = f"{directory}/.s.PGSQL.5432"
        async with asyncio.TaskGroup() as group:

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = group.create_task(proxy.serve(reader, writer))
                serving.add(task)
                task.add_done_callback(serving.discard)

            serving: set[asyncio.Task[None]] = set()
            server = await asyncio.start_unix_server(accept, path)
            try:
                yield proxy
            finally:
                server.close()
                proxy.refuse(new=True)  # a connection may be waiting already
                for task in serving:
                    task.cancel()
