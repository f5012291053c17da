"""Sessions, API tokens, one-time links and one-time tickets, and how often a sign-in may fail.

Only digests of secrets are stored. A revoked credential is deleted, and the deletion is published
in its transaction, so that every replica drops it from its cache. A used link or ticket is deleted
by the statement that reads it: of two replicas that get the same one, one finds nothing. No secret
can be found by measuring how long a look-up takes: it compares digests, and a digest does not tell
its secret.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.accounts import ActiveCredential, Credential, CredentialKind
from chatd.domain.access.permissions import Actor, SystemActor, UserActor
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import NotFound
from chatd.domain.ids import CredentialId, UserId
from chatd.store.account import audit
from chatd.store.account.users import readable_user, writable_user
from chatd.store.database import notifications
from chatd.store.database.conn import Conn, DatabaseSession, MissingReference, Row, strip_unstorable
from chatd.store.database.row_access import SHARING_ENABLED

SESSION_IDLE: Final = timedelta(hours=24)
SESSION_LIFETIME: Final = timedelta(days=30)
"""A session ends after this time, however much it is used."""
LINK_LIFETIME: Final = timedelta(minutes=15)
TICKET_LIFETIME: Final = timedelta(seconds=60)
MAX_PUBLISHED_REVOCATIONS: Final = 20
"""If more credentials end in one transaction, one notice is published: all may have changed."""

_COLUMNS: Final[LiteralString] = """
    c.id, c.kind, c.user_id, c.name, c.scopes, c.created_at, c.expires_at, c.ends_at,
    c.last_used_at, c.ip, c.user_agent, c.created_by"""
# $13 is the only user that the actor reaches, or NULL. A user makes tokens for their own account,
# and an administrator for service accounts too, which have nothing else. $15 is the token that
# makes the new one, which does not outlive it.
INSERT: Final[LiteralString] = f"""
    INSERT INTO credentials AS c (id, kind, user_id, name, secret_sha256, scopes, expires_at,
        ends_at, last_used_at, ip, user_agent, created_by, parent_id)
    SELECT $1, $2, u.id, $4, $5, $6::text[],
        CASE WHEN $2 = 'session' THEN least(now() + $7::interval, now() + $8::interval)
             ELSE least(coalesce($9::timestamptz, now() + $7::interval),
                 (SELECT m.expires_at FROM credentials m WHERE m.id = $15)) END,
        now() + $8::interval, CASE WHEN $2 = 'session' THEN now() END, $10, $11, $12, $14
    FROM users u
    WHERE u.id = $3 AND u.status = 'active' AND u.deleted_at IS NULL
      AND ($13::uuid IS NULL OR u.id = $13)
      AND ($2 NOT IN ('session', 'link') OR NOT u.is_service)
      AND ($2 <> 'token' OR $12::uuid IS NULL OR u.is_service = (u.id <> $12))
      AND ($15::uuid IS NULL OR EXISTS (SELECT FROM credentials m WHERE m.id = $15))
    RETURNING {_COLUMNS}"""

_ACTIVE: Final[LiteralString] = f"""
    SELECT c.id, c.kind, c.scopes, c.expires_at, c.last_used_at, c.parent_id, u.id AS user_id,
        u.role, u.username, u.last_seen_at, {SHARING_ENABLED} AS sharing
    FROM credentials c JOIN users u ON u.id = c.user_id
    WHERE c.secret_sha256 = $1 AND c.kind = $2
      AND (c.expires_at IS NULL OR c.expires_at > now())
      AND u.status = 'active' AND u.deleted_at IS NULL"""
# Also marks the use, and extends a session, at most once an hour. It waits for no lock, so it is
# part of no deadlock.
LOAD: Final[LiteralString] = f"""
    WITH found AS MATERIALIZED ({_ACTIVE}),
    due AS MATERIALIZED (
        SELECT c.id FROM credentials c JOIN found ON found.id = c.id
        WHERE c.last_used_at IS NULL OR c.last_used_at < now() - interval '1 hour'
           OR (c.kind = 'session' AND c.expires_at < now() + $3::interval - interval '1 hour'
               AND c.expires_at < c.ends_at)
        FOR NO KEY UPDATE OF c SKIP LOCKED),
    used AS (
        UPDATE credentials c SET last_used_at = now(),
            expires_at = CASE WHEN c.kind = 'session'
                THEN least(now() + $3::interval, c.ends_at) ELSE c.expires_at END
        FROM due WHERE c.id = due.id RETURNING c.id, c.expires_at),
    seen AS (
        UPDATE users SET last_seen_at = now() WHERE id IN (
            SELECT u.id FROM users u JOIN found ON found.user_id = u.id
            WHERE EXISTS (SELECT FROM due) FOR NO KEY UPDATE OF u SKIP LOCKED))
    SELECT found.id, found.kind, found.scopes, found.user_id, found.role, found.username,
        found.sharing,
        coalesce(used.expires_at, found.expires_at) AS expires_at,
        extract(epoch FROM coalesce(used.expires_at, found.expires_at) - now())::float8
            AS valid_for_s
    FROM found LEFT JOIN used ON used.id = found.id"""
# A ticket acts as the credential that asked for it, which must still be valid.
USE: Final[LiteralString] = f"""
    WITH found AS MATERIALIZED ({_ACTIVE}),
    used AS (DELETE FROM credentials c USING found WHERE c.id = found.id RETURNING c.id)
    SELECT p.id, coalesce(p.kind, found.kind) AS kind,
        CASE WHEN p.id IS NULL THEN found.scopes ELSE p.scopes END AS scopes,
        found.user_id, found.role, found.username, found.sharing, p.expires_at,
        extract(epoch FROM p.expires_at - now())::float8 AS valid_for_s
    FROM used JOIN found ON found.id = used.id LEFT JOIN credentials p ON p.id = found.parent_id
    WHERE p.expires_at IS NULL OR p.expires_at > now()"""
LOAD_USER: Final[LiteralString] = f"""
    WITH due AS MATERIALIZED (
        SELECT u.id FROM users u
        WHERE u.id = $1 AND (u.last_seen_at IS NULL OR u.last_seen_at < now() - interval '1 hour')
        FOR NO KEY UPDATE OF u SKIP LOCKED),
    seen AS (UPDATE users u SET last_seen_at = now() FROM due WHERE u.id = due.id)
    SELECT u.id AS user_id, u.role, u.username, {SHARING_ENABLED} AS sharing FROM users u
    WHERE u.id = $1 AND u.status = 'active' AND u.deleted_at IS NULL"""
# Without a credential ($2) the user is enough.
CHECK: Final[LiteralString] = f"""
    SELECT u.role, c.scopes, {SHARING_ENABLED} AS sharing
    FROM users u LEFT JOIN credentials c ON c.id = $2 AND c.user_id = u.id
        AND (c.expires_at IS NULL OR c.expires_at > now())
    WHERE u.id = $1 AND u.status = 'active' AND u.deleted_at IS NULL
      AND ($2::uuid IS NULL OR c.id IS NOT NULL)"""
LIST: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM credentials c
    WHERE c.user_id = $1 AND c.kind = $2 AND (c.expires_at IS NULL OR c.expires_at > now())
      AND ($3::uuid IS NULL OR c.user_id = $3)
      AND ($4::timestamptz IS NULL OR (c.created_at, c.id) < ($4, $5::uuid))
    ORDER BY c.created_at DESC, c.id DESC LIMIT $6"""
