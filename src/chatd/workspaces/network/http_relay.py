"""HTTP/1.1 between a client in a workspace and a server: each message is read strictly and written
anew, so that both sides agree where it ends. Bodies are passed on as they come.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import h11

from chatd.domain.workspace.network import NetworkTarget, RefusalReason

MAX_HEAD_BYTES: Final = 32 * 1024
RELAY_CHUNK_BYTES: Final = 64 * 1024
HOP_HEADERS: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization"),
        *(b"proxy-authenticate", b"te", b"upgrade", b"http2-settings"),
    )
)
"""Headers of one connection. Without `upgrade` a WebSocket is refused by its server."""
SERVER: Final = b"chatd"
LINGER_TIMEOUT_S: Final = 2.0
MAX_LINGER_READS: Final = 64
"""A refused client may send this many pieces more before its connection ends."""


class BadRequest(Exception):
    """The client's request cannot be passed on; the text says why."""


class HostRefused(Exception):
    """The workspace may not reach the host."""

    def __init__(self, target: NetworkTarget, reason: RefusalReason) -> None:
        super().__init__(reason)
        self.target = target
        self.reason: RefusalReason = reason


class ByteSource(Protocol):
    """An `asyncio.StreamReader`, or TLS over one."""

    async def read(self, n: int = ..., /) -> bytes: ...


class ByteSink(Protocol):
    """An `asyncio.StreamWriter`, or TLS over one."""

    @property
    def transport(self) -> asyncio.WriteTransport: ...

    def write(self, data: bytes, /) -> None: ...

    async def drain(self) -> None: ...

    def write_eof(self) -> None: ...

    def close(self) -> None: ...


class HttpStream:
    """One side of a connection. `touch` is called whenever bytes have moved."""

    def __init__(
        self,
        role: type[h11.SERVER] | type[h11.CLIENT],
        reader: ByteSource,
        writer: ByteSink,
        touch: Callable[[], None],
    ) -> None:
        self.wire = h11.Connection(role, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.reader = reader
        self.writer = writer
        self._touch = touch

    async def next_event(self) -> h11.Event:
        """Raises h11.RemoteProtocolError, OSError, EOFError."""
        while (event := self.wire.next_event()) is h11.NEED_DATA:
            data = await self.reader.read(RELAY_CHUNK_BYTES)
            self._touch()
            self.wire.receive_data(data)
        if isinstance(event, type):  # paused: the peer sends more before this message has ended
            raise EOFError
        return event

    async def send(self, *events: h11.Event) -> None:
        for event in events:
            data = self.wire.send(event)
            if data:
                self.writer.write(data)
        await self.writer.drain()
        self._touch()

    async def refuse(self, status: int, reason: str, text: str) -> None:
        """Reply with a text only. The connection ends after it."""
        if self.wire.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"{text}\n".encode()
        headers = [
            (b"Server", SERVER),
            (b"Content-Type", b"text/plain; charset=utf-8"),
            (b"Content-Length", str(len(body)).encode()),
            (b"Connection", b"close"),
        ]
        response = h11.Response(status_code=status, headers=headers, reason=reason.encode())
        await self.send(response, h11.Data(data=body), h11.EndOfMessage())
        self.writer.write_eof()
        # With bytes of the client unread, closing would take the reply from it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_TIMEOUT_S):
                for _ in range(MAX_LINGER_READS):
                    if not await self.reader.read(RELAY_CHUNK_BYTES):
                        break


def check_framing(request: h11.Request) -> None:
    """Refuse two statements of a body's length, which others may read differently. Raises
    BadRequest."""
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise BadRequest("A request must not have Content-Length and Transfer-Encoding.")


def kept_headers(
    message: h11.Request | h11.InformationalResponse | h11.Response | h11.EndOfMessage,
    *dropped: bytes,
) -> list[tuple[bytes, bytes]]:
    """The headers without those of one connection, those that `Connection` names, and those of
    `dropped`, in lower case. The others keep their spelling."""
    named = {
        word.strip()
        for name, value in message.headers
        if name == b"connection"
        for word in value.lower().split(b",")
    }
    # `Connection: content-length` must not remove what says where the body ends.
    named -= {b"content-length", b"transfer-encoding", b"host", b"authorization"}
    gone = HOP_HEADERS | named | set(dropped)
    return [
        (name, value) for name, value in message.headers.raw_items() if name.lower() not in gone
    ]


class ResponseMask:
    """Replaces texts in a response by as many stars, however it is cut into pieces."""

    def __init__(self, hidden: Sequence[str]) -> None:
        self._hidden = [text.encode() for text in hidden if text]
        self._held = b""

    def headers(self, found: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        return [(name, self.whole(value)) for name, value in found]

    def whole(self, data: bytes) -> bytes:
        for text in self._hidden:
            if text in data:
                data = data.replace(text, b"*" * len(text))
        return data

    def body(self, data: bytes) -> bytes:
        """What may be passed on by now: an end that could be the beginning of a text is held."""
        masked = self.whole(self._held + data)
        held = max((_overlap(masked, text) for text in self._hidden), default=0)
        self._held = masked[len(masked) - held :]
        return masked[: len(masked) - held]

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _overlap(data: bytes, text: bytes) -> int:
    """How many bytes at the end of `data` are a beginning of `text`, but not all of it."""
    sizes = range(min(len(text) - 1, len(data)), 0, -1)
    return next((size for size in sizes if data.endswith(text[:size])), 0)


async def relay_exchange(
    client: HttpStream, server: HttpStream, request: h11.Request, mask: ResponseMask | None = None
) -> None:
    """Send the request with the client's body, and pass the response back while the body is sent.
    Raises h11.ProtocolError, OSError, EOFError."""
    await server.send(request)
    sending = asyncio.get_running_loop().create_task(_send_body(client, server))
    try:
        await _send_response(client, server, mask or ResponseMask(()))
        if client.wire.their_state is h11.SEND_BODY:
            # The server has answered without the whole body: the rest is not read.
            raise EOFError
        await sending
    finally:
        sending.cancel()
        await asyncio.wait({sending})
        if not sending.cancelled():
            sending.exception()


async def _send_body(client: HttpStream, server: HttpStream) -> None:
    while True:
        try:
            event = await client.next_event()
        except (h11.RemoteProtocolError, OSError, EOFError):
            server.writer.transport.abort()  # no response is waited for
            raise
        match event:
            case h11.Data():
                await server.send(event)
            case h11.EndOfMessage():
                await server.send(h11.EndOfMessage(headers=kept_headers(event)))
                return
            case _:
                raise EOFError


async def _send_response(client: HttpStream, server: HttpStream, mask: ResponseMask) -> None:
    while True:
        event = await server.next_event()
        match event:
            case h11.InformationalResponse():
                if event.status_code == 101:
                    raise EOFError
                await client.send(
                    h11.InformationalResponse(
                        status_code=event.status_code, headers=mask.headers(kept_headers(event))
                    )
                )
            case h11.Response():
                await client.send(
                    h11.Response(
                        status_code=event.status_code,
                        reason=mask.whole(event.reason),
                        headers=mask.headers(kept_headers(event)),
                    )
                )
            case h11.Data():
                if passed := mask.body(bytes(event.data)):
                    await client.send(h11.Data(data=passed))
            case h11.EndOfMessage():
                if passed := mask.rest():
                    await client.send(h11.Data(data=passed))
                await client.send(h11.EndOfMessage(headers=mask.headers(kept_headers(event))))
                return
            case _:
                raise EOFError
