"""The one error by which the workspace agent refuses.

Every other module of the agent raises it with words a model can act on; the HTTP server alone
turns it into a reply. Anything else that is raised is a bug and becomes a 500 there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

_STATUS_OF_ERRNO = {
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


@dataclass(frozen=True)
class Validation:
    """What is wrong with one field of a request."""

    field: str
    detail: str


class AgentError(Exception):
    """A refusal: an HTTP status, a message for the model, perhaps a code for programs."""

    def __init__(
        self, status: int, message: str, *, code: str = "", validations: Sequence[Validation] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.validations = tuple(validations)

    def body(self) -> dict[str, object]:
        """The reply's JSON. Empty fields are left out."""
        body: dict[str, object] = {"message": self.message}
        if self.code:
            body["code"] = self.code
        if self.validations:
            body["validations"] = [
                {"field": each.field, "detail": each.detail} for each in self.validations
            ]
        return body


def from_os_error(error: OSError, doing: str) -> AgentError:
    """What the system has refused, e.g. `from_os(error, "read /a/b")`: "cannot read /a/b: ..."."""
    number = error.errno or 0
    reason = os.strerror(number).lower() if number else str(error)
    return AgentError(_STATUS_OF_ERRNO.get(number, 500), f"cannot {doing}: {reason}")
