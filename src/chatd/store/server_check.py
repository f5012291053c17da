"""Check an external PostgreSQL server before use: reachable, and at least version 15.

Errors tell the operator what to check; they never contain the address.
"""

from collections.abc import Mapping
from typing import Final, LiteralString

from chatd.domain.errors import ChatdError, InvariantBroken, Unavailable
from chatd.store.conn import ConnectConfig, connect

VERSION: Final[LiteralString] = "SELECT current_setting('server_version_num')::int"
MIN_POSTGRES_MAJOR: Final = 15

_ADVICE: Final[Mapping[str, str]] = {
    "database_down": "Check that PostgreSQL is running and that this host can reach its port.",
    "database_timeout": "Check for a firewall in between, and the load of the server.",
    "database_refused": "Check the user, the password and the name of the database. The database"
    " must exist; chatd only creates tables.",
    "unreadable": "Check that the port is a number and that special characters in the password are"
    " escaped, such as @ as %40.",
    "database_busy": "Raise max_connections of the server, or lower database.pool_size.",
}


async def check_server(config: ConnectConfig) -> None:
    """Raises a ChatdError that says what to check."""
    try:
        session = await connect(config)
    except ValueError:
        # The driver's message may quote the password: do not repeat it.
        raise ChatdError(f"The database address is not valid. {_ADVICE['unreadable']}") from None
    except Unavailable as error:
        raise add_advice(error) from error
    except InvariantBroken as error:
        # Before PostgreSQL 14 the server rejects a setting that every session sends.
        if error.message.startswith("42704"):
            raise version_error("older than 14") from error
        raise
    try:
        require_version(await session.fetchval(VERSION))
    finally:
        session.terminate()


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
