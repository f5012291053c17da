"""The turn that a sent message starts: where it is in the chat, whether it has ended, and how.

Pure: decides from the state that the client shows. A message that steers belongs to the turn that
it joins; any other later message of a user begins the next turn.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct

from chatd.cli.api_session import ExitCode, exit_code_of_error
from chatd.client.state import ShownChat
from chatd.domain.chat.messages import PublicMessage, early_end
from chatd.domain.chat.parts import KnownPart, NoticePart, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.chat.person_commands import command_of
from chatd.domain.chat.row import ChatError
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat_views.events import RequestedCall

PLAN_TOOL: Final = "propose_plan"
BUSY: Final[frozenset[PublicStatus]] = frozenset({"pending", "running", "interrupting"})

Ending = Literal["done", "plan", "interrupted", "needs_action", "failed"]


class SentMessage(Struct, frozen=True, kw_only=True):
    """What the server said about a message: its id, or that it waits in the queue. Without a
    `message_id` it is the first message of a user after `after`, with this content if there is
    one: a queued message gets its id later."""

    version: int
    message_id: int | None = None
    queue_id: int | None = None
    after: int = 0
    content: tuple[KnownPart, ...] = ()


class TurnOutcome(Struct, frozen=True, kw_only=True):
    """How a turn ended. `reason` is for people; empty if it is done. `output` is the answer as a
    JSON value, if one was asked for."""

    ending: Ending
    exit_code: ExitCode
    answer: str = ""
    reason: str = ""
    message_id: int | None = None
    finish_reason: str | None = None
    error: ChatError | None = None
    calls: tuple[RequestedCall, ...] = ()
    plan_file_id: str | None = None
    output: object = UNSET


def turn_messages(shown: ShownChat, sent: SentMessage) -> tuple[PublicMessage, ...]:
    """The messages of the turn, the sent one first; empty while it waits in the queue. Of a turn
    that is longer than what the client has, the newest messages."""
    messages = shown.messages
    start = next((at for at, one in enumerate(messages) if _is_sent(one, sent)), None)
    if _began_before(shown, sent):
        start = 0
    if start is None or _is_queued(shown, sent):
        return ()
    end = start + 1
    while end < len(messages):
        if messages[end].role == "user" and _has_ended(messages[start:end]):
            break
        end += 1
    return messages[start:end]


def turn_outcome(shown: ShownChat, sent: SentMessage) -> TurnOutcome | None:
    """None while the turn goes on or waits in the queue of a busy chat."""
    if not shown.is_loaded or shown.version < sent.version:
        return None
    turn = turn_messages(shown, sent)
    is_followed = bool(turn) and turn[-1].id != shown.messages[-1].id
    early = early_end(turn[-1:])
    turn = _without_notices(turn)
    if is_followed:
        return _ended(turn, early)
    if shown.status in BUSY:
        return None
    if shown.status == "requires_action":
        return TurnOutcome(
            ending="needs_action",
            exit_code=ExitCode.NEEDS_ACTION,
            answer=answer_text(turn),
            reason="The chat waits for you.",
            calls=shown.requested_calls,
        )
    if shown.status == "error":
        return _failed(turn, shown.error)
    if not turn:
        reason = "The message left the queue before it was answered: it was edited or deleted."
        return TurnOutcome(ending="failed", exit_code=ExitCode.FAILURE, reason=reason)
    return _ended(turn, early)


def has_reached(shown: ShownChat, sent: SentMessage, max_steps: int) -> bool:
    """Whether the turn has had so many model calls, the results of the last one too, and goes
    on."""
    turn = _without_notices(turn_messages(shown, sent))
    steps = sum(1 for one in turn if one.role == "assistant")
    return steps >= max_steps and turn[-1].role != "assistant" and shown.status in BUSY


def answer_text(turn: Sequence[PublicMessage]) -> str:
    """The text of the newest answers: those after the last results of tools."""
    texts: list[str] = []
    for message in reversed(turn[1:]):
        if message.role != "assistant":
            break
        texts.insert(0, text_of(message))
    return "".join(texts).strip()


def text_of(message: PublicMessage) -> str:
    return "".join(part.text for part in message.content if isinstance(part, TextPart))


def _is_sent(message: PublicMessage, sent: SentMessage) -> bool:
    if sent.message_id is not None:
        return message.id == sent.message_id
    is_later = message.role == "user" and message.id > sent.after
    return is_later and sent.content in ((), message.content)


def _began_before(shown: ShownChat, sent: SentMessage) -> bool:
    """Whether the message is on an older page, which a reset of the history leaves out."""
    if not shown.has_older or not shown.messages or sent.queue_id is not None:
        return False
    oldest = shown.messages[0].id
    return oldest > (sent.after + 1 if sent.message_id is None else sent.message_id)


def _is_queued(shown: ShownChat, sent: SentMessage) -> bool:
    return sent.queue_id is not None and any(one.id == sent.queue_id for one in shown.queue)


def _has_ended(turn: Sequence[PublicMessage]) -> bool:
    """Whether no step follows: else a further message of the user steers."""
    said = _without_notices(turn)
    last = said[-1]
    if last.role == "tool" and _is_command(said):
        return True
    if last.role != "assistant" or last.finish_reason == "pause":
        return find_plan(said) is not None
    return not any(isinstance(part, ToolCallPart) and _is_ours(part) for part in last.content)


def _is_command(turn: Sequence[PublicMessage]) -> bool:
    """Whether its user has said nothing but commands, which no model answers."""
    said = [one for one in turn if one.role == "user"]
    return bool(said) and all(command_of(one) is not None for one in said)


def _without_notices(turn: Sequence[PublicMessage]) -> tuple[PublicMessage, ...]:
    return tuple(message for message in turn if message.role != "system")


def _is_ours(call: ToolCallPart) -> bool:
    return not call.provider_executed and not call.cut


def _ended(turn: Sequence[PublicMessage], early: NoticePart | None) -> TurnOutcome:
    last = turn[-1]
    if early is not None:
        return TurnOutcome(
            ending="failed",
            exit_code=ExitCode.MODEL_ERROR,
            answer=answer_text(turn),
            reason=early.text,
            message_id=last.id,
        )
    plan = find_plan(turn)
    if plan is not None:
        return TurnOutcome(
            ending="plan",
            exit_code=ExitCode.DONE,
            answer=_last_text(turn),
            message_id=last.id,
            plan_file_id=plan,
        )
    if last.role == "tool" and _is_command(turn):
        return TurnOutcome(ending="done", exit_code=ExitCode.DONE, message_id=last.id)
    if last.role != "assistant" or last.finish_reason is None:
        return TurnOutcome(
            ending="interrupted",
            exit_code=ExitCode.INTERRUPTED,
            answer=answer_text(turn),
            reason="The chat was interrupted.",
            message_id=last.id,
        )
    return TurnOutcome(
        ending="done",
        exit_code=ExitCode.DONE,
        answer=answer_text(turn),
        message_id=last.id,
        finish_reason=last.finish_reason,
    )


def _failed(turn: Sequence[PublicMessage], error: ChatError | None) -> TurnOutcome:
    return TurnOutcome(
        ending="failed",
        exit_code=exit_code_of_error(error),
        answer=answer_text(turn),
        reason="The chat stopped with an error." if error is None else error.message,
        error=error,
    )


def find_plan(turn: Sequence[PublicMessage]) -> str | None:
    """The file of the plan with which the turn ended."""
    for part in turn[-1].content if turn else ():
        if isinstance(part, ToolResultPart) and part.tool_name == PLAN_TOOL and not part.is_error:
            return _read_file_id(part)
    return None


def _last_text(turn: Sequence[PublicMessage]) -> str:
    texts = (text_of(one).strip() for one in reversed(turn[1:]) if one.role == "assistant")
    return next(texts, "")


class _PlanResult(Struct):
    file_id: str = ""


def _read_file_id(part: ToolResultPart) -> str | None:
    if isinstance(part.result, msgspec.UnsetType):
        return None
    try:
        return msgspec.json.decode(part.result, type=_PlanResult).file_id or None
    except msgspec.MsgspecError:
        return None
