"""What the judge of a chaos run accepts after a failover to an older state."""

from collections import Counter
from uuid import UUID

import pytest

from chatd.domain.ids import ChatId
from tests.support.chaos.billing_judge import BookedCalls, Family, find_missing
from tests.support.chaos.lost_past import LostPast
from tests.support.chaos.planned_model import WireMessage, team_calls
from tests.support.chaos.transcript_judge import SentMessage
from tests.support.factories import CHAT

PAST = LostPast(copied_at=100.0, stopped_at=105.0, back_at=107.0)


def sent(text: str, asked_at: float, acked_at: float) -> SentMessage:
    return SentMessage(chat=CHAT, text=text, acked=True, asked_at=asked_at, acked_at=acked_at)


@pytest.mark.parametrize(
    ("asked_at", "acked_at", "may_lose"),
    [
        (98.0, 99.0, False),
        (98.0, 101.0, True),
        (104.0, 106.0, True),
        (104.0, 140.0, True),  # a frozen replica replied late
        (108.0, 109.0, False),
    ],
)
def test_only_what_was_acknowledged_after_the_copy_and_asked_before_the_return_may_be_lost(
    asked_at: float, acked_at: float, *, may_lose: bool
) -> None:
    assert PAST.may_lose(sent("m1 0", asked_at, acked_at)) is may_lose


def test_the_last_messages_may_be_lost() -> None:
    PAST.check_order([sent("m1 0", 101, 102), sent("m2 0", 103, 104)], ["m1 0"])


def test_a_message_stored_after_a_lost_one_is_mixed() -> None:
    with pytest.raises(AssertionError, match="mixed"):
        PAST.check_order([sent("m1 0", 101, 102), sent("m2 0", 103, 104)], ["m2 0"])


def test_a_message_that_was_acknowledged_after_the_stop_may_be_stored_in_the_new_past() -> None:
    PAST.check_order([sent("m1 0", 101, 102), sent("m2 0", 104, 108)], ["m2 0"])


def test_a_tool_may_run_again_if_the_mark_of_its_run_was_lost() -> None:
    assert not PAST.may_repeat(99.0)
    assert PAST.may_repeat(101.0)


ROOT, CHILD, TWIN, GONE = (ChatId(UUID(int=number)) for number in range(1, 5))


def booked(chat: ChatId, calls: int, *, is_lost: bool = False, root: ChatId = ROOT) -> BookedCalls:
    return BookedCalls(
        chat_id=chat,
        root_chat_id=root,
        calls=calls,
        charged=calls,
        input_tokens=0,
        output_tokens=0,
        is_lost=is_lost,
    )


@pytest.mark.parametrize(
    ("events", "missing"),
    [
        pytest.param([booked(CHILD, 2)], 0, id="all"),
        pytest.param([booked(CHILD, 1)], 1, id="one_unbilled"),
        pytest.param([booked(CHILD, 1), booked(TWIN, 1)], 0, id="started_again"),
        pytest.param([booked(CHILD, 1), booked(GONE, 1, is_lost=True)], 0, id="of_the_lost_one"),
        pytest.param([booked(CHILD, 1), booked(ROOT, 5)], 1, id="events_of_the_parent"),
        pytest.param(
            [booked(CHILD, 1), booked(GONE, 1, is_lost=True, root=GONE)], 1, id="of_another_family"
        ),
    ],
)
def test_the_events_of_a_lost_subagent_are_for_calls_of_the_one_in_its_place(
    events: list[BookedCalls], missing: int
) -> None:
    family = Family(chats={"team1": ROOT}, roots={}, twins={})
    family.add_subagent("team1.0", CHILD, ROOT)
    family.add_subagent("team1.0", TWIN, ROOT)
    due = Counter({CHILD: 2})
    assert find_missing(due, events, family).total() == missing


def test_the_planned_model_waits_no_longer_for_a_subagent_that_a_failover_has_lost() -> None:
    call: dict[str, object] = {"id": "team1-0-0"}
    told = [
        WireMessage(role="assistant", tool_calls=[call]),
        WireMessage(role="tool", content=f'{{"chat_id":"{CHILD}","status":"running"}}'),
        WireMessage(role="tool", content=f'{{"chat_id":"{GONE}","status":"running"}}'),
        WireMessage(role="assistant", tool_calls=[call]),
        WireMessage(role="tool", content=f"{GONE} is no subagent of this chat. Call list_agents."),
    ]
    [waiting] = team_calls("team1", 2, told)
    assert str(CHILD) in str(waiting)
