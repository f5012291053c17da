"""Replies to the questions of one call while a person makes them. Pure."""

from collections.abc import Sequence
from typing import Self

from msgspec import UNSET, Struct
from msgspec.structs import replace

from chatd.domain.errors import InvalidInput, ToolError
from chatd.domain.questions import (
    Question,
    QuestionReply,
    answer_questions,
    read_questions,
)
from chatd.domain.text import Json


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
    """Empty if they cannot be read: then they can only be declined."""
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
