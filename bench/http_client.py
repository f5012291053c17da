"""A minimal HTTP client for measurements: one connection for sequential requests or one stream.

It parses only what the three measured servers send; a library would cost as much as the relay.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from chatd.domain.errors import Unavailable

REPLY_TIMEOUT_S: Final = 120.0
_MAX_SHOWN_BYTES: Final = 300

OnLine = Callable[[bytes], None]


class BenchConnection(asyncio.Protocol):
    """`on_line` gets every complete line, HTTP framing included."""

    def __init__(self) -> None:
        self._out: asyncio.WriteTransport | None = None
        self._rest = b""
        self._last = b""
        self._on_line: OnLine | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._stream: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._out = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        text = f"The server closed the connection. The last bytes were {self._last!r}."
        lost = Unavailable(text, code="bench_lost")
        for waiting in (self._answer, self._stream):
            if waiting is not None and not waiting.done():
                waiting.set_exception(exc or lost)

    def data_received(self, data: bytes) -> None:
        if self._on_line is not None:
            if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
                text = data.decode(errors="replace")
                self.fail(Unavailable(text, code="bench_refused"))
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._on_line(line)
            self._last = data[-_MAX_SHOWN_BYTES:]
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
            text = f"{status}: {body[:300].decode(errors='replace')}"
            self._answer.set_exception(Unavailable(text, code="bench_refused"))

    async def request(self, head: str, body: bytes = b"") -> bytes:
        """The body of a reply with a content-length. Raises Unavailable unless it is a 2xx."""
        self._on_line, self._rest = None, b""
        self._answer = asyncio.get_running_loop().create_future()
        self._send(head, body)
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            return await self._answer

    async def follow(self, head: str, on_line: OnLine, body: bytes = b"") -> None:
        """Read lines until `stop`. Raises the error that ends the connection."""
        self._on_line, self._rest = on_line, b""
        self._stream = asyncio.get_running_loop().create_future()
        self._send(head, body)
        async with asyncio.timeout(REPLY_TIMEOUT_S):
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
        assert self._out is not None, "connected"
        length = f"content-length: {len(body)}\r\n" if body else ""
        self._out.write(f"{head}host: bench\r\n{length}\r\n".encode() + body)


async def open_connection(port: int) -> BenchConnection:
    _, line = await asyncio.get_running_loop().create_connection(BenchConnection, "127.0.0.1", port)
    return line
