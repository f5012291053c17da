"""Calls that a person answers or approves: the answers, what is left waiting, the deadlines."""

from datetime import timedelta
from uuid import UUID

import msgspec
import pytest

from chatd.domain.chat.answer_transitions import answer_calls, submit_tool_results
from chatd.domain.chat.call_waits import (
    EXPIRED_APPROVAL_TEXT,
    EXPIRED_QUESTION_TEXT,
    MAX_CARRIED_ARGS_BYTES,
    UNASKED_TEXT,
    QuestionReply,
    call_deadlines,
    deadline_shift_s,
    mark_wait,
    wait_of,
)
from chatd.domain.chat.change import Change
from chatd.domain.chat.commands import AnswerCalls, CallAnswer, ClientResult, SubmitToolResults
from chatd.domain.chat.messages import PendingCall
from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import archive, interrupt
from chatd.domain.chat.worker_transitions import expire_action
from chatd.domain.errors import CallNotWaiting, Forbidden, InvalidInput
from chatd.domain.ids import ToolCallId, UserId
from chatd.domain.tool_policy.rules import ToolRule
from tests.support.domain.history_lines import apply_changes, history_lines
from tests.support.factories import AT, OTHER_WORKER, OWNER, pending
from tests.support.seeds import CLIENT_TOOL, Seeded, seed_state, wait_for

STRANGER = UserId(UUID(int=77))


def approve(call_id: str, **fields: object) -> CallAnswer:
    answer = CallAnswer(tool_call_id=ToolCallId(call_id), decision="approve")
    return msgspec.structs.replace(answer, **fields)


def deny(call_id: str, reason: str = "") -> CallAnswer:
    return CallAnswer(tool_call_id=ToolCallId(call_id), decision="deny", reason=reason)


def reply(call_id: str, *labels: str, text: str = "") -> CallAnswer:
    replies = (QuestionReply(labels=labels, text=text),)
    return CallAnswer(tool_call_id=ToolCallId(call_id), decision="answer", replies=replies)


def answered(seeded: Seeded, *answers: CallAnswer, by: UserId = OWNER) -> Change:
    command = AnswerCalls(answered_by=by, answers=answers)
    return answer_calls(seeded.chat, command, OTHER_WORKER)


def result_text(seeded: Seeded, change: Change, nth: int = -1) -> str:
    part = apply_changes(seeded, change).messages[nth].content[0]
    assert isinstance(part, ToolResultPart)
    return bytes(part.result or b"").decode()


def test_approved_calls_stay_pending_with_who_approved_and_run() -> None:
    seeded = seed_state(State.A0, calls="approval")
    change = answered(seeded, approve("c1"), approve("c2"))
    assert (change.after.state, change.after.worker_id) == (State.R0, OTHER_WORKER)
    assert [call.approved_by for call in change.after.pending_calls] == [OWNER, OWNER]
    assert change.messages == ()
    assert [(it.tool_call_id, it.decision) for it in change.decisions] == [
        ("c1", "approve"),
        ("c2", "approve"),
    ]


def test_a_chat_waits_until_every_call_is_answered() -> None:
    seeded = seed_state(State.A0, calls="approval")
    first = answered(seeded, approve("c2"))
    assert (first.after.state, first.after.worker_id) == (State.A0, None)
    chat = apply_changes(seeded, first).chat
    second = answer_calls(chat, AnswerCalls(answered_by=OWNER, answers=(deny("c1"),)), None)
    assert second.after.state is State.P0
    assert [call.id for call in second.after.pending_calls] == ["c2"]


def test_a_denied_call_gets_a_result_with_the_reason_and_does_not_run() -> None:
    seeded = seed_state(State.A0, calls="approval")
    change = answered(seeded, deny("c1", "Not on a Friday."), approve("c2"))
    assert "denied this call, so it did not run. The reason: Not on a Friday." in result_text(
        seeded, change
    )
    assert [call.id for call in change.after.pending_calls] == ["c2"]


