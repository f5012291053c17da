"""Questions that a model asks, and the answers that fit them."""

import msgspec
import pytest
from msgspec import Raw

from chatd.domain.chat.call_waits import QuestionReply, answer_questions, read_questions
from chatd.domain.errors import InvalidInput, ToolError

OPTIONS = [{"label": "A", "description": "first"}, {"label": "B"}]


def asked(*questions: object) -> Raw:
    return Raw(msgspec.json.encode({"questions": questions}))


def question(**fields: object) -> dict[str, object]:
    return {"header": "H", "question": "Which?", "options": OPTIONS, **fields}


def test_questions_are_read_as_models_write_them() -> None:
    (read,) = read_questions(asked(question(options=["A", {"label": "B"}], multi_select="true")))
    assert (read.labels, read.multi_select, read.header) == (("A", "B"), True, "H")


@pytest.mark.promise("P15")
@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (Raw(b"{}"), "one or more"),
        (Raw(b"[]"), "one or more"),
        (asked(), "one or more"),
        (asked(*[question()] * 9), "at most 8"),
        (asked("x"), r"questions\[0\] must be an object"),
        (asked(question(question=" ")), r"questions\[0\]\.question"),
        (asked(question(options=None)), "must be a list"),
        (asked(question(options=["A"])), "has 1 options; give 2 to 4"),
        (asked(question(options=list("ABCDE"))), "has 5 options"),
        (asked(question(options=["A", "A"])), "one label"),
        (asked(question(options=["A", 5])), r"options\[1\] must be an object"),
        (asked(question(question="x" * 5000)), "at most 4000"),
    ],
)
def test_bad_questions_say_what_to_repair(args: Raw, complaint: str) -> None:
    with pytest.raises(ToolError, match=complaint):
        read_questions(args)


def test_an_answer_may_have_options_and_own_words() -> None:
    questions = read_questions(asked(question(multi_select=True), question()))
    replies = [QuestionReply(labels=("B", "A"), text=" and "), QuestionReply(text="C")]
    answers = msgspec.json.decode(answer_questions(questions, replies))["answers"]
    assert [(it["chosen"], it["text"]) for it in answers] == [(["B", "A"], "and"), ([], "C")]


@pytest.mark.parametrize(
    "replies",
    [
        [],
        [QuestionReply(labels=("A",))] * 2,
        [QuestionReply()],
        [QuestionReply(text=" ")],
        [QuestionReply(labels=("A", "B"))],
        [QuestionReply(labels=("C",))],
        [QuestionReply(text="x" * 20_001)],
    ],
)
def test_replies_that_do_not_fit_are_refused(replies: list[QuestionReply]) -> None:
    with pytest.raises(InvalidInput):
        answer_questions(read_questions(asked(question())), replies)


def test_an_option_is_chosen_once() -> None:
    questions = read_questions(asked(question(multi_select=True)))
    with pytest.raises(InvalidInput, match="twice"):
        answer_questions(questions, [QuestionReply(labels=("A", "A"))])
