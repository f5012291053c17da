"""Labels, chat summaries and notification texts."""

import pytest

from chatd.domain.chat.row import ChatError
from chatd.domain.chat.states import PublicStatus
from chatd.domain.model.protocol import PromptText
from chatd.domain.prompt.titles import (
    MAX_CHAT_SUMMARY_CHARS,
    MAX_EXCERPT_CHARS,
    chat_summary_request,
    is_chat_summary_due,
    label_request,
    last_answer,
    notification_text,
    read_chat_summary,
    read_label,
    status_label,
)
from tests.support.factories import message, text


@pytest.mark.covers("titles-7")
@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ('{"label":"Fixed failing tests"}', "Fixed failing tests"),
        ("Needs database password", "Needs database password"),
        ('"Compared three libraries."', "Compared three libraries"),
        ("Bumped to v1.2", "Bumped to v1.2"),
        ("Iterated on design", "Iterated on design"),
        ("Weighed two options", "Weighed two options"),
        ("Done", None),
        ("Fixed the six failing login tests", None),
        ("Tests fixed. All good", None),
        ("Really? Yes indeed", None),
        ("The tests pass", None),
        ("I fixed it", None),
        ("We are done", None),
        ("It works now", None),
        ("Agent finished work", None),
        ("An assistant answered", None),
        ("", None),
        ('{"label":3}', None),
        ('{"other":"two words"}', None),
        ("x" * 40 + " " + "y" * 40, None),
    ],
)
def test_a_label_is_a_few_words_without_a_subject(answer: str, label: str | None) -> None:
    assert read_label(answer) == label


@pytest.mark.covers("titles-7")
@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ("waiting", "Fixed tests"),
        ("error", "Stopped with an error"),
        ("requires_action", "Waiting for you"),
        ("running", "Working"),
        ("pending", "Waiting for a worker"),
        ("interrupting", "Stopping"),
        ("archived", "Archived"),
    ],
)
def test_a_label_is_shown_only_for_a_waiting_chat(status: PublicStatus, shown: str) -> None:
    assert status_label(status, "Fixed tests") == shown


def test_without_a_label_a_fixed_text_is_shown() -> None:
    assert status_label("waiting") == "Finished"


@pytest.mark.covers("titles-7")
def test_the_notification_of_an_error_is_its_message() -> None:
    error = ChatError(message="OpenAI is overloaded.")
    assert notification_text("error", "Fixed tests", error) == "OpenAI is overloaded."
    assert notification_text("error", None, None) == "Stopped with an error"
    assert notification_text("waiting", "Fixed tests", None) == "Fixed tests"


def test_a_summary_is_one_line_of_bounded_length() -> None:
    assert read_chat_summary('{"summary":"About\\nlogin. It works."}') == "About login. It works."
    assert read_chat_summary(" plain  words ") == "plain words"
    assert read_chat_summary('{"summary":""}') is None
    assert read_chat_summary("") is None
    long = read_chat_summary("x" * 1000)
    assert long is not None
    assert len(long) == MAX_CHAT_SUMMARY_CHARS


@pytest.mark.covers("titles-7")
def test_a_summary_is_due_every_third_turn() -> None:
    assert [count for count in range(8) if is_chat_summary_due(count)] == [3, 6]


def test_the_requests_contain_the_title_and_the_text() -> None:
    for request in (
        label_request("m", "Login", "All tests pass."),
        chat_summary_request("m", "Login", "All tests pass."),
    ):
        prompt = request.messages[1].parts[0]
        assert isinstance(prompt, PromptText)
        assert prompt.text == "<chat>\nTitle: Login\n\nAll tests pass.\n</chat>"
        assert (request.temperature, request.max_output_tokens) == (0.0, 256)
        assert request.reasoning_effort == "none"


def test_the_last_answer_is_clipped() -> None:
    rows = [message(1, "user", text("q")), message(2, "assistant", text("a" * 9000))]
    assert len(last_answer(rows)) == MAX_EXCERPT_CHARS
    assert last_answer([]) == ""
    assert last_answer(rows[:1]) == ""
