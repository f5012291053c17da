"""The title of a fork, and the results that close its history."""

import pytest

from chatd.domain.chat.messages import Message, local_results, pending_calls
from chatd.domain.chat_views.transfer import closing_results, fork_title
from tests.support.factories import call, message, result, text


@pytest.mark.parametrize(
    ("title", "fork"),
    [
        ("A chat", "A chat (fork)"),
        ("A chat (fork)", "A chat (fork)"),
        ("x" * 193, "x" * 193 + " (fork)"),
        ("x" * 194, "x" * 192 + "… (fork)"),
        ("x" * 200, "x" * 192 + "… (fork)"),
    ],
)
def test_the_title_of_a_fork_says_so_and_fits(title: str, fork: str) -> None:
    assert fork_title(title) == fork
    assert len(fork) <= 200


CALLS = message(3, "assistant", text("on it"), call("c1"), call("c2"))


@pytest.mark.parametrize(
    ("tail", "answered"),
    [
        ([], []),
        ([message(3, "assistant", text("done"))], []),
        ([CALLS], ["c1", "c2"]),
        ([CALLS, message(4, "tool", result("c1"))], ["c2"]),
        ([CALLS, message(4, "tool", result("c1")), message(5, "tool", result("c2"))], []),
    ],
)
def test_calls_without_a_result_get_an_error_result(
    tail: list[Message], answered: list[str]
) -> None:
    closing = closing_results(tail)
    results = local_results(part for draft in closing for part in draft.content)
    assert [one.tool_call_id for one in results] == answered
    assert pending_calls([*tail, *closing]) == []
