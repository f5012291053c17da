"""Transitions of workers: steps, ends of turns, partial answers after an interrupt."""

import msgspec
import pytest

from chatd.domain.chat.change import INTERRUPTED_CALL_TEXT, UNSENT_CALL_TEXT, Change
from chatd.domain.chat.messages import Draft, TokenUsage, UsageEntry, local_results
from chatd.domain.chat.states import State
from chatd.domain.chat.worker_transitions import (
    commit_step,
    expire_interrupt,
    fail_turn,
    finish_interrupt,
    finish_turn,
)
from chatd.domain.errors import InvariantBroken
from tests.support.domain.history_lines import apply_changes, history_lines, queue_lines
from tests.support.factories import WORKER, call, draft, result, text
from tests.support.seeds import FAILED, failing, seed_state, step

ANSWER = draft("assistant", text("Two."))
USAGE = UsageEntry(
    kind="turn", provider="demo", model="m", usage=TokenUsage(input_tokens=3), cost_micros=7
)


# Steps


@pytest.mark.promise("P10")
def test_an_answer_is_committed_before_its_calls_run() -> None:
    seeded = seed_state(State.R0)
    asks = draft("assistant", text("Look."), call("c1"), call("c2"))
    rows = apply_changes(seeded, commit_step(seeded.chat, step(seeded.chat, asks)))
    assert [pending_call.id for pending_call in rows.chat.pending_calls] == ["c1", "c2"]
    assert (rows.chat.worker_id, rows.chat.epoch) == (WORKER, seeded.chat.epoch)
    assert rows.chat.attempt == 1


def test_each_result_removes_its_pending_call() -> None:
    seeded = seed_state(State.R0, calls="local")
    one = commit_step(seeded.chat, step(seeded.chat, draft("tool", result("c2"))))
    assert [pending_call.id for pending_call in one.after.pending_calls] == ["c1"]
    chat = apply_changes(seeded, one).chat
    both = commit_step(chat, step(chat, draft("tool", result("c1"))))
    assert both.after.pending_calls == ()


def test_one_message_may_hold_several_results() -> None:
    seeded = seed_state(State.R0, calls="local")
    both = draft("tool", result("c2"), result("c1"))
    assert commit_step(seeded.chat, step(seeded.chat, both)).after.pending_calls == ()


def test_provider_executed_calls_are_not_pending() -> None:
    seeded = seed_state(State.R0)
    search = draft(
        "assistant",
        call("s1", "web_search", provider_executed=True),
        result("s1", "web_search", provider_executed=True),
        text("Found."),
    )
    rows = apply_changes(seeded, finish_turn(seeded.chat, step(seeded.chat, search)))
    assert rows.chat.state is State.W


def test_steering_messages_join_before_the_next_model_call() -> None:
    seeded = seed_state(State.R1, plain=1, steer=2, calls="local")
    results = (draft("tool", result("c1")), draft("tool", result("c2")))
    rows = apply_changes(seeded, commit_step(seeded.chat, step(seeded.chat, *results)))
    assert history_lines(rows.messages)[-4:] == [
        "tool: c1 done",
        "tool: c2 done",
        "user: steer 0",
        "user: steer 1",
    ]
    assert queue_lines(rows.queue) == ["plain 0"]
    assert rows.chat.turn_message_id == seeded.chat.turn_message_id


def test_steering_messages_wait_while_a_call_is_pending() -> None:
    seeded = seed_state(State.R1, steer=1)
    asks = draft("assistant", call("c1"))
    rows = apply_changes(seeded, commit_step(seeded.chat, step(seeded.chat, asks)))
    assert queue_lines(rows.queue) == ["! steer 0"]


def test_a_steering_message_that_joins_a_summary_starts_the_turn() -> None:
    seeded = seed_state(State.R1, compaction=True, steer=1)
    summary = draft("user", text("In short"), visibility="model", compressed=True)
    rows = apply_changes(
        seeded, commit_step(seeded.chat, step(seeded.chat, summary, compacted=True))
    )
    assert rows.chat.turn_message_id == rows.messages[-1].id
    assert history_lines(rows.messages)[-1] == "user: steer 0"


@pytest.mark.promise("P5")
def test_a_draining_worker_commits_its_step_and_releases_the_chat() -> None:
    seeded = seed_state(State.R0)
    rows = apply_changes(
        seeded, commit_step(seeded.chat, step(seeded.chat, ANSWER, keep_owner=False))
    )
    assert (rows.chat.state, rows.chat.epoch) == (State.P0, seeded.chat.epoch + 1)
    assert rows.chat.attempt == 0


@pytest.mark.promise("P11")
def test_usage_is_part_of_the_change_of_its_step() -> None:
    chat = seed_state(State.R0).chat
    assert commit_step(chat, step(chat, ANSWER, usage=(USAGE,))).usage == (USAGE,)
    assert fail_turn(chat, failing(step(chat, usage=(USAGE,)), FAILED)).usage == (USAGE,)


