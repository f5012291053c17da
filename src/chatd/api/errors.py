"""Errors as clients get them: a status, and a body that always has the same shape.

Owns which error of ours is which status. `code` in the body is for machines and never changes
its meaning; what a database or an exception says of itself stays here.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from chatd.domain.errors import (
    ChatdError,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    QueueFull,
    RequestError,
    Unavailable,
)
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable


class Validation(Struct, frozen=True, kw_only=True):
    field: str
    detail: str


class ErrorBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every answer of 400 and above has in it."""

    code: str
    message: str
    detail: str | None = None
    validations: tuple[Validation, ...] = ()


class Refusal(Struct, frozen=True, kw_only=True):
    status: int
    body: ErrorBody
    headers: Mapping[str, str] = {}


class Unauthorized(RequestError):
    code = "unauthorized"


class Invalid(RequestError):
    """Several things are wrong at once."""

    code = "invalid_input"

    def __init__(self, message: str, validations: Sequence[Validation]) -> None:
        super().__init__(message)
        self.validations = tuple(validations)


class TooLarge(RequestError):
    code = "too_large"

    def __init__(self, most: int) -> None:
        super().__init__(f"The body is too large: at most {most} bytes are taken.")


class MethodNotAllowed(RequestError):
    """`allow` is the value of the Allow header."""

    code = "method_not_allowed"

    def __init__(self, message: str, allow: str, *, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.allow = allow


class TooSlow(RequestError):
    code = "request_timeout"


class Disconnected(RequestError):
    """Nobody is there to read the answer."""

    code = "client_disconnected"


class TooManyStreams(RequestError):
    code = "too_many_streams"


class Draining(ChatdError):
    """This replica goes away; another one, or the next, will take it."""

    code = "going_away"


GOING: Final = "The server is stopping and takes nothing new. Try again in a moment."


_STATUS: Final[tuple[tuple[type[ChatdError], int], ...]] = (
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (MethodNotAllowed, 405),
    (TooSlow, 408),
    (Conflict, 409),
    (TooLarge, 413),
    (QueueFull, 429),
    (TooManyStreams, 429),
    (AgentUnreachable, 409),
    (AgentRefused, 409),
    (RequestError, 400),
    (Unavailable, 503),
    (Draining, 503),
)
"""The first that fits counts; what fits none is our bug."""

_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    401: {"www-authenticate": 'Bearer realm="chatd"'},
    # The rest of such a body is not worth reading.
    408: {"connection": "close"},
    413: {"connection": "close"},
    503: {"retry-after": "1"},
}
_BUG: Final = ErrorBody(code="internal", message="Something went wrong on the server.")


def refusal_of(error: Exception) -> Refusal:
    status = _status_of(error)
    headers = _HEADERS.get(status, {})
    if isinstance(error, MethodNotAllowed):
        headers = {"allow": error.allow}
    return Refusal(status=status, body=_body_of(error, status), headers=headers)


def _status_of(error: Exception) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def _body_of(error: Exception, status: int) -> ErrorBody:
    match error:
        case InvalidInput():
            invalid = Validation(field=error.field, detail=error.detail)
            return ErrorBody(code=error.code, message=error.message, validations=(invalid,))
        case Invalid():
            return ErrorBody(code=error.code, message=error.message, validations=error.validations)
        case Unavailable():
            # Its own words may tell where the database is, and how we get there.
            text = "The database cannot be reached just now. Nothing was lost; try again."
            return ErrorBody(code=error.code, message=text)
        case ChatdError() if status < 500 or isinstance(error, Draining):
            return ErrorBody(code=error.code, message=error.message)
        case _:
            return _BUG