def test_steering_messages_wait_until_approved_calls_have_run() -> None:
    seeded = seed_state(State.A1, calls="approval", steer=1)
    approved = answered(seeded, approve("c1"), deny("c2"))
    assert (approved.after.state, approved.promote) == (State.R1, 0)
    denied = answered(seeded, deny("c1"), deny("c2"))
    assert (denied.after.state, denied.promote) == (State.R0, 1)


def test_the_answers_to_questions_are_the_result() -> None:
    seeded = seed_state(State.A0, calls="question")
    change = answered(seeded, reply("c1", "A"), reply("c2", text="Neither."))
    assert result_text(seeded, change, -2) == (
        '{"answers":[{"header":"Store","question":"Which one?","chosen":["A"],"text":""}]}'
    )
    assert '"chosen":[],"text":"Neither."' in result_text(seeded, change)
    assert change.after.pending_calls == ()


@pytest.mark.promise("P15")
@pytest.mark.parametrize(
    ("calls", "answers", "complaint"),
    [
        ("approval", (), "at least one"),
        ("approval", (reply("c1", "A"),), "waits for an approval, not 'answer'"),
        ("question", (approve("c1"),), "waits for an answer, not 'approve'"),
        ("mixed", (approve("c1"),), "waits for a tool result"),
        ("question", (reply("c1", "C"),), "no option 'C'"),
        ("question", (reply("c1", "A", "B"),), "choose one option"),
        ("question", (reply("c1"),), "choose an option or give a text"),
        (
            "approval",
            (approve("c1", always=True, rule_args={"command": "rm *"}),),
            "the rule does not match",
        ),
        ("approval", (approve("c1", always=True, rule_args={"a": "\0"}),), "NUL"),
    ],
)
def test_answers_must_fit_what_is_asked(
    calls: str, answers: tuple[CallAnswer, ...], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        answered(seed_state(State.A0, calls=calls), *answers)


@pytest.mark.parametrize("answers", [(approve("c9"),), (approve("c1"), deny("c1"))])
def test_a_call_that_does_not_wait_cannot_be_answered(answers: tuple[CallAnswer, ...]) -> None:
    with pytest.raises(CallNotWaiting):
        answered(seed_state(State.A0, calls="approval"), *answers)


def test_an_approved_call_cannot_be_answered_again() -> None:
    seeded = seed_state(State.A0, calls="approval")
    chat = apply_changes(seeded, answered(seeded, approve("c1"))).chat
    with pytest.raises(CallNotWaiting):
        answer_calls(chat, AnswerCalls(answered_by=OWNER, answers=(deny("c1"),)), None)


def test_approving_always_adds_a_rule_of_the_chat() -> None:
    seeded = seed_state(State.A0, calls="approval")
    change = answered(seeded, approve("c1", always=True), approve("c2"))
    assert change.rules == (ToolRule(tool="execute", action="auto"),)


def test_only_the_owner_can_stop_a_chat_from_asking() -> None:
    with pytest.raises(Forbidden, match="owner"):
        answered(seed_state(State.A0, calls="approval"), approve("c1", always=True), by=STRANGER)


def test_a_call_that_others_ask_for_is_approved_only_once() -> None:
    seeded = seed_state(State.A0, calls="approval")
    locked = tuple(
        msgspec.structs.replace(call, always=False) for call in seeded.chat.pending_calls
    )
    chat = msgspec.structs.replace(seeded.chat, pending_calls=locked)
    command = AnswerCalls(answered_by=OWNER, answers=(approve("c1", always=True),))
    with pytest.raises(InvalidInput, match="every time"):
        answer_calls(chat, command, None)


# Several kinds, several deadlines


def test_results_of_the_client_leave_an_approval_waiting_with_its_own_deadline() -> None:
    seeded = seed_state(State.A0, calls="mixed")
    results = (ClientResult(tool_call_id=ToolCallId("c1"), output="{}"),)
    change = submit_tool_results(seeded.chat, SubmitToolResults(results=results), None)
    assert change.after.state is State.A0
    assert [call.id for call in change.after.pending_calls] == ["c2"]
    assert deadline_shift_s(seeded.chat, change.after) == 86400 - 60


def test_only_the_calls_whose_time_is_over_are_given_up() -> None:
    seeded = seed_state(State.A0, calls="mixed")
    waiting = msgspec.structs.replace(seeded.chat, action_deadline=AT)
    assert call_deadlines(waiting) == {
        "c1": AT,
        "c2": AT + timedelta(seconds=86400 - 60),
    }
    first = expire_action(waiting, AT + timedelta(seconds=1))
    assert first.after.state is State.A0
    assert [call.id for call in first.after.pending_calls] == ["c2"]
    late = expire_action(waiting, AT + timedelta(days=2))
    assert (late.after.state, late.after.pending_calls) == (State.P0, ())
    assert history_lines(apply_changes(seeded, late).messages)[-2:] == [
        "tool: c1 failed",
        "tool: c2 failed",
    ]


@pytest.mark.parametrize(
    ("calls", "text"),
    [("approval", EXPIRED_APPROVAL_TEXT), ("question", EXPIRED_QUESTION_TEXT)],
)
def test_expiry_tells_the_model_what_was_not_answered(calls: str, text: str) -> None:
    seeded = seed_state(State.A0, calls=calls)
    assert text in result_text(seeded, expire_action(seeded.chat))


def test_an_approved_call_runs_when_the_others_expire() -> None:
    seeded = seed_state(State.A0, calls="approval")
    chat = apply_changes(seeded, answered(seeded, approve("c1"))).chat
    change = expire_action(chat)
    assert change.after.state is State.P0
    assert [(call.id, call.approved_by) for call in change.after.pending_calls] == [("c1", OWNER)]


def test_a_call_that_was_not_approved_has_surely_not_run() -> None:
    seeded = seed_state(State.A0, calls="approval")
    stopped = interrupt(seeded.chat, None)
    assert stopped is not None
    assert UNASKED_TEXT in result_text(seeded, stopped)
    assert UNASKED_TEXT in result_text(seeded, archive(seeded.chat))


# Rows of other versions


def test_a_row_of_an_earlier_version_waits_for_its_client() -> None:
    old = msgspec.json.decode(
        b'[{"id":"c1","name":"open_page","client":true,"args":{"a":1}}]',
        type=tuple[PendingCall, ...],
    )
    assert (wait_of(old[0]), old[0].timeout_s) == ("client", None)


def test_a_call_keeps_the_form_that_an_earlier_version_reads() -> None:
    plain = PendingCall(id=ToolCallId("c1"), name="execute")
    assert msgspec.json.encode(plain) == b'{"id":"c1","name":"execute"}'


def test_a_call_whose_marks_an_earlier_version_dropped_is_asked_for_again() -> None:
    assert wait_of(pending("c1")) == "approval"
    assert wait_of(pending("c1", CLIENT_TOOL, client=True)) == "client"


def test_long_arguments_are_left_out_and_can_then_not_be_allowed_for_good() -> None:
    args = msgspec.Raw(msgspec.json.encode({"content": "x" * MAX_CARRIED_ARGS_BYTES}))
    wait = msgspec.structs.replace(wait_for("c1", "approval"), args=args)
    marked = mark_wait(pending("c1"), wait)
    assert (marked.args, marked.always) == (msgspec.UNSET, False)


def test_a_chat_that_stops_waiting_has_no_deadline_to_move() -> None:
    chat: Chat = seed_state(State.A0, calls="approval").chat
    running = seed_state(State.R0).chat
    assert deadline_shift_s(chat, running) == 0.0
    assert deadline_shift_s(running, chat) == 86400.0
