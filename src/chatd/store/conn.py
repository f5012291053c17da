"""One database session: the typed slice of asyncpg that the rest of the house sees.

Owns opening and closing a session, sending statements, transactions and notifications; all
failures leave here as errors of ours (`faults`). How many sessions there are and who gets one
is the pool's business; the statements themselves are written elsewhere in this room.

SQL with named parameters, for statements too wide to count `$1..$n` by hand.

`:name` becomes a numbered parameter, the same number wherever the name stands;
`::type` stays a cast. Fragments are joined before numbering, so two statements
can share one.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, LiteralString, Protocol, TypeAlias, TypeVar, cast

import asyncpg
import msgspec
from msgspec import Struct

from chatd.domain.errors import InvariantBroken, Unavailable
from chatd.store.errors import DRIVER_ERRORS, translate_driver_error

T = TypeVar("T")
Row: TypeAlias = asyncpg.Record
StatementHook: TypeAlias = Callable[[str], None]


class Conn(Protocol):
    """Whatever can run one statement: a session, a transaction, or the pool itself."""

    async def fetch(self, query: LiteralString, *args: object) -> list[Row]: ...
    async def fetchrow(self, query: LiteralString, *args: object) -> Row | None: ...
    async def fetchval(self, query: LiteralString, *args: object) -> Any: ...
    async def execute(self, query: LiteralString, *args: object) -> str: ...


class ConnectConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a session is opened, and for how long the server may keep it waiting."""

    dsn: str
    application_name: str = "chatd"
    connect_timeout_s: float = 5
    statement_timeout_s: float = 15
    lock_timeout_s: float = 5
    idle_in_transaction_s: float = 15
    reply_margin_s: float = 5
    settings: Mapping[str, str] = {}

    @property
    def reply_timeout_s(self) -> float:
        """After this the server is not slow but gone: its own time-outs have long passed."""
        return self.statement_timeout_s + self.reply_margin_s

    def named(self, part: str, **settings: str) -> "ConnectConfig":
        """For a session of its own, which the database's administrator can tell by its name."""
        return msgspec.structs.replace(
            self,
            application_name=f"{self.application_name} {part}",
            settings={**self.settings, **settings},
        )

    def server_settings(self) -> dict[str, str]:
        return {
            "application_name": self.application_name,
            "statement_timeout": _milliseconds(self.statement_timeout_s),
            "lock_timeout": _milliseconds(self.lock_timeout_s),
            "idle_in_transaction_session_timeout": _milliseconds(self.idle_in_transaction_s),
            "idle_session_timeout": "0",
            # Our statements look up by key whatever the values are; planning them anew each time,
            # as the server would for long chats, takes twice as long as running them.
            "plan_cache_mode": "force_generic_plan",
            # A session dropped in the middle of a statement must not go on waiting for locks.
            "client_connection_check_interval": "500",
            # A host that was cut off never says goodbye; let go of its locks all the same.
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": "25000",
            **self.settings,
        }


class _Driver(Protocol):
    """The driver's connection, as far as we use it."""

    async def fetch(self, query: str, *args: object) -> list[Row]: ...
    async def fetchrow(self, query: str, *args: object) -> Row | None: ...
    async def fetchval(self, query: str, *args: object) -> Any: ...
    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...
    async def add_listener(
        self, channel: str, callback: Callable[[object, int, str, str], None]
    ) -> None: ...
    def add_termination_listener(self, callback: Callable[[object], None]) -> None: ...
    def get_server_pid(self) -> int: ...
    def is_in_transaction(self) -> bool: ...
    def is_closed(self) -> bool: ...
    def terminate(self) -> None: ...
    async def close(self, *, timeout: float) -> None: ...


