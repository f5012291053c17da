"""Chats that a replica of an earlier version has left waiting for nobody: it takes a call that
waits for subagents for one that a person must approve."""

import msgspec
import pytest

from chatd.domain.chat.answer_transitions import answer_calls
from chatd.domain.chat.call_waits import AGENT_WAIT, UNASKED_TEXT
from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import AnswerCalls, CallAnswer
from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import interrupt
from chatd.domain.chat.worker_transitions import expire_action
from chatd.domain.errors import CallNotWaiting, InvalidInput
from chatd.domain.ids import ToolCallId
from tests.support.factories import OTHER_WORKER, OWNER
from tests.support.seeds import Seeded, seed_state


def approve(call_id: str) -> CallAnswer:
    return CallAnswer(tool_call_id=ToolCallId(call_id), decision="approve")


def deny(call_id: str) -> CallAnswer:
    return CallAnswer(tool_call_id=ToolCallId(call_id), decision="deny")


def answered(seeded: Seeded, *answers: CallAnswer) -> Change:
    command = AnswerCalls(answered_by=OWNER, answers=answers)
    return answer_calls(seeded.chat, command, OTHER_WORKER)


def left_by_an_earlier_version(*, approved: bool) -> Seeded:
    """It took the wait for subagents for an approval, and applied the last real answer."""
    seeded = seed_state(State.A0, calls="approval")
    first, second = seeded.chat.pending_calls
    wait = msgspec.structs.replace(second, name="wait_agent", asks=AGENT_WAIT, args=msgspec.UNSET)
    kept = (msgspec.structs.replace(first, approved_by=OWNER), wait) if approved else (wait,)
    chat = msgspec.structs.replace(seeded.chat, pending_calls=kept)
    return msgspec.structs.replace(seeded, chat=chat)


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize(("answer", "left"), [(approve("c2"), ["c2"]), (deny("c2"), [])])
def test_a_chat_in_which_nothing_waits_for_anybody_continues_with_an_answer(
    answer: CallAnswer, left: list[str], *, approved: bool
) -> None:
    seeded = left_by_an_earlier_version(approved=approved)
    change = answered(seeded, answer)
    assert change.after.state is State.R0
    assert [call.id for call in change.after.pending_calls] == ["c1"] * approved + left


def test_a_chat_in_which_nothing_waits_for_anybody_continues_at_its_deadline() -> None:
    change = expire_action(left_by_an_earlier_version(approved=True).chat)
    assert change.after.state is State.P0
    assert [call.id for call in change.after.pending_calls] == ["c1", "c2"]


@pytest.mark.parametrize("answer", [deny("c1"), approve("c9")])
def test_what_was_answered_before_stays_answered_when_nothing_waits(answer: CallAnswer) -> None:
    with pytest.raises(CallNotWaiting):
        answered(left_by_an_earlier_version(approved=True), answer)


def test_a_wait_for_subagents_beside_a_call_that_waits_cannot_be_answered() -> None:
    seeded = seed_state(State.A0, calls="approval")
    first, second = seeded.chat.pending_calls
    wait = msgspec.structs.replace(second, asks=AGENT_WAIT)
    chat = msgspec.structs.replace(seeded.chat, pending_calls=(first, wait))
    with pytest.raises(CallNotWaiting):
        answered(msgspec.structs.replace(seeded, chat=chat), approve("c2"))


def test_a_wait_for_subagents_is_not_said_to_have_waited_for_the_user() -> None:
    stopped = interrupt(left_by_an_earlier_version(approved=False).chat, None)
    assert stopped is not None
    (message,) = stopped.messages
    (part,) = message.draft.content
    assert isinstance(part, ToolResultPart)
    assert part.is_error
    assert UNASKED_TEXT not in bytes(part.result or b"").decode()


def test_a_wait_for_subagents_takes_no_answers_to_questions() -> None:
    answer = CallAnswer(tool_call_id=ToolCallId("c2"), decision="answer")
    with pytest.raises(InvalidInput, match="waits for an approval, not 'answer'"):
        answered(left_by_an_earlier_version(approved=True), answer)
