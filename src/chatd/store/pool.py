"""The database sessions of one replica: a bounded pool, and one kept aside for the tick.

Owns who may use which session and how long anyone waits for one. Giving a session back takes
no round trip and no waiting: a clean one is handed on at once, one that is not (transaction
open, statement still running, connection lost) is thrown away and its place is free. So a task
can be cancelled anywhere and the pool neither leaks nor blocks.

Why not the driver's own pool: it starts a task per release, which about doubles the CPU time
of a short statement. What this one leaves out is a reset between users, so session state (SET,
LISTEN, session locks, temporary tables) must not be touched on a pooled session.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, LiteralString

import msgspec

from chatd.domain.errors import Unavailable
from chatd.store.conn import ConnectConfig, DatabaseSession, Row, StatementHook, connect


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    connect: ConnectConfig
    max_size: int = 10
    acquire_timeout_s: float = 5
    close_timeout_s: float = 5


class Pool:
    """At most `max_size` sessions, opened when needed and again when lost. Satisfies `Conn`."""

    def __init__(self, config: PoolConfig, *, on_statement: StatementHook | None = None) -> None:
        self._config = config
        self._on_statement = on_statement
        self._idle: list[DatabaseSession] = []  # last in, first out: the warmest statement cache
        self._in_use: set[DatabaseSession] = set()
        self._opening = 0  # places promised to someone who is opening a session
        self._waiters: deque[asyncio.Future[DatabaseSession | None]] = deque()
        self._all_released = asyncio.Event()
        self._closed = False

    async def fetch(self, query: LiteralString, *args: object) -> list[Row]:
        session = await self._acquire()
        try:
            return await session.fetch(query, *args)
        finally:
            self._release(session)

    async def fetchrow(self, query: LiteralString, *args: object) -> Row | None:
        session = await self._acquire()
        try:
            return await session.fetchrow(query, *args)
        finally:
            self._release(session)

    async def fetchval(self, query: LiteralString, *args: object) -> Any:
        session = await self._acquire()
        try:
            return await session.fetchval(query, *args)
        finally:
            self._release(session)

    async def execute(self, query: LiteralString, *args: object) -> str:
        session = await self._acquire()
        try:
            return await session.execute(query, *args)
        finally:
            self._release(session)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[DatabaseSession]:
        session = await self._acquire()
        try:
            async with session.transaction():
                yield session
        finally:
            self._release(session)

    async def ping(self) -> None:
        await self.fetchval("SELECT 1")

    async def close(self) -> None:
        """Let statements in flight end, within a bound. Whoever still waits is refused."""
        self._closed = True
        while self._waiters:
            self._wake_next()
        within = self._config.close_timeout_s
        try:
            async with asyncio.timeout(within):
                while self._in_use or self._opening:
                    self._all_released.clear()
                    await self._all_released.wait()
                await asyncio.gather(*(s.close(timeout_s=within) for s in self._idle))
        except TimeoutError:
            pass  # they are ended now, like it or not
        finally:
            for session in (*self._idle, *self._in_use):
                session.terminate()
            self._idle.clear()

    @property
    def size(self) -> int:
        return len(self._idle) + len(self._in_use) + self._opening

    @property
    def waiting(self) -> int:
        return sum(not turn.done() for turn in self._waiters)

    async def _acquire(self) -> DatabaseSession:
        if self._closed:
            raise _closed()
        while self._idle:
            session = self._idle.pop()
            if session.is_reusable:
                self._in_use.add(session)
                return session
            session.terminate()
        if self.size < self._config.max_size:
            self._opening += 1
            return await self._open()
        return await self._wait() or await self._open()

    async def _open(self) -> DatabaseSession:
        """Fill a place that is counted in `_opening`."""
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
        """A session, already counted as lent, or None: a place, already counted as opening."""
        turn: asyncio.Future[DatabaseSession | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            async with asyncio.timeout(self._config.acquire_timeout_s):
                return await turn
        except BaseException as error:
            self._abandon_wait(turn)
            if isinstance(error, TimeoutError):
                text = f"All {self._config.max_size} database connections are busy."
                raise Unavailable(text, code="database_busy") from None
            raise

    def _abandon_wait(self, turn: asyncio.Future[DatabaseSession | None]) -> None:
        if turn.cancelled():
            with suppress(ValueError):
                self._waiters.remove(turn)
        # Our turn came in the same moment: what we were handed is someone else's.
        elif (session := turn.result()) is not None:
            self._release(session)
        else:
            self._opening -= 1
            self._wake_next()

    def _release(self, session: DatabaseSession) -> None:
        self._in_use.discard(session)
        if not session.is_reusable:
            session.terminate()
            self._wake_next()
        elif (turn := self._next_waiter()) is not None:
            self._in_use.add(session)
            turn.set_result(session)
        else:
            self._idle.append(session)
            self._check_all_released()

    def _wake_next(self) -> None:
        if (turn := self._next_waiter()) is not None:
            self._opening += 1
            turn.set_result(None)
        else:
            self._check_all_released()

    def _next_waiter(self) -> asyncio.Future[DatabaseSession | None] | None:
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                return turn
        return None

    def _check_all_released(self) -> None:
        if not self._in_use and not self._opening:
            self._all_released.set()


def _closed() -> Unavailable:
    return Unavailable("The database pool is closed.", code="database_closed")


class Database:
    """Both ways to the database: the pool, and one session that only the tick uses, so that a
    replica keeps its lease while its requests queue for the pool."""

    def __init__(self, config: PoolConfig, *, on_statement: StatementHook | None = None) -> None:
        apart = msgspec.structs.replace(config, connect=config.connect.named("tick"), max_size=1)
        self.pool = Pool(config, on_statement=on_statement)
        self.heartbeat = Pool(apart, on_statement=on_statement)

    async def close(self) -> None:
        await asyncio.gather(self.pool.close(), self.heartbeat.close())
