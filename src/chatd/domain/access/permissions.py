"""Who may do what: the one place that decides.

An actor asks for a permission on an object. A role has a permission on its own objects, on objects
that are shared with it, or on all objects; a token narrows its user by scopes. The route table
names the permission of every route, and the statements of the store enforce it on rows by
`row_filter`.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args
from uuid import UUID

from msgspec import Struct

from chatd.domain.errors import Forbidden
from chatd.domain.ids import UserId

Role = Literal["admin", "member", "viewer"]
TokenScope = Literal["chat:read", "chat:write", "files", "account", "admin"]
Permission = Literal[
    "chats.read",
    "chats.create",
    "chats.write",
    "chats.control",
    "chats.share",
    "shares.read",
    "debug.read",
    "versions.read",
    "policies.read",
    "files.read",
    "files.write",
    "workspaces.read",
    "workspaces.write",
    "workspaces.control",
    "runners.write",
    "catalog.read",
    "account.read",
    "account.write",
    "costs.read",
    "config.read",
    "config.write",
]
"""`control` is what an administrator may do to stop another user's chat or workspace. `share` is
to change who reads a chat, and `shares.read` to see it. `debug` is what models were sent, with the
prompts of the owner and of the server. `policies` are the tool policies of chats. `runners.write`
is to drain, rename and remove runners. `catalog` is the models and templates that a user can
choose. `account` is the user's own account, tokens, keys, prompt and cost. `costs` is the spend of
all users. `config` is users, groups, providers, limits, settings and the audit log."""

ROLES: Final[tuple[Role, ...]] = get_args(Role)
TOKEN_SCOPES: Final[tuple[TokenScope, ...]] = get_args(TokenScope)
PERMISSIONS: Final[tuple[Permission, ...]] = get_args(Permission)


class UserActor(Struct, frozen=True, kw_only=True):
    """A signed-in user. `scopes` is None for a session and for a token without scopes."""

    user_id: UserId
    role: Role
    scopes: frozenset[str] | None = None
    reads_shared: bool = True
    """False if the settings disable sharing."""


class WorkerActor(Struct, frozen=True, kw_only=True):
    """The worker that runs a chat. It acts on every chat, and on nothing else that users own except
    the workspaces and files that its chats use."""


class SystemActor(Struct, frozen=True, kw_only=True):
    """Maintenance, a migration or a command on the server's host. The reason is logged."""

    reason: str


Actor: TypeAlias = UserActor | WorkerActor | SystemActor

WORKER: Final = WorkerActor()
ADMIN_USER_ID: Final = UserId(UUID("c4a7d000-0000-4000-8000-000000000001"))
"""The first administrator. A migration creates it; the token in the data directory is its token."""


class PermissionRule(Struct, frozen=True, kw_only=True):
    """`own`: roles that have it on what they own. `shared`: also on what is shared with them.
    `every`: roles that have it on the objects of all users."""

    scope: TokenScope
    own: frozenset[Role]
    shared: bool = False
    every: frozenset[Role] = frozenset()
    worker: bool = False


_ALL: Final[frozenset[Role]] = frozenset(ROLES)
_CREATORS: Final[frozenset[Role]] = frozenset({"admin", "member"})
_READERS: Final[frozenset[Role]] = frozenset({"admin", "viewer"})
_ADMIN: Final[frozenset[Role]] = frozenset({"admin"})
_NONE: Final[frozenset[Role]] = frozenset()

RULES: Final[Mapping[Permission, PermissionRule]] = {
    "chats.read": PermissionRule(
        scope="chat:read", own=_ALL, shared=True, every=_READERS, worker=True
    ),
    "chats.create": PermissionRule(scope="chat:write", own=_CREATORS, worker=True),
    "chats.write": PermissionRule(scope="chat:write", own=_CREATORS, worker=True),
    "chats.control": PermissionRule(scope="chat:write", own=_CREATORS, every=_ADMIN, worker=True),
    "chats.share": PermissionRule(scope="chat:write", own=_CREATORS, every=_ADMIN),
    "shares.read": PermissionRule(scope="chat:read", own=_ALL, every=_READERS),
    "debug.read": PermissionRule(scope="chat:read", own=_ALL, every=_READERS),
    "versions.read": PermissionRule(scope="chat:read", own=_ALL, every=_READERS),
    "policies.read": PermissionRule(scope="chat:read", own=_ALL, every=_READERS),
    "files.read": PermissionRule(scope="files", own=_ALL, shared=True, every=_READERS, worker=True),
    "files.write": PermissionRule(scope="files", own=_CREATORS),
    "workspaces.read": PermissionRule(scope="chat:read", own=_ALL, every=_READERS, worker=True),
    "workspaces.write": PermissionRule(scope="chat:write", own=_CREATORS, worker=True),
    "workspaces.control": PermissionRule(
        scope="chat:write", own=_CREATORS, every=_ADMIN, worker=True
    ),
    "runners.write": PermissionRule(scope="admin", own=_CREATORS, every=_ADMIN),
    "catalog.read": PermissionRule(scope="chat:read", own=_ALL, every=_ALL, worker=True),
    "account.read": PermissionRule(scope="account", own=_ALL),
    "account.write": PermissionRule(scope="account", own=_ALL),
    "costs.read": PermissionRule(scope="admin", own=_NONE, every=_READERS),
    "config.read": PermissionRule(scope="admin", own=_NONE, every=_READERS, worker=True),
    "config.write": PermissionRule(scope="admin", own=_NONE, every=_ADMIN),
}


