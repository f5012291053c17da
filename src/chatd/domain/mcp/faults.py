"""Why a call to an MCP server gave no result, and whether the tool may have run."""

from typing import Final, Literal

from chatd.domain.errors import ChatdError

FaultKind = Literal[
    "refused",  # 401: the credential is not accepted
    "gone",  # the server does not know the session any more: nothing ran
    "unreachable",  # the request was not sent
    "lost",  # the request was sent, and the connection broke before the reply
    "timeout",
    "too_large",
    "busy",
    "failed",  # the server replied with an error
]

_MAY_HAVE_RUN: Final = frozenset({"lost", "timeout", "too_large"})

OUTCOME_UNKNOWN_TEXT: Final = (
    "Its outcome is unknown: look at the state it would have changed before you repeat it."
)


class McpFault(ChatdError):
    code = "mcp_fault"

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind

    @property
    def may_have_run(self) -> bool:
        return self.kind in _MAY_HAVE_RUN
