"""One database session: the typed part of asyncpg that chatd uses, SQL with named parameters, and
values in the form that a column can store.

Owns connecting, statements, transactions and notifications. Every driver error leaves here as one
of chatd's (`errors`).
"""

import asyncio
import errno
import re
import socket
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, LiteralString, Protocol, TypeAlias, TypeVar, cast

import asyncpg
import msgspec
from msgspec import UNSET, Struct

from chatd.domain.errors import ChatdError, InvalidInput, InvariantBroken, Unavailable

# Translate the driver's exceptions into chatd's errors. Does not retry and does not log.

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # TimeoutError is one of them
)
"""All exceptions that the driver raises; any other is a bug."""


DATABASE_CAUSES: Final[Mapping[str, str]] = {
    "database_full": "the database's disk is full; free some space, and chats go on",
    "database_read_only": "the database is a standby; database.url must name the primary",
    "database_refused": "the database refuses this server; were its user or its rights changed?",
}
"""What an operator is told about an error code."""


class DuplicateRow(ChatdError):
    """A unique constraint refused the row."""

    code = "duplicate"

    def __init__(self, constraint: str) -> None:
        super().__init__(f"A row with this key exists already ({constraint}).")
        self.constraint = constraint


class MissingReference(ChatdError):
    """A foreign key refused the row: the row that it refers to does not exist."""

    code = "missing_reference"

    def __init__(self, constraint: str) -> None:
        super().__init__(f"The row refers to a row that does not exist ({constraint}).")
        self.constraint = constraint


class CheckFailed(InvariantBroken):
    """A check constraint refused the row."""

    def __init__(self, constraint: str, text: str) -> None:
        super().__init__(text)
        self.constraint = constraint


# By SQLSTATE, or by its class (the first two characters): the error code, and whether the statement
# may have been applied. It may have been when the session ended: with synchronous replication the
# server can end a session that has already committed.
_UNAVAILABLE: dict[str, tuple[str, bool]] = {
    "08": ("database_down", True),
    "25006": ("database_read_only", False),  # the server has become a standby
    "25P03": ("database_timeout", False),
    "25P04": ("database_timeout", False),
    "28": ("database_refused", False),
    "3D": ("database_refused", False),
    "40": ("database_conflict", False),  # deadlock, serialization
    "40003": ("database_conflict", True),
    "53": ("database_full", False),
    "53300": ("database_busy", False),  # too many connections
    "55P03": ("database_busy", False),  # lock timeout
    "57": ("database_down", True),  # shut down, crashed
    "57P03": ("database_starting", False),  # starts, stops or recovers: it takes no session
    "57014": ("database_timeout", False),  # statement timeout
    "58": ("database_down", True),
}


_NO_WAY_ERRORS: Final = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN}
)


def translate_driver_error(error: Exception, *, sent: bool, closed: bool = False) -> ChatdError:
    """`sent`: a statement outside a transaction was sent. `closed`: the session is closed."""
    match error:
        case asyncpg.ClientConfigurationError():
            return InvalidInput("database_url", _text(error))
        case asyncpg.exceptions.InvalidCachedStatementError():
            # The schema changed under a prepared statement inside a transaction.
            return Unavailable(_text(error), code="database_conflict")
        case asyncpg.exceptions.OutdatedSchemaCacheError():
            return Unavailable(_text(error), code="database_conflict", maybe_applied=sent)
        case asyncpg.PostgresError():
            return _from_server(error, sent=sent)
        case TimeoutError():
            text = "The database did not answer in time."
            return Unavailable(text, code="database_timeout", maybe_applied=sent)
        case OSError():
            text = f"The database cannot be reached: {_text(error)}"
            # Without a way to its host nothing is known of the server: others may reach it.
            is_local = isinstance(error, socket.gaierror) or error.errno in _NO_WAY_ERRORS
            code = "database_unreachable" if is_local else "database_down"
            return Unavailable(text, code=code, maybe_applied=sent)
        case asyncpg.InterfaceError() if closed:
            # The driver checks before it writes: nothing was sent.
            return Unavailable("The database connection was closed.", code="database_down")
        case asyncpg.InternalClientError():
            # The driver is out of step with the protocol. This also happens when the server ends an
            # idle session, until the driver notices that the socket is closed.
            text = f"The database connection is no longer usable: {_text(error)}"
            return Unavailable(text, code="database_down", maybe_applied=sent)
        case _:
            return InvariantBroken(f"{type(error).__name__}: {_text(error)}")


