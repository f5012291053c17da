"""What the open chat and its subagents wait for, what was answered here, and replies that are not
sent yet. Pure."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Final, Self

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from chatd.client.state import ShownChat
from chatd.domain.chat.call_waits import (
    EXPIRED_APPROVAL_TEXT,
    EXPIRED_QUESTION_TEXT,
    UNASKED_TEXT,
    Question,
    QuestionReply,
    answer_questions,
    read_questions,
)
from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.chat_views.events import RequestedCall
from chatd.domain.errors import InvalidInput, ToolError
from chatd.domain.ids import ChatId, ToolCallId
from chatd.domain.text import Json
from chatd.terminal.answers.exact_text import arguments_of
from chatd.terminal.safe_text import safe_line

# What the open chat and its subagents wait for, as one list. Pure.

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
        """Whether its arguments have arrived: a person must not approve what is not shown."""
        return self.args is not UNSET


class ProposedPlan(Struct, frozen=True, kw_only=True):
    chat_id: ChatId
    call_id: ToolCallId
    file_id: str
    path: str = ""


def asks_of(chat: ShownChat, asker: str = "", *, answered: Collection[AskKey] = ()) -> list[Ask]:
    """Sorted: what a person must do comes first, then what clients do."""
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
    """How an ask ended that was not answered here, in words. None: its chat is no longer
    followed."""
    what = "The question" if ask.call.kind == "question" else "The call"
    if ask.asker:
        what += f" of {safe_line(ask.asker, 40)}"
    if chat is None:
        return f"{what} does not wait any more."
    result = _result_of(ask.call.tool_call_id, chat)
    if result is None:
        is_approved = ask.call.kind == "approval" and chat.status in ("pending", "running")
        return f"{what} was approved in another window." if is_approved else f"{what} has ended."
    text = _read_result(result).error if result.is_error else ""
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


# What waits at the open chat, what was answered here, and what was written and not sent yet.

MAX_DRAFTS: Final = 100
Item = Ask | ProposedPlan


def key_of(item: Item) -> AskKey:
    return item.key if isinstance(item, Ask) else (item.chat_id, item.call_id)


def is_same(one: Item, other: Item) -> bool:
    """Whether a form that was made for the one still says what the other would have done. Models
    may use an id again, and arguments may arrive after the call."""
    if isinstance(one, Ask) and isinstance(other, Ask):
        is_same_call = (one.call.tool_name, one.call.kind) == (
            other.call.tool_name,
            other.call.kind,
        )
        return one.key == other.key and is_same_call and one.args == other.args
    return one == other


class OpenAsks:
    """`chat` and `children` are what is known; `refresh` makes `items` of them. Drafts outlive a
    look at another chat."""

    def __init__(self) -> None:
        self.chat: ShownChat | None = None
        self.has_pending = False
        """A message is on its way: it continues the chat, with or without the plan."""
        self.children: Sequence[tuple[ShownChat, str]] = ()
        self.items: list[Item] = []
        self.sending: set[AskKey] = set()
        self._answered: set[AskKey] = set()
        self._drafts: dict[AskKey, object] = {}
        self._seen_at: ChatId | None = None

    @property
    def chat_id(self) -> ChatId | None:
        return None if self.chat is None else self.chat.chat_id

    def refresh(self) -> list[str]:
        """Update `items`; returns, in words, what ended without an answer from here."""
        chats = self._chats()
        self._forget_ended(chat for chat, _ in chats)
        before = self.items if self._seen_at == self.chat_id else []
        self.items, self._seen_at = self._find(chats), self.chat_id
        now = {key_of(item) for item in self.items}
        shown = {chat.chat_id: chat for chat, _ in chats}
        return [
            ending_text(item, shown.get(item.chat_id))
            for item in before
            if isinstance(item, Ask) and item.key not in now | self._answered | self.sending
        ]

    def current(self, item: Item | None) -> Item | None:
        """The item with its newest content, or the first if it has gone."""
        key = None if item is None else key_of(item)
        found = (one for one in self.items if key_of(one) == key)
        return next(found, next(iter(self.items), None))

    def beside(self, item: Item, step: int) -> Item:
        """The one before or after it, in a circle."""
        return self.items[(self.place_of(item) - 1 + step) % len(self.items)]

    def place_of(self, item: Item) -> int:
        """The position of the item, counted from 1."""
        return [key_of(one) for one in self.items].index(key_of(item)) + 1

    def note_answered(self, keys: Iterable[AskKey]) -> None:
        """Hide them now: the events that remove them may still be on their way."""
        self._answered.update(keys)

    def is_answered_here(self, item: Item) -> bool:
        return key_of(item) in self._answered | self.sending

    def draft_of(self, item: Item) -> object:
        return self._drafts.get(key_of(item))

    def keep_draft(self, key: AskKey, draft: object) -> None:
        self._drafts.pop(key, None)
        self._drafts[key] = draft
        while len(self._drafts) > MAX_DRAFTS:
            self._drafts.pop(next(iter(self._drafts)))

    def _chats(self) -> list[tuple[ShownChat, str]]:
        return [] if self.chat is None else [(self.chat, ""), *self.children]

    def _find(self, chats: Sequence[tuple[ShownChat, str]]) -> list[Item]:
        asks = [ask for chat, name in chats for ask in asks_of(chat, name, answered=self._answered)]
        asks.sort(key=lambda ask: ask.call.kind == "client")
        plan = None if self.chat is None else proposed_plan(self.chat)
        if plan is None or self.has_pending or key_of(plan) in self._answered:
            return [*asks]
        return [*asks, plan]

    def _forget_ended(self, chats: Iterable[ShownChat]) -> None:
        """What was answered is remembered until the chat shows it no more."""
        for chat in chats:
            if not chat.is_loaded:
                continue
            waiting = {(chat.chat_id, call.tool_call_id) for call in chat.requested_calls}
            plan = proposed_plan(chat)
            if plan is not None:
                waiting.add(key_of(plan))
            gone = {key for key in self._answered if key[0] == chat.chat_id} - waiting
            self._answered -= gone
            for key in [key for key in self._drafts if key[0] == chat.chat_id]:
                if key not in waiting:
                    del self._drafts[key]


# Replies to the questions of one call while a person makes them. Pure.


class QuestionDraft(Struct, frozen=True, kw_only=True):
    """`replies` has one for each question, in their order."""

    questions: tuple[Question, ...]
    replies: tuple[QuestionReply, ...]

    @classmethod
    def start(cls, questions: tuple[Question, ...]) -> Self:
        return cls(questions=questions, replies=tuple(QuestionReply() for _ in questions))

    @property
    def unanswered(self) -> tuple[int, ...]:
        """The numbers of the questions without a reply, from 0."""
        return tuple(at for at, reply in enumerate(self.replies) if not is_answered(reply))

    def is_chosen(self, at: int, label: str) -> bool:
        return label in self.replies[at].labels

    def toggle(self, at: int, label: str) -> Self:
        """Choose an option, or take the choice back. One option only, if the question says so."""
        question, reply = self.questions[at], self.replies[at]
        others = tuple(one for one in reply.labels if one != label)
        if label in reply.labels:
            chosen = others
        elif question.multi_select:
            chosen = tuple(one for one in question.labels if one in (*others, label))
        else:
            chosen = (label,)
        return self._with_reply(at, replace(reply, labels=chosen))

    def write(self, at: int, text: str) -> Self:
        return self._with_reply(at, replace(self.replies[at], text=text))

    def problem(self) -> str:
        """Why the server would refuse the replies; empty: it accepts them."""
        if self.unanswered:
            missing = ", ".join(str(at + 1) for at in self.unanswered)
            if len(self.questions) == 1:
                return "Choose an option, or answer in your own words."
            return f"Not answered yet: question {missing}."
        try:
            answer_questions(self.questions, self.replies)
        except InvalidInput as error:
            return error.message
        return ""

    def _with_reply(self, at: int, reply: QuestionReply) -> Self:
        return replace(self, replies=(*self.replies[:at], reply, *self.replies[at + 1 :]))


def is_answered(reply: QuestionReply) -> bool:
    return bool(reply.labels or reply.text.strip())


def questions_of(args: Json) -> tuple[Question, ...]:
    """Empty if they cannot be read: then the person can only decline them."""
    if args is UNSET:
        return ()
    try:
        return read_questions(args)
    except ToolError:
        return ()


def keep_draft(draft: QuestionDraft | None, questions: Sequence[Question]) -> QuestionDraft:
    """The draft, unless the questions are others than those it was made for."""
    if draft is not None and draft.questions == tuple(questions):
        return draft
    return QuestionDraft.start(tuple(questions))
