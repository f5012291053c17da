"""Hints between replicas by a NATS server instead of PostgreSQL: `server.notifications`.

Only hints: changes of accounts and settings are part of a transaction, and the lock by which other
replicas see that a process lives is PostgreSQL's. Both stay there.

Owns a client of NATS' core protocol, six kinds of text lines and their payloads. NATS keeps nothing
and confirms nothing, so a ping follows each batch: its reply says that the server has taken what
came before. After each connect `on_connected` reports that earlier hints may be lost.
"""

import asyncio
import random
import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Final, cast
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import UNSET, Struct, UnsetType

from chatd.aio import Backoff
from chatd.domain.chat.row import Hint, decode_hint
from chatd.domain.errors import ChatdError, InvalidInput, Unavailable
from chatd.domain.ports import Env

NATS_PORT: Final = 4222
MAX_NATS_LINE_BYTES: Final = 64 * 1024
"""Limit for a line without its payload; the list of the servers of a large cluster is longest."""
MAX_NATS_HINT_BYTES: Final = 1024
"""A server that takes less is refused. A longer payload is not a hint: it is skipped."""
MAX_NATS_ERROR_CHARS: Final = 200
DEFAULT_SUBJECT: Final = "chatd"
_SUBJECT: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_LOST: Final = "notifications_lost"


