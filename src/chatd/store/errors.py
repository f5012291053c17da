"""Translate the driver's exceptions into chatd's errors. Does not retry and does not log."""

from collections.abc import Mapping
from typing import Final, cast

import asyncpg

from chatd.domain.errors import ChatdError, InvalidInput, InvariantBroken, Unavailable

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
            return Unavailable(text, code="database_down", maybe_applied=sent)
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
