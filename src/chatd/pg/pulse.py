"""Whether a server is there and ready: by talking to its socket, never by looking for a pid."""

import asyncio
import contextlib
import enum
import struct
from pathlib import Path
from typing import Final, Protocol, cast

import asyncpg

from chatd.pg.config import DATABASE
from chatd.pg.errors import PgError
from chatd.pg.places import address

# "Do you speak TLS?" is the one question that PostgreSQL answers at any time, also while it
# recovers, without a login and without a line in its log. On a unix socket it says no.
QUESTION: Final = struct.pack("!ii", 8, 80877103)
CONNECT_S: Final = 30.0


class Session(Protocol):
    """The little of asyncpg, which has no types of its own, that is used here."""

    async def execute(self, query: str, *, timeout: float) -> str: ...
    async def close(self, *, timeout: float) -> None: ...


class Connect(Protocol):
    async def __call__(self, dsn: str, *, timeout: float) -> Session: ...


_connect: Final = cast(
    "Connect",
    asyncpg.connect,  # pyright: ignore[reportUnknownMemberType]
)
# A server that recovers, is being stopped, or died while we were talking to it.
NOT_NOW: Final = (
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.ConnectionDoesNotExistError,
    ConnectionError,
    FileNotFoundError,
)


class Pulse(enum.Enum):
    DEAD = enum.auto()  # Nobody listens: the kernel says so.
    SILENT = enum.auto()  # Somebody listens and does not answer: busy, stopped, or just dying.
    ALIVE = enum.auto()


async def feel(socket: Path, *, within_s: float) -> Pulse:
    try:
        async with asyncio.timeout(within_s):
            return Pulse.ALIVE if await _ask(socket) else Pulse.SILENT
    except (FileNotFoundError, ConnectionRefusedError):
        return Pulse.DEAD
    except (TimeoutError, BlockingIOError, ConnectionError):
        return Pulse.SILENT
    except OSError as error:
        raise PgError(f"Cannot reach the database at {socket}: {error}.") from error


async def _ask(socket: Path) -> bool:
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(QUESTION)
        return await reader.read(1) != b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def is_usable(socket_dir: Path) -> bool:
    """Whether our database can be used; it is created if it is not there. False: not now."""
    try:
        try:
            await _execute(socket_dir, DATABASE, "SELECT 1")
        except asyncpg.InvalidCatalogNameError:
            await _execute(socket_dir, "postgres", f"CREATE DATABASE {DATABASE}")
    except NOT_NOW:
        return False
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        why = str(error) or f"no answer within {CONNECT_S:.0f} s"
        raise PgError(f"Cannot use the database at {socket_dir}: {why}") from error
    return True


async def _execute(socket_dir: Path, database: str, statement: str) -> None:
    connection = await _connect(address(socket_dir, database), timeout=CONNECT_S)
    try:
        await connection.execute(statement, timeout=CONNECT_S)
    finally:
        await connection.close(timeout=CONNECT_S)