def _from_server(error: asyncpg.PostgresError, *, sent: bool) -> ChatdError:
    state = cast("str | None", getattr(error, "sqlstate", None)) or "XX000"
    constraint = cast("str | None", getattr(error, "constraint_name", None)) or "unknown"
    # PostgreSQL's detail quotes row values; drop it, so that logs never contain chat content.
    vars(error).pop("detail", None)
    if state == "23505":
        return DuplicateRow(constraint)
    if state == "23503":
        return MissingReference(constraint)
    if state == "23514":
        return CheckFailed(constraint, f"{state}: {_text(error)}")
    found = _UNAVAILABLE.get(state) or _UNAVAILABLE.get(state[:2])
    if found is None:
        return InvariantBroken(f"{state}: {_text(error)}")
    code, may_be_applied = found
    return Unavailable(_text(error), code=code, maybe_applied=may_be_applied and sent)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


T = TypeVar("T")
Row: TypeAlias = asyncpg.Record
Reply: TypeAlias = Coroutine[Any, Any, T]
MAX_STATEMENT_NAME_CHARS: Final = 60
StatementHook: TypeAlias = Callable[[str], None]


class Conn(Protocol):
    """Runs one statement: a session, a transaction, or the pool."""

    def fetch(self, query: LiteralString, *args: object) -> Reply[list[Row]]: ...
    def fetchrow(self, query: LiteralString, *args: object) -> Reply[Row | None]: ...
    def fetchval(self, query: LiteralString, *args: object) -> Reply[Any]: ...
    def execute(self, query: LiteralString, *args: object) -> Reply[str]: ...


class StatementWatch(msgspec.Struct, frozen=True, kw_only=True):
    """Reports each statement that took at least `slow_s`, with its text and its seconds."""

    now: Callable[[], float]
    slow_s: float
    report: Callable[[str, float], None]


class ConnectConfig(msgspec.Struct, frozen=True, kw_only=True):
    dsn: str
    application_name: str = "chatd"
    connect_timeout_s: float = 5
    statement_timeout_s: float = 15
    lock_timeout_s: float = 5
    idle_in_transaction_s: float = 15
    reply_margin_s: float = 5
    settings: Mapping[str, str] = {}
    watch: StatementWatch | None = None

    @property
    def reply_timeout_s(self) -> float:
        """After this the server is unreachable: its own timeouts have passed."""
        return self.statement_timeout_s + self.reply_margin_s

    def named(self, part: str, **settings: str) -> "ConnectConfig":
        """The settings of a separate session, which pg_stat_activity shows under this name."""
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
            # The statements look up by key, so one plan fits all values. Planning each time, as
            # the server would for long chats, takes twice as long as the execution.
            "plan_cache_mode": "force_generic_plan",
            # The server would compile a statement that it believes to be expensive: 0.3 s and more
            # for one that takes a millisecond. The embedded server has this off for all.
            "jit": "off",
            "timezone": "UTC",
            # An operator may have set other defaults for the server, the database or the role. The
            # statements are written for this one: in a stricter one they fail when they meet.
            "default_transaction_isolation": "read committed",
            # A session dropped during a statement must stop waiting for locks.
            "client_connection_check_interval": "500",
            # A host that lost its network never closes the connection: release its locks anyway.
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": "25000",
            **self.settings,
        }


class _Driver(Protocol):
    """The part of the driver's connection that is used here."""

    async def fetch(self, query: str, *args: object) -> list[Row]: ...
    async def fetchrow(self, query: str, *args: object) -> Row | None: ...
    async def fetchmany(self, query: str, args: Sequence[Sequence[object]]) -> list[Row]: ...
    async def fetchval(self, query: str, *args: object) -> Any: ...
    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...
    async def add_listener(
        self, channel: str, callback: Callable[[object, int, str, str], None]
    ) -> None: ...
    async def copy_from_table(
        self,
        table_name: str,
        *,
        output: Callable[[bytes], Awaitable[None]],
        columns: Sequence[str],
        timeout: float,
    ) -> str: ...
    async def copy_to_table(
        self,
        table_name: str,
        *,
        source: AsyncIterable[bytes],
        columns: Sequence[str],
        timeout: float,
    ) -> str: ...
    def add_termination_listener(self, callback: Callable[[object], None]) -> None: ...
    def get_server_pid(self) -> int: ...
    def is_in_transaction(self) -> bool: ...
    def is_closed(self) -> bool: ...
    def terminate(self) -> None: ...
    async def close(self, *, timeout: float) -> None: ...


