"""Listening: an application on a TCP port, until it is told to stop.

Owns the socket and the order of stopping: no new connections, streams are sent away, requests
under way get a few seconds, and what is left is cut off. Signals are the command line's business.
"""

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from chatd.api.call import Scope, Send
from chatd.api.connection import Connection
from chatd.api.reading import Receive
from chatd.domain.errors import ChatdError

PING_S: Final = 15.0
PONG_WITHIN_S: Final = 10.0
IDLE_S: Final = 75
MAX_SOCKET_MESSAGE: Final = 64 * 1024
DEAD_AFTER_MS: Final = 30_000
MAX_PORT: Final = 65_535


class Application(Protocol):
    """An ASGI application. `close` ends what would else stay open for ever."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...
    async def close(self) -> None: ...


class Bound(Struct, frozen=True, kw_only=True):
    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class CannotListen(ChatdError):
    code = "cannot_listen"


class Patience(Struct, frozen=True, kw_only=True):
    """How long is waited for the rest of a request's head, and for requests under way when the
    server stops."""

    head_s: int = 30
    finish_s: int = 2


DEFAULT: Final = Patience()


async def serve(
    app: Application,
    host: str,
    port: int,
    on_bound: Callable[[Bound], None],
    stop: asyncio.Event,
    *,
    patience: Patience = DEFAULT,
) -> None:
    """Until `stop` is set; cancelled, it cuts everything off at once. Port 0 takes any, and
    `on_bound` is told which. Raises CannotListen."""
    await serve_on(app, await bind(host, port), on_bound, stop, patience=patience)


async def serve_on(
    app: Application,
    listening: socket.socket,
    on_bound: Callable[[Bound], None],
    stop: asyncio.Event,
    *,
    patience: Patience = DEFAULT,
) -> None:
    """The same on a port that was bound before; it is closed at the end."""
    server = _Server(app, lambda: on_bound(_bound(listening)), stop, patience)
    try:
        await server.serve(sockets=[listening])
    finally:
        server.cut_off()
        listening.close()


class _Server(uvicorn.Server):
    def __init__(
        self,
        app: Application,
        on_started: Callable[[], None],
        stop: asyncio.Event,
        patience: Patience,
    ) -> None:
        super().__init__(_config(app, patience))
        self._app = app
        self._on_started = on_started
        self._stop = stop
        self._patience = patience
        self._unfinished: Counter[HttpToolsProtocol] = Counter()
        self.servers = []

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def main_loop(self) -> None:
        """Once a second there is something to look after; a stop is heard at once."""
        while not self._stop.is_set():
            await self.on_tick(0)
            self._hang_up_on_mumblers()
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stop.wait()

    def _hang_up_on_mumblers(self) -> None:
        """Whoever begins a request and never ends its head would stay for ever."""
        seconds = self._unfinished
        self._unfinished = Counter()
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, HttpToolsProtocol) and _is_between_requests(connection):
                self._unfinished[connection] = seconds[connection] + 1
                if seconds[connection] >= self._patience.head_s:
                    connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._app.close()
        await super().shutdown(sockets)

    def cut_off(self) -> None:
        for server in self.servers:
            server.close()
        for task in tuple(self.server_state.tasks):
            task.cancel()
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()


def _is_between_requests(connection: HttpToolsProtocol) -> bool:
    """An idle connection has a timer of its own, which ends with the first byte it hears."""
    cycle = connection.cycle
    idle = connection.timeout_keep_alive_task is not None
    return not idle and (not cycle or cycle.response_complete)


def _config(app: Application, patience: Patience) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        ws="websockets-sansio",
        loop="none",
        lifespan="off",
        interface="asgi3",
        # Compressed, a stream of small frames costs more than twice as much.
        ws_per_message_deflate=False,
        ws_max_size=MAX_SOCKET_MESSAGE,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PONG_WITHIN_S,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=patience.finish_s,
    )


async def bind(host: str, port: int) -> socket.socket:
    """Nobody is answered on it yet, and nobody else can have it. Raises CannotListen."""
    try:
        if not 0 <= port <= MAX_PORT:
            raise OSError(errno.EINVAL, "there is no such port")
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            _prepare(listening)
            listening.bind(address)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        text = f"cannot listen on {host}, port {port}: {error.strerror or error}"
        raise CannotListen(text) from error
    return listening


def _prepare(listening: socket.socket) -> None:
    """What is set here holds for every connection that is taken."""
    listening.settimeout(0)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A client that takes nothing, or has vanished without a word, would else be kept for
        # as long as it answers probes, or for a quarter of an hour.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)


def _bound(listening: socket.socket) -> Bound:
    host, port = listening.getsockname()[:2]
    return Bound(host=host, port=port)