@pytest.mark.promise("P4")
def test_calls_of_a_partial_answer_never_ran_and_sent_calls_may_have_taken_effect() -> None:
    asks = draft("assistant", call("new"))
    fresh = seed_state(State.I0)
    stopped = finish_interrupt(fresh.chat, step(fresh.chat, asks))
    expired = expire_interrupt(fresh.chat, (asks,))
    running = seed_state(State.R0).chat
    failed = fail_turn(running, failing(step(running, asks), FAILED))
    for change in (stopped, expired, failed):
        assert _errors(change) == {"new": UNSENT_CALL_TEXT}
        assert change.after.pending_calls == ()
    sent = seed_state(State.I0, calls="local").chat
    change = finish_interrupt(sent, step(sent))
    assert set(_errors(change).values()) == {INTERRUPTED_CALL_TEXT}
    for ended in (stopped, expired, failed, change):
        results = [part for added in ended.messages for part in local_results(added.draft.content)]
        assert results
        assert all(part.interrupted for part in results)


def _errors(change: Change) -> dict[str, str]:
    """What the added results say, by call."""
    return {
        found.tool_call_id: msgspec.json.decode(bytes(found.result or b""))["error"]
        for added in change.messages
        for found in local_results(added.draft.content)
    }


def test_a_step_without_messages_is_a_bug() -> None:
    chat = seed_state(State.R0).chat
    with pytest.raises(InvariantBroken, match="must add a message"):
        commit_step(chat, step(chat))


@pytest.mark.promise("P9")
@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ((ANSWER,), "cannot follow a pending call"),
        ((draft("user", text()),), "cannot follow a pending call"),
        ((draft("tool", result("c9")),), "No pending call 'c9'"),
        ((draft("tool", result("c1"), result("c1")),), "No pending call 'c1'"),
        (
            (
                draft("tool", result("c1"), result("c2")),
                draft("assistant", call("c3"), call("c3")),
            ),
            "Two calls with the id 'c3'",
        ),
    ],
    ids=["assistant", "user", "unknown", "twice", "same id"],
)
def test_a_history_that_no_provider_accepts_is_refused(
    messages: tuple[Draft, ...], complaint: str
) -> None:
    chat = seed_state(State.R0, calls="local").chat
    with pytest.raises(InvariantBroken, match=complaint):
        commit_step(chat, step(chat, *messages))


def test_a_system_message_may_follow_a_pending_call() -> None:
    chat = seed_state(State.R0, calls="local").chat
    notice = draft("system", text("The workspace is back."), visibility="model")
    assert len(commit_step(chat, step(chat, notice)).after.pending_calls) == 2


# The end of a turn


def test_a_turn_ends_in_the_commit_of_its_last_step() -> None:
    seeded = seed_state(State.R0)
    rows = apply_changes(seeded, finish_turn(seeded.chat, step(seeded.chat, ANSWER)))
    assert (rows.chat.state, rows.chat.worker_id) == (State.W, None)
    assert rows.chat.epoch == seeded.chat.epoch + 1
    assert history_lines(rows.messages)[-1] == "assistant: Two."


def test_a_turn_may_end_without_another_message() -> None:
    seeded = seed_state(State.R0)
    rows = apply_changes(seeded, finish_turn(seeded.chat, step(seeded.chat)))
    assert rows.chat.state is State.W
    assert rows.chat.history_version == seeded.chat.history_version


def test_the_head_of_the_queue_starts_a_turn_with_the_same_worker_in_the_same_commit() -> None:
    seeded = seed_state(State.R1, plain=2)
    rows = apply_changes(seeded, finish_turn(seeded.chat, step(seeded.chat, ANSWER)))
    assert history_lines(rows.messages)[-2:] == ["assistant: Two.", "user: plain 0"]
    assert (rows.chat.state, rows.chat.worker_id) == (State.R1, WORKER)
    assert (rows.chat.epoch, rows.chat.attempt) == (seeded.chat.epoch, 1)
    assert rows.chat.turn_message_id == rows.messages[-1].id


def test_steering_messages_start_the_next_turn_if_this_one_has_ended() -> None:
    seeded = seed_state(State.R1, plain=1, steer=2)
    rows = apply_changes(seeded, finish_turn(seeded.chat, step(seeded.chat, ANSWER)))
    assert history_lines(rows.messages)[-2:] == ["user: steer 0", "user: steer 1"]
    assert rows.chat.turn_message_id == rows.messages[-2].id
    assert queue_lines(rows.queue) == ["plain 0"]


@pytest.mark.covers("O10")
@pytest.mark.promise("P9")
def test_the_queue_drains_in_order() -> None:
    seeded = seed_state(State.R1, plain=3)
    changes = [finish_turn(seeded.chat, step(seeded.chat, ANSWER))]
    for _ in range(3):
        chat = apply_changes(seeded, *changes).chat
        changes.append(finish_turn(chat, step(chat, ANSWER)))
    rows = apply_changes(seeded, *changes)
    prompts = [line for line in history_lines(rows.messages) if line.startswith("user: plain")]
    assert prompts == ["user: plain 0", "user: plain 1", "user: plain 2"]
    assert rows.chat.state is State.W


