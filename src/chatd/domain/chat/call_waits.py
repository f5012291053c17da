"""What pending calls wait for while a chat is `requires_action`, and until when; questions to the
user.

All calls begin to wait at the same moment, each with its own time-out. The row has the earliest
deadline only; the others follow from the differences of the time-outs. What a *running* call waits
for, such as a runner, is `PendingCall.waits_for`: see `worker_transitions.note_waits`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Annotated, Final, Literal, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from chatd.domain.chat.messages import PendingCall
from chatd.domain.chat.row import Chat
from chatd.domain.description import describe
from chatd.domain.errors import InvalidInput, ToolError
from chatd.domain.ids import ToolCallId
from chatd.domain.text import Json, parse_json, replace_surrogates

WaitKind = Literal["client", "question", "approval"]
"""What a call that a person or a client must answer waits for."""
AGENT_WAIT: Final = "agents"
"""Marks a call that waits for subagents while a person is asked about another call. It runs again
once the person has answered; the subagents keep working."""

CLIENT_TOOL_DEADLINE_S: Final = 300.0
"""Time limit for the result of a client tool that declares none itself."""
PERSON_DEADLINE_S: Final = 3 * 86400.0
"""Default time limit for an answer or an approval."""
MAX_CARRIED_ARGS_BYTES: Final = 64 * 1024
"""Limit for one call that waits for approval. Viewers read longer arguments in the history."""

EXPIRED_CALL_TEXT: Final = "The tool call was not answered in time."
EXPIRED_QUESTION_TEXT: Final = (
    "The user did not answer the questions in time. Continue with your best judgement and say what"
    " you assumed, or stop and say what you need to know."
)
EXPIRED_APPROVAL_TEXT: Final = (
    "The call was not approved in time, so it did not run. Continue without it, or say why it is"
    " needed."
)
UNASKED_TEXT: Final = "The user did something else before the call was answered. It did not run."
_EXPIRED_TEXTS: Final[Mapping[WaitKind, str]] = {
    "client": EXPIRED_CALL_TEXT,
    "question": EXPIRED_QUESTION_TEXT,
    "approval": EXPIRED_APPROVAL_TEXT,
}


class CallWait(Struct, frozen=True, kw_only=True):
    """What one call is to wait for. `always`: a rule of the chat could end the asking. `reason` is
    why the policy asks."""

    call_id: ToolCallId
    kind: WaitKind | Literal["agents"]
    timeout_s: float | None
    args: Json = UNSET
    always: bool = False
    reason: str = ""


def mark_wait(call: PendingCall, wait: CallWait) -> PendingCall:
    """The pending call, with what it waits for."""
    carried = wait.args if wait.args is not UNSET else call.args
    if wait.kind == "approval" and carried is not UNSET:
        carried = carried if len(bytes(carried)) <= MAX_CARRIED_ARGS_BYTES else UNSET
    return msgspec.structs.replace(
        call,
        asks="" if wait.kind == "client" else wait.kind,
        timeout_s=wait.timeout_s,
        args=carried,
        always=wait.always and wait.kind == "approval" and carried is not UNSET,
        reason=wait.reason,
    )


def wait_of(call: PendingCall) -> WaitKind | None:
    """What a call of a chat that is `requires_action` waits for. None: it needs no answer, because
    it is approved or waits for subagents.

    A replica of an earlier version keeps a call but drops its marks. It then waits for an approval
    once more, or for the client as it did."""
    if call.asks == AGENT_WAIT:
        return None
    if call.asks == "question":
        return "question"
    if call.asks == "" and call.client:
        return "client"
    return "approval" if call.approved_by is None else None


def waiting_calls(chat: Chat) -> tuple[PendingCall, ...]:
    if chat.status != "requires_action":
        return ()
    return tuple(call for call in chat.pending_calls if wait_of(call) is not None)


def answerable_calls(chat: Chat) -> tuple[PendingCall, ...]:
    """The waiting calls or, if there are none, those that wait for subagents: a replica of an
    earlier version asks for approval of these, and only an answer to them continues such a chat."""
    if chat.status != "requires_action":
        return ()
    left = tuple(call for call in chat.pending_calls if call.asks == AGENT_WAIT)
    return waiting_calls(chat) or left


def call_fingerprint(chat: Chat, call: PendingCall) -> str:
    """Distinguishes calls with the same id, which models may reuse in a later turn."""
    args = b"" if call.args is UNSET else bytes(call.args)
    told = f"{chat.turn_message_id}:{call.id}:{call.name}:".encode(errors="surrogateescape")
    return sha256(told + args).hexdigest()


def timeout_of(call: PendingCall) -> float:
    if call.timeout_s is not None:
        return call.timeout_s
    return CLIENT_TOOL_DEADLINE_S if wait_of(call) == "client" else PERSON_DEADLINE_S


def deadline_shift_s(before: Chat | None, after: Chat) -> float:
    """Seconds from the old deadline, or from now if there was none, to the row's deadline."""
    if after.status != "requires_action":
        return 0.0
    earliest = _earliest_timeout(after)
    if before is None or before.status != "requires_action":
        return earliest
    return earliest - _earliest_timeout(before)


