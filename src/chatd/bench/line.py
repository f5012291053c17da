"""HTTP as a measuring client speaks it: next to no work of its own.

Owns one connection, used for one request after another, or for a stream until it is closed. Reads
no more of HTTP than the three servers it meets say: a library would cost as much as a relay.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from chatd.domain.errors import Unavailable

WITHIN_S: Final = 120.0
_LAST_WORDS: Final = 300

OnLine = Callable[[bytes], None]


class Line(asyncio.Protocol):
    """`on_line` gets every line that comes, framing included, as soon as it is whole."""

    def __init__(self) -> None:
        self._out: asyncio.WriteTransport | None = None
        self._rest = b""
        self._last = b""
        self._on_line: OnLine | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._stream: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transports are children of the standard library's.
        self._out = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        said = f"The other side hung up; its last words: {self._last!r}"
        lost = Unavailable(said, code="bench_lost")
        for waiting in (self._answer, self._stream):
            if waiting is not None and not waiting.done():
                waiting.set_exception(exc or lost)

    def data_received(self, data: bytes) -> None:
        if self._on_line is not None:
            if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
                said = data.decode(errors="replace")
                self.fail(Unavailable(said, code="bench_refused"))
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._on_line(line)
            self._last = data[-_LAST_WORDS:]
            return
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found or self._answer is None or self._answer.done():
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if len(body) >= length:
            self._rest = body[length:]
            self._settle(head, body[:length])

    def _settle(self, head: bytes, body: bytes) -> None:
        assert self._answer is not None
        status = int(head.split(b" ", 2)[1])
        if status < 300:
            self._answer.set_result(body)
        else:
            said = f"{status}: {body[:300].decode(errors='replace')}"
            self._answer.set_exception(Unavailable(said, code="bench_refused"))

    async def ask(self, head: str, body: bytes = b"") -> bytes:
        """A request whose answer says how long it is. Raises Unavailable unless it is a 2xx."""
        self._on_line, self._rest = None, b""
        self._answer = asyncio.get_running_loop().create_future()
        self._send(head, body)
        async with asyncio.timeout(WITHIN_S):
            return await self._answer

    async def follow(self, head: str, on_line: OnLine, body: bytes = b"") -> None:
        """Until `stop`. Raises whatever breaks the connection."""
        self._on_line, self._rest = on_line, b""
        self._stream = asyncio.get_running_loop().create_future()
        self._send(head, body)
        async with asyncio.timeout(WITHIN_S):
            await self._stream

    def stop(self) -> None:
        if self._stream is not None and not self._stream.done():
            self._stream.set_result(None)

    def fail(self, error: Exception) -> None:
        if self._stream is not None and not self._stream.done():
            self._stream.set_exception(error)

    def close(self) -> None:
        if self._out is not None:
            self._out.abort()

    def _send(self, head: str, body: bytes) -> None:
        assert self._out is not None, "it is connected"
        length = f"content-length: {len(body)}\r\n" if body else ""
        self._out.write(f"{head}host: bench\r\n{length}\r\n".encode() + body)


async def connect(port: int) -> Line:
    _, line = await asyncio.get_running_loop().create_connection(Line, "127.0.0.1", port)
    return line
