"""What the open chat and its subagents wait for, as one list. Pure."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

import msgspec
from msgspec import UNSET, Struct

from chatd.client.state import ShownChat
from chatd.domain.chat.call_waits import EXPIRED_APPROVAL_TEXT, EXPIRED_QUESTION_TEXT, UNASKED_TEXT
from chatd.domain.chat.events import RequestedCall
from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.ids import ChatId, ToolCallId
from chatd.domain.text import Json
from chatd.terminal.answers.call_text import arguments_of
from chatd.terminal.safe_text import safe_line

PLAN_TOOL: Final = "propose_plan"
AskKey = tuple[ChatId, ToolCallId]


class Ask(Struct, frozen=True, kw_only=True):
    """A call that waits for a person or a client. `asker` is the title of the subagent; empty: the
    open chat itself."""

    chat_id: ChatId
    call: RequestedCall
    args: Json = UNSET
    asker: str = ""

    @property
    def key(self) -> AskKey:
        return self.chat_id, self.call.tool_call_id

    @property
    def is_readable(self) -> bool:
        """Whether its arguments are there: nobody approves what is not shown."""
        return self.args is not UNSET


class ProposedPlan(Struct, frozen=True, kw_only=True):
    chat_id: ChatId
    call_id: ToolCallId
    file_id: str
    path: str = ""


def asks_of(chat: ShownChat, asker: str = "", *, answered: Collection[AskKey] = ()) -> list[Ask]:
    """What a person must do comes first, then what clients do."""
    found = [
        Ask(chat_id=chat.chat_id, call=call, args=arguments_of(call, chat), asker=asker)
        for call in chat.requested_calls
        if (chat.chat_id, call.tool_call_id) not in answered
    ]
    return sorted(found, key=lambda ask: ask.call.kind == "client")


def approvals_like(ask: Ask, asks: Iterable[Ask]) -> list[Ask]:
    """All approvals of the ask's chat: they can be answered with one request."""
    return [one for one in asks if one.chat_id == ask.chat_id and one.call.kind == "approval"]


def ending_text(ask: Ask, chat: ShownChat | None) -> str:
    """In words, how an ask ended that was not answered here. None: its chat is not followed any
    more."""
    what = "The question" if ask.call.kind == "question" else "The call"
    if ask.asker:
        what += f" of {safe_line(ask.asker, 40)}"
    if chat is None:
        return f"{what} does not wait any more."
    result = _result_of(ask.call.tool_call_id, chat)
    if result is None:
        is_approved = ask.call.kind == "approval" and chat.status in ("pending", "running")
        return f"{what} was approved in another window." if is_approved else f"{what} has ended."
    text = _error_text(result)
    if text in (EXPIRED_APPROVAL_TEXT, EXPIRED_QUESTION_TEXT):
        return f"{what} was not answered in time."
    if text == UNASKED_TEXT:
        return f"{what} was ended by another message or an interruption."
    if text.startswith("The user denied"):
        return f"{what} was denied in another window."
    if text.startswith("The user did not answer"):
        return f"{what} was declined in another window."
    if ask.call.kind == "client":
        return f"The result of {safe_line(ask.call.tool_name, 60)} has arrived."
    verb = "answered" if ask.call.kind == "question" else "approved"
    return f"{what} was {verb} in another window."


def _result_of(call_id: ToolCallId, chat: ShownChat) -> ToolResultPart | None:
    for message in reversed(chat.messages):
        for part in message.content:
            if isinstance(part, ToolResultPart) and part.tool_call_id == call_id:
                return part
    return None


class _Result(Struct, frozen=True):
    """The fields that are read here, of any tool's result."""

    error: str = ""
    file_id: str = ""
    path: str = ""


def _read_result(part: ToolResultPart) -> _Result:
    if part.result is UNSET:
        return _Result()
    try:
        return msgspec.json.decode(part.result, type=_Result)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _Result()


def _error_text(part: ToolResultPart) -> str:
    return _read_result(part).error if part.is_error else ""


def proposed_plan(chat: ShownChat) -> ProposedPlan | None:
    """The plan that ended the last turn, if nothing was said since."""
    if chat.status not in ("waiting", "error") or not chat.messages:
        return None
    for message in reversed(chat.messages):
        if message.role == "user":
            return None
        for part in reversed(message.content):
            if isinstance(part, ToolResultPart) and part.tool_name == PLAN_TOOL:
                return _plan_of(chat.chat_id, part)
    return None


def _plan_of(chat_id: ChatId, part: ToolResultPart) -> ProposedPlan | None:
    found = _read_result(part)
    if part.is_error or not found.file_id:
        return None
    return ProposedPlan(
        chat_id=chat_id, call_id=part.tool_call_id, file_id=found.file_id, path=found.path
    )


def time_left(deadline: datetime | None, now: datetime) -> str:
    """Such as `71 h left`; empty without a deadline."""
    if deadline is None:
        return ""
    seconds = int((deadline - now).total_seconds())
    if seconds <= 0:
        return "time is over"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{round(seconds / size)} {unit} left"
    return f"{seconds} s left"