def _earliest_timeout(chat: Chat) -> float:
    return min(map(timeout_of, waiting_calls(chat)), default=CLIENT_TOOL_DEADLINE_S)


def call_deadlines(chat: Chat) -> dict[ToolCallId, datetime]:
    """The deadline of each waiting call."""
    if chat.action_deadline is None:
        return {}
    earliest = _earliest_timeout(chat)
    return {
        call.id: chat.action_deadline + timedelta(seconds=timeout_of(call) - earliest)
        for call in waiting_calls(chat)
    }


def expired_calls(chat: Chat, now: datetime | None) -> frozenset[ToolCallId]:
    """The calls to give up: those past their deadline or, without `now`, those due first."""
    calls = waiting_calls(chat)
    if now is None or chat.action_deadline is None:
        earliest = _earliest_timeout(chat)
        return frozenset(call.id for call in calls if timeout_of(call) <= earliest)
    deadlines = call_deadlines(chat)
    return frozenset(call.id for call in calls if deadlines[call.id] < now)


def expired_text(call: PendingCall) -> str:
    return _EXPIRED_TEXTS[wait_of(call) or "approval"]


def has_surely_not_run(call: PendingCall) -> bool:
    """Whether a person was asked about the call and has not approved it."""
    return call.asks not in ("", AGENT_WAIT) and call.approved_by is None


def wait_kinds(calls: Iterable[PendingCall]) -> tuple[WaitKind, ...]:
    """The kinds that these calls wait for, each once, sorted."""
    return tuple(sorted({kind for call in calls if (kind := wait_of(call)) is not None}))


# Questions of a model to the user: what may be asked, and what answers them.

QUESTION_TOOL: Final = "ask_user_question"
MAX_QUESTIONS: Final = 8
MIN_OPTIONS: Final = 2
MAX_OPTIONS: Final = 4
MAX_QUESTION_CHARS: Final = 4000
MAX_LABEL_CHARS: Final = 300
MAX_ANSWER_CHARS: Final = 20_000


class QuestionOption(Struct, frozen=True, kw_only=True):
    label: str
    description: str = ""


class Question(Struct, frozen=True, kw_only=True):
    header: str = ""
    question: str
    options: tuple[QuestionOption, ...]
    multi_select: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(option.label for option in self.options)