# Tickets and tokens that it made, and tokens that these made. They are deleted with it.
LIST_DESCENDANTS: Final[LiteralString] = """
    WITH RECURSIVE made AS (
        SELECT c.id FROM credentials c WHERE c.parent_id = $1
        UNION ALL SELECT c.id FROM credentials c JOIN made ON c.parent_id = made.id)
    SELECT id FROM made"""
DELETE: Final[LiteralString] = f"""
    DELETE FROM credentials c
    WHERE c.id = $1 AND c.kind = ANY ($2::text[]) AND ($3::uuid IS NULL OR c.user_id = $3)
      AND ($4::uuid IS NULL OR c.user_id = $4)
    RETURNING {_COLUMNS}"""
DELETE_OF_USER: Final[LiteralString] = """
    DELETE FROM credentials
    WHERE user_id = $1 AND kind = ANY ($2::text[]) AND ($3::uuid IS NULL OR id <> $3)
      AND ($4::uuid IS NULL OR user_id = $4)
    RETURNING id"""
DELETE_EXPIRED: Final[LiteralString] = """
    DELETE FROM credentials WHERE id IN (
        SELECT id FROM credentials WHERE expires_at < now() - interval '1 minute'
        ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)"""


class NewCredential(Struct, frozen=True, kw_only=True):
    """Valid until `expires_at`, or for `lifetime`, or for ever; but not longer than the token
    `made_by`. Deleted with `parent_id`."""

    id: CredentialId
    kind: CredentialKind
    user_id: UserId
    secret_sha256: bytes
    name: str = ""
    scopes: Sequence[str] | None = None
    expires_at: datetime | None = None
    lifetime: timedelta | None = None
    ends_after: timedelta | None = None
    ip: str | None = None
    user_agent: str | None = None
    parent_id: UUID | None = None
    made_by: UUID | None = None


