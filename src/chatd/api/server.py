"""Serve an ASGI application on a TCP port until it must stop.

Owns the listening socket, the limits of a connection, and the order of a stop: no new connections,
end the streams, wait for requests in progress, abort the rest. The CLI handles signals.
"""

import asyncio
import errno
import socket
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, Protocol, cast

import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState

from chatd.api.request import Message, Receive, Scope, Send
from chatd.domain.errors import ChatdError

WEBSOCKET_PING_INTERVAL_S: Final = 15.0
WEBSOCKET_PONG_TIMEOUT_S: Final = 10.0
KEEPALIVE_TIMEOUT_S: Final = 75
TCP_USER_TIMEOUT_MS: Final = 30_000
MAX_WEBSOCKET_MESSAGE_BYTES: Final = 64 * 1024
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 128
"""Fields in the head of a request. A browser sends about 30."""
MAX_PORT: Final = 65_535

_TOO_LARGE: Final = (
    b'{"code":"too_large","message":"The request line and headers exceed %d bytes."}'
    % MAX_HEAD_BYTES
)
_HEAD_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(_TOO_LARGE), _TOO_LARGE)
)


_TOO_MANY: Final = b'{"code":"too_large","message":"More than %d headers."}' % MAX_HEADERS


DirectWrite = Callable[[bytes], bool]
"""Writes a piece of a stream without waiting; False if the connection cannot take it now."""


def find_direct_write(send: Send) -> DirectWrite | None:
    """For the `send` of uvicorn's own connections. A piece is a part of a response that has begun,
    or a text message of a WebSocket."""
    owner = getattr(send, "__self__", None)
    if isinstance(owner, RequestResponseCycle):
        return partial(_write_chunk, owner)
    if isinstance(owner, WebSocketsSansIOProtocol):
        return partial(_write_text, owner)
    return None


def _write_chunk(cycle: RequestResponseCycle, content: bytes) -> bool:
    """As uvicorn frames it. Above its limit of unsent bytes the transport pauses the writer."""
    is_open = cycle.response_started and not cycle.response_complete and not cycle.disconnected
    if not is_open or not cycle.chunked_encoding or cycle.flow.write_paused:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(content), content))
    return True


class _HeldWrites:
    """Takes the place of a transport while uvicorn writes the pieces of a response."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pieces: list[bytes] = []
        self._closes = False

    def write(self, data: bytes) -> None:
        self._pieces.append(data)

    def is_closing(self) -> bool:
        return self._closes or self._transport.is_closing()

    def close(self) -> None:
        self._closes = True

    def flush(self) -> None:
        if self._pieces:
            self._transport.write(b"".join(self._pieces))
        if self._closes:
            self._transport.close()


async def send_together(send: Send, *messages: Message) -> None:
    """Send several messages of a response, on uvicorn's own connections by one write: each would
    be a system call, and wake the client."""
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle) or cycle.flow.write_paused:
        for message in messages:
            await send(message)
        return
    transport = cycle.transport
    held = _HeldWrites(transport)
    cycle.transport = cast("asyncio.Transport", held)
    try:
        for message in messages:
            await send(message)
    finally:
        cycle.transport = transport
        held.flush()


OnDisconnect = Callable[[], None]


@contextmanager
def watch_disconnect(receive: Receive, on_disconnect: OnDisconnect) -> Generator[bool]:
    """Call back once the client of this request has gone, without a task that waits for it. False
    if that is not possible: then wait for the message."""
    cycle = getattr(receive, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle) or cycle.disconnected:
        yield False
        return
    _ON_DISCONNECT[cycle] = on_disconnect
    try:
        yield True
    finally:
        _ON_DISCONNECT.pop(cycle, None)


_ON_DISCONNECT: Final[dict[RequestResponseCycle, OnDisconnect]] = {}


def _write_text(socket: WebSocketsSansIOProtocol, content: bytes) -> bool:
    is_open = socket.handshake_complete and not socket.close_sent and not socket.disconnected
    if not is_open or socket.transport.is_closing() or not socket.writable.is_set():
        return False
    try:
        socket.conn.send_text(content)
    except InvalidState:
        return False
    socket.transport.write(b"".join(socket.conn.data_to_send()))
    return True


class Application(Protocol):
    """An ASGI application. `close` ends its streams, which would otherwise stay open."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...
    async def close(self) -> None: ...


class BoundAddress(Struct, frozen=True, kw_only=True):
    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class ListenError(ChatdError):
    code = "cannot_listen"


class ServerTimeouts(Struct, frozen=True, kw_only=True):
    """`head_s`: to receive a request's head. `finish_s`: for requests in progress at a stop."""

    head_s: int = 30
    finish_s: int = 2


DEFAULT_SERVER_TIMEOUTS: Final = ServerTimeouts()


