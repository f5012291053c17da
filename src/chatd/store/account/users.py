"""Users, and how OpenID providers name them. Every write is audited, and published to all
replicas, in its own transaction.

At least one active administrator is left after every write: writes that could remove the last one
take a lock, change the row, and count.
"""

from collections.abc import Mapping, Sequence
from typing import Final, LiteralString

import msgspec
from msgspec import Struct

from chatd.domain.access.accounts import Identity, User, UserStatus, redacted_diff
from chatd.domain.access.permissions import (
    Actor,
    Role,
    SystemActor,
    has_permission,
    require_permission,
    row_filter,
)
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import Conflict, NotFound
from chatd.domain.ids import UserId
from chatd.store.account import audit
from chatd.store.database import notifications
from chatd.store.database.conn import Conn, DatabaseSession, DuplicateRow, Row, strip_unstorable

# Which rows of accounts an actor may access: all, or the user's own.


def readable_user(actor: Actor) -> UserId | None:
    """None: all users; else the only user that the actor may read. Raises Forbidden."""
    if has_permission(actor, "config.read"):
        return None
    return row_filter(actor, "account.read").owner_id


def writable_user(actor: Actor) -> UserId | None:
    """None: all users; else the only user that the actor may change. Raises Forbidden."""
    if has_permission(actor, "config.write"):
        return None
    return row_filter(actor, "account.write").owner_id


_COLUMNS: Final[LiteralString] = """
    u.id, u.username, u.email, u.name, u.avatar_url, u.role, u.status, u.is_service,
    u.password_hash IS NOT NULL AS has_password, u.created_at, u.updated_at, u.last_seen_at"""
INSERT: Final[LiteralString] = f"""
    INSERT INTO users AS u (id, username, email, name, avatar_url, role, is_service, password_hash)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING {_COLUMNS}"""
# $2 is the only user that the actor reaches, or NULL.
GET: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM users u
    WHERE u.id = $1 AND u.deleted_at IS NULL AND ($2::uuid IS NULL OR u.id = $2)"""
GET_FOR_UPDATE: Final[LiteralString] = f"{GET} FOR NO KEY UPDATE"
LIST: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM users u
    WHERE u.deleted_at IS NULL AND lower(u.username) > $1 AND ($3::uuid IS NULL OR u.id = $3)
    ORDER BY lower(u.username) LIMIT $2"""
FIND_BY_USERNAME: Final[LiteralString] = f"""
    SELECT {_COLUMNS}, u.password_hash FROM users u
    WHERE lower(u.username) = lower($1) AND u.deleted_at IS NULL"""
FIND_BY_EMAIL: Final[LiteralString] = f"""
    SELECT {_COLUMNS}, u.password_hash FROM users u
    WHERE lower(u.email) = lower($1) AND u.email IS NOT NULL AND u.deleted_at IS NULL"""
UPDATE: Final[LiteralString] = f"""
    UPDATE users u SET username = $3, email = $4, name = $5, avatar_url = $6, role = $7,
        status = $8, updated_at = now()
    WHERE u.id = $1 AND u.deleted_at IS NULL AND ($2::uuid IS NULL OR u.id = $2)
    RETURNING {_COLUMNS}"""
GET_PASSWORD: Final[LiteralString] = """
    SELECT password_hash FROM users u
    WHERE u.id = $1 AND u.deleted_at IS NULL AND ($2::uuid IS NULL OR u.id = $2)"""
SET_PASSWORD: Final[LiteralString] = """
    UPDATE users u SET password_hash = $3, updated_at = now()
    WHERE u.id = $1 AND u.deleted_at IS NULL AND NOT u.is_service
      AND ($2::uuid IS NULL OR u.id = $2)"""
# The hash changes with the parameters of the algorithm, and only if no other has been set since.
REPLACE_HASH: Final[LiteralString] = """
    UPDATE users SET password_hash = $3 WHERE id = $1 AND password_hash = $2"""
