"""An address whose connections go to other addresses in turn, as a load balancer's do."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

CHUNK = 1 << 16


class Relay:
    """Targets are URLs, or paths of Unix sockets. Every piece of data waits `delay_s` on its
    way."""

    def __init__(self, *targets: str) -> None:
        self.targets: Sequence[str] = targets
        self.address = ""
        self.accepted = 0
        self.delay_s = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @asynccontextmanager
    async def listening(self, host: str = "127.0.0.1") -> AsyncGenerator["Relay"]:
        loop = asyncio.get_running_loop()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = loop.create_task(self._connected(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(connected, host, 0)
        self.address = f"{host}:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self._ended.set()
            self.cut()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def cut(self) -> None:
        """Reset all connections."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self.targets[self.accepted % len(self.targets)]
        self.accepted += 1
        ends = {writer}
        self._writers.add(writer)
        try:
            there = await _dial(target)
            ends.add(there[1])
            self._writers.add(there[1])
            if self._ended.is_set():
                return
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, there[1]))
                group.create_task(self._pass(there[0], writer))
        except OSError:
            pass
        finally:
            self._writers -= ends
            for end in ends:
                # In Python 3.11 a transport that was closed with unsent data has no loop any more
                # once the data is sent.
                with suppress(AttributeError):
                    end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.delay_s:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._ended.wait(), self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()


async def _dial(target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if target.startswith("/"):
        return await asyncio.open_unix_connection(target)
    at = urlsplit(target)
    return await asyncio.open_connection(at.hostname, at.port)
