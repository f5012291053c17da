"""Codes and messages of errors."""

import pytest

from chatd.domain.errors import (
    ChatdError,
    InvalidInput,
    QueueFull,
    TransitionNotAllowed,
    Unavailable,
)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            TransitionNotAllowed("send_queue", "XW0", archived=True),
            "chat_archived",
            "Cannot send a message while the chat is archived.",
        ),
        (
            TransitionNotAllowed("unarchive", "W"),
            "invalid_state",
            "Cannot unarchive while the chat is waiting for a message.",
        ),
        (QueueFull(20), "queue_full", "The queue is full: at most 20 messages can wait."),
        (InvalidInput("name", "is empty"), "invalid_input", "name: is empty"),
        (InvalidInput("name", "is taken", code="taken"), "taken", "name: is taken"),
        (Unavailable("gone", maybe_applied=True), "unavailable", "gone"),
    ],
)
def test_an_error_has_a_code_and_a_message(error: ChatdError, code: str, message: str) -> None:
    assert (error.code, error.message, str(error)) == (code, message, message)
