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
from chatd.pg.waiting import Patience

# "Do you speak TLS?" is the one question that PostgreSQL answers at any time, also while it
# recovers, without a login and without a line in its log. On a unix socket it says no.
QUESTION: Final = struct.pack("!ii", 8, 80877103)
CONNECT_S: Final = 10.0
RECOVERY_S: Final = 120.0


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
# Everything that a connection to a server that dies, recovers or refuses can raise.
FAILURES: Final = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


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


async def _ask(socket: Path) -> bool:
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(QUESTION)
        return await reader.read(1) != b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def wait_until_usable(socket_dir: Path, *, within_s: float = RECOVERY_S) -> None:
    """Wait through recovery, then see that our database exists."""
    patience = Patience(within_s)
    while not await _is_usable(socket_dir):
        if not await patience.again():
            raise PgError(
                f"PostgreSQL has been recovering for {within_s:.0f} s and is not ready yet. "
                "Wait for it to finish (see server.log in the data directory) and try again."
            )


async def _is_usable(socket_dir: Path) -> bool:
    try:
        await _execute(socket_dir, DATABASE, "SELECT 1")
    except asyncpg.CannotConnectNowError:
        return False
    except asyncpg.InvalidCatalogNameError:
        await _create_database(socket_dir)
    except FAILURES as error:
        raise PgError(f"Cannot connect to the database in {socket_dir}: {error}") from error
    return True


async def _create_database(socket_dir: Path) -> None:
    try:
        await _execute(socket_dir, "postgres", f"CREATE DATABASE {DATABASE}")
    except FAILURES as error:
        raise PgError(f"Cannot create the database {DATABASE}: {error}") from error


async def _execute(socket_dir: Path, database: str, statement: str) -> None:
    connection = await _connect(address(socket_dir, database), timeout=CONNECT_S)
    try:
        await connection.execute(statement, timeout=CONNECT_S)
    finally:
        await connection.close(timeout=CONNECT_S)
