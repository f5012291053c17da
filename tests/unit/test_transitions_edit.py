"""Editing a message, interrupting, requesting a compaction."""

from uuid import UUID

import pytest

from chatd.domain.chat.commands import ChooseVersion, EditMessage, ReleaseChat, RequestCompaction
from chatd.domain.chat.messages import Message
from chatd.domain.chat.row import Chat, StoredVersion
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import (
    choose_version,
    edit_message,
    interrupt,
    promote_queued,
    request_compaction,
)
from chatd.domain.chat.worker_transitions import (
    acquire,
    commit_step,
    fail_turn,
    finish_turn,
    release,
)
from chatd.domain.errors import InvalidInput, NotFound, NothingToCompact, TransitionNotAllowed
from chatd.domain.ids import MessageId, ModelConfigId, WorkerId
from tests.support.domain.history_lines import apply_changes, history_lines, queue_lines
from tests.support.factories import OTHER_WORKER, WORKER, draft, message, prompt, result, text
from tests.support.seeds import FAILED, Seeded, failing, seed_state, step

FAST, SLOW = ModelConfigId(UUID(int=50)), ModelConfigId(UUID(int=51))

UNARCHIVED = [state for state in State if not state.startswith("X")]


def edit(**columns: object) -> EditMessage:
    return EditMessage(message_id=MessageId(1), prompt=prompt("edited", **columns))


def first_prompt(seeded: Seeded) -> Message:
    return next(message for message in seeded.history if message.starts_turn)


# Versions


def test_a_version_of_a_line_that_was_replaced_in_mid_turn_gets_results_for_its_calls() -> None:
    seeded = seed_state(State.R0, calls="local")
    target = [row for row in seeded.history if row.starts_turn][-1]
    edited = edit_message(seeded.chat, target, edit(), WORKER)
    done = finish_turn(edited.after, step(edited.after, draft("assistant", text("Else."))))
    rows = apply_changes(seeded, edited, done)
    chosen = rows.version(target.id)
    change = choose_version(rows.chat, chosen, ChooseVersion(message_id=target.id))
    rows = apply_changes(seeded, edited, done, change)
    assert history_lines(rows.messages)[-4:] == [
        "user: second",
        "assistant: Let me see. [c1] [c2]",
        "tool: c1 failed",
        "tool: c2 failed",
    ]
    assert (rows.chat.state, rows.chat.turn_message_id) == (State.W, target.id)


def test_a_failed_line_shows_its_error_again() -> None:
    seeded = seed_state(State.E0)
    target = [row for row in seeded.history if row.starts_turn][-1]
    edited = edit_message(seeded.chat, target, edit(), WORKER)
    done = finish_turn(edited.after, step(edited.after, draft("assistant", text("Else."))))
    rows = apply_changes(seeded, edited, done)
    change = choose_version(rows.chat, rows.version(target.id), ChooseVersion(message_id=target.id))
    assert change is not None
    assert (change.after.state, change.after.last_error) == (State.E0, seeded.chat.last_error)


def test_a_version_that_is_not_stored_whole_is_not_found() -> None:
    chat, chosen = seed_state(State.W).chat, ChooseVersion(message_id=MessageId(2))
    cut = StoredVersion(
        message_id=MessageId(2), shown_id=MessageId(4), hidden=(MessageId(2),), is_whole=False
    )
    for version in (None, cut):
        with pytest.raises(NotFound):
            choose_version(chat, version, chosen)


# Editing


@pytest.mark.covers("O6")
@pytest.mark.parametrize("state", UNARCHIVED)
def test_an_edit_replaces_the_message_and_deletes_all_after_it(state: State) -> None:
    seeded = seed_state(state)
    rows = apply_changes(
        seeded, edit_message(seeded.chat, first_prompt(seeded), edit(), OTHER_WORKER)
    )
    assert history_lines(rows.messages) == ["user: edited"]
    assert rows.messages[-1].id == len(seeded.history) + 1
    assert (rows.chat.state, rows.chat.worker_id) == (State.R0, OTHER_WORKER)
    assert rows.chat.pending_calls == ()
    assert rows.queue == []
    assert rows.chat.turn_message_id == rows.messages[-1].id


@pytest.mark.covers("V1")
def test_an_edit_soft_deletes_with_the_revision_of_the_edit() -> None:
    seeded = seed_state(State.W)
    rows = apply_changes(seeded, edit_message(seeded.chat, first_prompt(seeded), edit(), None))
    deleted = [m for m in rows.messages if m.deleted]
    assert [m.revision for m in deleted] == [rows.chat.snapshot_version] * len(deleted)
    assert len(rows.messages) == len(seeded.history) + 1
    assert not rows.messages[0].deleted, "the system message comes before the edited one"


