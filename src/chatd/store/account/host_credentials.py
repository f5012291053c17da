"""Credentials that proxies add to requests of workspaces, sealed: of users, of groups and of the
deployment; and the workspaces that run with them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import Actor, UserActor, require_permission
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.ids import GroupId, UserId, WorkspaceId
from chatd.domain.workspace.host_credentials import CredentialScheme, CredentialScope
from chatd.domain.workspace.pull_requests import GitHostKind
from chatd.store.account import audit
from chatd.store.database.conn import Conn, DatabaseSession, Row
from chatd.store.database.notifications import publish
from chatd.store.database.sealed_columns import SealedColumn

SECRET: Final = SealedColumn(table="host_credentials", column="sealed_secret")
MAX_HOST_CREDENTIALS_PER_USER: Final = 20
MAX_SHARED_HOST_CREDENTIALS: Final = 200
"""Limit for the deployment and all groups together."""
MAX_GRANTED_WORKSPACES: Final = 5000
"""How many running workspaces of one replica's runners get credentials."""

_COLUMNS: Final[LiteralString] = """
    c.id, c.owner_id, c.group_id,
    (SELECT g.name FROM groups g WHERE g.id = c.group_id) AS group_name,
    c.host, c.port, c.path, c.scheme, c.header, c.username, c.sealed_secret, c.created_at"""
LOCK_USER: Final[LiteralString] = """
    SELECT id FROM users WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE"""
# One writer at a time counts and inserts: an arbitrary key for the advisory lock.
LOCK_SHARED: Final[LiteralString] = "SELECT pg_advisory_xact_lock(7018126349)"
FIND_GROUP: Final[LiteralString] = "SELECT id FROM groups WHERE lower(name) = lower($1)"
COUNT_OWN: Final[LiteralString] = "SELECT count(*) FROM host_credentials WHERE owner_id = $1"
COUNT_SHARED: Final[LiteralString] = "SELECT count(*) FROM host_credentials WHERE owner_id IS NULL"
# The secret is bound to the row's id, so a new one takes the place of the whole row.
REPLACE: Final[LiteralString] = """
    DELETE FROM host_credentials
    WHERE host = $1 AND port = $2 AND path = $3 AND owner_id IS NOT DISTINCT FROM $4::uuid
      AND group_id IS NOT DISTINCT FROM $5::uuid"""
INSERT: Final[LiteralString] = f"""
    INSERT INTO host_credentials AS c (id, owner_id, group_id, host, port, path, scheme, header,
        username, sealed_secret, created_by)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) RETURNING {_COLUMNS}"""
LIST_OWN: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM host_credentials c WHERE c.owner_id = $1
    ORDER BY c.host, c.port, c.path, c.id LIMIT 100"""
LIST_SHARED: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM host_credentials c WHERE c.owner_id IS NULL
    ORDER BY c.host, c.port, c.path, c.id LIMIT 1000"""
DELETE_OWN: Final[LiteralString] = f"""
    DELETE FROM host_credentials c WHERE c.id = $1 AND c.owner_id = $2 RETURNING {_COLUMNS}"""
DELETE_SHARED: Final[LiteralString] = f"""
    DELETE FROM host_credentials c WHERE c.id = $1 AND c.owner_id IS NULL RETURNING {_COLUMNS}"""

LIST_ACTIVE: Final[LiteralString] = """
    SELECT id FROM users WHERE id = ANY ($1::uuid[]) AND deleted_at IS NULL AND status = 'active'"""
# What the workspaces of these users may use, by precedence: each row once, with the users that it
# is for. Those of the deployment are for all of them.
LIST_USABLE: Final[LiteralString] = f"""
    SELECT {_COLUMNS}, CASE WHEN c.owner_id IS NOT NULL THEN ARRAY[c.owner_id] ELSE ARRAY(
        SELECT m.user_id FROM group_members m
        WHERE m.group_id = c.group_id AND m.user_id = ANY ($1::uuid[])) END AS user_ids
    FROM host_credentials c WHERE c.owner_id IS NULL OR c.owner_id = ANY ($1::uuid[])
    ORDER BY (c.owner_id IS NULL)::integer + (c.owner_id IS NULL AND c.group_id IS NULL)::integer,
        length(c.path) DESC, c.created_at DESC, c.id"""
