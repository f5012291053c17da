"""Check whether a server runs and is ready by connecting to its socket; a pid proves nothing."""

import asyncio
import contextlib
import enum
import struct
from pathlib import Path
from typing import Final, Protocol, cast

import asyncpg

from chatd.pg.config import DATABASE, PgError
from chatd.pg.layout import connection_url

# PostgreSQL answers an SSLRequest at any time, also during recovery, without a login and without a
# line in its log.
SSL_REQUEST: Final = struct.pack("!ii", 8, 80877103)
CONNECT_TIMEOUT_S: Final = 30.0


class ProbeSession(Protocol):
    """The part of asyncpg's untyped connection that this module uses."""

    async def execute(self, query: str, *, timeout: float) -> str: ...
    async def close(self, *, timeout: float) -> None: ...


class ProbeConnect(Protocol):
    async def __call__(self, dsn: str, *, timeout: float) -> ProbeSession: ...


_connect: Final = cast(
    "ProbeConnect",
    asyncpg.connect,  # pyright: ignore[reportUnknownMemberType]
)
# The server recovers, is being stopped, or died during the connection.
NOT_READY_ERRORS: Final = (
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.ConnectionDoesNotExistError,
    ConnectionError,
    FileNotFoundError,
)


class ServerState(enum.Enum):
    DEAD = enum.auto()  # No process listens on the socket: the kernel refuses the connection.
    SILENT = enum.auto()  # A process listens and does not answer: busy, stopped, or exiting.
    ALIVE = enum.auto()


async def probe_server(socket: Path, *, timeout_s: float) -> ServerState:
    try:
        async with asyncio.timeout(timeout_s):
            return ServerState.ALIVE if await _answers(socket) else ServerState.SILENT
    except (FileNotFoundError, ConnectionRefusedError):
        return ServerState.DEAD
    except (TimeoutError, BlockingIOError, ConnectionError):
        return ServerState.SILENT
    except OSError as error:
        raise PgError(f"Cannot reach the database at {socket}: {error}.") from error


async def _answers(socket: Path) -> bool:
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(SSL_REQUEST)
        return await reader.read(1) != b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def is_usable(socket_dir: Path) -> bool:
    """Connect to chatd's database, creating it if missing. False: the server is not ready yet."""
    try:
        try:
            await _execute(socket_dir, DATABASE, "SELECT 1")
        except asyncpg.InvalidCatalogNameError:
            await _execute(socket_dir, "postgres", f"CREATE DATABASE {DATABASE}")
    except NOT_READY_ERRORS:
        return False
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        why = str(error) or f"no answer within {CONNECT_TIMEOUT_S:.0f} s"
        raise PgError(f"Cannot use the database at {socket_dir}: {why}") from error
    return True


async def _execute(socket_dir: Path, database: str, statement: str) -> None:
    connection = await _connect(connection_url(socket_dir, database), timeout=CONNECT_TIMEOUT_S)
    try:
        await connection.execute(statement, timeout=CONNECT_TIMEOUT_S)
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT_S)