async def insert(conn: Conn, actor: Actor, new: NewCredential) -> Credential:
    """The caller audits it. Raises NotFound for a user that does not exist, is suspended, or is
    not the actor."""
    created_by = actor.user_id if isinstance(actor, UserActor) else None
    # A ticket can do no more than the credential that asks for it: it needs no permission.
    reach = created_by if new.kind == "ticket" else writable_user(actor)
    agent = None if new.user_agent is None else strip_unstorable(new.user_agent)
    try:
        row = await conn.fetchrow(
            INSERT,
            *(new.id, new.kind, new.user_id, strip_unstorable(new.name), new.secret_sha256),
            None if new.scopes is None else list(new.scopes),
            *(new.lifetime, new.ends_after, new.expires_at, new.ip, agent, created_by),
            *(reach, new.parent_id, new.made_by),
        )
    except MissingReference:
        row = None  # the credential that asks for a ticket has been revoked
    if row is None:
        raise NotFound("There is no such active user.")
    return _credential(row)


async def load(conn: Conn, secret_sha256: bytes, kind: CredentialKind) -> ActiveCredential | None:
    """None if it is unknown, expired or revoked, or its user is not active. Takes no actor: this
    is how one becomes known."""
    row = await conn.fetchrow(LOAD, secret_sha256, kind, SESSION_IDLE)
    return None if row is None else _active(row)


async def use(conn: Conn, secret_sha256: bytes, kind: CredentialKind) -> ActiveCredential | None:
    """Consume a link or a ticket. A ticket returns the credential that asked for it, without an id
    if that is the administrator's token."""
    row = await conn.fetchrow(USE, secret_sha256, kind)
    return None if row is None else _active(row)


async def load_user(conn: Conn, user_id: UserId) -> ActiveCredential | None:
    """The holder of the administrator's token, if active."""
    row = await conn.fetchrow(LOAD_USER, user_id)
    if row is None:
        return None
    return ActiveCredential(
        id=None,
        kind="token",
        actor=UserActor(
            user_id=UserId(row["user_id"]), role=row["role"], reads_shared=row["sharing"]
        ),
        username=row["username"],
        expires_at=None,
        valid_for_s=None,
    )


async def check(
    conn: Conn, actor: UserActor, credential_id: CredentialId | None
) -> UserActor | None:
    """The actor as it is now; None if the credential or the user is no longer valid."""
    row = await conn.fetchrow(CHECK, actor.user_id, credential_id)
    if row is None:
        return None
    scopes = actor.scopes if credential_id is None else row["scopes"]
    return UserActor(
        user_id=actor.user_id,
        role=row["role"],
        scopes=None if scopes is None else frozenset(scopes),
        reads_shared=row["sharing"],
    )


async def list_page(
    conn: Conn,
    actor: Actor,
    user_id: UserId,
    kind: CredentialKind,
    *,
    after: tuple[datetime, CredentialId] | None,
    limit: int,
) -> Sequence[Credential]:
    """The newest first."""
    at, last = (None, None) if after is None else after
    rows = await conn.fetch(LIST, user_id, kind, readable_user(actor), at, last, limit)
    return [_credential(row) for row in rows]


async def revoke(
    session: DatabaseSession,
    actor: Actor,
    credential_id: CredentialId,
    kinds: Sequence[CredentialKind],
    *,
    of: UserId | None = None,
    ip: str | None = None,
) -> Credential:
    """Revoke it with the tokens that it made. `of`: only if it belongs to this user. Raises
    NotFound."""
    made = await session.fetch(LIST_DESCENDANTS, credential_id)
    row = await session.fetchrow(DELETE, credential_id, list(kinds), of, writable_user(actor))
    if row is None:
        raise NotFound("There is no such credential.")
    gone = _credential(row)
    await audit.record(
        session,
        actor,
        action=f"{gone.kind}.revoke",
        object_type=gone.kind,
        object_id=gone.id,
        ip=ip,
        detail={"user_id": gone.user_id, "name": gone.name},
    )
    await _publish_end(session, [str(gone.id), *(str(one["id"]) for one in made)])
    return gone


