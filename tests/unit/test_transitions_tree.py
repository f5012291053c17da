"""Archiving one chat or a chat tree, and updates that a chat refuses."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.chat.commands import UpdateChat
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import (
    archive,
    archive_tree,
    delete_tree,
    unarchive,
    unarchive_tree,
    update_chat,
)
from chatd.domain.errors import (
    Conflict,
    InvalidInput,
    InvariantBroken,
    NotFound,
    TransitionNotAllowed,
)
from chatd.domain.ids import ChatId
from tests.support.domain.history_lines import apply_changes, history_lines
from tests.support.factories import CHAT, WORKER, chat
from tests.support.seeds import seed_state

ROOT, FIRST_CHILD, SECOND_CHILD = CHAT, ChatId(UUID(int=11)), ChatId(UUID(int=12))
UNRELATED = ChatId(UUID(int=99))

RUNNING = {"status": "running", "worker_id": WORKER, "epoch": 3, "attempt": 1}
ARCHIVED = {"archived": True}
CHILD_COLUMNS: dict[str, object] = {"id": FIRST_CHILD, "parent_chat_id": CHAT}


def child(chat_id: ChatId, **columns: object) -> Chat:
    return chat(id=chat_id, parent_chat_id=ROOT, root_chat_id=ROOT, **columns)


# One chat


@pytest.mark.parametrize("state", ["P1", "R1", "I1", "A1"])
def test_archiving_stops_a_busy_chat_and_keeps_its_queue(state: str) -> None:
    calls = "client" if state == "A1" else "local"
    seeded = seed_state(State(state), calls=calls)
    rows = apply_changes(seeded, archive(seeded.chat))
    assert (rows.chat.state, rows.chat.worker_id) == (State.XW1, None)
    assert history_lines(rows.messages)[-2:] == ["tool: c1 failed", "tool: c2 failed"]
    assert rows.queue == list(seeded.queue)
    assert rows.chat.epoch == seeded.chat.epoch + (state in ("R1", "I1"))


def test_archiving_unpins_a_chat() -> None:
    assert archive(chat(pin_order=2)).after.pin_order == 0


@pytest.mark.parametrize(("state", "target"), [("E0", "XE0"), ("E1", "XE1")])
def test_archiving_a_failed_chat_keeps_its_error_and_calls(state: str, target: str) -> None:
    seeded = seed_state(State(state), calls="local")
    rows = apply_changes(seeded, archive(seeded.chat))
    assert rows.chat.state == target
    assert rows.chat.last_error == seeded.chat.last_error
    assert rows.messages == list(seeded.history)
    back = apply_changes(seeded, archive(seeded.chat), unarchive(rows.chat))
    assert (back.chat.state, back.chat.last_error) == (state, seeded.chat.last_error)
    assert back.chat.pending_calls == seeded.chat.pending_calls


def test_unarchiving_a_chat_with_a_queue_sets_an_error() -> None:
    seeded = seed_state(State.XW1)
    rows = apply_changes(seeded, unarchive(seeded.chat))
    assert rows.chat.state is State.E1
    assert rows.chat.last_error is not None
    assert rows.chat.last_error.kind == "archived"
    assert rows.queue == list(seeded.queue)


def test_unarchiving_an_idle_chat_leaves_it_idle() -> None:
    seeded = seed_state(State.XW0)
    assert apply_changes(seeded, unarchive(seeded.chat)).chat.state is State.W


# Chat trees


@pytest.mark.covers("O16")
def test_archiving_a_root_archives_its_chat_tree() -> None:
    members = [child(SECOND_CHILD, **RUNNING), child(FIRST_CHILD), chat(pin_order=1)]
    changes = archive_tree(members, ROOT)
    assert [change.after.id for change in changes] == [ROOT, FIRST_CHILD, SECOND_CHILD]
    assert all(change.after.archived for change in changes)
    assert changes[2].after.worker_id is None
    assert changes[2].after.epoch == 4


@pytest.mark.covers("O16")
def test_archiving_a_root_skips_archived_subagents() -> None:
    members = [chat(), child(FIRST_CHILD, **ARCHIVED), child(SECOND_CHILD)]
    assert [change.after.id for change in archive_tree(members, ROOT)] == [ROOT, SECOND_CHILD]


def test_a_subagent_is_archived_alone() -> None:
    members = [chat(**RUNNING), child(FIRST_CHILD), child(SECOND_CHILD)]
    assert [change.after.id for change in archive_tree(members, SECOND_CHILD)] == [SECOND_CHILD]


def test_unarchiving_a_root_unarchives_its_chat_tree() -> None:
    members = [child(SECOND_CHILD, **ARCHIVED), chat(**ARCHIVED), child(FIRST_CHILD, **ARCHIVED)]
    changes = unarchive_tree(members, ROOT)
    assert [change.after.id for change in changes] == [ROOT, FIRST_CHILD, SECOND_CHILD]
    assert not any(change.after.archived for change in changes)


def test_unarchiving_a_root_skips_unarchived_subagents() -> None:
    members = [chat(**ARCHIVED), child(FIRST_CHILD), child(SECOND_CHILD, **ARCHIVED)]
    assert [change.after.id for change in unarchive_tree(members, ROOT)] == [ROOT, SECOND_CHILD]


def test_a_subagent_of_an_unarchived_root_is_unarchived_alone() -> None:
    members = [chat(), child(FIRST_CHILD, **ARCHIVED), child(SECOND_CHILD, **ARCHIVED)]
    assert [change.after.id for change in unarchive_tree(members, FIRST_CHILD)] == [FIRST_CHILD]


@pytest.mark.covers("O16")
@pytest.mark.parametrize("above", ["parent", "root"])
def test_a_subagent_of_an_archived_parent_or_root_cannot_be_unarchived(above: str) -> None:
    grandchild = chat(id=SECOND_CHILD, parent_chat_id=FIRST_CHILD, root_chat_id=ROOT, archived=True)
    members = [
        chat(archived=above == "root"),
        child(FIRST_CHILD, archived=above == "parent"),
        grandchild,
    ]
    with pytest.raises(Conflict) as refused:
        unarchive_tree(members, SECOND_CHILD)
    assert refused.value.code == "parent_archived"


@pytest.mark.covers("O16")
def test_archiving_or_unarchiving_twice_is_refused() -> None:
    with pytest.raises(TransitionNotAllowed) as refused:
        archive_tree([chat(**ARCHIVED), child(FIRST_CHILD)], ROOT)
    assert refused.value.code == "chat_archived"
    with pytest.raises(TransitionNotAllowed) as refused:
        unarchive_tree([chat(), child(FIRST_CHILD, **ARCHIVED)], ROOT)
    assert refused.value.code == "invalid_state"


def test_a_chat_outside_the_tree_is_not_found() -> None:
    for decide in (archive_tree, unarchive_tree):
        with pytest.raises(NotFound):
            decide([chat()], UNRELATED)


def test_chats_of_another_tree_are_a_bug() -> None:
    unrelated = chat(id=UNRELATED, root_chat_id=UNRELATED)
    with pytest.raises(InvariantBroken):
        archive_tree([chat(), unrelated], ROOT)


# Updates


def check(target: Chat, command: UpdateChat) -> None:
    update_chat([target], target.id, command)


@pytest.mark.parametrize(
    "command",
    [
        UpdateChat(),
        UpdateChat(title="New", labels={}, pin_order=3),
        UpdateChat(archived=True),
        UpdateChat(archived=True, pin_order=0),
    ],
)
def test_a_root_chat_accepts_valid_updates(command: UpdateChat) -> None:
    check(chat(), command)


def test_an_archived_chat_can_be_unarchived_and_pinned_at_once() -> None:
    check(chat(archived=True), UpdateChat(archived=False, pin_order=1))


@pytest.mark.parametrize("archived", [False, True])
def test_setting_the_present_value_is_allowed(*, archived: bool) -> None:
    check(chat(archived=archived), UpdateChat(archived=archived))


@pytest.mark.parametrize(
    ("columns", "command", "field", "code"),
    [
        ({}, UpdateChat(archived=True, pin_order=1), "pin_order", "invalid_input"),
        ({"archived": True}, UpdateChat(pin_order=1), "pin_order", "invalid_input"),
        (CHILD_COLUMNS, UpdateChat(pin_order=1), "pin_order", "invalid_input"),
    ],
)
def test_invalid_pins_are_refused(
    columns: dict[str, object], command: UpdateChat, field: str, code: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        check(chat(**columns), command)
    assert (refused.value.field, refused.value.code) == (field, code)


# Deleting


def test_deleting_archives_the_tree_and_gives_every_chat_a_new_version() -> None:
    members = [
        chat(),
        child(FIRST_CHILD, **RUNNING),
        child(SECOND_CHILD, **ARCHIVED),
    ]
    changes = delete_tree(members, ROOT)
    assert [change.after.id for change in changes] == [ROOT, FIRST_CHILD, SECOND_CHILD]
    for change, before in zip(changes, members, strict=True):
        assert (change.after.archived, change.after.worker_id) == (True, None)
        assert change.after.snapshot_version == before.snapshot_version + 1
        assert change.touch


def test_a_deleted_tree_does_not_change() -> None:
    gone = chat(**ARCHIVED)
    gone = replace(gone, deleted_at=gone.created_at)
    assert delete_tree([gone], ROOT) == ()


def test_a_subagent_is_not_deleted_alone() -> None:
    with pytest.raises(Conflict) as refused:
        delete_tree([chat(), child(FIRST_CHILD)], FIRST_CHILD)
    assert refused.value.code == "not_a_root_chat"