class RowFilter(Struct, frozen=True, kw_only=True):
    """The rows that an actor reaches: all of them if `owner_id` is None, otherwise those of this
    owner, and with `shared` also those that are shared with this user."""

    owner_id: UserId | None
    shared: bool = False


def has_permission(actor: Actor, permission: Permission) -> bool:
    """Whether the actor has it on any object at all."""
    rule = RULES[permission]
    match actor:
        case UserActor():
            in_scope = actor.scopes is None or rule.scope in actor.scopes
            return in_scope and (actor.role in rule.own or actor.role in rule.every)
        case WorkerActor():
            return rule.worker
        case SystemActor():
            return True


def require_permission(actor: Actor, permission: Permission) -> None:
    """Raises Forbidden. The text says whether the role or the token is the reason."""
    if has_permission(actor, permission):
        return
    if isinstance(actor, UserActor) and has_permission(
        UserActor(user_id=actor.user_id, role=actor.role), permission
    ):
        raise Forbidden(
            f"This token lacks the scope {RULES[permission].scope}. Create a token that has it.",
            code="missing_scope",
        )
    role = actor.role if isinstance(actor, UserActor) else "worker"
    raise Forbidden(f"Not allowed for the role {role} ({permission}).")


def row_filter(actor: Actor, permission: Permission) -> RowFilter:
    """Raises Forbidden if the actor has the permission on no object."""
    require_permission(actor, permission)
    if not isinstance(actor, UserActor) or actor.role in RULES[permission].every:
        return RowFilter(owner_id=None)
    shared = RULES[permission].shared and actor.reads_shared
    return RowFilter(owner_id=actor.user_id, shared=shared)


def is_allowed(
    actor: Actor, permission: Permission, owner_id: UserId, *, is_shared: bool = False
) -> bool:
    """For one object. `is_shared`: its owner has shared it with the actor."""
    if not has_permission(actor, permission):
        return False
    if not isinstance(actor, UserActor):
        return True
    rule = RULES[permission]
    is_own = actor.user_id == owner_id and actor.role in rule.own
    by_share = is_shared and rule.shared and actor.reads_shared
    return is_own or actor.role in rule.every or by_share


def require_allowed(actor: Actor, permission: Permission, owner_id: UserId) -> None:
    """For one object that the actor can read. Raises Forbidden."""
    require_permission(actor, permission)
    if not is_allowed(actor, permission, owner_id):
        raise Forbidden(f"Only the owner may do this ({permission}).")


def require_share_change(actor: Actor, owner_id: UserId, *, adds: bool) -> None:
    """For one chat that the actor can read. The owner adds and removes readers, an administrator
    only removes them. Raises Forbidden."""
    require_allowed(actor, "chats.share", owner_id)
    if not adds:
        return
    if not isinstance(actor, UserActor) or actor.user_id != owner_id:
        raise Forbidden("Only the owner may share a chat. Administrators may remove its readers.")
    require_sharing(actor)


def require_sharing(actor: UserActor) -> None:
    """Raises Forbidden if the settings disable sharing."""
    if not actor.reads_shared:
        raise Forbidden(
            "Sharing is disabled on this server. An administrator can enable it.",
            code="sharing_disabled",
        )


def visible_filter(actor: Actor, permission: Permission, read: Permission) -> RowFilter:
    """The rows on which a refusal of `permission` is Forbidden; others are not found. A token
    without the scope of `read` sees what it may change."""
    require_permission(actor, permission)
    return row_filter(actor, read if has_permission(actor, read) else permission)


def needs_audit(actor: Actor, owner_id: UserId, *, is_shared: bool = False) -> bool:
    """Whether a read of this object is recorded: it is by the role alone."""
    return isinstance(actor, UserActor) and actor.user_id != owner_id and not is_shared
