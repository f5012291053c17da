"""What the tools return. `next` says in words which call makes sense now."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Struct

from chatd.domain.chat.messages import Role
from chatd.domain.chat.states import PublicStatus
from chatd.domain.chat_views.events import RequestedCall
from chatd.domain.description import CHAT_ID, UPDATED_AT, describe

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
