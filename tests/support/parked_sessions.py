"""Sessions of PostgreSQL that outlive the event loop of their test.

A new session costs the server as much as the rest of a short test: it starts a process, which
reads the catalogue and plans every statement again. A session that a test has closed while it was
idle is therefore parked, with the statements that it has prepared, and the next test that opens a
session with the same settings gets it. All that a session can keep is reset before that: its locks,
what it listens to and its settings. A session that was lost, cancelled or in a transaction, or has
statements prepared by SQL, is closed, and so is every session to a database that was not named: one
behind a proxy or of a server that a test may stop. Only asyncio's own event loop takes part: one of
uvloop (`chatd admin` in a test) once waited for ever, in its `close`, for a transport whose socket
was parked.
"""

import asyncio
import os
import socket
import struct
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, cast

import asyncpg
from asyncpg.protocol import Protocol, Record

from chatd.store.database import conn

MAX_PARKED: Final = 12
"""Of one kind."""
RESET: Final = b"""SELECT pg_advisory_unlock_all();CLOSE ALL;UNLISTEN *;RESET ALL;DISCARD TEMP;
    SET application_name = parked\0"""
RENAME: Final = b"RESET application_name\0"
"""Tests find and end sessions by their names: a parked one has none of theirs."""
RESET_TIMEOUT_S: Final = 2.0
PARAMETERS: Final = (
    "server_version",
    "server_encoding",
    "client_encoding",
    "integer_datetimes",
    "standard_conforming_strings",
    "in_hot_standby",
    "default_transaction_read_only",
    "TimeZone",
)
OPEN_FUNCTION: Final = "_open"
Statements = Mapping[object, object]
Kind = tuple[object, ...]


class ParkedSession(NamedTuple):
    socket: socket.socket
    hello: bytes
    pid: int
    statements: Statements
    place: tuple[Any, ...]
    """Address, configuration and parameters of the driver's connection."""


class SessionPark:
    """The idle sessions to one database. Used by one test process."""

    def __init__(self, dsn: str, otherwise: Callable[..., Awaitable[object]]) -> None:
        self._dsn = dsn
        self._open_other = otherwise
        self._parked: dict[Kind, list[ParkedSession]] = defaultdict(list)

    @property
    def pids(self) -> set[int]:
        return {session.pid for sessions in self._parked.values() for session in sessions}

    def has_room(self, kind: Kind) -> bool:
        return len(self._parked[kind]) < MAX_PARKED

    def put(self, kind: Kind, session: ParkedSession) -> None:
        self._parked[kind].append(session)

    async def open(self, dsn: str, **options: Any) -> object:
        is_asyncio = isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
        if dsn != self._dsn or not is_asyncio:
            return await self._open_other(dsn, **options)
        settings = cast("Mapping[str, str]", options["server_settings"])
        others = {name: value for name, value in options.items() if name != "server_settings"}
        kind = (dsn, *sorted(settings.items()), *sorted(others.items()))
        driver = await self._resume_one(kind) or await self._open_other(dsn, **options)
        return ParkingDriver(driver, self, kind)

    async def _resume_one(self, kind: Kind) -> object:
        while self._parked[kind]:
            session = self._parked[kind].pop()
            if _is_alive(session.socket) and _ask(session.socket, RENAME):
                return await _resume(session)
            session.socket.close()
        return None

    def close(self) -> None:
        for sessions in self._parked.values():
            for session in sessions:
                session.socket.close()
        self._parked.clear()


class ParkingDriver:
    """The driver's connection, which parks its session instead of closing it if that is idle."""

    def __init__(self, driver: Any, park: SessionPark, kind: Kind) -> None:
        self._driver = driver
        self._park = park
        self._kind = kind
        self._running = 0
        self._has_own_statements = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def fetch(self, query: str, *args: object) -> object:
        return await self._run(self._driver.fetch(query, *args))

    async def fetchrow(self, query: str, *args: object) -> object:
        return await self._run(self._driver.fetchrow(query, *args))

    async def fetchval(self, query: str, *args: object) -> object:
        return await self._run(self._driver.fetchval(query, *args))

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> object:
        if query.startswith("PREPARE "):
            self._has_own_statements = True
        return await self._run(self._driver.execute(query, *args, timeout=timeout))

    async def close(self, *, timeout: float) -> None:
        if not self._park_session():
            await self._driver.close(timeout=timeout)

    def terminate(self) -> None:
        if not self._park_session():
            self._driver.terminate()

    async def _run(self, statement: Awaitable[object]) -> object:
        self._running += 1
        try:
            return await statement
        finally:
            self._running -= 1

    def _park_session(self) -> bool:
        driver = self._driver
        if self._running or self._has_own_statements or driver.is_closed():
            return False
        if not self._park.has_room(self._kind):
            return False
        protocol, transport = driver._protocol, driver._transport
        if (
            protocol.is_in_transaction()
            or protocol._is_cancelling()
            or transport.is_closing()
            or transport.get_write_buffer_size()
        ):
            return False
        session = ParkedSession(
            socket=socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())),
            hello=_hello(protocol),
            pid=protocol.backend_pid,
            statements=_take_statements(driver),
            place=(driver._addr, driver._config, driver._params),
        )
        # The driver would tell the server that it leaves.
        transport.write = _discard
        driver.terminate()
        if _ask(session.socket, RESET):
            self._park.put(self._kind, session)
        else:
            session.socket.close()
        return True


