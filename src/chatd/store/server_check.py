"""Check an external PostgreSQL server before use: reachable, not behind a connection pooler, and at
least version 15. Report settings by which it may lose commits.

Errors tell the operator what to check; they never contain the address.
"""

from collections.abc import Mapping
from typing import Final, LiteralString

from chatd.domain.errors import ChatdError, InvariantBroken, Unavailable
from chatd.store.conn import ConnectConfig, connect

FACTS: Final[LiteralString] = """
    SELECT current_setting('server_version_num')::int AS version, pg_backend_pid() AS pid,
        current_setting('synchronous_commit') AS synchronous_commit,
        current_setting('fsync') AS fsync,
        current_setting('full_page_writes') AS full_page_writes"""
MIN_POSTGRES_MAJOR: Final = 15

TEMPORARY_CODES: Final = frozenset({"database_busy", "database_starting"})
"""The server answers, and takes no connection now: it starts, or all connections are in use."""

_SAFETY_SETTINGS: Final = ("synchronous_commit", "fsync", "full_page_writes")

_ADVICE: Final[Mapping[str, str]] = {
    "database_down": "Check that PostgreSQL is running and that this host can reach its port.",
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
    """A pooler's sessions are shared: a lock or a subscription of one would be another's."""
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
