"""In one line, what a chat that is `requires_action` waits for: for lists and notifications."""

from typing import Annotated, Final

from msgspec import Struct

from chatd.domain.chat.call_waits import WaitKind, wait_kinds, wait_of, waiting_calls
from chatd.domain.chat.messages import PendingCall
from chatd.domain.chat.row import Chat
from chatd.domain.description import describe
from chatd.domain.errors import ToolError
from chatd.domain.questions import read_questions
from chatd.domain.text import clip
from chatd.domain.tool_policy.matching import COMMAND_ARGUMENT, read_arguments

MAX_SUMMARY_CHARS: Final = 120


class ActionSummary(Struct, frozen=True, kw_only=True):
    """What a chat needs a person or a client for."""

    kinds: Annotated[
        tuple[WaitKind, ...],
        describe(
            "What its calls wait for: `approval`, `question` (answers of a person) or `client`"
            " (results of the client).",
            ["approval"],
        ),
    ]
    calls: Annotated[int, describe("How many calls wait.", 1)]
    summary: Annotated[str, describe("The first of them, in one line.", "Approve: git push")]


def action_summary(chat: Chat) -> ActionSummary | None:
    """None if the chat does not wait. What a person must do comes first."""
    if chat.public_status != "requires_action" or not (calls := waiting_calls(chat)):
        return None
    first = min(calls, key=lambda call: wait_of(call) == "client")
    return ActionSummary(
        kinds=wait_kinds(calls),
        calls=len(calls),
        summary=clip(" ".join(_summarize(first).split()), MAX_SUMMARY_CHARS),
    )


def _summarize(call: PendingCall) -> str:
    match wait_of(call):
        case "question":
            return _first_question(call)
        case "client":
            return f"Waits for the result of {call.name}"
        case _:
            return f"Approve: {_command(call) or call.name}"


def _first_question(call: PendingCall) -> str:
    try:
        return read_questions(call.args)[0].question
    except ToolError:
        return "Asks a question"


def _command(call: PendingCall) -> str:
    for key, value in read_arguments(call.args) or ():
        if key == COMMAND_ARGUMENT and isinstance(value, str):
            return value
    return ""