class NatsServer(Struct, frozen=True, kw_only=True):
    host: str
    port: int
    tls: bool

    @property
    def shown(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"


class NatsConfig(Struct, frozen=True, kw_only=True):
    servers: tuple[NatsServer, ...]
    subject: str = DEFAULT_SUBJECT
    user: str | None = None
    password: str | None = None
    token: str | None = None
    connect_timeout_s: float = 5
    ping_interval_s: float = 15
    pong_timeout_s: float = 5
    backoff: Backoff = Backoff()

    def __repr__(self) -> str:
        """Without the password: this may end up in logs."""
        servers = ",".join(server.shown for server in self.servers)
        return f"NatsConfig(servers={servers!r}, subject={self.subject!r})"


def parse_nats_url(text: str) -> NatsConfig:
    """`nats://user:password@host:4222,other:4222/subject`; `tls://` demands TLS; a user without a
    password is a token. Raises InvalidInput, without the text: it may have a password."""
    scheme, _, rest = text.partition("://")
    login, has_login, places = rest.rpartition("@")
    hosts, _, path = places.partition("/")
    subject = path or DEFAULT_SUBJECT
    if scheme not in ("nats", "tls") or _SUBJECT.fullmatch(subject) is None:
        raise _invalid("nats:// or tls://, a host, and a subject of letters, digits, _, - and dots")
    servers = tuple(_server(scheme, place) for place in hosts.split(","))
    user, has_password, password = login.partition(":")
    if not has_login:
        return NatsConfig(servers=servers, subject=subject)
    if not has_password:
        return NatsConfig(servers=servers, subject=subject, token=unquote(user))
    return NatsConfig(
        servers=servers, subject=subject, user=unquote(user), password=unquote(password)
    )


def _server(scheme: str, place: str) -> NatsServer:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
        is_place = parts.netloc == place
    except ValueError:
        host, port, is_place = None, None, False
    if not host or not is_place:
        raise _invalid("a host, perhaps with a port, in each place of the list")
    return NatsServer(host=host, port=NATS_PORT if port is None else port, tls=scheme == "tls")


def _invalid(expected: str) -> InvalidInput:
    return InvalidInput("server.notifications", f"server.notifications: expected {expected}")


class NatsFault(ChatdError):
    """The server refused, or what it sent is not its protocol."""

    code = _LOST


class NatsParser:
    """Takes bytes that are cut anywhere; yields pairs of a verb and what belongs to it: the payload
    of a MSG, the JSON of an INFO, the text of an -ERR."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._payload: int | None = None
        self._skipped = 0

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Raises NatsFault."""
        buffer, at = self._buffer, 0
        buffer += data
        found: list[tuple[bytes, bytes]] = []
        while at < len(buffer):
            if self._skipped:
                dropped = min(self._skipped, len(buffer) - at)
                self._skipped -= dropped
                at += dropped
                continue
            if (size := self._payload) is not None:
                if len(buffer) - at < size + 2:
                    break
                found.append((b"MSG", bytes(buffer[at : at + size])))
                at += size + 2
                self._payload = None
                continue
            end = buffer.find(b"\r\n", at)
            if (len(buffer) if end < 0 else end) - at > MAX_NATS_LINE_BYTES:
                raise NatsFault("The NATS server sent a line that is too long.")
            if end < 0:
                break
            verb, _, rest = bytes(buffer[at:end]).partition(b" ")
            at = end + 2
            if verb == b"MSG":
                self._expect(rest)
            elif verb != b"+OK":
                found.append((verb, rest))
        del buffer[:at]
        return found

    def _expect(self, rest: bytes) -> None:
        fields = rest.split()
        size = fields[-1] if len(fields) in (3, 4) else b""
        if not size.isdigit() or len(size) > 12:
            raise NatsFault("The NATS server sent a message without its size.")
        if int(size) > MAX_NATS_HINT_BYTES:
            self._skipped = int(size) + 2
        else:
            self._payload = int(size)


class _Info(Struct, frozen=True, kw_only=True):
    max_payload: int = 0
    tls_required: bool = False
    tls_available: bool = False


class _Connect(Struct, frozen=True, kw_only=True, omit_defaults=True):
    verbose: bool
    pedantic: bool
    echo: bool
    name: str
    lang: str = "python"
    version: str = "1"
    protocol: int = 1
    user: str | UnsetType = UNSET
    password: str | UnsetType = msgspec.field(default=UNSET, name="pass")
    token: str | UnsetType = msgspec.field(default=UNSET, name="auth_token")


class _Connection(asyncio.Protocol):
    """One socket. `ended` gets the reason when it is lost; `end` closes it at once."""

    def __init__(self, on_message: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._parser = NatsParser()
        self._transport: asyncio.Transport | None = None
        self._pongs: deque[asyncio.Future[None]] = deque()
        self.info: asyncio.Future[_Info] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()

    @property
    def awaits_pong(self) -> bool:
        return any(not pong.done() or pong.cancelled() for pong in self._pongs)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for verb, rest in self._parser.feed(data):
                self._handle(verb, rest)
        except NatsFault as error:
            self.end(error.message)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("The NATS server closed the connection." if exc is None else _text(exc))

    def end(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self.ended.done():
            return
        self.ended.set_result(reason)
        for pong in self._pongs:
            if not pong.done():
                pong.set_exception(Unavailable(reason, code=_LOST))
        self._pongs.clear()
        self.info.cancel()

    async def flush(self, frames: bytes) -> None:
        """Write, and wait until the server has taken all of it. Raises Unavailable."""
        if self.ended.done() or self._transport is None:
            raise Unavailable("NATS is not connected.", code=_LOST)
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self._transport.write(frames + b"PING\r\n")
        await pong

    async def upgrade(self, context: ssl.SSLContext, host: str) -> None:
        assert self._transport is not None  # the server has sent its INFO
        loop = asyncio.get_running_loop()
        encrypted = await loop.start_tls(self._transport, self, context, server_hostname=host)
        if encrypted is None:
            raise NatsFault("The NATS server closed the connection during its TLS handshake.")
        self._transport = encrypted

    def _handle(self, verb: bytes, rest: bytes) -> None:
        match verb:
            case b"MSG":
                self._on_message(rest)
            case b"PONG":
                if self._pongs and not (pong := self._pongs.popleft()).done():
                    pong.set_result(None)
            case b"PING":
                if self._transport is not None:
                    self._transport.write(b"PONG\r\n")
            case b"INFO":
                if not self.info.done():
                    self.info.set_result(_decode_info(rest))
            case b"-ERR":
                # Some leave the connection open, such as a subject that is not permitted. No hint
                # would arrive.
                self.end(f"The NATS server refused: {_printable(rest)}")
            case _:
                raise NatsFault("This is not a NATS server.")


def _decode_info(text: bytes) -> _Info:
    try:
        return msgspec.json.decode(text, type=_Info)
    except (msgspec.DecodeError, RecursionError):
        raise NatsFault("The NATS server sent a greeting that cannot be read.") from None


def _printable(text: bytes) -> str:
    shown = "".join(letter for letter in text.decode(errors="replace") if letter.isprintable())
    return shown.strip(" '")[:MAX_NATS_ERROR_CHARS]


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


async def _open(
    config: NatsConfig, server: NatsServer, on_message: Callable[[bytes], None], *, echo: bool
) -> _Connection:
    """A connection that is subscribed and may publish. Raises NatsFault, OSError."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: _Connection(on_message), server.host, server.port
    )
    try:
        await asyncio.wait((connection.info, connection.ended), return_when="FIRST_COMPLETED")
        if connection.ended.done():
            raise NatsFault(connection.ended.result())
        info = connection.info.result()
        if info.max_payload < MAX_NATS_HINT_BYTES:
            needed = f"its max_payload is {info.max_payload}, and {MAX_NATS_HINT_BYTES} are needed"
            raise NatsFault(f"The NATS server takes too short messages: {needed}.")
        if server.tls and not (info.tls_required or info.tls_available):
            raise NatsFault("The NATS server offers no TLS, which tls:// demands.")
        if server.tls or info.tls_required:
            await connection.upgrade(ssl.create_default_context(), server.host)
        # An empty message shows whether the server lets this user publish.
        await connection.flush(
            b"CONNECT %b\r\nSUB %b 1\r\n" % (_greeting(config, echo=echo), config.subject.encode())
            + _publish(config.subject, "")
        )
    except Unavailable as error:
        raise NatsFault(error.message) from None
    except BaseException:
        connection.end("The connection was given up.")
        raise
    return connection


def _greeting(config: NatsConfig, *, echo: bool) -> bytes:
    return msgspec.json.encode(
        _Connect(
            verbose=False,
            pedantic=False,
            echo=echo,
            name="chatd",
            user=UNSET if config.user is None else config.user,
            password=UNSET if config.password is None else config.password,
            token=UNSET if config.token is None else config.token,
        )
    )


def _publish(subject: str, payload: str) -> bytes:
    data = payload.encode()
    return b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(data), data)


class NatsBus:
    """`run` keeps a connection until it is cancelled, and gives received hints to `on_hint`.
    Callbacks must not block."""

    def __init__(
        self,
        config: NatsConfig,
        env: Env,
        *,
        on_hint: Callable[[Hint], None],
        on_connected: Callable[[], None],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._env = env
        self._on_hint = on_hint
        self._on_connected = on_connected
        self._draw = draw
        self._connection: _Connection | None = None
        self.connected = asyncio.Event()

    async def run(self) -> None:
        failures = 0
        for server in cycle(self._config.servers):
            began = self._env.clock.monotonic()
            try:
                async with asyncio.timeout(self._config.connect_timeout_s):
                    connection = await _open(self._config, server, self._receive, echo=False)
            except TimeoutError:
                reason = f"No answer within {self._config.connect_timeout_s:g} s."
            except (NatsFault, OSError) as error:
                reason = error.message if isinstance(error, NatsFault) else _text(error)
            else:
                reason = await self._serve(connection, server)
            # A connection that is lost at once counts as a failed attempt.
            lasted = self._env.clock.monotonic() - began
            failures = 1 if lasted > self._config.ping_interval_s else failures + 1
            self._env.emit(_LOST, server=server.shown, reason=reason, failures=failures)
            delay = self._config.backoff.delay(failures, self._draw)
            await self._env.clock.sleep(delay, tag="nats_reconnect")

    async def send(self, payloads: Sequence[str]) -> None:
        """Returns when the server has taken them. Raises Unavailable; NatsFault for payloads that
        it would not take."""
        if (connection := self._connection) is None:
            raise Unavailable("NATS is not connected.", code=_LOST)
        if any(len(payload.encode()) > MAX_NATS_HINT_BYTES for payload in payloads):
            raise NatsFault("A hint is too long.")
        subject = self._config.subject
        await connection.flush(b"".join(_publish(subject, payload) for payload in payloads))

    def disconnect(self) -> None:
        """Called after a failure: what was sent last may be lost with the connection."""
        if (connection := self._connection) is not None and connection.awaits_pong:
            connection.end("The NATS server did not answer in time.")

    async def _serve(self, connection: _Connection, server: NatsServer) -> str:
        """Wait until the connection is lost; returns why."""
        try:
            self._connection = connection
            self.connected.set()
            self._env.emit("notifications_connected", server=server.shown)
            self._on_connected()
            async with asyncio.TaskGroup() as group:
                pings = group.create_task(self._ping(connection), name="nats_ping")
                await asyncio.wait((connection.ended,))  # which a cancellation leaves alone
                pings.cancel()
            return connection.ended.result()
        finally:
            self._connection = None
            self.connected.clear()
            connection.end("The replica stops.")

    async def _ping(self, connection: _Connection) -> None:
        """Detect a dead connection: end it unless its pings are answered."""
        while True:
            await self._env.clock.sleep(self._config.ping_interval_s, tag="nats_ping")
            try:
                async with asyncio.timeout(self._config.pong_timeout_s):
                    await connection.flush(b"")
            except TimeoutError:
                connection.end("The NATS server did not answer a ping.")
            except Unavailable:
                return

    def _receive(self, payload: bytes) -> None:
        if (hint := decode_hint(payload.decode(errors="replace"))) is not None:
            self._on_hint(hint)


async def measure_nats(config: NatsConfig) -> Mapping[str, float | str]:
    """For each server, the seconds until a message came back, or why it did not."""
    return {server.shown: await _measure(config, server) for server in config.servers}


async def _measure(config: NatsConfig, server: NatsServer) -> float | str:
    loop = asyncio.get_running_loop()
    marker = f"doctor {random.getrandbits(64)}"
    arrived: asyncio.Future[float] = loop.create_future()

    def receive(payload: bytes) -> None:
        if payload == marker.encode() and not arrived.done():
            arrived.set_result(loop.time())

    connection = None
    try:
        async with asyncio.timeout(config.connect_timeout_s):
            connection = await _open(config, server, receive, echo=True)
            sent = loop.time()
            await connection.flush(_publish(config.subject, marker))
            return await arrived - sent
    except TimeoutError:
        return f"No answer within {config.connect_timeout_s:g} s."
    except (ChatdError, OSError) as error:
        return error.message if isinstance(error, ChatdError) else _text(error)
    finally:
        if connection is not None:
            connection.end("Measured.")
