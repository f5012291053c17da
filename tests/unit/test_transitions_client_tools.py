"""Calls of client tools: waiting for them, their results, their deadline."""

import msgspec
import pytest

from chatd.domain.chat.answer_transitions import submit_tool_results
from chatd.domain.chat.call_waits import EXPIRED_CALL_TEXT
from chatd.domain.chat.commands import ClientResult, SubmitToolResults
from chatd.domain.chat.messages import PendingCall
from chatd.domain.chat.parts import ToolResultPart
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import (
    commit_step,
    expire_action,
    require_action,
)
from chatd.domain.errors import InvalidInput, InvariantBroken
from chatd.domain.ids import ToolCallId
from tests.support.domain.history_lines import apply_changes, history_lines, queue_lines
from tests.support.factories import OTHER_WORKER, call, draft, result, text
from tests.support.seeds import CLIENT_TOOL, Seeded, seed_state, step


def submit(*answers: ClientResult) -> SubmitToolResults:
    return SubmitToolResults(results=answers)


def answer(call_id: str, output: str = '{"ok": true}', *, is_error: bool = False) -> ClientResult:
    return ClientResult(tool_call_id=ToolCallId(call_id), output=output, is_error=is_error)


def last_result(seeded: Seeded, command: SubmitToolResults) -> ToolResultPart:
    part = (
        apply_changes(seeded, submit_tool_results(seeded.chat, command, None))
        .messages[-1]
        .content[0]
    )
    assert isinstance(part, ToolResultPart)
    return part


# Waiting


def test_a_chat_that_waits_for_a_client_has_no_owner_and_a_deadline() -> None:
    seeded = seed_state(State.R0)
    asks = draft("assistant", call("ask", CLIENT_TOOL, args='{"q": 1}'))
    rows = apply_changes(seeded, require_action(seeded.chat, step(seeded.chat, asks)))
    assert (rows.chat.state, rows.chat.worker_id) == (State.A0, None)
    assert rows.chat.epoch == seeded.chat.epoch + 1
    assert rows.chat.action_deadline is not None
    (pending_call,) = rows.chat.pending_calls
    assert (pending_call.client, pending_call.args) == (True, msgspec.Raw(b'{"q": 1}'))


def test_only_client_calls_carry_arguments_in_the_row() -> None:
    seeded = seed_state(State.R0)
    both = draft("assistant", call("c1"), call("c2", CLIENT_TOOL))
    chat = commit_step(seeded.chat, step(seeded.chat, both)).after
    local, client = chat.pending_calls
    assert local == PendingCall(id=ToolCallId("c1"), name="execute")
    assert client.args == msgspec.Raw(b"{}")


def test_local_calls_must_be_answered_before_waiting_for_the_client() -> None:
    seeded = seed_state(State.R0)
    both = commit_step(
        seeded.chat, step(seeded.chat, draft("assistant", call("c1"), call("c2", CLIENT_TOOL)))
    )
    chat = apply_changes(seeded, both).chat
    with pytest.raises(InvariantBroken, match="client tools"):
        require_action(chat, step(chat))
    rows = apply_changes(
        seeded, both, require_action(chat, step(chat, draft("tool", result("c1"))))
    )
    assert rows.chat.state is State.A0
    assert [pending_call.id for pending_call in rows.chat.pending_calls] == ["c2"]


def test_waiting_for_the_client_needs_a_pending_call() -> None:
    seeded = seed_state(State.R0)
    with pytest.raises(InvariantBroken, match="client tools"):
        require_action(seeded.chat, step(seeded.chat, draft("assistant", text())))


# Results


def test_results_are_stored_in_the_order_of_the_calls() -> None:
    seeded = seed_state(State.A0)
    command = submit(answer("c2", is_error=True), answer("c1"))
    rows = apply_changes(seeded, submit_tool_results(seeded.chat, command, OTHER_WORKER))
    assert history_lines(rows.messages)[-2:] == ["tool: c1 done", "tool: c2 failed"]
    assert (rows.chat.state, rows.chat.worker_id) == (State.R0, OTHER_WORKER)
    assert rows.chat.pending_calls == ()
    assert rows.chat.turn_message_id == seeded.chat.turn_message_id


def test_a_result_is_stored_byte_for_byte() -> None:
    odd = '{"b":1,  "a":[1.50]}'
    seeded = seed_state(State.A0)
    stored = last_result(seeded, submit(answer("c1"), answer("c2", odd)))
    assert bytes(stored.result or b"") == odd.encode()
    assert (stored.tool_name, stored.is_error) == (CLIENT_TOOL, False)


def test_steering_messages_join_after_the_results() -> None:
    seeded = seed_state(State.A1, plain=1, steer=1)
    command = submit(answer("c1"), answer("c2"))
    rows = apply_changes(seeded, submit_tool_results(seeded.chat, command, None))
    assert history_lines(rows.messages)[-3:] == ["tool: c1 done", "tool: c2 done", "user: steer 0"]
    assert queue_lines(rows.queue) == ["plain 0"]
    assert rows.chat.state is State.P1


@pytest.mark.covers("O22")
@pytest.mark.promise("P15")
@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ((), "no result for tool calls c1, c2"),
        ((answer("c1"),), "no result for tool calls c2"),
        ((answer("c1"), answer("c1"), answer("c2")), "'c1' answered twice"),
        ((answer("c1"), answer("c2"), answer("c3")), "no pending tool call 'c3'"),
        ((answer("c1"), answer("c2", "nonsense")), "'c2' is not JSON"),
        ((answer("c1"), answer("c2", "")), "'c2' is not JSON"),
        ((answer("c1"), answer("c2", "1],[2")), "'c2' is not JSON"),
        ((answer("c1"), answer("c2", '"\ud800"')), "'c2' is not JSON"),
        ((answer("c1"), answer("c2", '"\\ud800"')), "'c2' is not JSON"),
        ((answer("c1"), answer("c2", "[" * 5000 + "]" * 5000)), "'c2' is nested too deeply"),
        ((answer("c1"), answer("c2", "[" * 700 + "]" * 700)), "'c2' is nested too deeply"),
    ],
    ids=lambda value: None,
)
def test_results_must_answer_each_pending_call_once(
    answers: tuple[ClientResult, ...], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        submit_tool_results(seed_state(State.A0).chat, submit(*answers), None)


def test_results_may_be_nested() -> None:
    stored = last_result(
        seed_state(State.A0), submit(answer("c1"), answer("c2", "[" * 50 + "]" * 50))
    )
    assert not stored.is_error


# The deadline


@pytest.mark.promise("P2")
@pytest.mark.parametrize(("state", "target"), [("A0", "P0"), ("A1", "P1")])
def test_expired_client_calls_get_an_error_result(state: str, target: str) -> None:
    seeded = seed_state(State(state))
    rows = apply_changes(seeded, expire_action(seeded.chat))
    assert rows.chat.state == target
    assert history_lines(rows.messages)[-2:] == ["tool: c1 failed", "tool: c2 failed"]
    part = rows.messages[-1].content[0]
    assert isinstance(part, ToolResultPart)
    assert EXPIRED_CALL_TEXT in bytes(part.result or b"").decode()


def test_steering_messages_join_when_the_deadline_has_passed() -> None:
    seeded = seed_state(State.A1, steer=1)
    rows = apply_changes(seeded, expire_action(seeded.chat))
    assert history_lines(rows.messages)[-1] == "user: steer 0"
    assert rows.chat.state is State.P0
