"""Archiving: one chat, or a root with its subagents."""

from uuid import UUID

import pytest

from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import State
from chatd.domain.chat.user_transitions import archive, archive_tree, unarchive, unarchive_tree
from chatd.domain.errors import Conflict, InvariantBroken, NotFound, TransitionNotAllowed
from chatd.domain.ids import ChatId
from tests.support.factories import CHAT, WORKER, chat
from tests.support.seeds import seed_state
from tests.support.story import tell, write

ROOT, ELDER, YOUNGER = CHAT, ChatId(UUID(int=11)), ChatId(UUID(int=12))
STRANGER = ChatId(UUID(int=99))

RUNNING = {"status": "running", "worker_id": WORKER, "epoch": 3, "attempt": 1}
SHELVED = {"archived": True}


def child(chat_id: ChatId, **columns: object) -> Chat:
    return chat(id=chat_id, parent_chat_id=ROOT, root_chat_id=ROOT, **columns)


# One chat


@pytest.mark.parametrize("state", ["P1", "R1", "I1", "A1"])
def test_archiving_stops_a_busy_chat_and_keeps_its_queue(state: str) -> None:
    calls = "client" if state == "A1" else "local"
    seeded = seed_state(State(state), calls=calls)
    rows = write(seeded, archive(seeded.chat))
    assert (rows.chat.state, rows.chat.worker_id) == (State.XW1, None)
    assert tell(rows.messages)[-2:] == ["tool: c1 failed", "tool: c2 failed"]
    assert rows.queue == list(seeded.queue)
    assert rows.chat.epoch == seeded.chat.epoch + (state in ("R1", "I1"))


def test_archiving_takes_the_pin_away() -> None:
    assert archive(chat(pin_order=2)).after.pin_order == 0


@pytest.mark.parametrize(("state", "target"), [("E0", "XE0"), ("E1", "XE1")])
def test_a_failed_chat_is_archived_with_its_error(state: str, target: str) -> None:
    seeded = seed_state(State(state), calls="local")
    rows = write(seeded, archive(seeded.chat))
    assert rows.chat.state == target
    assert rows.chat.last_error == seeded.chat.last_error
    assert rows.messages == list(seeded.history)
    back = write(seeded, archive(seeded.chat), unarchive(rows.chat))
    assert (back.chat.state, back.chat.last_error) == (state, seeded.chat.last_error)
    assert back.chat.pending_calls == seeded.chat.pending_calls


def test_a_chat_archived_with_a_queue_comes_back_explained() -> None:
    seeded = seed_state(State.XW1)
    rows = write(seeded, unarchive(seeded.chat))
    assert rows.chat.state is State.E1
    assert rows.chat.last_error is not None
    assert rows.chat.last_error.kind == "archived"
    assert rows.queue == list(seeded.queue)


def test_a_chat_archived_at_rest_comes_back_at_rest() -> None:
    seeded = seed_state(State.XW0)
    assert write(seeded, unarchive(seeded.chat)).chat.state is State.W


# Families


@pytest.mark.covers("O16")
def test_a_root_takes_its_whole_family_along() -> None:
    members = [child(YOUNGER, **RUNNING), child(ELDER), chat(pin_order=1)]
    changes = archive_tree(members, ROOT)
    assert [change.after.id for change in changes] == [ROOT, ELDER, YOUNGER]
    assert all(change.after.archived for change in changes)
    assert changes[2].after.worker_id is None
    assert changes[2].after.epoch == 4


@pytest.mark.covers("O16")
def test_members_that_are_archived_already_stay_as_they_are() -> None:
    members = [chat(), child(ELDER, **SHELVED), child(YOUNGER)]
    assert [change.after.id for change in archive_tree(members, ROOT)] == [ROOT, YOUNGER]


def test_a_child_is_archived_alone() -> None:
    members = [chat(**RUNNING), child(ELDER), child(YOUNGER)]
    assert [change.after.id for change in archive_tree(members, YOUNGER)] == [YOUNGER]


def test_a_root_brings_its_whole_family_back() -> None:
    members = [child(YOUNGER, **SHELVED), chat(**SHELVED), child(ELDER, **SHELVED)]
    changes = unarchive_tree(members, ROOT)
    assert [change.after.id for change in changes] == [ROOT, ELDER, YOUNGER]
    assert not any(change.after.archived for change in changes)


def test_members_that_are_not_archived_are_left_alone() -> None:
    members = [chat(**SHELVED), child(ELDER), child(YOUNGER, **SHELVED)]
    assert [change.after.id for change in unarchive_tree(members, ROOT)] == [ROOT, YOUNGER]


def test_a_child_comes_back_alone_to_a_family_that_is_there() -> None:
    members = [chat(), child(ELDER, **SHELVED), child(YOUNGER, **SHELVED)]
    assert [change.after.id for change in unarchive_tree(members, ELDER)] == [ELDER]


@pytest.mark.covers("O16")
@pytest.mark.parametrize("above", ["parent", "root"])
def test_a_child_cannot_come_back_to_what_is_archived(above: str) -> None:
    grandchild = chat(id=YOUNGER, parent_chat_id=ELDER, root_chat_id=ROOT, archived=True)
    members = [
        chat(archived=above == "root"),
        child(ELDER, archived=above == "parent"),
        grandchild,
    ]
    with pytest.raises(Conflict) as refused:
        unarchive_tree(members, YOUNGER)
    assert refused.value.code == "parent_archived"


@pytest.mark.covers("O16")
def test_a_chat_that_is_there_already_is_refused() -> None:
    with pytest.raises(TransitionNotAllowed) as refused:
        archive_tree([chat(**SHELVED), child(ELDER)], ROOT)
    assert refused.value.code == "chat_archived"
    with pytest.raises(TransitionNotAllowed) as refused:
        unarchive_tree([chat(), child(ELDER, **SHELVED)], ROOT)
    assert refused.value.code == "invalid_state"


def test_a_chat_that_is_not_in_the_family_is_not_found() -> None:
    for decide in (archive_tree, unarchive_tree):
        with pytest.raises(NotFound):
            decide([chat()], STRANGER)


def test_strangers_are_never_taken_along() -> None:
    stranger = chat(id=STRANGER, root_chat_id=STRANGER)
    with pytest.raises(InvariantBroken):
        archive_tree([chat(), stranger], ROOT)
