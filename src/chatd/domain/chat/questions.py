"""Questions of a model to the user: what may be asked, and what answers them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, cast

import msgspec
from msgspec import Raw, Struct

from chatd.domain.description import describe
from chatd.domain.errors import InvalidInput, ToolError
from chatd.domain.text import Json, parse_json, replace_surrogates

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
    """Raises ToolError, with what the model is to repair."""
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
