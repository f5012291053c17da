"""When a chat counts as unread."""

import pytest

from chatd.domain.chat.public_chat import has_unread
from chatd.domain.ids import MessageId
from tests.support.factories import chat


@pytest.mark.parametrize(
    ("last", "turn", "read", "unread"),
    [
        (0, None, 0, False),
        (1, 1, 0, False),
        (2, 2, 0, False),  # a system prompt before the first message
        (3, 2, 0, True),
        (3, 2, 2, True),
        (3, 2, 3, False),
        (5, 4, 3, True),
        (4, 4, 3, False),  # the user's own next message
        (4, None, 3, True),  # a summary that the user asked for
        (4, None, 4, False),
    ],
)
def test_an_answer_after_the_mark_and_the_last_prompt_is_unread(
    last: int, turn: int | None, read: int, *, unread: bool
) -> None:
    row = chat(next_message_id=last + 1, turn_message_id=turn)
    assert has_unread(row, MessageId(read)) is unread