# The user's tool policy stays: a turn that still runs goes on under it.
DELETE: Final[LiteralString] = """
    WITH gone AS (DELETE FROM credentials WHERE user_id = $1),
    left_groups AS (DELETE FROM group_members WHERE user_id = $1),
    unlinked AS (DELETE FROM user_identities WHERE user_id = $1),
    disconnected AS (DELETE FROM mcp_tokens WHERE user_id = $1),
    keyless AS (DELETE FROM provider_keys WHERE user_id = $1),
    untold AS (DELETE FROM webhooks WHERE owner_id = $1),
    forgotten AS (DELETE FROM user_skills WHERE owner_id = $1),
    unremembered AS (DELETE FROM memory_notes WHERE owner_id = $1)
    UPDATE users SET deleted_at = now(), updated_at = now(), status = 'suspended',
        password_hash = NULL WHERE id = $1"""
# What a request of the user wrote while the user was deleted.
DELETE_LEFT_SECRETS: Final[LiteralString] = """
    WITH gone AS MATERIALIZED (SELECT id FROM users WHERE deleted_at IS NOT NULL),
    disconnected AS (DELETE FROM mcp_tokens WHERE user_id IN (SELECT id FROM gone)),
    keyless AS (DELETE FROM provider_keys WHERE user_id IN (SELECT id FROM gone))
    DELETE FROM webhooks WHERE owner_id IN (SELECT id FROM gone)"""
# Arbitrary key "chatadmi": of two administrators who demote each other, one waits and is refused.
LOCK_ADMINISTRATORS: Final[LiteralString] = "SELECT pg_advisory_xact_lock(7163086759373925737)"
HAS_ADMINISTRATOR: Final[LiteralString] = """
    SELECT EXISTS (SELECT FROM users WHERE role = 'admin' AND status = 'active'
                   AND deleted_at IS NULL AND NOT is_service)"""
HAS_OTHER_ADMINISTRATOR: Final[LiteralString] = """
    SELECT EXISTS (SELECT FROM users WHERE role = 'admin' AND status = 'active'
                   AND deleted_at IS NULL AND NOT is_service AND id <> $1)"""
NEEDS_SETUP: Final[LiteralString] = """
    SELECT NOT EXISTS (
        SELECT FROM users u WHERE u.role = 'admin' AND u.deleted_at IS NULL AND NOT u.is_service
          AND (u.password_hash IS NOT NULL
               OR EXISTS (SELECT FROM user_identities i WHERE i.user_id = u.id)
               OR EXISTS (SELECT FROM credentials c
                          WHERE c.user_id = u.id AND c.kind = 'session')))"""


class NewUser(Struct, frozen=True, kw_only=True):
    id: UserId
    username: str
    role: Role
    email: str | None = None
    name: str = ""
    avatar_url: str | None = None
    is_service: bool = False
    password_hash: str | None = None


