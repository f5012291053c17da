"""Exit codes of the user's commands, and which of them an error gives."""

from enum import IntEnum
from typing import Final

from chatd.domain.chat.row import ChatError


class ExitCode(IntEnum):
    DONE = 0
    FAILURE = 1
    USAGE = 2
    SIGN_IN = 3
    MODEL_ERROR = 4
    LIMIT = 5
    NEEDS_ACTION = 6
    TIME_OUT = 124
    INTERRUPTED = 130


_SERVER_KINDS: Final = frozenset({"internal", "crashed", "queue_held", "archived"})
"""Kinds of errors of a chat that no model caused."""

_SIGN_IN_CODES: Final = frozenset({"unauthorized", "missing_scope", "signed_out"})


def exit_code_of_error(error: ChatError | None) -> ExitCode:
    """Of a chat that stopped with this error."""
    if error is None or error.kind in _SERVER_KINDS:
        return ExitCode.FAILURE
    return ExitCode.LIMIT if error.kind == "usage_limit" else ExitCode.MODEL_ERROR


def exit_code_of_refusal(status: int, code: str) -> ExitCode:
    """Of a request that the server refused."""
    if status == 401 or code in _SIGN_IN_CODES:
        return ExitCode.SIGN_IN
    if code == "usage_limit_exceeded":
        return ExitCode.LIMIT
    return ExitCode.USAGE if status == 400 else ExitCode.FAILURE
