"""What a fork of a chat is made of beside the copied messages."""

from collections.abc import Iterable, Sequence
from typing import Final

from chatd.domain.chat.change import INTERRUPTED_CALL_TEXT, error_result
from chatd.domain.chat.messages import Draft, Message, PendingCall, pending_calls

MAX_TITLE_CHARS: Final = 200
FORK_SUFFIX: Final = " (fork)"


def fork_title(title: str) -> str:
    """A fork of a fork has the suffix once."""
    base = title.removesuffix(FORK_SUFFIX)
    room = MAX_TITLE_CHARS - len(FORK_SUFFIX)
    short = base if len(base) <= room else f"{base[: room - 1].rstrip()}…"
    return f"{short}{FORK_SUFFIX}"


def closing_results(tail: Sequence[Message]) -> tuple[Draft, ...]:
    """Error results for the calls that the copied messages do not answer: providers refuse a
    history in which a user message follows a pending call. `tail` begins with the last answer."""
    calls = pending_calls(tail)
    return close_calls(PendingCall(id=call.tool_call_id, name=call.tool_name) for call in calls)


def close_calls(calls: Iterable[PendingCall]) -> tuple[Draft, ...]:
    return tuple(error_result(call, INTERRUPTED_CALL_TEXT, interrupted=True) for call in calls)