class DatabaseSession:
    """One connection to the server. Used by one task at a time.

    The methods return `_send`'s coroutine: a coroutine of their own would cost every statement."""

    __slots__ = ("_driver", "_in_transaction", "_on_statement", "_unusable", "_watch")

    def __init__(
        self,
        driver: _Driver,
        on_statement: StatementHook | None = None,
        watch: StatementWatch | None = None,
    ) -> None:
        self._driver = driver
        self._watch = watch
        self._on_statement = on_statement
        self._in_transaction = False
        self._unusable = False

    def fetch(self, query: LiteralString, *args: object) -> Reply[list[Row]]:
        return self._send(query, self._driver.fetch(query, *args))

    def fetchrow(self, query: LiteralString, *args: object) -> Reply[Row | None]:
        return self._send(query, self._driver.fetchrow(query, *args))

    def fetchmany(self, query: LiteralString, args: Sequence[Sequence[object]]) -> Reply[list[Row]]:
        """Run the statement for each of `args`, in one transaction and one round trip. The rows of
        all, one after the other."""
        return self._send(query, self._driver.fetchmany(query, args))

    def fetchval(self, query: LiteralString, *args: object) -> Reply[Any]:
        return self._send(query, self._driver.fetchval(query, *args))

    def execute(self, query: LiteralString, *args: object) -> Reply[str]:
        return self._send(query, self._driver.execute(query, *args))

    async def script(self, sql: str, *, timeout_s: float) -> None:
        """Run SQL from a file."""
        await self._send(sql, self._driver.execute(sql, timeout=timeout_s))

    async def copy_out(
        self,
        table: str,
        columns: Sequence[str],
        write: Callable[[bytes], Awaitable[None]],
        *,
        timeout_s: float,
    ) -> int:
        """Pass a table to `write`, in PostgreSQL's text format and in pieces; the server waits for
        `write`. Returns the number of rows."""
        copied = self._driver.copy_from_table(
            table, output=write, columns=columns, timeout=timeout_s
        )
        return int((await self._send("COPY", copied)).rpartition(" ")[2])

    async def copy_in(
        self, table: str, columns: Sequence[str], source: AsyncIterable[bytes], *, timeout_s: float
    ) -> int:
        """The reverse of `copy_out`."""
        copied = self._driver.copy_to_table(
            table, source=source, columns=columns, timeout=timeout_s
        )
        return int((await self._send("COPY", copied)).rpartition(" ")[2])

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator["DatabaseSession"]:
        """Commit on exit; roll back on any error."""
        await self.execute("BEGIN")
        self._in_transaction = True
        try:
            yield self
        except asyncio.CancelledError:
            # A rollback would wait; the pool closes the session, which rolls back.
            self._unusable = True
            raise
        except BaseException:
            if not self._unusable:
                with suppress(Unavailable):
                    await self.execute("ROLLBACK")
            raise
        finally:
            self._in_transaction = False
        if await self.execute("COMMIT") != "COMMIT":
            raise InvariantBroken("A failed statement in a transaction was ignored.")

    async def listen(self, channel: str, on_notification: Callable[[int, str], None]) -> None:
        """`on_notification(pid, payload)` runs in the event loop, in order of arrival."""

        def callback(_driver: object, pid: int, _channel: str, payload: str) -> None:
            on_notification(pid, payload)

        await self._send("LISTEN", self._driver.add_listener(channel, callback))

    def on_connection_lost(self, callback: Callable[[], None]) -> None:
        """`callback()` runs once, soon after the session has ended for any reason."""
        self._driver.add_termination_listener(lambda _driver: callback())

    @property
    def backend_pid(self) -> int:
        return self._driver.get_server_pid()

    @property
    def is_closed(self) -> bool:
        return self._driver.is_closed()

    @property
    def is_reusable(self) -> bool:
        """False if it is closed, runs a statement or is inside a transaction."""
        return not (self._unusable or self._driver.is_closed() or self._driver.is_in_transaction())

    def terminate(self) -> None:
        """Close the socket without telling the server and without waiting."""
        self._driver.terminate()

    async def close(self, *, timeout_s: float) -> None:
        with suppress(*DRIVER_ERRORS):
            await self._driver.close(timeout=timeout_s)

    async def _send(self, query: str, call: Awaitable[T]) -> T:
        if self._on_statement is not None:
            self._on_statement(query)
        watch = self._watch
        started_at = 0.0 if watch is None else watch.now()
        try:
            return await call
        except asyncio.CancelledError:
            # The driver still cancels the statement; the next user must not wait for that.
            self._unusable = True
            raise
        except DRIVER_ERRORS as error:
            fault = translate_driver_error(
                error, sent=not self._in_transaction, closed=self.is_closed
            )
            # After a timeout the statement may still run, a standby stays one, and a driver with
            # an internal error does not recover: the next user needs another session.
            is_lost = isinstance(error, TimeoutError | asyncpg.InternalClientError)
            if is_lost or fault.code == "database_read_only":
                self._unusable = True
            raise fault from error
        finally:
            if watch is not None and (took_s := watch.now() - started_at) >= watch.slow_s:
                watch.report(query, took_s)


