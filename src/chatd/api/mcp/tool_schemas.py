"""The arguments and the results of the tools. Names, limits and descriptions are the schema that
clients see; `next` of a result says in words which call makes sense now."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

from msgspec import Meta, Raw, Struct, field

from chatd.domain.chat.answer_transitions import MAX_REASON_CHARS
from chatd.domain.chat.call_waits import MAX_QUESTIONS, QuestionReply
from chatd.domain.chat.commands import WhenBusy
from chatd.domain.chat.messages import Role
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat_views.events import RequestedCall
from chatd.domain.description import CHAT_ID, UPDATED_AT, describe
from chatd.domain.model.protocol import Effort

DEFAULT_WAIT_S = 45
"""Below the time after which common clients give up a call."""
MAX_WAIT_S = 600
DEFAULT_PAGE = 20
MAX_PAGE = 100
MAX_MESSAGE_CHARS: Final = 8_000
"""Of one message in a page; the rest is read by its id and an offset."""
BUSY: Final[frozenset[PublicStatus]] = frozenset({"pending", "running", "interrupting"})
"""The chat works."""

ChatIdText = Annotated[UUID, describe("The chat, as start_chat or list_chats named it.", CHAT_ID)]
Text = Annotated[str, Meta(min_length=1, max_length=500_000)]
Key = Annotated[
    Annotated[str, Meta(min_length=1, max_length=200)] | None,
    describe(
        "Any text that you use for this request only. If no reply came, repeat the call with the"
        " same key: it is carried out once.",
        "fix-test-1",
    ),
]


class _Arguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class StartChat(_Arguments, frozen=True, kw_only=True):
    message: Annotated[Text, describe("The first message: the whole task.", "Fix the failing test")]
    model: Annotated[
        str | None, describe("The name of the model; without it the default one.", "sonnet")
    ] = None
    reasoning_effort: Annotated[
        Effort | None, describe("How much the model thinks; within its range.", "medium")
    ] = None
    system_prompt: Annotated[
        Annotated[str, Meta(max_length=100_000)] | None,
        describe("Instructions for this chat.", "Answer in German."),
    ] = None
    labels: Annotated[dict[str, str], describe("Labels to find it by.", {"team": "blue"})] = field(
        default_factory=dict[str, str]
    )
    workspace_id: Annotated[
        UUID | None,
        describe("The workspace in which its tools act; without it a new one when it needs it."),
    ] = None
    mode: Annotated[
        Literal["plan"] | None,
        describe("plan: the chat looks around and writes a plan, and changes nothing.", "plan"),
    ] = None
    max_cost_usd: Annotated[
        Annotated[float, Meta(gt=0, le=1_000_000)] | None,
        describe("The most that the chat and its subagents may cost, in dollars.", 2.5),
    ] = None
    key: Key = None


class SendMessage(_Arguments, frozen=True, kw_only=True):
    chat_id: ChatIdText
    message: Annotated[Text, describe("The message.", "Now run the tests again")]
    when_busy: Annotated[
        WhenBusy,
        describe(
            "What happens if the chat is working. queue: it is answered after the turn. steer: the"
            " model reads it before its next step. interrupt: the turn stops, what it has said is"
            " kept. rollback: the turn stops and is removed. reject: the call fails.",
            "steer",
        ),
    ] = "queue"
    model: Annotated[str | None, describe("Another model from now on, by name.", "sonnet")] = None
    mode: Annotated[
        Literal["plan", "off"] | None,
        describe("plan: from now on only look around and plan. off: the plan may be done.", "off"),
    ] = None
    key: Key = None


class WaitForChat(_Arguments, frozen=True, kw_only=True):
    chat_id: ChatIdText
    timeout_s: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_WAIT_S)],
        describe(
            "Return after so many seconds also if the chat still works; then call again."
            " 0 looks without waiting.",
            60,
        ),
    ] = DEFAULT_WAIT_S


class ReadChat(_Arguments, frozen=True, kw_only=True):
    chat_id: ChatIdText
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_PAGE)], describe("The most messages to read.", 20)
    ] = DEFAULT_PAGE
    before: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        describe("Only messages before this message id: the `before` of the last reply.", 40),
    ] = None
    after: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        describe("Only messages after this message id, oldest first; 0 begins at the start.", 12),
    ] = None
    message_id: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        describe("Read this message only, from `offset`: for a message that was cut.", 7),
    ] = None
    offset: Annotated[
        Annotated[int, Meta(ge=0)],
        describe("With message_id: the character to begin at.", MAX_MESSAGE_CHARS),
    ] = 0


class InterruptChat(_Arguments, frozen=True, kw_only=True):
    chat_id: ChatIdText
    queue: Annotated[
        Literal["continue", "hold"],
        describe(
            "Whether queued messages are answered next, or wait for the next message.", "hold"
        ),
    ] = "continue"


class ForkChat(_Arguments, frozen=True, kw_only=True):
    chat_id: ChatIdText
    message_id: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        describe("The last message to copy; without it all messages are copied.", 7),
    ] = None
    key: Key = None


class ListChats(_Arguments, frozen=True, kw_only=True):
    query: Annotated[
        Annotated[str, Meta(max_length=1000)] | None,
        describe(
            "Words or quoted phrases of the title or of one message; also `title:word`,"
            " `label:key:value`, `source:shared`, `archived:true`.",
            'title:build "out of memory"',
        ),
    ] = None
    status: Annotated[PublicStatus | None, describe("Only chats with this status.", "running")] = (
        None
    )
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_PAGE)], describe("The most chats to list.", 20)
    ] = DEFAULT_PAGE
    cursor: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512)] | None,
        describe("The `next_cursor` of the last reply.", "pJ3rU0nYb9JbMSwiMDE5M2M1YTAiXQ"),
    ] = None


class CallResult(_Arguments, frozen=True, kw_only=True):
    """The result of one call that the chat waits for."""

    tool_call_id: Annotated[str, describe("The call that this answers.", "toolu_01A9")]
    output: Annotated[Raw, describe("What the tool returned, any JSON.", {"status": 200})]
    is_error: Annotated[bool, describe("The call failed; the output says why.")] = False


class SubmitResults(_Arguments, frozen=True, kw_only=True):
    chat_id: ChatIdText
    results: Annotated[
        tuple[CallResult, ...],
        Meta(min_length=1, max_length=1000),
        describe("The results of all `pending_calls` of the kind client."),
    ]
    key: Key = None


class CallAnswer(_Arguments, frozen=True, kw_only=True):
    """The answer to one call that waits for a person."""

    tool_call_id: Annotated[str, describe("The call that this answers.", "toolu_01A9")]
    decision: Annotated[
        Literal["approve", "deny", "answer"],
        describe(
            "approve lets the call run, deny does not; of questions, deny declines to answer."
            " answer answers questions, with `replies`.",
            "approve",
        ),
    ]
    reason: Annotated[
        Annotated[str, Meta(max_length=MAX_REASON_CHARS)],
        describe("Of a denial: what the chat's model is told.", "Use the staging server."),
    ] = ""
    replies: Annotated[
        tuple[QuestionReply, ...],
        Meta(max_length=MAX_QUESTIONS),
        describe("The answers, one for each question, in the order of the questions."),
    ] = ()


class AnswerCalls(_Arguments, frozen=True, kw_only=True):
    chat_id: ChatIdText
    answers: Annotated[
        tuple[CallAnswer, ...],
        Meta(min_length=1, max_length=100),
        describe("The answers; all count, or none. Calls that are left out go on waiting."),
    ]
    key: Key = None


ResultChatId = Annotated[str, describe("The chat.", CHAT_ID)]
ResultStatus = Annotated[
    PublicStatus,
    describe(
        "pending, running and interrupting: it works. waiting: it waits for a message."
        " requires_action: it waits for results or answers. error: it has stopped.",
        "waiting",
    ),
]
Next = Annotated[str, describe("What to call next.", "Call wait_for_chat with this chat_id.")]


class ChatResult(Struct, frozen=True, kw_only=True):
    """A chat after start_chat, interrupt_chat or fork_chat."""

    chat_id: ResultChatId
    status: ResultStatus
    title: Annotated[str, describe("Its title.", "Fix the failing test")]
    next: Next


class SentResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message after send_message."""

    chat_id: ResultChatId
    queued: Annotated[bool, describe("The message waits in the queue of the chat.")]
    message_id: Annotated[int | None, describe("Its id, if it is in the chat's history.", 7)] = None
    next: Next