def test_an_edit_fences_the_running_worker() -> None:
    seeded = seed_state(State.R1)
    for worker in (WORKER, OTHER_WORKER, None):
        chat = edit_message(seeded.chat, first_prompt(seeded), edit(), worker).after
        assert chat.epoch == seeded.chat.epoch + 1


@pytest.mark.covers("V2")
def test_an_edit_with_an_empty_queue_keeps_the_queue_version() -> None:
    seeded = seed_state(State.R0)
    change = edit_message(seeded.chat, first_prompt(seeded), edit(), None)
    assert not change.clear_queue
    assert change.after.queue_version == seeded.chat.queue_version


@pytest.mark.covers("O19")
def test_an_edit_keeps_model_and_effort_unless_it_sets_them() -> None:
    seeded = seed_state(State.W)
    target = message(2, "user", text(), model_config_id=FAST, reasoning_effort="low")
    kept = edit_message(seeded.chat, target, edit(), None)
    assert kept.messages[-1].draft.model_config_id == FAST
    assert kept.messages[-1].draft.reasoning_effort == "low"
    assert (kept.after.model_config_id, kept.after.reasoning_effort) == (FAST, "low")
    other = edit(model_config_id=SLOW, reasoning_effort="high")
    changed = edit_message(seeded.chat, target, other, None)
    assert changed.messages[-1].draft.model_config_id == SLOW
    assert changed.messages[-1].draft.reasoning_effort == "high"


@pytest.mark.covers("O7")
@pytest.mark.parametrize(
    "target",
    [
        None,
        message(2, "user", text(), deleted=True),
        message(2, "user", text(), visibility="model"),
        message(2, "system", text(), visibility="model"),
    ],
    ids=["missing", "deleted", "hidden", "system"],
)
def test_a_hidden_message_cannot_be_edited(target: Message | None) -> None:
    with pytest.raises(NotFound):
        edit_message(seed_state(State.W).chat, target, edit(), None)


@pytest.mark.covers("O7")
@pytest.mark.parametrize(
    "target",
    [
        message(2, "assistant", text()),
        message(2, "tool", result("c1")),
        message(2, "user", text(), compressed=True),
    ],
    ids=["assistant", "tool", "summary"],
)
def test_only_a_user_message_can_be_edited(target: Message) -> None:
    with pytest.raises(InvalidInput, match="only a user message"):
        edit_message(seed_state(State.W).chat, target, edit(), None)


def test_an_edit_in_an_archived_chat_is_refused_before_the_message_is_checked() -> None:
    with pytest.raises(TransitionNotAllowed) as refused:
        edit_message(seed_state(State.XW0).chat, None, edit(), None)
    assert refused.value.code == "chat_archived"


# Interrupting


@pytest.mark.promise("P4")
@pytest.mark.parametrize("worker", [OTHER_WORKER, None])
@pytest.mark.parametrize("calls", ["none", "local"])
@pytest.mark.parametrize("state", ["P0", "P1"])
def test_an_interrupt_without_an_owner_waits_for_the_partial_answer(
    state: str, calls: str, worker: WorkerId | None
) -> None:
    """The worker that acquires the chat saves the live parts of the old attempt."""
    seeded = seed_state(State(state), calls=calls)
    rows = apply_changes(seeded, interrupt(seeded.chat, worker))
    assert rows.chat.status == "interrupting"
    assert (rows.chat.worker_id, rows.chat.attempt) == (worker, seeded.chat.attempt)
    assert rows.messages == list(seeded.history)
    assert rows.queue == list(seeded.queue)


@pytest.mark.parametrize("state", ["R0", "R1"])
def test_an_interrupt_gives_the_owner_a_deadline_to_save_the_partial_answer(state: str) -> None:
    seeded = seed_state(State(state), calls="local")
    rows = apply_changes(seeded, interrupt(seeded.chat, OTHER_WORKER))
    assert rows.chat.status == "interrupting"
    assert (rows.chat.worker_id, rows.chat.epoch) == (WORKER, seeded.chat.epoch)
    assert rows.chat.pending_calls == seeded.chat.pending_calls
    assert rows.chat.interrupt_deadline is not None


@pytest.mark.parametrize(("state", "calls"), [("P0", "local"), ("A0", "client"), ("E0", "local")])
def test_an_interrupt_without_a_running_step_answers_pending_calls(state: str, calls: str) -> None:
    seeded = seed_state(State(state), calls=calls, begun=state != "P0")
    rows = apply_changes(seeded, interrupt(seeded.chat, OTHER_WORKER))
    assert rows.chat.state is State.W
    assert history_lines(rows.messages)[-2:] == ["tool: c1 failed", "tool: c2 failed"]
    assert rows.chat.last_error is None