class QuestionReply(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to one question: chosen options, own words, or both."""

    labels: Annotated[
        tuple[str, ...], describe("The labels of the chosen options.", ["PostgreSQL"])
    ] = ()
    text: Annotated[str, describe("The user's own words.", "With the extension pgvector.")] = ""


class _AnsweredQuestion(Struct, frozen=True, kw_only=True):
    header: str
    question: str
    chosen: tuple[str, ...]
    text: str


class QuestionAnswers(Struct, frozen=True, kw_only=True):
    """The result of the call, in the order of the questions."""

    answers: tuple[_AnsweredQuestion, ...]


def read_questions(args: Json) -> tuple[Question, ...]:
    """Parse what the model asks. Raises ToolError, which tells the model what to correct."""
    value = parse_json(args)
    listed = cast("Mapping[str, object]", value).get("questions") if isinstance(value, dict) else ()
    if not isinstance(listed, list) or not listed:
        raise ToolError("questions must be a list of one or more questions.")
    items = cast("list[object]", listed)
    if len(items) > MAX_QUESTIONS:
        raise ToolError(f"questions has {len(items)} questions; at most {MAX_QUESTIONS} at once.")
    return tuple(_read_question(item, f"questions[{i}]") for i, item in enumerate(items))


def _read_question(value: object, place: str) -> Question:
    fields = _fields(value, place)
    options = fields.get("options")
    if not isinstance(options, list):
        raise ToolError(f"{place}.options must be a list of {MIN_OPTIONS} to {MAX_OPTIONS}.")
    items = cast("list[object]", options)
    if not MIN_OPTIONS <= len(items) <= MAX_OPTIONS:
        raise ToolError(
            f"{place}.options has {len(items)} options; give {MIN_OPTIONS} to {MAX_OPTIONS}. The"
            " user can also answer in own words."
        )
    question = Question(
        header=_text(fields, "header", place, MAX_LABEL_CHARS, required=False),
        question=_text(fields, "question", place, MAX_QUESTION_CHARS),
        options=tuple(_read_option(item, f"{place}.options[{i}]") for i, item in enumerate(items)),
        multi_select=fields.get("multi_select") in (True, "true"),
    )
    if len(set(question.labels)) < len(items):
        raise ToolError(f"{place}.options has two options with one label.")
    return question


def _read_option(value: object, place: str) -> QuestionOption:
    """Models also write an option as its label alone."""
    fields = {"label": value} if isinstance(value, str) else _fields(value, place)
    return QuestionOption(
        label=_text(fields, "label", place, MAX_LABEL_CHARS),
        description=_text(fields, "description", place, MAX_QUESTION_CHARS, required=False),
    )


def _fields(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ToolError(f"{place} must be an object.")
    return cast("Mapping[str, object]", value)


def _text(
    fields: Mapping[str, object], name: str, place: str, limit: int, *, required: bool = True
) -> str:
    value = fields.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value.strip()):
        raise ToolError(f"{place}.{name} must be a text that is not empty.")
    if len(value) > limit:
        raise ToolError(f"{place}.{name} has {len(value)} characters; at most {limit}.")
    return value


def answer_questions(questions: Sequence[Question], replies: Sequence[QuestionReply]) -> Raw:
    """The result of the call. Raises InvalidInput if the replies do not answer the questions."""
    if len(replies) != len(questions):
        raise InvalidInput(
            "replies", f"{len(questions)} questions need as many replies, in their order"
        )
    answers = tuple(
        _answer(question, reply, f"replies[{i}]")
        for i, (question, reply) in enumerate(zip(questions, replies, strict=True))
    )
    return Raw(msgspec.json.encode(QuestionAnswers(answers=answers)))


def _answer(question: Question, reply: QuestionReply, place: str) -> _AnsweredQuestion:
    text = replace_surrogates(reply.text).strip()
    unknown = [label for label in reply.labels if label not in question.labels]
    if unknown:
        raise InvalidInput(f"{place}.labels", f"the question has no option {unknown[0]!r}")
    if len(set(reply.labels)) < len(reply.labels):
        raise InvalidInput(f"{place}.labels", "an option is chosen twice")
    if len(reply.labels) > 1 and not question.multi_select:
        raise InvalidInput(f"{place}.labels", "choose one option of this question")
    if not reply.labels and not text:
        raise InvalidInput(place, "choose an option or give a text")
    if len(text) > MAX_ANSWER_CHARS:
        raise InvalidInput(f"{place}.text", f"at most {MAX_ANSWER_CHARS} characters")
    return _AnsweredQuestion(
        header=question.header, question=question.question, chosen=reply.labels, text=text
    )
