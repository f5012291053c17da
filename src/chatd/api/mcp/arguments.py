"""The arguments of the tools. Names, limits and descriptions are the schema that clients see."""

from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Raw, Struct, field

from chatd.api.mcp.transcripts import MAX_MESSAGE_CHARS
from chatd.domain.chat.answer_transitions import MAX_REASON_CHARS
from chatd.domain.chat.commands import WhenBusy
from chatd.domain.chat.questions import MAX_QUESTIONS, QuestionReply
from chatd.domain.chat.states import PublicStatus
from chatd.domain.description import CHAT_ID, describe
from chatd.domain.model.protocol import Effort

DEFAULT_WAIT_S = 45
"""Below the time after which common clients give up a call."""
MAX_WAIT_S = 600
DEFAULT_PAGE = 20
MAX_PAGE = 100

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
