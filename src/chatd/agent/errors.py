"""The error by which the workspace agent refuses a request.

The message is written for the model. The HTTP server turns the error into a reply; any other
exception is a bug and becomes a 500.
"""

from __future__ import annotations

import codecs
import errno
import os

_STATUS_BY_ERRNO = {
    errno.ENOENT: 404,
    errno.EACCES: 403,
    errno.EPERM: 403,
    errno.EROFS: 403,
    errno.ENOTDIR: 400,
    errno.EISDIR: 400,
    errno.ENAMETOOLONG: 400,
    errno.ELOOP: 400,
    errno.EINVAL: 400,
}


class AgentError(Exception):
    """An HTTP status, a message for the model, and optionally for programs a code, a fence's mark
    and the agent's time in seconds."""

    def __init__(
        self, status: int, message: str, *, code: str = "", fence: str = "", now: int = 0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.fence = fence
        self.now = now

    def body(self) -> dict[str, object]:
        """The reply's JSON, without empty fields."""
        fields: dict[str, object] = {
            "message": self.message,
            "code": self.code,
            "fence": self.fence,
            "now": self.now,
        }
        return {name: value for name, value in fields.items() if value or name == "message"}


def from_os_error(error: OSError, action: str) -> AgentError:
    """`from_os_error(error, "read /a/b")` says "cannot read /a/b: permission denied"."""
    number = error.errno or 0
    reason = os.strerror(number).lower() if number else str(error)
    return AgentError(_STATUS_BY_ERRNO.get(number, 500), f"cannot {action}: {reason}")


# Text clipped without cutting a character in two.


def clip_utf8(data: bytes, max_bytes: int) -> bytes:
    """The first `max_bytes`, less an incomplete character at the end."""
    clipped = data[:max_bytes]
    return clipped[: len(clipped) - incomplete_bytes(clipped)]


def clip_text(text: str, max_bytes: int) -> str:
    return clip_utf8(text.encode("utf-8", "replace"), max_bytes).decode("utf-8")


def incomplete_bytes(data: bytes) -> int:
    """How many bytes at the end begin a character that is not complete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])
    return len(decoder.getstate()[0])