@pytest.mark.covers("O21")
def test_a_turn_cannot_end_while_calls_are_pending() -> None:
    chat = seed_state(State.R0, calls="local").chat
    with pytest.raises(InvariantBroken, match="tool calls are pending"):
        finish_turn(chat, step(chat))


@pytest.mark.covers("O11")
@pytest.mark.parametrize(("state", "target"), [("R0", "E0"), ("R1", "E1")])
def test_a_failed_turn_keeps_its_messages_and_its_error(state: str, target: str) -> None:
    seeded = seed_state(State(state))
    failure = failing(step(seeded.chat, ANSWER), FAILED)
    rows = apply_changes(seeded, fail_turn(seeded.chat, failure))
    assert (rows.chat.state, rows.chat.last_error) == (target, FAILED)
    assert history_lines(rows.messages)[-1] == "assistant: Two."
    assert rows.queue == list(seeded.queue)


def test_pending_calls_of_a_failed_turn_stay_pending() -> None:
    chat = seed_state(State.R0, calls="local").chat
    failed = fail_turn(chat, failing(step(chat), FAILED)).after
    assert failed.pending_calls == chat.pending_calls


# After an interrupt


@pytest.mark.covers("O2")
@pytest.mark.promise("P4")
def test_an_interrupt_keeps_the_partial_answer_and_answers_its_calls() -> None:
    seeded = seed_state(State.I0)
    partial = draft("assistant", text("Once upon"), call("c9"))
    rows = apply_changes(seeded, finish_interrupt(seeded.chat, step(seeded.chat, partial)))
    assert history_lines(rows.messages)[-2:] == ["assistant: Once upon [c9]", "tool: c9 failed"]
    assert rows.chat.state is State.W


@pytest.mark.covers("O20")
@pytest.mark.promise("P4")
def test_an_interrupt_keeps_finished_results_and_answers_the_other_calls() -> None:
    seeded = seed_state(State.I0, calls="local")
    done = draft("tool", result("c2"))
    rows = apply_changes(seeded, finish_interrupt(seeded.chat, step(seeded.chat, done)))
    assert history_lines(rows.messages)[-2:] == ["tool: c2 done", "tool: c1 failed"]


def test_an_interrupt_before_the_first_part_leaves_no_empty_answer() -> None:
    seeded = seed_state(State.I0)
    rows = apply_changes(seeded, finish_interrupt(seeded.chat, step(seeded.chat)))
    assert (rows.chat.state, rows.messages) == (State.W, list(seeded.history))


@pytest.mark.covers("O20")
def test_an_interrupt_adds_no_result_for_a_provider_executed_call() -> None:
    seeded = seed_state(State.I0)
    partial = draft("assistant", call("s1", "web_search", provider_executed=True))
    rows = apply_changes(seeded, finish_interrupt(seeded.chat, step(seeded.chat, partial)))
    assert history_lines(rows.messages)[-1] == "assistant: [s1]"


@pytest.mark.promise("P4", "P9")
@pytest.mark.parametrize(("keep_owner", "target"), [(True, "R1"), (False, "P1")])
def test_the_head_of_the_queue_follows_the_partial_answer(*, keep_owner: bool, target: str) -> None:
    seeded = seed_state(State.I1, plain=2)
    saved = step(seeded.chat, draft("assistant", text("Once upon")), keep_owner=keep_owner)
    rows = apply_changes(seeded, finish_interrupt(seeded.chat, saved))
    assert history_lines(rows.messages)[-2:] == ["assistant: Once upon", "user: plain 0"]
    assert rows.chat.state == target


@pytest.mark.promise("P2")
@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize(("state", "target"), [("I0", "W"), ("I1", "P0")])
def test_an_expired_interrupt_ends_even_if_a_tool_runs(
    state: str, target: str, *, owned: bool
) -> None:
    seeded = seed_state(State(state), calls="local", owned=owned)
    rows = apply_changes(seeded, expire_interrupt(seeded.chat))
    assert rows.chat.state == target
    assert "tool: c1 failed" in history_lines(rows.messages)
    assert rows.chat.epoch == seeded.chat.epoch + owned


@pytest.mark.promise("P4", "P9")
@pytest.mark.parametrize(
    ("calls", "live", "kept"),
    [
        ("none", draft("assistant", text("Once upon"), call("c9")), "assistant: Once upon [c9]"),
        ("local", draft("tool", result("c1", "execute")), "tool: c1 done"),
    ],
)
def test_an_expired_interrupt_keeps_the_live_parts(calls: str, live: Draft, kept: str) -> None:
    """Error results for pending calls follow, then the next message."""
    seeded = seed_state(State.I1, calls=calls)
    rows = apply_changes(seeded, expire_interrupt(seeded.chat, (live,)))
    other_result = "tool: c9 failed" if calls == "none" else "tool: c2 failed"
    assert history_lines(rows.messages)[-3:] == [kept, other_result, "user: plain 0"]
    assert (rows.chat.state, rows.chat.worker_id) == (State.P0, None)