async def serve(
    app: Application,
    listening: socket.socket,
    on_bound: Callable[[BoundAddress], None],
    stop: asyncio.Event,
    *,
    timeouts: ServerTimeouts = DEFAULT_SERVER_TIMEOUTS,
) -> None:
    """Until `stop` is set; a cancelled call aborts all connections. Closes the socket."""
    host, port = listening.getsockname()[:2]
    address = BoundAddress(host=host, port=port)
    server = _Server(app, lambda: on_bound(address), stop, timeouts)
    try:
        await server.serve(sockets=[listening])
    finally:
        server.abort()
        listening.close()


async def bind(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Reserve the port; nothing is accepted before `serve`. Port 0 takes a free one. A shared port
    may be bound by several processes of one account. Raises ListenError."""
    try:
        if not 0 <= port <= MAX_PORT:
            raise OSError(errno.EINVAL, f"a port is 0 to {MAX_PORT}")
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            _set_options(listening)
            if is_shared:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listening.bind(address)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        text = f"cannot listen on {host}, port {port}: {error.strerror or error}"
        raise ListenError(text) from error
    return listening


def _set_options(listening: socket.socket) -> None:
    """Accepted connections inherit these options."""
    listening.settimeout(0)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Without it, a client that does not read is kept as long as it answers probes, and one
        # that vanished is kept for about 15 minutes.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)


class _Server(uvicorn.Server):
    def __init__(
        self,
        app: Application,
        on_started: Callable[[], None],
        stop: asyncio.Event,
        timeouts: ServerTimeouts,
    ) -> None:
        super().__init__(_config(app, timeouts))
        self._app = app
        self._on_started = on_started
        self._stop = stop
        self._timeouts = timeouts
        self._seconds_in_head: Counter[HttpToolsProtocol] = Counter()
        self.servers = []

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def main_loop(self) -> None:
        """Unlike uvicorn's, it stops at once and not with the next tick."""
        while not self._stop.is_set():
            await self.on_tick(0)
            self._abort_slow_heads()
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stop.wait()

    def _abort_slow_heads(self) -> None:
        """uvicorn has no timeout for the head of a request."""
        seconds = self._seconds_in_head
        self._seconds_in_head = Counter()
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, HttpToolsProtocol) and _is_reading_head(connection):
                self._seconds_in_head[connection] = seconds[connection] + 1
                if seconds[connection] >= self._timeouts.head_s:
                    connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._app.close()
        await super().shutdown(sockets)

    def abort(self) -> None:
        for server in self.servers:
            server.close()
        for task in tuple(self.server_state.tasks):
            task.cancel()
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()


def _is_reading_head(connection: HttpToolsProtocol) -> bool:
    """An idle connection has a keep-alive timer, which its next byte cancels."""
    cycle = connection.cycle
    is_idle = connection.timeout_keep_alive_task is not None
    return not is_idle and (not cycle or cycle.response_complete)


def _config(app: Application, timeouts: ServerTimeouts) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedHttpProtocol,
        ws="websockets-sansio",
        loop="none",
        lifespan="off",
        interface="asgi3",
        # Compression more than doubles the cost of a stream of small frames.
        ws_per_message_deflate=False,
        ws_max_size=MAX_WEBSOCKET_MESSAGE_BYTES,
        ws_ping_interval=WEBSOCKET_PING_INTERVAL_S,
        ws_ping_timeout=WEBSOCKET_PONG_TIMEOUT_S,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEPALIVE_TIMEOUT_S,
        timeout_graceful_shutdown=timeouts.finish_s,
    )


async def refuse_headers(_scope: Scope, _receive: Receive, send: Send) -> None:
    """An ASGI application."""
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers.append((b"content-length", str(len(_TOO_MANY)).encode()))
    await send({"type": "http.response.start", "status": 431, "headers": headers})
    await send({"type": "http.response.body", "body": _TOO_MANY})


class BoundedHttpProtocol(HttpToolsProtocol):
    """Bounds what uvicorn buffers without a limit: a request's head, and data after its body.
    The bound counts bytes since the last piece of a body, accurate to one read. When the client
    disconnects, uvicorn notifies only the last pipelined request; this class notifies all."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._unparsed_bytes = 0
        self._cycles: deque[RequestResponseCycle] = deque()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()
            if (on_disconnect := _ON_DISCONNECT.pop(cycle, None)) is not None:
                on_disconnect()

    def data_received(self, data: bytes) -> None:
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes <= MAX_HEAD_BYTES or self.transport.is_closing():
            return
        if not self.cycle or self.cycle.response_complete:
            self.transport.write(_HEAD_TOO_LARGE)
        self.transport.close()

    def on_headers_complete(self) -> None:
        self._unparsed_bytes = 0
        if len(self.headers) > MAX_HEADERS:
            self.app = refuse_headers  # The connection ends with it.
        super().on_headers_complete()
        while self._cycles and self._cycles[0].response_complete:
            self._cycles.popleft()
        if self.cycle:
            self._cycles.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        super().on_message_complete()
