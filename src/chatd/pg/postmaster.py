"""Start, probe and stop the server process, clear a dead server's lock file, bound the server's
log.

Call `start_server` and `stop_server` under the start/stop lock.
"""

import asyncio
import contextlib
import enum
import os
import secrets
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import asyncpg
import msgspec

from chatd.pg.binaries import Binaries
from chatd.pg.config import DATABASE, ClusterLayout, PgError, connection_url, server_settings
from chatd.pg.directories import OwnedFile, RealTimeBackoff, create_private_dir, open_file
from chatd.pg.process import Account, DetachedProcess, last_lines, run

# Check whether a server runs and is ready by connecting to its socket; a pid proves nothing.

# PostgreSQL answers an SSLRequest at any time, also during recovery, without a login and without a
# line in its log.
SSL_REQUEST: Final = struct.pack("!ii", 8, 80877103)
CONNECT_TIMEOUT_S: Final = 30.0


_connect: Final = cast(
    "Callable[..., Awaitable[Any]]",
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


START_TIMEOUT_S: Final = 30.0  # Backends of a killed server hold its memory for a second or two.
MAX_START_ATTEMPTS: Final = 3
SERVER_PROBE_TIMEOUT_S: Final = 2.0
MAX_UNRESPONSIVE_S: Final = 15.0
FAST_STOP_TIMEOUT_S: Final = 30
IMMEDIATE_STOP_TIMEOUT_S: Final = 10
MAX_SERVER_LOG_BYTES: Final = 8 * 1024 * 1024
ROTATED_LOG_BYTES: Final = 1024 * 1024
LOG_TAIL_BYTES: Final = 16 * 1024
PROC: Final = Path("/proc")


class ServerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is decided before a server is started."""

    layout: ClusterLayout
    binaries: Binaries
    account: Account | None
    settings: Mapping[str, str]
    ready_timeout_s: float


class StillRecovering(PgError):
    """Do not stop the server: its recovery would begin again and never end."""


async def is_up(plan: ServerPlan) -> bool:
    """Whether a server runs. Raises if one listens and does not answer: it may not be dead."""
    backoff = RealTimeBackoff(MAX_UNRESPONSIVE_S)
    while (state := await _probe(plan)) is ServerState.SILENT:
        if not await backoff.wait():
            raise PgError(
                f"The PostgreSQL server of {plan.layout.cluster} listens but does not answer. "
                "Its process may be stopped or the machine overloaded. Its pid is in "
                "postmaster.pid there."
            )
    return state is ServerState.ALIVE


async def _probe(plan: ServerPlan) -> ServerState:
    return await probe_server(plan.layout.socket, timeout_s=SERVER_PROBE_TIMEOUT_S)


async def start_server(plan: ServerPlan) -> None:
    """Join a running server or start one; return when the database can be used."""
    backoff = RealTimeBackoff(plan.ready_timeout_s)
    starts = 0
    while True:
        if not await is_up(plan):
            if starts == MAX_START_ATTEMPTS:
                raise PgError(f"PostgreSQL starts and dies again. {end_of_log(plan.layout)}")
            starts += 1
            await _start(plan)
        if await is_usable(plan.layout.socket_dir):
            return
        if not await backoff.wait():
            raise StillRecovering(
                f"PostgreSQL has been recovering for {plan.ready_timeout_s:.0f} s and is not ready "
                f"yet. Recovery continues: try again later. {end_of_log(plan.layout)}"
            )


async def _start(plan: ServerPlan) -> None:
    """Retry while processes of a dead server still exit."""
    backoff = RealTimeBackoff(START_TIMEOUT_S)
    while not await _try_start(plan, backoff):
        if not await backoff.wait():
            raise PgError(
                f"PostgreSQL could not be started within {START_TIMEOUT_S:.0f} s: processes of an "
                f"earlier server still use {plan.layout.cluster}. {end_of_log(plan.layout)}"
            )


async def _try_start(plan: ServerPlan, backoff: RealTimeBackoff) -> bool:
    """True when the server listens, False when a retry may succeed."""
    try:
        # At every start: a cleaner of temporary directories may have removed it.
        create_private_dir(plan.layout.socket_dir, plan.account)
        remove_stale_lock(plan.layout)
        bound_log(plan.layout)
        with contextlib.closing(open_log(plan.layout)) as log:
            return await _launch_and_watch(plan, log, backoff)
    except OSError as error:
        raise PgError(f"Cannot start PostgreSQL in {plan.layout.data_dir}: {error}.") from error


async def _launch_and_watch(plan: ServerPlan, log: OwnedFile, backoff: RealTimeBackoff) -> bool:
    begin = _size(log)
    process = DetachedProcess(server_command(plan), run_as=plan.account, log_fd=log.fd)
    try:
        while await _probe(plan) is not ServerState.ALIVE:
            if process.exited:
                output = _read_since(log, begin)
                if is_transient(output):
                    return False
                raise PgError(explain_failed_start(plan.layout, output))
            if not await backoff.wait():
                raise PgError(f"PostgreSQL does not answer. {end_of_log(plan.layout)}")
    except BaseException:
        process.stop()  # It has no user yet, so no other process would stop it.
        raise
    return True


def server_command(plan: ServerPlan) -> list[str]:
    settings = server_settings(plan.layout.socket_dir, plan.settings)
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return [str(plan.binaries.program("postgres")), "-D", str(plan.layout.cluster), *options]


def is_transient(log: str) -> bool:
    """Whether the start failed because processes of an earlier server have not exited yet."""
    return "is still in use" in log or ("lock file" in log and "already exists" in log)


def explain_failed_start(layout: ClusterLayout, log: str) -> str:
    if not log.strip():
        return f"PostgreSQL exited at once and wrote nothing to {layout.log}. Is the disk full?"
    return f"PostgreSQL did not start. {layout.log} says:\n{last_lines(log)}"


async def stop_server(plan: ServerPlan) -> None:
    """Fast shutdown: open transactions roll back, committed data is written."""
    output = ""
    for mode, seconds in (("fast", FAST_STOP_TIMEOUT_S), ("immediate", IMMEDIATE_STOP_TIMEOUT_S)):
        # Run as the account: as root, a wrong pid could signal another account's process.
        argv = [plan.binaries.program("pg_ctl"), "stop", "-D", plan.layout.cluster]
        argv += ["-m", mode, "-w", "-t", str(seconds)]
        try:
            done = await run(argv, run_as=plan.account, timeout_s=seconds + 5)
        except OSError as error:
            raise PgError(f"Cannot stop PostgreSQL: {error}.") from error
        if done.code == 0 or await _probe(plan) is ServerState.DEAD:
            return
        output = last_lines(done.output)
    raise PgError(f"PostgreSQL did not stop: {output}. {end_of_log(plan.layout)}")


def remove_stale_lock(layout: ClusterLayout) -> None:
    """Clear a dead server's lock file and socket, under the start/stop lock, if no server listens.

    PostgreSQL only checks whether any process has the pid in its lock file. After a container
    restart another process may have that pid, and without an init process a zombie keeps it:
    PostgreSQL would then refuse to start for good. The file itself stays, because it also names
    the shared memory by which PostgreSQL detects backends of the dead server. Does nothing if a
    server may still run.
    """
    lock = layout.cluster / "postmaster.pid"
    try:
        lines = lock.read_text().splitlines(keepends=True)
        pid = abs(int(lines[0])) if lines else None  # Negative: single-user mode.
    except FileNotFoundError:
        pid, lines = None, []
    except ValueError:
        return  # Not written by PostgreSQL, which will refuse it with a better message.
    if pid is not None and not is_stale_pid(pid, layout.cluster):
        return
    if lines:
        # PostgreSQL ignores the pid of its own parent.
        _replace(lock, "".join([f"{os.getpid()}\n", *lines[1:]]))
    else:
        lock.unlink(missing_ok=True)
    for name in (layout.socket, layout.socket.with_name(f"{layout.socket.name}.lock")):
        name.unlink(missing_ok=True)


def is_stale_pid(pid: int, cluster: Path, proc: Path = PROC) -> bool:
    """Whether the pid is certainly not a server of this cluster (a server's cwd is its cluster)."""
    if not (proc / "self").exists():
        return False
    process = proc / str(pid)
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return state in {"Z", "X"} or os.readlink(process / "cwd") != str(cluster.resolve())
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False


def _replace(path: Path, text: str) -> None:
    """Atomic, and keeps the owner: the server's account must be able to write the file."""
    owner = path.lstat()
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        if os.geteuid() == 0:
            os.fchown(fd, owner.st_uid, owner.st_gid)
    new.rename(path)


def open_log(layout: ClusterLayout) -> OwnedFile:
    return open_file(layout.log, os.O_RDWR | os.O_APPEND)


def bound_log(layout: ClusterLayout, max_bytes: int = MAX_SERVER_LOG_BYTES) -> None:
    """Past the limit, copy the end to `server.log.1` and truncate: the server keeps it open."""
    with contextlib.closing(open_log(layout)) as log:
        size = _size(log)
        if size <= max_bytes:
            return
        end = os.pread(log.fd, ROTATED_LOG_BYTES, max(0, size - ROTATED_LOG_BYTES))
        old = open_file(layout.log.with_name("server.log.1"), os.O_WRONLY | os.O_TRUNC)
        with contextlib.closing(old):
            os.write(old.fd, end)
        os.ftruncate(log.fd, 0)


def end_of_log(layout: ClusterLayout) -> str:
    with contextlib.closing(open_log(layout)) as log:
        return f"{layout.log} ends with:\n{last_lines(_read_since(log, 0))}"


def _size(log: OwnedFile) -> int:
    return os.fstat(log.fd).st_size


def _read_since(log: OwnedFile, position: int) -> str:
    begin = max(position, _size(log) - LOG_TAIL_BYTES)
    return os.pread(log.fd, LOG_TAIL_BYTES, begin).decode(errors="replace")
