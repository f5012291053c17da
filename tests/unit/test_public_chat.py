"""When a chat counts as unread, when its plan waits for a person, and what it waits for itself."""

from uuid import UUID

import msgspec
import pytest

from chatd.domain.chat.change import Change
from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.chat.row import RetryState
from chatd.domain.chat_views.public_chat import (
    PLAN_READY,
    WAITS_FOR_WORKER,
    has_unread,
    public_chat,
)
from chatd.domain.ids import MessageId, WorkerId
from tests.support.factories import chat, draft, result


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


PLAN = result("p", "propose_plan")


@pytest.mark.parametrize(
    ("parts", "waits"),
    [
        ([PLAN], True),
        ([result("a"), PLAN], True),
        ([PLAN, result("a")], True),
        ([result("p", "propose_plan", is_error=True)], False),
        ([result("a")], False),
    ],
)
def test_a_proposed_plan_waits_for_a_person(parts: list[ToolResultPart], *, waits: bool) -> None:
    drafts = tuple(draft("tool", part) for part in parts)
    change = Change.of(chat(next_message_id=3, turn_message_id=2)).append_all(drafts, ())
    shown = public_chat(change.after)
    assert (shown.plan_ready, shown.action_summary) == (waits, PLAN_READY if waits else None)


@pytest.mark.parametrize(
    "columns",
    [
        {"turn_message_id": 4},  # the next message
        {"status": "running", "turn_message_id": 2},
        {"archived": True},
        {"status": "error"},
    ],
)
def test_a_plan_waits_no_longer_once_the_chat_went_on(columns: dict[str, object]) -> None:
    row = chat(next_message_id=4, turn_message_id=2, plan_message_id=3)
    assert row.has_waiting_plan
    assert not msgspec.structs.replace(row, **columns).has_waiting_plan


RETRY = RetryState(attempt=2, delay_ms=4000, error="The provider is overloaded.")


@pytest.mark.parametrize(
    ("columns", "waits_for"),
    [
        ({"status": "running"}, WAITS_FOR_WORKER),
        ({"status": "running", "worker_id": WorkerId(UUID(int=1))}, None),
        ({"status": "running", "retry_state": RETRY}, None),  # the retry says why, and when
        ({"status": "waiting"}, None),
        ({"status": "running", "archived": True}, None),
    ],
)
def test_a_chat_without_a_worker_says_what_it_waits_for(
    columns: dict[str, object], waits_for: str | None
) -> None:
    assert public_chat(chat(**columns)).waits_for == waits_for
