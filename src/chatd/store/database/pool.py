"""The database sessions of one replica: a bounded pool, and one session for the heartbeat.

A release neither waits nor needs a round trip: a clean session goes to the next waiter; any other
(open transaction, running statement, lost connection) is closed and its place is free. So a task
can be cancelled anywhere, and the pool neither leaks nor blocks.

Under load, writes of one kind that arrive together share a session, a transaction and a commit.

The driver's own pool starts a task per release, which about doubles the CPU time of a short
statement. This pool does not reset sessions between users, so do not change session state (SET,
LISTEN, session locks, temporary tables) on a pooled session.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Literal, LiteralString
from uuid import UUID

import msgspec

from chatd.domain.deployment.diagnosis import MIN_POSTGRES_MAJOR
from chatd.domain.errors import ChatdError, InvariantBroken, Unavailable
from chatd.store.database.conn import ConnectConfig, DatabaseSession, Row, StatementHook, connect


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    connect: ConnectConfig
    max_size: int = 10
    acquire_timeout_s: float = 5
    close_timeout_s: float = 5


SHARED_FROM_SESSIONS: Final = 4
"""How many sessions are used under load: more at once do not make the server faster."""
MAX_SHARED_WRITES: Final = 16
"""How many writes share one transaction."""

_Refused = Literal["refused"]
"""The server has refused the transaction, of which nothing was written."""
_Write = tuple[bytes, UUID, "tuple[object, ...]", "asyncio.Future[Row | _Refused | None]"]


class Pool:
    """At most `max_size` sessions, opened on demand and again when lost. Satisfies `Conn`."""

    def __init__(self, config: PoolConfig, *, on_statement: StatementHook | None = None) -> None:
        self._config = config
        self._on_statement = on_statement
        self._idle: list[DatabaseSession] = []  # last in, first out: the warmest statement cache
        self._in_use: set[DatabaseSession] = set()
        self._opening = 0  # places reserved for sessions that are being opened
        self._waiters: deque[asyncio.Future[DatabaseSession | None]] = deque()
        self._all_released = asyncio.Event()
        self._closed = False
        self._open_groups: dict[LiteralString, list[_Write]] = {}
        self._group_tasks: set[asyncio.Task[None]] = set()

    async def fetch(self, query: LiteralString, *args: object) -> list[Row]:
        session = self._take_idle() or await self._acquire()
        try:
            return await session.fetch(query, *args)
        finally:
            self._release(session)

    async def fetchrow(self, query: LiteralString, *args: object) -> Row | None:
        session = self._take_idle() or await self._acquire()
        try:
            return await session.fetchrow(query, *args)
        finally:
            self._release(session)

    async def fetchval(self, query: LiteralString, *args: object) -> Any:
        session = self._take_idle() or await self._acquire()
        try:
            return await session.fetchval(query, *args)
        finally:
            self._release(session)

    async def execute(self, query: LiteralString, *args: object) -> str:
        session = self._take_idle() or await self._acquire()
        try:
            return await session.execute(query, *args)
        finally:
            self._release(session)

    # Writes that share a transaction

    async def write(
        self, query: LiteralString, key: UUID, place: bytes, *args: object
    ) -> Row | None:
        """As `fetchrow`, for a statement that returns at most one row, whose `id` is the key. In a
        rush it shares a transaction with other calls of the same statement, in the order of their
        places: the one in which others lock these rows. The error of one of them is its own. A call
        that is cancelled before it was sent writes nothing."""
        group = self._open_groups.get(query)
        if group is None:
            if len(self._in_use) < SHARED_FROM_SESSIONS and not self._waiters:
                return await self.fetchrow(query, *args)
            group = self._open_groups[query] = []
            # In a task of its own: the end of one caller must not be that of the others. It starts
            # after all that have arrived by now.
            task = asyncio.get_running_loop().create_task(self._write_group(query, group))
            self._group_tasks.add(task)
            task.add_done_callback(self._group_tasks.discard)
        elif any(other == key for _, other, _, _ in group):
            return await self.fetchrow(query, *args)
        result: asyncio.Future[Row | _Refused | None] = asyncio.get_running_loop().create_future()
        group.append((place, key, args, result))
        if len(group) >= MAX_SHARED_WRITES:
            del self._open_groups[query]
        written = await result
        # Alone: one that waits for a lock must not make the others wait again.
        return await self.fetchrow(query, *args) if isinstance(written, str) else written

    async def _write_group(self, query: LiteralString, group: list[_Write]) -> None:
        """Write the group. Errors go to the callers."""
        session = None
        try:
            session = self._take_idle() or await self._acquire()
            self._close_group(query, group)
            # In one order, so that two groups never wait for each other's rows.
            writes = sorted(
                (write for write in group if not write[3].done()), key=lambda write: write[0]
            )
            if writes:
                await _write_together(session, query, writes)
        except ChatdError as error:
            _fail_all(group, error)
        except BaseException as error:
            _fail_all(group, error)
            raise
        finally:
            self._close_group(query, group)
            if session is not None:
                self._release(session)

    def _close_group(self, query: LiteralString, group: list[_Write]) -> None:
        if self._open_groups.get(query) is group:
            del self._open_groups[query]

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[DatabaseSession]:
        session = self._take_idle() or await self._acquire()
        try:
            async with session.transaction():
                yield session
        finally:
            self._release(session)

    async def ping(self) -> None:
        await self.fetchval("SELECT 1")

    async def close(self) -> None:
        """Wait for running statements up to `close_timeout_s`. Waiting callers are refused."""
        self._closed = True
        while self._waiters:
            self._wake_next()
        timeout_s = self._config.close_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while self._in_use or self._opening:
                    self._all_released.clear()
                    await self._all_released.wait()
                await asyncio.gather(*(s.close(timeout_s=timeout_s) for s in self._idle))
        except TimeoutError:
            pass  # the sessions left are terminated below
        finally:
            for session in (*self._idle, *self._in_use):
                session.terminate()
            self._idle.clear()

    @property
    def size(self) -> int:
        return len(self._idle) + len(self._in_use) + self._opening

    @property
    def waiting(self) -> int:
        return sum(not waiter.done() for waiter in self._waiters)

    def _take_idle(self) -> DatabaseSession | None:
        """An idle session was clean when it was released; since then it can only have closed."""
        while self._idle and not self._closed:
            session = self._idle.pop()
            if not session.is_closed:
                self._in_use.add(session)
                return session
        return None

    async def _acquire(self) -> DatabaseSession:
        """Open a session or wait for one. The caller has found no idle one."""
        if self._closed:
            raise _closed()
        if self.size < self._config.max_size:
            self._opening += 1
            return await self._open()
        return await self._wait() or await self._open()

    async def _open(self) -> DatabaseSession:
        """Open a session for a place that `_opening` counts already."""
        try:
            if self._closed:
                raise _closed()
            session = await connect(self._config.connect, self._on_statement)
        except BaseException:
            self._opening -= 1
            self._wake_next()
            raise
        self._opening -= 1
        self._in_use.add(session)
        return session

    async def _wait(self) -> DatabaseSession | None:
        """A session, already counted in `_in_use`; or None: a place, counted in `_opening`."""
        waiter: asyncio.Future[DatabaseSession | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._config.acquire_timeout_s):
                return await waiter
        except BaseException as error:
            self._abandon_wait(waiter)
            if isinstance(error, TimeoutError):
                text = f"All {self._config.max_size} database connections are busy."
                raise Unavailable(text, code="database_busy") from None
            raise

    def _abandon_wait(self, waiter: asyncio.Future[DatabaseSession | None]) -> None:
        if waiter.cancelled():
            with suppress(ValueError):
                self._waiters.remove(waiter)
        # It was served at the same moment: pass the session or the place on.
        elif (session := waiter.result()) is not None:
            self._release(session)
        else:
            self._opening -= 1
            self._wake_next()

    def _release(self, session: DatabaseSession) -> None:
        self._in_use.discard(session)
        if not session.is_reusable:
            session.terminate()
            self._wake_next()
        elif (waiter := self._next_waiter()) is not None:
            self._in_use.add(session)
            waiter.set_result(session)
        else:
            self._idle.append(session)
            self._check_all_released()

    def _wake_next(self) -> None:
        if (waiter := self._next_waiter()) is not None:
            self._opening += 1
            waiter.set_result(None)
        else:
            self._check_all_released()

    def _next_waiter(self) -> asyncio.Future[DatabaseSession | None] | None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                return waiter
        return None

    def _check_all_released(self) -> None:
        if not self._in_use and not self._opening:
            self._all_released.set()


async def _write_together(
    session: DatabaseSession, query: LiteralString, writes: list[_Write]
) -> None:
    """If the server refuses one of them, it has written none: each caller then tries alone."""
    found: dict[UUID, Row] | None = None
    try:
        rows = await session.fetchmany(query, [args for _, _, args, _ in writes])
        found = {row["id"]: row for row in rows}
    except ChatdError:
        if len(writes) == 1 or not session.is_reusable:
            raise
    for _, key, _, result in writes:
        if not result.done():
            result.set_result("refused" if found is None else found.get(key))


def _fail_all(group: list[_Write], error: BaseException) -> None:
    """A copy of the error for each caller: a raised one collects the places that it passed."""
    for _, _, _, result in group:
        if result.done():
            continue
        if isinstance(error, Unavailable):
            copy = Unavailable(error.message, code=error.code, maybe_applied=error.maybe_applied)
            result.set_exception(copy)
        elif isinstance(error, Exception):
            result.set_exception(error)
        else:
            result.cancel()


def _closed() -> Unavailable:
    return Unavailable("The database pool is closed.", code="database_closed")


class Database:
    """The pool; a session for heartbeats only, because a replica must renew its lease even while
    requests wait for the pool; and one for the records of model calls, which does not wait for the
    disk: a worker waits for the record before each call, and the disk would take longer than all
    else."""

    def __init__(self, config: PoolConfig, *, on_statement: StatementHook | None = None) -> None:
        def single(connect: ConnectConfig) -> Pool:
            one = msgspec.structs.replace(config, connect=connect, max_size=1)
            return Pool(one, on_statement=on_statement)

        self.pool = Pool(config, on_statement=on_statement)
        self.heartbeat = single(config.connect.named("tick"))
        self.calls = single(config.connect.named("calls", synchronous_commit="off"))

    async def close(self) -> None:
        await asyncio.gather(self.pool.close(), self.heartbeat.close(), self.calls.close())


# Check an external PostgreSQL server before use: reachable, not behind a connection pooler, and at
# least version 15. Report settings by which it may lose commits.
#
# Errors tell the operator what to check; they never contain the address.

FACTS: Final[LiteralString] = """
    SELECT current_setting('server_version_num')::int AS version, pg_backend_pid() AS pid,
        current_setting('synchronous_commit') AS synchronous_commit,
        current_setting('fsync') AS fsync,
        current_setting('full_page_writes') AS full_page_writes"""

TEMPORARY_CODES: Final = frozenset({"database_busy", "database_starting"})
"""The server answers but takes no connection now: it starts, or all connections are in use."""

_SAFETY_SETTINGS: Final = ("synchronous_commit", "fsync", "full_page_writes")

_ADVICE: Final[Mapping[str, str]] = {
    "database_down": "Check that PostgreSQL is running and that this host can reach its port.",
    "database_unreachable": "Check the network between this host and that of PostgreSQL, and the"
    " name of the host.",
    "database_starting": "If it goes on like this, look into the log of PostgreSQL.",
    "database_timeout": "Check for a firewall in between, and the load of the server.",
    "database_refused": "Check the user, the password and the name of the database. The database"
    " must exist; chatd only creates tables.",
    "unreadable": "Check that the port is a number and that special characters in the password are"
    " escaped, such as @ as %40.",
    "database_busy": "Raise max_connections of the server, or lower database.pool_size.",
}


async def check_server(config: ConnectConfig) -> Mapping[str, str]:
    """The server's settings by which it may lose commits that it has confirmed. Raises a ChatdError
    that says what to check."""
    try:
        session = await connect(config)
    except ValueError:
        # The driver's message may quote the password: do not repeat it.
        raise ChatdError(f"The database address is not valid. {_ADVICE['unreadable']}") from None
    except Unavailable as error:
        if error.message.startswith("unsupported startup parameter"):
            raise pooler_error() from error
        raise add_advice(error) from error
    except InvariantBroken as error:
        # Before PostgreSQL 14 the server rejects a setting that every session sends.
        if error.message.startswith("42704"):
            raise version_error("older than 14") from error
        raise
    try:
        facts = await session.fetchrow(FACTS)
        assert facts is not None  # a SELECT without FROM has one row
        if facts["pid"] != session.backend_pid:
            raise pooler_error()
        require_version(facts["version"])
        return unsafe_settings({name: facts[name] for name in _SAFETY_SETTINGS})
    finally:
        session.terminate()


def unsafe_settings(found: Mapping[str, str]) -> Mapping[str, str]:
    """`synchronous_commit` may have stricter values than `on`."""
    return {name: value for name, value in found.items() if value == "off"}


def pooler_error() -> ChatdError:
    """Refuse a pooler: its sessions are shared, so a lock or a subscription would be another's."""
    text = "The database address is that of a connection pooler, such as PgBouncer. chatd needs"
    advice = "sessions of its own: name the PostgreSQL server itself."
    return ChatdError(f"{text} {advice}", code="database_pooler")


def require_version(version: int) -> None:
    """`version` is `server_version_num`: 150004 is 15.4."""
    if version // 10_000 < MIN_POSTGRES_MAJOR:
        raise version_error(str(version // 10_000))


def version_error(found: str) -> Unavailable:
    text = f"The database is PostgreSQL {found}; chatd needs {MIN_POSTGRES_MAJOR} or newer."
    return Unavailable(text, code="database_too_old")


def add_advice(error: Unavailable) -> Unavailable:
    message = error.message if error.message.endswith((".", "?", "!")) else f"{error.message}."
    advice = _ADVICE.get(error.code)
    return Unavailable(message if advice is None else f"{message} {advice}", code=error.code)