_open = cast(
    "Callable[..., Awaitable[_Driver]]",
    asyncpg.connect,  # pyright: ignore[reportUnknownMemberType]
)


# Array types of the statements, by name: their own number and that of their elements. PostgreSQL
# never changes them.
ARRAY_TYPES: Final[Mapping[str, tuple[int, int]]] = {
    "_bool": (1000, 16),
    "_bytea": (1001, 17),
    "_int2": (1005, 21),
    "_int4": (1007, 23),
    "_int8": (1016, 20),
    "_record": (2287, 2249),
    "_timestamptz": (1185, 1184),
    "_uuid": (2951, 2950),
}


def _declare_arrays(driver: object) -> None:
    """Tell the driver about the array types, which it would look up for each new session, with
    three more round trips. A driver that cannot be told so looks them up."""
    rows = [
        {
            "oid": oid,
            "ns": "pg_catalog",
            "name": name,
            "kind": b"b",
            "elemtype": element,
            "elemdelim": ",",
            "basetype": None,
            "range_subtype": None,
            "attrtypoids": None,
        }
        for name, (oid, element) in ARRAY_TYPES.items()
    ]
    with suppress(AttributeError, LookupError, TypeError):
        cast("Any", driver)._protocol.get_settings().register_data_types(rows)


async def connect(
    config: ConnectConfig, on_statement: StatementHook | None = None
) -> DatabaseSession:
    try:
        driver = await _open(
            config.dsn,
            timeout=config.connect_timeout_s,
            command_timeout=config.reply_timeout_s,
            # The statements are a fixed set: each is prepared once per session.
            statement_cache_size=512,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=0,
            server_settings=config.server_settings(),
        )
    except DRIVER_ERRORS as error:
        raise translate_driver_error(error, sent=False) from error
    _declare_arrays(driver)
    return DatabaseSession(driver, on_statement, config.watch)


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))


def statement_name(query: str) -> str:
    """The constant of the store that has this text, such as `chat.apply.APPLY`; else how it
    begins. Statements contain no values."""
    for name, module in list(sys.modules.items()):
        if name.startswith("chatd.store."):
            for constant, value in vars(module).items():
                text = value.text if isinstance(value, NamedStatement) else value
                if isinstance(text, str) and text == query:
                    return f"{name.removeprefix('chatd.store.')}.{constant}"
    return " ".join(query.split())[:MAX_STATEMENT_NAME_CHARS]


_ENCODER = msgspec.json.Encoder()
_NAME = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")


class NamedStatement(Struct, frozen=True, kw_only=True):
    text: LiteralString
    names: tuple[str, ...]

    def args(self, values: Mapping[str, object]) -> list[object]:
        return [values[name] for name in self.names]


def named_statement(*fragments: LiteralString, order: tuple[str, ...] = ()) -> NamedStatement:
    """Join SQL fragments and number their parameters: each `:name` gets one number in the whole
    statement; `::type` stays a cast. The numbers follow `order`, if given, else the text."""
    sql = "".join(fragments)
    found = tuple(dict.fromkeys(_NAME.findall(sql)))
    names = order or found
    if set(names) != set(found):
        raise InvariantBroken(f"Not in both SQL and order: {set(names) ^ set(found)}.")
    numbers = {name: f"${index}" for index, name in enumerate(names, 1)}
    text = _NAME.sub(lambda match: numbers[match[1]], sql)
    # Still literals only: the substitution inserts numbers.
    return NamedStatement(text=cast("LiteralString", text), names=names)


def strip_unstorable(text: str) -> str:
    """Replace what a text column cannot store by U+FFFD: NUL and lone surrogates."""
    return _replace_lone_surrogates(text.replace("\0", "\ufffd"))


def _replace_lone_surrogates(text: str) -> str:
    # Through UTF-16, where a surrogate pair becomes one character.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def replace_surrogates_deep(value: T) -> T:
    """Replace lone surrogates by U+FFFD in all strings inside `value`."""
    return cast("T", _replace_surrogates(value))


def _replace_surrogates(value: object) -> object:
    match value:
        case str():
            return _replace_lone_surrogates(value)
        case Struct():
            fields = {
                name: _replace_surrogates(getattr(value, name)) for name in value.__struct_fields__
            }
            return msgspec.structs.replace(value, **fields)
        case Mapping():
            pairs = cast("Mapping[object, object]", value).items()
            return {_replace_surrogates(key): _replace_surrogates(item) for key, item in pairs}
        case tuple():
            return tuple(_replace_surrogates(item) for item in cast("tuple[object, ...]", value))
        case _:
            return value


def json_text(value: object) -> str:
    return _ENCODER.encode(value).decode()


def json_or_none(value: object) -> str | None:
    return None if value is None or value is UNSET else json_text(value)
