"""The first word with a database that somebody else runs: is it there, and is it new enough?

Owns what an operator is told when it is not. It names no address: whoever asked knows it, and how
much of it may be shown.
"""

from collections.abc import Mapping
from typing import Final, LiteralString

from chatd.domain.errors import ChatdError, InvariantBroken, Unavailable
from chatd.store.conn import ConnectConfig, connect

VERSION: Final[LiteralString] = "SELECT current_setting('server_version_num')::int"
MIN_POSTGRES_MAJOR: Final = 15

_ADVICE: Final[Mapping[str, str]] = {
    "database_down": "Does PostgreSQL run there, and may this host reach its port?",
    "database_timeout": "Is a firewall in between, or the server overloaded?",
    "database_refused": "Are the user, the password and the name of the database right? The"
    " database itself must be there; chatd makes its tables only.",
    "unreadable": "Is its port a number, and is every special letter of its password escaped, such"
    " as @ as %40?",
    "database_busy": "Raise max_connections there, or lower database.pool_size here.",
}


async def check_server(config: ConnectConfig) -> None:
    """Raises a ChatdError that says what to check."""
    try:
        session = await connect(config)
    except ValueError:
        # The driver's words may quote a password: what could not be read is not said.
        raise ChatdError(
            f"The address of the database cannot be read. {_ADVICE['unreadable']}"
        ) from None
    except Unavailable as error:
        raise add_advice(error) from error
    except InvariantBroken as error:
        # It does not know a setting of PostgreSQL 14, which every session of ours asks for.
        if error.message.startswith("42704"):
            raise version_error("older than 14") from error
        raise
    try:
        require_version(await session.fetchval(VERSION))
    finally:
        session.terminate()


def require_version(version: int) -> None:
    """As the server numbers it: 150004 is 15.4."""
    if version // 10_000 < MIN_POSTGRES_MAJOR:
        raise version_error(str(version // 10_000))


def version_error(found: str) -> Unavailable:
    text = f"The database is PostgreSQL {found}; chatd needs {MIN_POSTGRES_MAJOR} or newer."
    return Unavailable(text, code="database_too_old")


def add_advice(error: Unavailable) -> Unavailable:
    said = error.message if error.message.endswith((".", "?", "!")) else f"{error.message}."
    advice = _ADVICE.get(error.code)
    return Unavailable(said if advice is None else f"{said} {advice}", code=error.code)
