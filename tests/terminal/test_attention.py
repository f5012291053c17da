"""Of which chats a person hears who does not look at them."""

import pytest

from chatd.client.resources import Error
from chatd.terminal.chats.chat_directory import Attention
from tests.terminal.chat_values import child, listed


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("running", "waiting", "«Chat 1» has finished"),
        ("running", "requires_action", "«Chat 1» needs you: Approve: git push"),
        ("requires_action", "waiting", "«Chat 1» has finished"),
        ("running", "error", "«Chat 1» failed: No money."),
        ("waiting", "running", None),
        ("interrupting", "waiting", None),
        ("waiting", "waiting", None),
        ("error", "waiting", None),
        ("running", "interrupting", None),
        (None, "requires_action", None),
    ],
)
def test_a_change_of_the_status_is_told_once(before: str | None, after: str, text: str) -> None:
    attention = Attention()
    if before is not None:
        attention.see(listed(1, status=before))
    summary = "Approve: git push" if after == "requires_action" else None
    changed = listed(
        1, status=after, action_summary=summary, last_error=Error(message="No\nmoney.")
    )
    alert = attention.see(changed)
    assert (None if alert is None else alert.text) == text
    assert attention.see(changed) is None


def test_a_subagent_is_heard_only_when_it_needs_a_person() -> None:
    attention = Attention()
    attention.see(child(21, 1, status="running"))
    assert attention.see(child(21, 1, status="waiting")) is None
    asking = attention.see(child(21, 1, status="requires_action"))
    assert asking is not None
    assert asking.text == "A subagent, «Subagent 21», needs you"


def test_chats_of_others_and_held_queues_are_not_told() -> None:
    attention = Attention()
    attention.see(listed(1, status="running", is_owner=False))
    attention.see(listed(2, status="running"))
    assert attention.see(listed(1, is_owner=False)) is None
    assert attention.see(listed(2, status="error", last_error=Error(kind="queue_held"))) is None
