"""Who may do what."""

from uuid import UUID

import pytest

from chatd.domain.access.permissions import (
    PERMISSIONS,
    ROLES,
    RULES,
    TOKEN_SCOPES,
    WORKER,
    Actor,
    Permission,
    Role,
    RowFilter,
    SystemActor,
    UserActor,
    has_permission,
    is_allowed,
    needs_audit,
    require_permission,
    row_filter,
)
from chatd.domain.errors import Forbidden
from chatd.domain.ids import UserId

ALICE, BOB = UserId(UUID(int=1)), UserId(UUID(int=2))
SYSTEM = SystemActor(reason="test")

# Per permission: what admin, member and viewer have on their own objects, on objects shared with
# them, and on those of other users; then whether a worker has it.
TABLE: list[tuple[Permission, str, str, str, bool]] = [
    ("chats.read", "amv", "amv", "av", True),
    ("chats.create", "am", "", "", True),
    ("chats.write", "am", "", "", True),
    ("chats.control", "am", "a", "a", True),
    ("chats.share", "am", "a", "a", False),
    ("shares.read", "amv", "av", "av", False),
    ("debug.read", "amv", "av", "av", False),
    ("versions.read", "amv", "av", "av", False),
    ("policies.read", "amv", "av", "av", False),
    ("files.read", "amv", "amv", "av", True),
    ("files.write", "am", "", "", False),
    ("workspaces.read", "amv", "av", "av", True),
    ("workspaces.write", "am", "", "", True),
    ("workspaces.control", "am", "a", "a", True),
    ("runners.write", "am", "a", "a", False),
    ("catalog.read", "amv", "amv", "amv", True),
    ("account.read", "amv", "", "", False),
    ("account.write", "amv", "", "", False),
    ("costs.read", "av", "av", "av", False),
    ("config.read", "av", "av", "av", True),
    ("config.write", "a", "a", "a", False),
]


def user(role: Role, *scopes: str) -> UserActor:
    return UserActor(user_id=ALICE, role=role, scopes=frozenset(scopes) if scopes else None)


def test_every_permission_has_a_row_and_a_rule() -> None:
    assert [row[0] for row in TABLE] == list(PERMISSIONS) == list(RULES)


@pytest.mark.promise("P12")
@pytest.mark.parametrize(("permission", "own", "shared", "foreign", "worker"), TABLE)
def test_a_role_has_exactly_its_permissions(
    permission: Permission, own: str, shared: str, foreign: str, *, worker: bool
) -> None:
    for role in ROLES:
        actor, letter = user(role), role[0]
        assert is_allowed(actor, permission, ALICE) == (letter in own), role
        assert is_allowed(actor, permission, BOB, is_shared=True) == (letter in shared), role
        assert is_allowed(actor, permission, BOB) == (letter in foreign), role
        assert has_permission(actor, permission) == (letter in own + shared + foreign), role
    assert is_allowed(WORKER, permission, BOB) == worker
    assert is_allowed(SYSTEM, permission, BOB)


@pytest.mark.promise("P12")
@pytest.mark.parametrize("permission", PERMISSIONS)
def test_a_token_has_no_permission_outside_its_scopes(permission: Permission) -> None:
    for scope in TOKEN_SCOPES:
        actor = user("admin", scope)
        assert has_permission(actor, permission) == (scope == RULES[permission].scope)
        assert not is_allowed(user("admin", "unknown"), permission, ALICE)


@pytest.mark.parametrize(
    ("actor", "permission", "expected"),
    [
        (user("member"), "chats.read", RowFilter(owner_id=ALICE, shared=True)),
        (user("member"), "chats.write", RowFilter(owner_id=ALICE)),
        (user("admin"), "chats.read", RowFilter(owner_id=None)),
        (user("viewer"), "chats.read", RowFilter(owner_id=None)),
        (user("admin"), "chats.write", RowFilter(owner_id=ALICE)),
        (user("admin"), "chats.control", RowFilter(owner_id=None)),
        (user("viewer"), "files.read", RowFilter(owner_id=None)),
        (WORKER, "chats.write", RowFilter(owner_id=None)),
        (SYSTEM, "chats.control", RowFilter(owner_id=None)),
    ],
)
def test_a_statement_reaches_the_rows_of_the_actor(
    actor: Actor, permission: Permission, expected: RowFilter
) -> None:
    assert row_filter(actor, permission) == expected


def test_a_refusal_says_whether_the_role_or_the_token_is_the_reason() -> None:
    with pytest.raises(Forbidden, match="role viewer") as by_role:
        require_permission(user("viewer"), "chats.create")
    assert by_role.value.code == "forbidden"
    with pytest.raises(Forbidden, match="lacks the scope chat:write") as by_scope:
        require_permission(user("member", "chat:read"), "chats.create")
    assert by_scope.value.code == "missing_scope"
    with pytest.raises(Forbidden):
        row_filter(WORKER, "config.write")


def test_a_read_by_the_role_alone_is_recorded() -> None:
    assert needs_audit(user("admin"), BOB)
    assert not needs_audit(user("admin"), ALICE)
    assert not needs_audit(user("admin"), BOB, is_shared=True)
    assert not needs_audit(WORKER, BOB)