LIST_GIT: Final[LiteralString] = """
    SELECT c.id, c.owner_id, c.host, c.kind, c.sealed_token
    FROM git_credentials c JOIN users u ON u.id = c.owner_id
    WHERE c.owner_id = ANY ($1::uuid[]) AND c.in_workspaces AND u.deleted_at IS NULL
      AND u.status = 'active' ORDER BY c.host"""

# Those that run, or start, with a proxy on these runners.
LIST_PROXIED: Final[LiteralString] = """
    SELECT w.id, w.owner_id, w.host_id, coalesce(r.owner_id IS NOT NULL, false) AS is_own_runner,
        ARRAY(SELECT json_array_elements_text(v.spec -> 'allow')) AS allow
    FROM workspaces w
    JOIN workspace_builds b ON b.workspace_id = w.id AND b.build_number = w.latest_build
    JOIN template_versions v ON v.id = b.template_version_id
    LEFT JOIN runners r ON r.id = w.host_id
    WHERE w.host_id = ANY ($1::text[]) AND NOT w.deleted AND b.transition = 'start'
      AND b.status IN ('running', 'succeeded') AND v.spec ->> 'network' = 'allow'
    ORDER BY w.id LIMIT $2"""


class NewStoredCredential(Struct, frozen=True, kw_only=True):
    """With `is_own` it belongs to the actor; else to `group`, or to the deployment."""

    id: UUID
    is_own: bool
    group: str = ""
    host: str
    port: int
    path: str
    scheme: CredentialScheme
    header: str
    username: str
    sealed_secret: str


class StoredCredential(Struct, frozen=True, kw_only=True):
    """`sealed_secret` is never shown."""

    id: UUID
    owner_id: UserId | None
    group_id: GroupId | None
    group_name: str | None
    host: str
    port: int
    path: str
    scheme: CredentialScheme
    header: str
    username: str
    sealed_secret: str
    created_at: datetime

    @property
    def scope(self) -> CredentialScope:
        if self.owner_id is not None:
            return "user"
        return "deployment" if self.group_id is None else "group"


class StoredGitToken(Struct, frozen=True, kw_only=True):
    id: UUID
    owner_id: UserId
    host: str
    kind: GitHostKind
    sealed_token: str


class ProxiedWorkspace(Struct, frozen=True, kw_only=True):
    """`is_own_runner`: a user started its runner, so that user could read what the runner has."""

    id: WorkspaceId
    owner_id: UserId
    host_id: str
    is_own_runner: bool
    allow: tuple[str, ...]


async def save(
    session: DatabaseSession, actor: Actor, new: NewStoredCredential, *, ip: str | None = None
) -> StoredCredential:
    """It replaces the former one for the same host, port and path. The audit log has all but the
    secret. Raises Forbidden, NotFound, InvalidInput, Conflict."""
    owner = group = None
    if new.is_own:
        owner = _own(actor, write=True)
        if await session.fetchval(LOCK_USER, owner) is None:
            raise NotFound("There is no such user.")
    else:
        require_permission(actor, "config.write")
        await session.execute(LOCK_SHARED)
        if new.group:
            group = await session.fetchval(FIND_GROUP, new.group)
            if group is None:
                raise InvalidInput("group", "there is no such group")
    await session.execute(REPLACE, new.host, new.port, new.path, owner, group)
    if new.is_own:
        count: int = await session.fetchval(COUNT_OWN, owner)
        most = MAX_HOST_CREDENTIALS_PER_USER
    else:
        count = await session.fetchval(COUNT_SHARED)
        most = MAX_SHARED_HOST_CREDENTIALS
    if count >= most:
        text = f"There are {count} credentials already. Delete one first."
        raise Conflict(text, code="too_many_host_credentials")
    row = await session.fetchrow(
        INSERT,
        new.id,
        owner,
        group,
        new.host,
        new.port,
        new.path,
        new.scheme,
        new.header,
        new.username,
        new.sealed_secret,
        actor.user_id if isinstance(actor, UserActor) else None,
    )
    assert row is not None
    saved = _credential(row)
    await _record(session, actor, "host_credential.save", saved, ip)
    return saved


