"""Users, groups, credentials and entries of the audit log, as the store reads them."""

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from chatd.domain.access import Role, UserActor
from chatd.domain.ids import CredentialId, GroupId, UserId

UserStatus = Literal["active", "suspended"]
CredentialKind = Literal["session", "token", "link", "ticket"]
AuditOutcome = Literal["done", "refused", "failed"]


class User(Struct, frozen=True, kw_only=True):
    """A service account signs in with tokens only, which administrators create."""

    id: UserId
    username: str
    email: str | None
    name: str
    avatar_url: str | None
    role: Role
    status: UserStatus
    is_service: bool
    has_password: bool
    created_at: datetime
    updated_at: datetime
    last_seen_at: datetime | None

    @property
    def is_active(self) -> bool:
        return self.status == "active"


class Group(Struct, frozen=True, kw_only=True):
    id: GroupId
    name: str
    created_at: datetime
    member_count: int


class Credential(Struct, frozen=True, kw_only=True):
    """Never its secret. `expires_at` of a session moves with its use, at most to `ends_at`."""

    id: CredentialId
    kind: CredentialKind
    user_id: UserId
    name: str
    scopes: tuple[str, ...] | None
    created_at: datetime
    expires_at: datetime | None
    ends_at: datetime | None
    last_used_at: datetime | None
    ip: str | None
    user_agent: str | None
    created_by: UserId | None


class ActiveCredential(Struct, frozen=True, kw_only=True):
    """A credential that is valid now, of an active user. `id` is None for the administrator's
    token, which no row holds. `valid_for_s` is None for ever."""

    id: CredentialId | None
    kind: CredentialKind
    actor: UserActor
    username: str
    expires_at: datetime | None
    valid_for_s: float | None


class AuditEntry(Struct, frozen=True, kw_only=True):
    """`actor` is a username at that time, or the name of a worker or command. The names are those
    of today, or the last ones known. `person_name`: the user whom it is about beside the object,
    such as a new member or the owner of a chat; None if it is the actor."""

    id: int
    at: datetime
    actor_id: UserId | None
    actor: str
    ip: str | None
    action: str
    object_type: str
    object_id: str
    detail: dict[str, Any] | None
    outcome: AuditOutcome
    actor_name: str | None = None
    actor_is_deleted: bool = False
    object_name: str | None = None
    object_is_deleted: bool = False
    person_name: str | None = None
