"""Error replies: the status and the body of each error.

`code` is for programs and never changes its meaning. Messages of the database or of Python
exceptions are never sent.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final

from msgspec import Struct, convert

from chatd.domain.access.accounts import retry_after
from chatd.domain.description import describe
from chatd.domain.errors import (
    ChatdError,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    QueueFull,
    RequestError,
    TitleFailed,
    TooManyUploads,
    Unavailable,
    UnsupportedFile,
    UsageLimit,
)
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.domain.workspace.template_definition import InvalidTemplate


class FieldError(Struct, frozen=True, kw_only=True):
    """A field that is invalid."""

    field: Annotated[str, describe("The path of the field or parameter.", "content[0].text")]
    detail: Annotated[str, describe("What is wrong with it.", "must not be blank")]


class ErrorBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every reply with a status of 400 or above."""

    code: Annotated[
        str, describe("What happened, for programs; it never changes its meaning.", "invalid_input")
    ]
    message: Annotated[
        str,
        describe("What happened and what to do, for people.", "content[0].text: must not be blank"),
    ]
    detail: Annotated[str | None, describe("More about it.", "Retry with a shorter text.")] = None
    validations: Annotated[tuple[FieldError, ...], describe("The fields that are invalid.")] = ()
    spent_micros: Annotated[
        int | None,
        describe("Of `usage_limit_exceeded`: what was spent, in micros of a dollar.", 25_000_000),
    ] = None
    limit_micros: Annotated[
        int | None, describe("Of `usage_limit_exceeded`: the limit that is reached.", 25_000_000)
    ] = None
    resets_at: Annotated[
        datetime | None,
        describe(
            "Of `usage_limit_exceeded`: when the limit's period ends. Absent for a chat's budget.",
            "2026-12-01T00:00:00Z",
        ),
    ] = None


class ErrorReply(Struct, frozen=True, kw_only=True):
    status: int
    body: ErrorBody
    headers: Mapping[str, str] = {}


class Unauthorized(RequestError):
    code = "unauthorized"


class InvalidFields(RequestError):
    """Several fields are invalid."""

    code = "invalid_input"

    def __init__(self, message: str, validations: Sequence[FieldError]) -> None:
        super().__init__(message)
        self.validations = tuple(validations)


class TooLarge(RequestError):
    code = "too_large"

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"The body exceeds {max_bytes} bytes.")


class MethodNotAllowed(RequestError):
    """`allow` is the value of the Allow header."""

    code = "method_not_allowed"

    def __init__(self, message: str, allow: str, *, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.allow = allow


class RangeNotSatisfiable(RequestError):
    """The requested range begins after the end of the file."""

    code = "range_not_satisfiable"

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"The range is outside the file, which has {size_bytes} bytes.")
        self.size_bytes = size_bytes


class RequestTimeout(RequestError):
    code = "request_timeout"


class ClientDisconnected(RequestError):
    """The client disconnected before its request was complete."""

    code = "client_disconnected"


class RateLimited(RequestError):
    """Too many requests of this client in a minute."""

    code = "rate_limited"

    def __init__(self, wait_s: float, message: str | None = None) -> None:
        self.retry_after_s = retry_after(wait_s)
        seconds = "1 second" if self.retry_after_s == 1 else f"{self.retry_after_s} seconds"
        super().__init__(message or f"Too many requests. Try again in {seconds}.")


class IdentityProviderFailed(ChatdError):
    """The OpenID provider did not answer, or not as it should."""

    code = "identity_provider_failed"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The OpenID provider failed: {reason}. Try again in a moment.")


class TooManyStreams(RequestError):
    code = "too_many_streams"


class Draining(ChatdError):
    """This replica is shutting down and starts no new work."""

    code = "going_away"


STOPPING_TEXT: Final = "The server is shutting down. Retry in a moment."
INTERNAL_ERROR_TEXT: Final = "The server failed to handle the request. Its log has the details."

_STATUSES: Final[tuple[tuple[type[ChatdError], int], ...]] = (
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (MethodNotAllowed, 405),
    (RequestTimeout, 408),
    (Conflict, 409),
    (TooLarge, 413),
    (UnsupportedFile, 415),
    (RangeNotSatisfiable, 416),
    (RateLimited, 429),
    (QueueFull, 429),
    (TooManyUploads, 429),
    (TooManyStreams, 429),
    (AgentUnreachable, 409),
    (AgentRefused, 409),
    (RequestError, 400),
    (TitleFailed, 502),
    (IdentityProviderFailed, 502),
    (Unavailable, 503),
    (Draining, 503),
)
"""The first match counts. Any other error is a bug: 500."""

_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    401: {"www-authenticate": 'Bearer realm="chatd"'},
    # Close instead of reading the rest of the body.
    408: {"connection": "close"},
    413: {"connection": "close"},
    503: {"retry-after": "1"},
}


_EXPLAINED: Final = (Draining, TitleFailed, IdentityProviderFailed)
"""Errors of the server with a message that clients may see."""


def error_reply(error: Exception) -> ErrorReply:
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    headers = _HEADERS.get(status, {})
    if isinstance(error, MethodNotAllowed):
        headers = {"allow": error.allow}
    if isinstance(error, RateLimited):
        headers = {"retry-after": str(error.retry_after_s)}
    if isinstance(error, RangeNotSatisfiable):
        headers = {"content-range": f"bytes */{error.size_bytes}"}
    return ErrorReply(status=status, body=_error_body(error, status), headers=headers)


def _error_body(error: Exception, status: int) -> ErrorBody:
    match error:
        case InvalidInput():
            invalid = FieldError(field=error.field, detail=error.detail)
            return ErrorBody(code=error.code, message=error.message, validations=(invalid,))
        case InvalidFields():
            return ErrorBody(code=error.code, message=error.message, validations=error.validations)
        case InvalidTemplate():
            invalid = tuple(convert(error.problems, list[FieldError], from_attributes=True))
            return ErrorBody(code=error.code, message=error.message, validations=invalid)
        case UsageLimit():
            return ErrorBody(
                code=error.code,
                message=error.message,
                spent_micros=error.spent_micros,
                limit_micros=error.limit_micros,
                resets_at=error.resets_at,
            )
        case Unavailable() if error.code.startswith("file_"):
            text = "The file store does not serve this file now. Retry in a moment."
            return ErrorBody(code=error.code, message=text)
        case Unavailable():
            # The error's own message may contain the address of the database.
            text = "The database is not reachable. Nothing was lost; retry in a moment."
            return ErrorBody(code=error.code, message=text)
        case ChatdError() if status < 500 or isinstance(
            error, Draining | TitleFailed | IdentityProviderFailed
        ):
            return ErrorBody(code=error.code, message=error.message)
        case _:
            return ErrorBody(code="internal", message=INTERNAL_ERROR_TEXT)
