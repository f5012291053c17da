"""Who may share a chat with whom."""

from uuid import UUID

import pytest

from chatd.domain.access.permissions import Role, UserActor
from chatd.domain.access.shares import (
    MAX_READERS,
    Readers,
    ShareChange,
    ShareRequest,
    ShareTarget,
    decide_shares,
)
from chatd.domain.errors import Conflict, Forbidden, InvalidInput
from chatd.domain.ids import ChatId, GroupId, UserId

OWNER, READER, STRANGER = (UserId(UUID(int=number)) for number in (1, 2, 3))
GROUP = GroupId(UUID(int=9))
NOBODY = Readers()


def actor(user: UserId = OWNER, role: Role = "member", *, sharing: bool = True) -> UserActor:
    return UserActor(user_id=user, role=role, reads_shared=sharing)


def chat(readers: Readers = NOBODY, *, is_root: bool = True) -> ShareTarget:
    return ShareTarget(
        chat_id=ChatId(UUID(int=5)), owner_id=OWNER, is_root=is_root, readers=readers
    )


ADD_READER = ShareRequest(users={READER: "read"})
REMOVE_READER = ShareRequest(users={READER: ""})
SHARED = Readers(users=frozenset({READER}), groups=frozenset({GROUP}))


@pytest.mark.parametrize(
    ("readers", "request_", "added", "removed"),
    [
        (NOBODY, ADD_READER, Readers(users=frozenset({READER})), NOBODY),
        (SHARED, ADD_READER, NOBODY, NOBODY),
        (NOBODY, REMOVE_READER, NOBODY, NOBODY),
        (SHARED, ShareRequest(users={READER: None}), NOBODY, Readers(users=frozenset({READER}))),
        (SHARED, ShareRequest(groups={GROUP: ""}), NOBODY, Readers(groups=frozenset({GROUP}))),
        (
            Readers(users=frozenset({READER})),
            ShareRequest(users={READER: "", STRANGER: "read"}, groups={GROUP: "read"}),
            Readers(users=frozenset({STRANGER}), groups=frozenset({GROUP})),
            Readers(users=frozenset({READER})),
        ),
    ],
)
def test_a_request_names_the_readers_that_change(
    readers: Readers, request_: ShareRequest, added: Readers, removed: Readers
) -> None:
    expected = ShareChange(added=added, removed=removed)
    assert decide_shares(actor(), chat(readers), request_) == expected


@pytest.mark.promise("P12")
@pytest.mark.parametrize(
    ("by", "adds", "removes"),
    [
        (actor(), True, True),
        (actor(role="admin"), True, True),
        (actor(role="viewer"), False, False),
        (actor(READER), False, False),
        (actor(STRANGER), False, False),
        (actor(STRANGER, "admin"), False, True),
        (actor(STRANGER, "viewer"), False, False),
        (actor(sharing=False), False, True),
        (actor(STRANGER, "admin", sharing=False), False, True),
    ],
)
def test_the_owner_shares_and_an_administrator_only_removes(
    by: UserActor, *, adds: bool, removes: bool
) -> None:
    for request, allowed, readers in (
        (ADD_READER, adds, NOBODY),
        (REMOVE_READER, removes, SHARED),
    ):
        if allowed:
            assert not decide_shares(by, chat(readers), request).is_empty
        else:
            with pytest.raises(Forbidden):
                decide_shares(by, chat(readers), request)


def test_a_switched_off_server_says_so() -> None:
    with pytest.raises(Forbidden) as refused:
        decide_shares(actor(sharing=False), chat(), ADD_READER)
    assert refused.value.code == "sharing_disabled"


def test_a_subagent_is_not_shared_alone_and_nobody_shares_with_the_owner() -> None:
    with pytest.raises(Conflict) as refused:
        decide_shares(actor(), chat(is_root=False), ADD_READER)
    assert refused.value.code == "not_a_root_chat"
    with pytest.raises(InvalidInput):
        decide_shares(actor(), chat(), ShareRequest(users={OWNER: "read"}))


def test_a_chat_has_a_bounded_number_of_readers() -> None:
    users = [UserId(UUID(int=100 + number)) for number in range(MAX_READERS)]
    full = Readers(users=frozenset(users))
    with pytest.raises(Conflict) as refused:
        decide_shares(actor(), chat(full), ADD_READER)
    assert refused.value.code == "too_many_readers"
    swapped = ShareRequest(users={READER: "read", users[0]: ""})
    assert decide_shares(actor(), chat(full), swapped).added.count == 1
    assert decide_shares(actor(), chat(full), ShareRequest(users={users[0]: ""})).removed.count == 1
