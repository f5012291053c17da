"""HTTP/1.1 between a client in a workspace and a server: each message is read strictly and written
anew, so that both sides agree where it ends. Bodies are passed on as they come.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import h11

MAX_HEAD_BYTES: Final = 32 * 1024
RELAY_CHUNK_BYTES: Final = 64 * 1024
HOP_HEADERS: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization"),
        *(b"proxy-authenticate", b"te", b"upgrade", b"http2-settings"),
    )
)
"""They are for one connection. Without `upgrade` a WebSocket is refused by its server."""
SERVER: Final = b"chatd"
LINGER_TIMEOUT_S: Final = 2.0
MAX_LINGER_READS: Final = 64
"""A refused client may send this many pieces more before its connection ends."""


class BadRequest(Exception):
    """The client's request cannot be passed on; the text says why."""


class HttpStream:
    """One side of a connection. `touch` is called whenever bytes have moved."""

    def __init__(
        self,
        role: type[h11.SERVER] | type[h11.CLIENT],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
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
        """Reply with a text and no more. The connection ends after it."""
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
    """Two statements of a body's length could be read differently by others. Raises BadRequest."""
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise BadRequest("A request must not have Content-Length and Transfer-Encoding.")


def kept_headers(
    message: h11.Request | h11.InformationalResponse | h11.Response | h11.EndOfMessage,
    *dropped: bytes,
) -> list[tuple[bytes, bytes]]:
    """Without those for one connection, those that `Connection` names, and those of `dropped`, in
    small letters. As they were written otherwise."""
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


async def relay_exchange(client: HttpStream, server: HttpStream, request: h11.Request) -> None:
    """Send the request with the client's body, and pass the response back while the body is sent.
    Raises h11.ProtocolError, OSError, EOFError."""
    await server.send(request)
    sending = asyncio.get_running_loop().create_task(_send_body(client, server))
    try:
        await _send_response(client, server)
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


async def _send_response(client: HttpStream, server: HttpStream) -> None:
    while True:
        event = await server.next_event()
        match event:
            case h11.InformationalResponse():
                if event.status_code == 101:
                    raise EOFError
                await client.send(
                    h11.InformationalResponse(
                        status_code=event.status_code, headers=kept_headers(event)
                    )
                )
            case h11.Response():
                await client.send(
                    h11.Response(
                        status_code=event.status_code,
                        reason=event.reason,
                        headers=kept_headers(event),
                    )
                )
            case h11.Data():
                await client.send(event)
            case h11.EndOfMessage():
                await client.send(h11.EndOfMessage(headers=kept_headers(event)))
                return
            case _:
                raise EOFError