async def revoke_of_user(
    session: DatabaseSession,
    actor: Actor,
    user_id: UserId,
    kinds: Sequence[CredentialKind],
    *,
    keep: CredentialId | None = None,
) -> int:
    """Returns how many were revoked. The caller audits the reason."""
    rows = await session.fetch(DELETE_OF_USER, user_id, list(kinds), keep, writable_user(actor))
    await _publish_end(session, [str(row["id"]) for row in rows])
    return len(rows)


async def _publish_end(session: DatabaseSession, ids: Sequence[str]) -> None:
    for changed in ids if len(ids) <= MAX_PUBLISHED_REVOCATIONS else [""]:
        await notifications.publish(session, ConfigChange(kind="credential", id=changed))


async def delete_expired(conn: Conn, actor: SystemActor, *, limit: int) -> int:
    """Returns how many were deleted. No replica accepts them any more, so nothing is published."""
    del actor
    return int((await conn.execute(DELETE_EXPIRED, limit)).rpartition(" ")[2])


def _credential(row: Row) -> Credential:
    return msgspec.convert(dict(row), Credential)


def _active(row: Row) -> ActiveCredential:
    scopes = row["scopes"]
    return ActiveCredential(
        id=row["id"],
        kind=row["kind"],
        actor=UserActor(
            user_id=UserId(row["user_id"]),
            role=row["role"],
            scopes=None if scopes is None else frozenset(scopes),
            reads_shared=row["sharing"],
        ),
        username=row["username"],
        expires_at=row["expires_at"],
        valid_for_s=row["valid_for_s"],
    )


# Token buckets of sign-ins, in the database so that they hold over all replicas.

# A refused attempt changes nothing: the WHERE fails, and no row is returned.
TAKE: Final[LiteralString] = """
    INSERT INTO sign_in_attempts AS a (bucket, tokens) VALUES ($1, $2::float8 - 1)
    ON CONFLICT (bucket) DO UPDATE SET
        tokens = least($2, a.tokens + extract(epoch FROM now() - a.updated_at) * $2 / 60) - 1,
        updated_at = now()
    WHERE least($2, a.tokens + extract(epoch FROM now() - a.updated_at) * $2 / 60) >= 1
    RETURNING tokens"""
# Goes below zero, down to $3: the deficit says how many events there were beyond the rate.
TAKE_BELOW: Final[LiteralString] = """
    INSERT INTO sign_in_attempts AS a (bucket, tokens) VALUES ($1, $2::float8 - 1)
    ON CONFLICT (bucket) DO UPDATE SET
        tokens = greatest($3::float8,
            least($2, a.tokens + extract(epoch FROM now() - a.updated_at) * $2 / 60) - 1),
        updated_at = now()
    RETURNING tokens"""
GIVE_BACK: Final[LiteralString] = """
    UPDATE sign_in_attempts SET tokens = least($2::float8, tokens + 1) WHERE bucket = $1"""
CLEAR: Final[LiteralString] = "DELETE FROM sign_in_attempts WHERE bucket = $1"
DELETE_OLD: Final[LiteralString] = """
    DELETE FROM sign_in_attempts WHERE bucket IN (
        SELECT bucket FROM sign_in_attempts WHERE updated_at < now() - interval '10 minutes'
        LIMIT $1 FOR UPDATE SKIP LOCKED)"""


async def take_attempt(conn: Conn, bucket: str, *, per_minute: float) -> bool:
    """Whether one more attempt is allowed; it is counted if so. No user's data: no actor."""
    return await conn.fetchval(TAKE, bucket, per_minute) is not None


async def take_attempt_below(conn: Conn, bucket: str, *, per_minute: float, lowest: float) -> float:
    """Count an event in any case; return how many are left, negative if too many happened."""
    return await conn.fetchval(TAKE_BELOW, bucket, per_minute, lowest)


async def give_back_attempt(conn: Conn, bucket: str, *, per_minute: float) -> None:
    """Take back an event that was counted: it was not a failure."""
    await conn.execute(GIVE_BACK, bucket, per_minute)


async def clear_attempts(conn: Conn, bucket: str) -> None:
    """Clear the bucket after a success: only failures count."""
    await conn.execute(CLEAR, bucket)


async def delete_old_attempts(conn: Conn, *, limit: int) -> int:
    """Delete buckets that are full again; returns how many."""
    return int((await conn.execute(DELETE_OLD, limit)).rpartition(" ")[2])