class UserChanges(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The new values; UNSET stays as it is."""

    username: str | msgspec.UnsetType = msgspec.UNSET
    email: str | msgspec.UnsetType | None = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    avatar_url: str | msgspec.UnsetType | None = msgspec.UNSET
    role: Role | msgspec.UnsetType = msgspec.UNSET
    status: UserStatus | msgspec.UnsetType = msgspec.UNSET

    @property
    def values(self) -> Mapping[str, object]:
        fields = msgspec.structs.asdict(self).items()
        return {name: value for name, value in fields if value is not msgspec.UNSET}


_OWN_FIELDS: Final = frozenset({"name", "avatar_url"})
"""The fields that users may change in their own account."""


async def create(
    session: DatabaseSession, actor: Actor, new: NewUser, *, ip: str | None = None
) -> User:
    """Raises Forbidden, Conflict for a username or an email that another user has."""
    require_permission(actor, "config.write")
    values = (new.id, new.username, new.email, strip_unstorable(new.name), new.avatar_url)
    try:
        row = await session.fetchrow(INSERT, *values, new.role, new.is_service, new.password_hash)
    except DuplicateRow as error:
        raise _taken(error) from None
    assert row is not None
    user = _user(row)
    await _finish(session, actor, "user.create", user.id, after=user, ip=ip)
    return user


async def get(conn: Conn, actor: Actor, user_id: UserId) -> User | None:
    row = await conn.fetchrow(GET, user_id, readable_user(actor))
    return None if row is None else _user(row)


async def list_page(conn: Conn, actor: Actor, *, after: str | None, limit: int) -> Sequence[User]:
    """Sorted by username, in lower case, from the one after `after`."""
    return [_user(row) for row in await conn.fetch(LIST, after or "", limit, readable_user(actor))]


async def find_by_login(
    conn: Conn, actor: SystemActor, login: str
) -> tuple[User, str | None] | None:
    """The user with this username, else with this email, and the hash of the password."""
    del actor  # only a sign-in and a command read a hash
    text = strip_unstorable(login)
    row = await conn.fetchrow(FIND_BY_USERNAME, text)
    if row is None and "@" in text:
        row = await conn.fetchrow(FIND_BY_EMAIL, text)
    return None if row is None else (_user(row), row["password_hash"])


async def find_by_email(conn: Conn, actor: SystemActor, email: str) -> User | None:
    del actor
    row = await conn.fetchrow(FIND_BY_EMAIL, strip_unstorable(email))
    return None if row is None else _user(row)


async def has_other_administrator(session: DatabaseSession, user_id: UserId) -> bool:
    """Whether there is one besides this user. Holds until the end of the transaction."""
    await session.execute(LOCK_ADMINISTRATORS)
    return bool(await session.fetchval(HAS_OTHER_ADMINISTRATOR, user_id))


async def update(
    session: DatabaseSession,
    actor: Actor,
    user_id: UserId,
    changes: UserChanges,
    *,
    ip: str | None = None,
) -> User:
    """Raises NotFound, Forbidden, Conflict for a taken name and for the last administrator."""
    if not changes.values.keys() <= _OWN_FIELDS:
        require_permission(actor, "config.write")
        await session.execute(LOCK_ADMINISTRATORS)
    reach = writable_user(actor)
    before = await _get_for_update(session, user_id, reach)
    after = msgspec.structs.replace(before, **changes.values)
    fields = (after.username, after.email, strip_unstorable(after.name), after.avatar_url)
    try:
        row = await session.fetchrow(UPDATE, user_id, reach, *fields, after.role, after.status)
    except DuplicateRow as error:
        raise _taken(error) from None
    assert row is not None
    after = _user(row)
    await _require_administrator(session)
    await _finish(
        session, actor, _action(before, after), user_id, before=before, after=after, ip=ip
    )
    return after


async def get_password_hash(conn: Conn, actor: Actor, user_id: UserId) -> str | None:
    return await conn.fetchval(GET_PASSWORD, user_id, writable_user(actor))


async def set_password(
    session: DatabaseSession,
    actor: Actor,
    user_id: UserId,
    password_hash: str,
    *,
    ip: str | None = None,
) -> User:
    """The caller ends the user's sessions. Raises NotFound, Conflict for a service account."""
    reach = writable_user(actor)
    before = await _get_for_update(session, user_id, reach)
    if before.is_service:
        raise Conflict("A service account has no password.", code="service_account")
    await session.execute(SET_PASSWORD, user_id, reach, password_hash)
    after = msgspec.structs.replace(before, has_password=True)
    await _finish(session, actor, "user.set_password", user_id, before=before, after=after, ip=ip)
    return after


async def replace_hash(conn: Conn, actor: SystemActor, user_id: UserId, old: str, new: str) -> None:
    """Store the same password, hashed with newer parameters."""
    del actor
    await conn.execute(REPLACE_HASH, user_id, old, new)


async def delete(
    session: DatabaseSession, actor: Actor, user_id: UserId, *, ip: str | None = None
) -> None:
    """The user's chats stay, and administrators can read them; the user's secrets go. Raises
    NotFound, Forbidden, Conflict for the last administrator."""
    require_permission(actor, "config.write")
    await session.execute(LOCK_ADMINISTRATORS)
    before = await _get_for_update(session, user_id, None)
    await session.execute(DELETE, user_id)
    await _require_administrator(session)
    await _finish(session, actor, "user.delete", user_id, before=before, ip=ip)


async def delete_left_secrets(conn: Conn, actor: SystemActor) -> None:
    """Delete secrets of deleted users, in case one of their requests came at the same moment."""
    del actor
    await conn.execute(DELETE_LEFT_SECRETS)


async def needs_setup(conn: Conn) -> bool:
    """Whether no administrator has signed in or has a way to. No user's data: no actor."""
    return bool(await conn.fetchval(NEEDS_SETUP))


async def _get_for_update(session: DatabaseSession, user_id: UserId, reach: UserId | None) -> User:
    row = await session.fetchrow(GET_FOR_UPDATE, user_id, reach)
    if row is None:
        raise NotFound("There is no such user.")
    return _user(row)


async def _require_administrator(session: DatabaseSession) -> None:
    if not await session.fetchval(HAS_ADMINISTRATOR):
        raise Conflict(
            "This is the last active administrator. Make another user an administrator first.",
            code="last_administrator",
        )


async def _finish(
    session: DatabaseSession,
    actor: Actor,
    action: str,
    user_id: UserId,
    *,
    before: User | None = None,
    after: User | None = None,
    ip: str | None,
) -> None:
    diff = redacted_diff(_fields(before), _fields(after))
    await audit.record(
        session, actor, action=action, object_type="user", object_id=user_id, ip=ip, detail=diff
    )
    await notifications.publish(session, ConfigChange(kind="user", id=str(user_id)))


def _action(before: User, after: User) -> str:
    if before.status != after.status:
        return "user.suspend" if after.status == "suspended" else "user.activate"
    return "user.update"


def _fields(user: User | None) -> Mapping[str, object] | None:
    if user is None:
        return None
    names = ("username", "email", "name", "avatar_url", "role", "status", "is_service")
    return {name: getattr(user, name) for name in (*names, "has_password")}


def _taken(error: DuplicateRow) -> Conflict:
    if error.constraint == "users_by_email":
        return Conflict("Another user has this email.", code="email_taken")
    return Conflict("Another user has this username.", code="username_taken")


def _user(row: Row) -> User:
    names = User.__struct_fields__
    return User(**{name: row[name] for name in names})


# Identities of OpenID providers and their users, and answers of providers that were used.

FIND: Final[LiteralString] = """
    SELECT user_id FROM user_identities WHERE issuer = $1 AND subject = $2"""
INSERT_IDENTITY: Final[LiteralString] = """
    INSERT INTO user_identities (issuer, subject, user_id, email) VALUES ($1, $2, $3, $4)"""
# Kept with the sign-in attempts, which are deleted after ten minutes: as long as an answer lasts.
USE_ANSWER: Final[LiteralString] = """
    INSERT INTO sign_in_attempts (bucket, tokens) VALUES ($1, 0)
    ON CONFLICT (bucket) DO NOTHING RETURNING true"""


async def find(conn: Conn, actor: SystemActor, issuer: str, subject: str) -> UserId | None:
    del actor  # only a sign-in looks for identities
    found = await conn.fetchval(FIND, issuer, strip_unstorable(subject))
    return None if found is None else UserId(found)


async def link(conn: Conn, actor: SystemActor, user_id: UserId, identity: Identity) -> None:
    """Raises DuplicateRow if another sign-in has linked the identity."""
    del actor
    subject = strip_unstorable(identity.subject)
    await conn.execute(INSERT_IDENTITY, identity.issuer, subject, user_id, identity.email)


async def use_answer(conn: Conn, state_digest: bytes) -> bool:
    """False if an answer with this state was used before, on any replica."""
    return bool(await conn.fetchval(USE_ANSWER, f"oidc:{state_digest.hex()}"))