class DatabaseSession:
    """One connection to the server. Used by one task at a time."""

    __slots__ = ("_driver", "_in_transaction", "_on_statement", "_spoiled")

    def __init__(self, driver: _Driver, on_statement: StatementHook | None = None) -> None:
        self._driver = driver
        self._on_statement = on_statement
        self._in_transaction = False
        self._spoiled = False

    async def fetch(self, query: LiteralString, *args: object) -> list[Row]:
        return await self._send(query, self._driver.fetch(query, *args))

    async def fetchrow(self, query: LiteralString, *args: object) -> Row | None:
        return await self._send(query, self._driver.fetchrow(query, *args))

    async def fetchval(self, query: LiteralString, *args: object) -> Any:
        return await self._send(query, self._driver.fetchval(query, *args))

    async def execute(self, query: LiteralString, *args: object) -> str:
        return await self._send(query, self._driver.execute(query, *args))

    async def script(self, sql: str, *, timeout_s: float) -> None:
        """Statements that come from a file rather than from our code."""
        await self._send(sql, self._driver.execute(sql, timeout=timeout_s))

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator["DatabaseSession"]:
        """Commits on the way out; on any error the server keeps nothing of it."""
        await self.execute("BEGIN")
        self._in_transaction = True
        try:
            yield self
        except asyncio.CancelledError:
            # Rolling back would mean waiting; closing the session rolls back as well.
            self._spoiled = True
            raise
        except BaseException:
            if not self._spoiled:
                with suppress(Unavailable):
                    await self.execute("ROLLBACK")
            raise
        finally:
            self._in_transaction = False
        if await self.execute("COMMIT") != "COMMIT":
            raise InvariantBroken("A failed statement in a transaction was passed over.")

    async def listen(self, channel: str, heard: Callable[[int, str], None]) -> None:
        """`heard(pid, payload)` runs in the event loop for each notification, in order."""

        def callback(_driver: object, pid: int, _channel: str, payload: str) -> None:
            heard(pid, payload)

        await self._send("LISTEN", self._driver.add_listener(channel, callback))

    def on_connection_lost(self, lost: Callable[[], None]) -> None:
        """`lost()` runs once, soon after the session has ended for whatever reason."""
        self._driver.add_termination_listener(lambda _driver: lost())

    @property
    def backend_pid(self) -> int:
        return self._driver.get_server_pid()

    @property
    def is_closed(self) -> bool:
        return self._driver.is_closed()

    @property
    def is_reusable(self) -> bool:
        """False if someone else would find a statement running or a transaction open."""
        return not (self._spoiled or self._driver.is_closed() or self._driver.is_in_transaction())

    def terminate(self) -> None:
        """Close without a word to the server and without waiting for it."""
        self._driver.terminate()

    async def close(self, *, timeout_s: float) -> None:
        with suppress(*DRIVER_ERRORS):
            await self._driver.close(timeout=timeout_s)

    async def _send(self, query: str, call: Awaitable[T]) -> T:
        if self._on_statement is not None:
            self._on_statement(query)
        try:
            return await call
        except asyncio.CancelledError:
            # The driver is still telling the server; nobody else should have to wait for that.
            self._spoiled = True
            raise
        except DRIVER_ERRORS as error:
            fault = translate_driver_error(
                error, sent=not self._in_transaction, closed=self.is_closed
            )
            # What timed out may still run, a standby stays one, and a driver that is lost does
            # not find back: the next user wants another session.
            lost = isinstance(error, TimeoutError | asyncpg.InternalClientError)
            if lost or fault.code == "database_read_only":
                self._spoiled = True
            raise fault from error


_open = cast(
    "Callable[..., Awaitable[_Driver]]",
    asyncpg.connect,  # pyright: ignore[reportUnknownMemberType]
)


async def connect(
    config: ConnectConfig, on_statement: StatementHook | None = None
) -> DatabaseSession:
    try:
        driver = await _open(
            config.dsn,
            timeout=config.connect_timeout_s,
            command_timeout=config.reply_timeout_s,
            # Our statements are a fixed set: prepared once per session, kept for good.
            statement_cache_size=512,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=0,
            server_settings=config.server_settings(),
        )
    except DRIVER_ERRORS as error:
        raise translate_driver_error(error, sent=False) from error
    return DatabaseSession(driver, on_statement)


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))


_NAME = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")


class NamedStatement(Struct, frozen=True, kw_only=True):
    text: LiteralString
    names: tuple[str, ...]

    def args(self, values: Mapping[str, object]) -> list[object]:
        return [values[name] for name in self.names]


def named_statement(*fragments: LiteralString) -> NamedStatement:
    sql = "".join(fragments)
    names = tuple(dict.fromkeys(_NAME.findall(sql)))
    numbers = {name: f"${index}" for index, name in enumerate(names, 1)}
    text = _NAME.sub(lambda match: numbers[match[1]], sql)
    # Made of literals only: the substitution puts in numbers.
    return NamedStatement(text=cast("LiteralString", text), names=names)