class _Resumption(asyncio.Protocol):
    """Answers the driver's first message, which the server must not see again, and then leaves the
    transport to it."""

    def __init__(self, driver: Any, hello: bytes) -> None:
        self._driver = driver
        self._hello = hello
        self.transport: _TransportAfterHello | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        real = cast("asyncio.Transport", transport)
        self.transport = _TransportAfterHello(real)
        self._driver.connection_made(self.transport)
        self._driver.data_received(self._hello)
        real.set_protocol(self._driver)


class _TransportAfterHello:
    def __init__(self, real: asyncio.Transport) -> None:
        self._real = real
        self.write: Callable[[bytes], None] = self._drop_first

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def abort(self) -> None:
        self._real.abort()

    def _drop_first(self, _startup: bytes) -> None:
        self.write = self._real.write


async def _resume(session: ParkedSession) -> object:
    loop = asyncio.get_running_loop()
    connected: asyncio.Future[bool] = loop.create_future()
    address, config, parameters = session.place
    driver: Any = cast("Any", Protocol)(address, connected, parameters, Record, loop)
    session.socket.settimeout(0)
    resumption = _Resumption(driver, session.hello)
    try:
        await loop.create_connection(lambda: resumption, sock=session.socket)
        await connected
    except BaseException:
        if resumption.transport is not None:
            resumption.transport.abort()
        else:
            session.socket.close()
        raise
    connection: Any = cast("Any", asyncpg.Connection)(
        driver, resumption.transport, loop, address, config, parameters
    )
    driver.set_connection(connection)
    for query, statement in session.statements.items():
        connection._stmt_cache.put(query, statement)
    return connection


def _discard(_message: bytes) -> None:
    pass


def _take_statements(connection: Any) -> Statements:
    """The prepared statements by query; the connection no longer knows them, and so does not mark
    them as closed."""
    entries = connection._stmt_cache._entries
    statements = {query: entry._statement for query, entry in entries.items()}
    entries.clear()
    return statements


def _hello(protocol: Any) -> bytes:
    """What the server sent when the session began: accepted, its parameters, its key, ready."""
    given = {name: getattr(protocol.get_settings(), name, None) for name in PARAMETERS}
    pairs = (f"{name}\0{value}\0".encode() for name, value in given.items() if value is not None)
    return b"".join(
        (
            _message(b"R", struct.pack("!i", 0)),
            *(_message(b"S", pair) for pair in pairs),
            _message(b"K", struct.pack("!ii", protocol.backend_pid, protocol.backend_secret)),
            _message(b"Z", b"I"),
        )
    )


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _ask(session: socket.socket, statements: bytes) -> bool:
    """Blocks the event loop for less than a millisecond: a session that is terminated cannot
    wait."""
    session.settimeout(RESET_TIMEOUT_S)
    try:
        session.sendall(_message(b"Q", statements))
        received = b""
        while not received.endswith(_message(b"Z", b"I")):
            if not (more := session.recv(65_536)):
                return False
            received += more
    except OSError:
        return False
    return b"ERROR" not in received


def _is_alive(session: socket.socket) -> bool:
    """A parked session receives nothing, unless the server ends it."""
    session.settimeout(0)
    try:
        session.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@contextmanager
def parking_sessions(dsn: str) -> Generator[SessionPark]:
    """While the context is open, sessions of the store to this database are reused."""
    before = cast("Callable[..., Awaitable[object]]", getattr(conn, OPEN_FUNCTION))
    park = SessionPark(dsn, before)
    setattr(conn, OPEN_FUNCTION, park.open)
    try:
        yield park
    finally:
        setattr(conn, OPEN_FUNCTION, before)
        park.close()
