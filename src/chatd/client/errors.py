"""Why a request to a server failed."""

from http import HTTPStatus

import msgspec
from msgspec import Struct

from chatd.domain.errors import ChatdError


class Validation(Struct, frozen=True):
    """A field that the server calls invalid."""

    field: str = ""
    detail: str = ""


class _ErrorBody(Struct, frozen=True):
    code: str
    message: str
    detail: str | None = None
    validations: tuple[Validation, ...] = ()


class ApiError(ChatdError):
    """The server refused the request, or answered what this client cannot use. `code` is the
    server's own, or `not_chatd`, `redirected`, `unexpected_reply`, `reply_too_large`."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        detail: str = "",
        validations: tuple[Validation, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.detail = detail
        self.validations = validations
        self.retry_after_s = retry_after_s

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later: nothing was written, or that is unknown."""
        return self.status in (408, *range(500, 600)) or self.code == "rate_limited"

    @property
    def is_signed_out(self) -> bool:
        return self.status == HTTPStatus.UNAUTHORIZED


class ServerUnreachable(ChatdError):
    """No server answers at the address. The message says what to do; `text` replaces it if starting
    a server would not help."""

    code = "unreachable"

    def __init__(self, url: str, reason: str, text: str | None = None) -> None:
        super().__init__(
            text
            or f"No server answers at {url}: {reason}. Start one with chatd serve, or name one with"
            " --url."
        )
        self.url = url
        self.reason = reason


def read_error(url: str, status: int, body: bytes, retry_after: str | None) -> ApiError:
    """The error of a reply with a status of 400 or above, even of a proxy that sends no JSON."""
    wait_s = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    try:
        found = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.MsgspecError, RecursionError):
        text = (
            f"{url} answered with the status {status}, and not as a chatd server does. Check the"
            " address: it is the one that chatd serve prints."
        )
        return ApiError(status, "not_chatd", text, retry_after_s=wait_s)
    return ApiError(
        status,
        found.code,
        found.message,
        detail=found.detail or "",
        validations=found.validations,
        retry_after_s=wait_s,
    )