def test_an_interrupt_before_the_first_step_leaves_the_message_unanswered() -> None:
    seeded = seed_state(State.P0, begun=False)
    rows = apply_changes(seeded, interrupt(seeded.chat, OTHER_WORKER))
    assert rows.chat.state is State.W
    assert rows.messages == list(seeded.history)


@pytest.mark.parametrize("state", ["P1", "A1"])
def test_an_interrupt_without_a_running_step_promotes_the_head(state: str) -> None:
    seeded = seed_state(State(state), plain=2, begun=state != "P1")
    rows = apply_changes(seeded, interrupt(seeded.chat, OTHER_WORKER))
    assert history_lines(rows.messages)[-1] == "user: plain 0"
    assert queue_lines(rows.queue) == ["plain 1"]
    assert (rows.chat.state, rows.chat.worker_id) == (State.R1, OTHER_WORKER)


# Requesting a compaction

COMPACT = RequestCompaction(compactable=True)


@pytest.mark.covers("O24")
@pytest.mark.parametrize("state", ["W", "E0", "E1"])
def test_a_compaction_request_sets_a_flag_and_a_new_history_version(state: str) -> None:
    seeded = seed_state(State(state), retry=state != "W")
    rows = apply_changes(seeded, request_compaction(seeded.chat, COMPACT, OTHER_WORKER))
    assert rows.chat.compaction_requested
    assert rows.chat.history_version == rows.chat.snapshot_version
    assert (rows.chat.attempt, rows.chat.orphan_count) == (1, 0)
    assert rows.chat.turn_message_id is None
    assert rows.chat.last_error is None
    assert rows.messages == list(seeded.history)


@pytest.mark.covers("O24")
def test_compaction_without_a_new_answer_is_refused() -> None:
    with pytest.raises(NothingToCompact):
        request_compaction(seed_state(State.W).chat, RequestCompaction(compactable=False), None)


def test_a_compaction_request_answers_the_calls_of_a_failed_turn() -> None:
    seeded = seed_state(State.E0, calls="local")
    rows = apply_changes(seeded, request_compaction(seeded.chat, COMPACT, None))
    assert history_lines(rows.messages)[-2:] == ["tool: c1 failed", "tool: c2 failed"]
    assert rows.chat.pending_calls == ()


def _compacting() -> Chat:
    return seed_state(State.R0, compaction=True).chat


@pytest.mark.covers("O24")
def test_a_compaction_request_survives_a_takeover() -> None:
    chat = release(_compacting(), ReleaseChat(worker_id=WORKER, epoch=_compacting().epoch)).after
    assert chat.compaction_requested
    assert acquire(chat, OTHER_WORKER).after.compaction_requested
    assert seed_state(State.R1, compaction=True).chat.compaction_requested


@pytest.mark.covers("O24")
def test_only_the_summary_clears_the_compaction_request() -> None:
    chat = _compacting()
    other = commit_step(chat, step(chat, draft("assistant", text("Words."))))
    assert other.after.compaction_requested
    summary = draft("user", text("In short"), visibility="model", compressed=True)
    done = commit_step(chat, step(chat, summary, compacted=True))
    assert not done.after.compaction_requested


@pytest.mark.covers("O24")
def test_the_end_of_a_turn_clears_the_compaction_request() -> None:
    chat = _compacting()
    failure = failing(step(chat), FAILED)
    for change in (
        finish_turn(chat, step(chat)),
        fail_turn(chat, failure),
        interrupt(seed_state(State.P0, compaction=True, begun=False).chat, None),
    ):
        assert change is not None
        assert not change.after.compaction_requested


def test_promoting_the_head_clears_the_compaction_request() -> None:
    chat = seed_state(State.R1, compaction=True).chat
    assert not finish_turn(chat, step(chat)).after.compaction_requested


def test_promoting_a_message_clears_the_compaction_request() -> None:
    seeded = seed_state(State.P1, compaction=True, begun=False)
    assert seeded.chat.compaction_requested
    promoted = promote_queued(seeded.chat, seeded.queue, seeded.queue[0].id, None)
    assert not promoted.after.compaction_requested


def test_the_model_of_a_summary_does_not_become_the_chats_model() -> None:
    chat = _compacting()
    summary = draft(
        "user", text("In short"), visibility="model", compressed=True, model_config_id=FAST
    )
    done = commit_step(chat, step(chat, summary, compacted=True))
    assert done.after.model_config_id is None