class Failure(Struct, frozen=True, kw_only=True):
    """Why a chat has stopped."""

    kind: Annotated[str, describe("What failed, for programs.", "overloaded")]
    message: Annotated[str, describe("What failed, for people.", "The provider is overloaded.")]


class ListedChatResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat in a list."""

    chat_id: ResultChatId
    title: Annotated[str, describe("Its title.", "Fix the failing test")]
    status: ResultStatus
    updated_at: Annotated[datetime, describe("When it last changed.", UPDATED_AT)]
    queue_len: Annotated[int, describe("How many messages wait in its queue.", 0)] = 0
    waits_for: Annotated[
        str, describe("If its status is requires_action: what for.", "Approve: execute")
    ] = ""
    match: Annotated[str, describe("Of a search: the text around its newest hit.")] = ""


class WaitResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat after wait_for_chat."""

    chat_id: ResultChatId
    status: ResultStatus
    done: Annotated[
        bool, describe("The chat no longer works. False: the time was over; call again.")
    ]
    answer: Annotated[
        str,
        describe(
            "What the model has said since the last message of a user; while it works, so far.",
            "The test passes now.",
        ),
    ]
    answer_is_cut: Annotated[bool, describe("The answer is longer: read_chat has all of it.")] = (
        False
    )
    error: Annotated[Failure | None, describe("Why it has stopped, if its status is error.")] = None
    pending_calls: Annotated[
        Sequence[RequestedCall],
        describe("The calls that it waits for, if its status is requires_action."),
    ] = ()
    asking_subagents: Annotated[
        Sequence[ListedChatResult],
        describe("If the time was over: its subagents that wait for results or answers."),
    ] = ()
    queue_len: Annotated[int, describe("How many messages wait in its queue.", 0)] = 0
    last_message_id: Annotated[int | None, describe("Its newest message.", 7)] = None
    next: Next


class ReadMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as text. Tool calls and results are lines in brackets; reasoning is left out."""

    id: Annotated[int, describe("Its id: it counts from 1 in each chat.", 7)]
    role: Annotated[Role, describe("Who said it.", "assistant")]
    text: Annotated[str, describe("Its text.", "The test passes now.")]
    next_offset: Annotated[
        int | None,
        describe("Its text was cut here: read the rest with message_id and this offset.", 8000),
    ] = None


class ReadResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages of a chat, oldest first."""

    chat_id: ResultChatId
    status: ResultStatus
    messages: Annotated[Sequence[ReadMessage], describe("The messages.")]
    queued: Annotated[Sequence[str], describe("Messages in the queue.", ["And then?"])] = ()
    before: Annotated[
        int | None, describe("There are older messages: read them with this `before`.", 40)
    ] = None
    after: Annotated[
        int | None, describe("There are newer messages: read them with this `after`.", 12)
    ] = None
    next: Next


class ListResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Chats after list_chats: pinned ones first, then the newest."""

    chats: Annotated[Sequence[ListedChatResult], describe("The chats.")]
    next_cursor: Annotated[str | None, describe("There are more: list them with this cursor.")] = (
        None
    )


class SubmittedResult(Struct, frozen=True, kw_only=True):
    """A chat after submit_results or answer_calls."""

    chat_id: ResultChatId
    next: Next