async def list_own(conn: Conn, actor: Actor) -> Sequence[StoredCredential]:
    return [_credential(row) for row in await conn.fetch(LIST_OWN, _own(actor))]


async def list_shared(conn: Conn, actor: Actor) -> Sequence[StoredCredential]:
    """Those of the deployment and of groups."""
    require_permission(actor, "config.read")
    return [_credential(row) for row in await conn.fetch(LIST_SHARED)]


async def delete_own(
    session: DatabaseSession, actor: Actor, credential_id: UUID, *, ip: str | None = None
) -> None:
    """Raises Forbidden, NotFound."""
    row = await session.fetchrow(DELETE_OWN, credential_id, _own(actor, write=True))
    await _record(session, actor, "host_credential.delete", _found(row), ip)


async def delete_shared(
    session: DatabaseSession, actor: Actor, credential_id: UUID, *, ip: str | None = None
) -> None:
    """Raises Forbidden, NotFound."""
    require_permission(actor, "config.write")
    row = await session.fetchrow(DELETE_SHARED, credential_id)
    await _record(session, actor, "host_credential.delete", _found(row), ip)


async def list_usable(
    conn: Conn, users: Sequence[UserId]
) -> tuple[Sequence[UserId], Sequence[tuple[StoredCredential, Sequence[UserId]]]]:
    """The active ones of these users, and the credentials for their workspaces by precedence, each
    with its users; one of the deployment is for all, and names none. For the server itself: no
    actor."""
    active = [UserId(row["id"]) for row in await conn.fetch(LIST_ACTIVE, list(users))]
    rows = await conn.fetch(LIST_USABLE, active) if active else []
    return active, [(_credential(row), [UserId(one) for one in row["user_ids"]]) for row in rows]


async def list_git_tokens(conn: Conn, users: Sequence[UserId]) -> Sequence[StoredGitToken]:
    """The tokens that their users also allow git in workspaces to use. For the server itself."""
    return [StoredGitToken(**dict(row)) for row in await conn.fetch(LIST_GIT, list(users))]


async def list_proxied(conn: Conn, runners: Sequence[str]) -> Sequence[ProxiedWorkspace]:
    """The workspaces with a proxy that run on these runners, or start there. For the server
    itself."""
    rows = await conn.fetch(LIST_PROXIED, list(runners), MAX_GRANTED_WORKSPACES)
    return [
        ProxiedWorkspace(
            id=WorkspaceId(row["id"]),
            owner_id=UserId(row["owner_id"]),
            host_id=row["host_id"],
            is_own_runner=row["is_own_runner"],
            allow=tuple(row["allow"]),
        )
        for row in rows
    ]


def _own(actor: Actor, *, write: bool = False) -> UserId:
    """Raises Forbidden."""
    require_permission(actor, "account.write" if write else "account.read")
    assert isinstance(actor, UserActor)
    return actor.user_id


def _found(row: Row | None) -> StoredCredential:
    if row is None:
        raise NotFound("There is no such credential.")
    return _credential(row)


def _credential(row: Row) -> StoredCredential:
    fields = StoredCredential.__struct_fields__
    return StoredCredential(**{name: row[name] for name in fields})


async def _record(
    session: DatabaseSession, actor: Actor, action: str, saved: StoredCredential, ip: str | None
) -> None:
    detail = {
        "host": saved.host,
        "port": saved.port,
        "path": saved.path,
        "scheme": saved.scheme,
        "scope": saved.scope,
        "group": saved.group_name,
    }
    await audit.record(
        session,
        actor,
        action=action,
        object_type="host_credential",
        object_id=saved.id,
        ip=ip,
        detail=detail,
    )
    await publish(session, ConfigChange(kind="host_credential", id=str(saved.id)))
