"""Connections to repositories of git hosts. Administrators read and change them; the server reads
them with their sealed secrets, to check deliveries and to act upon them (`repository_work`)."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import Actor, UserActor, require_permission
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.repositories import MAX_CONNECTIONS, RepositoryConnection
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.ids import ModelConfigId, UserId
from chatd.domain.workspace.entities import TemplateId
from chatd.domain.workspace.pull_requests import GitHostKind
from chatd.store.account import audit
from chatd.store.database.conn import Conn, DatabaseSession, DuplicateRow, Row
from chatd.store.database.notifications import publish
from chatd.store.database.sealed_columns import SealedColumn

REPOSITORY_TOKEN: Final = SealedColumn(table="repository_connections", column="token")
REPOSITORY_KEY: Final = SealedColumn(table="repository_connections", column="private_key")
REPOSITORY_SECRET: Final = SealedColumn(table="repository_connections", column="secret")

_COLUMNS: Final[LiteralString] = """
    c.id, c.name, c.vendor, c.url, c.repositories, c.mention, c.label, c.template_id,
    c.model_config_id, c.user_id, c.allowed, c.check_rounds, c.enabled, c.app_id, c.problem,
    c.created_at, c.updated_at, t.name AS template_name, u.username"""
_FROM: Final[LiteralString] = """
    FROM repository_connections c JOIN templates t ON t.id = c.template_id
    JOIN users u ON u.id = c.user_id"""
# Taken first, so that two administrators cannot both add the last one.
LOCK: Final[LiteralString] = "LOCK TABLE repository_connections IN SHARE ROW EXCLUSIVE MODE"
COUNT: Final[LiteralString] = "SELECT count(*) FROM repository_connections"
FIND_USER: Final[LiteralString] = "SELECT id FROM users WHERE id = $1 AND deleted_at IS NULL"
INSERT: Final[LiteralString] = """
    INSERT INTO repository_connections (id, name, vendor, url, repositories, mention, label,
        template_id, model_config_id, user_id, allowed, check_rounds, enabled, secret, token,
        private_key, app_id)
    VALUES ($1, $2, $3, $4, $5::text[], $6, $7, $8, $9, $10, $11::text[], $12, $13, $14, $15, $16,
        $17)"""
GET: Final[LiteralString] = f"SELECT {_COLUMNS} {_FROM} WHERE c.id = $1"
LIST: Final[LiteralString] = f"SELECT {_COLUMNS} {_FROM} ORDER BY c.created_at, c.id"
# Another token or App, and enabling it again, forget what was wrong with the old one.
UPDATE: Final[LiteralString] = """
    UPDATE repository_connections SET name = $2, repositories = $3::text[], mention = $4,
        label = $5, template_id = $6, model_config_id = $7, user_id = $8, allowed = $9::text[],
        check_rounds = $10, enabled = $11, secret = coalesce($12, secret),
        token = CASE WHEN coalesce($13::text, $14) IS NULL THEN token ELSE $13 END,
        private_key = CASE WHEN coalesce($13::text, $14) IS NULL THEN private_key ELSE $14 END,
        app_id = CASE WHEN coalesce($13::text, $14) IS NULL THEN app_id ELSE $15 END,
        problem = CASE WHEN coalesce($13::text, $14) IS NULL AND enabled THEN problem END,
        updated_at = clock_timestamp()
    WHERE id = $1 RETURNING id"""
DELETE: Final[LiteralString] = "DELETE FROM repository_connections WHERE id = $1"
OPEN: Final[LiteralString] = f"""
    SELECT {_COLUMNS}, c.token, c.private_key, c.secret, u.role,
        u.status = 'active' AND u.deleted_at IS NULL AS is_active {_FROM} WHERE c.id = $1"""
SET_PROBLEM: Final[LiteralString] = """
    UPDATE repository_connections SET problem = $2 WHERE id = $1 AND problem IS DISTINCT FROM $2"""
REST: Final[LiteralString] = """
    UPDATE repository_connections
    SET rest_until = greatest(rest_until, now() + $2::float8 * interval '1 s') WHERE id = $1"""
HAS_ANY: Final[LiteralString] = "SELECT EXISTS (SELECT FROM repository_connections WHERE enabled)"


class StoredConnection(Struct, frozen=True, kw_only=True):
    connection: RepositoryConnection
    template_name: str
    username: str
    created_at: datetime
    updated_at: datetime


class SealedAccess(Struct, frozen=True, kw_only=True):
    """How the server acts at the host of the connection `id`: with a token, or with the private key
    of the App `app_id`. Both are sealed."""

    id: UUID
    vendor: GitHostKind
    url: str
    app_id: str | None
    token: str | None
    private_key: str | None


class OpenConnection(Struct, frozen=True, kw_only=True):
    """A connection with what the server needs to act for it. Its chats belong to the user
    `actor`."""

    connection: RepositoryConnection
    actor: UserActor
    is_active: bool
    access: SealedAccess
    sealed_secret: str


async def insert(
    session: DatabaseSession,
    actor: Actor,
    new: RepositoryConnection,
    *,
    sealed_secret: str,
    sealed_token: str | None = None,
    sealed_key: str | None = None,
    ip: str | None = None,
) -> StoredConnection:
    """With a token, or with the key of the App that it names. Raises Forbidden, InvalidInput,
    Conflict."""
    require_permission(actor, "config.write")
    await session.execute(LOCK)
    if await session.fetchval(COUNT) >= MAX_CONNECTIONS:
        text = f"There are {MAX_CONNECTIONS} connections already. Delete one first."
        raise Conflict(text, code="too_many_repository_connections")
    await _require_user(session, new.user_id)
    try:
        await session.execute(
            INSERT,
            new.id,
            new.name,
            new.vendor,
            new.url,
            list(new.repositories),
            new.mention,
            new.label,
            new.template_id,
            new.model_config_id,
            new.user_id,
            list(new.allowed),
            new.check_rounds,
            new.enabled,
            sealed_secret,
            sealed_token,
            sealed_key,
            new.app_id,
        )
    except DuplicateRow:
        raise _exists() from None
    return await _changed(session, actor, ip, "repository_connection.create", new.id)


async def update(
    session: DatabaseSession,
    actor: Actor,
    changed: RepositoryConnection,
    *,
    sealed_secret: str | None = None,
    sealed_token: str | None = None,
    sealed_key: str | None = None,
    ip: str | None = None,
) -> StoredConnection:
    """None keeps a secret; a token or a key replaces the other one. Raises Forbidden, NotFound,
    InvalidInput, Conflict."""
    require_permission(actor, "config.write")
    await _require_user(session, changed.user_id)
    try:
        found = await session.fetchval(
            UPDATE,
            changed.id,
            changed.name,
            list(changed.repositories),
            changed.mention,
            changed.label,
            changed.template_id,
            changed.model_config_id,
            changed.user_id,
            list(changed.allowed),
            changed.check_rounds,
            changed.enabled,
            sealed_secret,
            sealed_token,
            sealed_key,
            changed.app_id,
        )
    except DuplicateRow:
        raise _exists() from None
    if found is None:
        raise _missing()
    return await _changed(session, actor, ip, "repository_connection.update", changed.id)


async def delete(
    session: DatabaseSession, actor: Actor, connection_id: UUID, *, ip: str | None = None
) -> None:
    """Raises Forbidden, NotFound."""
    require_permission(actor, "config.write")
    await _changed(session, actor, ip, "repository_connection.delete", connection_id)
    await session.execute(DELETE, connection_id)


async def get(conn: Conn, actor: Actor, connection_id: UUID) -> StoredConnection:
    """Raises Forbidden, NotFound."""
    require_permission(actor, "config.read")
    row = await conn.fetchrow(GET, connection_id)
    if row is None:
        raise _missing()
    return _stored(row)


async def list_all(conn: Conn, actor: Actor) -> Sequence[StoredConnection]:
    require_permission(actor, "config.read")
    return [_stored(row) for row in await conn.fetch(LIST)]


async def open_connection(conn: Conn, connection_id: UUID) -> OpenConnection | None:
    """For the server itself: to check a delivery, and to act upon it."""
    row = await conn.fetchrow(OPEN, connection_id)
    if row is None:
        return None
    return OpenConnection(
        connection=_connection(row),
        actor=UserActor(user_id=UserId(row["user_id"]), role=row["role"]),
        is_active=row["is_active"],
        access=read_access(row),
        sealed_secret=row["secret"],
    )


async def set_problem(conn: Conn, connection_id: UUID, problem: str | None) -> bool:
    """Returns whether it changed. For the server itself."""
    status = await conn.execute(SET_PROBLEM, connection_id, problem)
    return status != "UPDATE 0"


async def rest(conn: Conn, connection_id: UUID, seconds: float) -> None:
    """Make no request to the host for this connection for this long. For the server itself."""
    await conn.execute(REST, connection_id, seconds)


async def has_any(conn: Conn) -> bool:
    """Whether any connection is enabled. For the server itself."""
    return await conn.fetchval(HAS_ANY)


def read_access(row: Row) -> SealedAccess:
    return SealedAccess(**{name: row[name] for name in SealedAccess.__struct_fields__})


def _connection(row: Row) -> RepositoryConnection:
    model: UUID | None = row["model_config_id"]
    return RepositoryConnection(
        id=row["id"],
        name=row["name"],
        vendor=row["vendor"],
        url=row["url"],
        repositories=tuple(row["repositories"]),
        mention=row["mention"],
        label=row["label"],
        template_id=TemplateId(row["template_id"]),
        model_config_id=None if model is None else ModelConfigId(model),
        user_id=UserId(row["user_id"]),
        allowed=tuple(row["allowed"]),
        check_rounds=row["check_rounds"],
        enabled=row["enabled"],
        app_id=row["app_id"],
        problem=row["problem"],
    )


def _stored(row: Row) -> StoredConnection:
    return StoredConnection(
        connection=_connection(row),
        template_name=row["template_name"],
        username=row["username"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


async def _require_user(session: DatabaseSession, user_id: UserId) -> None:
    if await session.fetchval(FIND_USER, user_id) is None:
        raise InvalidInput("user_id", "there is no such user")


async def _changed(
    session: DatabaseSession, actor: Actor, ip: str | None, action: str, connection_id: UUID
) -> StoredConnection:
    """The audit log has all but the secrets."""
    row = await session.fetchrow(GET, connection_id)
    if row is None:
        raise _missing()
    found = _stored(row)
    one = found.connection
    detail = {
        "name": one.name,
        "vendor": one.vendor,
        "host": one.host,
        "repositories": list(one.repositories),
        "template": found.template_name,
        "user": found.username,
        "allowed": list(one.allowed),
        "check_rounds": one.check_rounds,
        "enabled": one.enabled,
        "app_id": one.app_id,
    }
    await audit.record(
        session,
        actor,
        action=action,
        object_type="repository_connection",
        object_id=connection_id,
        ip=ip,
        detail=detail,
    )
    # Workspaces get its token by their proxies.
    await publish(session, ConfigChange(kind="host_credential", id=str(connection_id)))
    return found


def _missing() -> NotFound:
    return NotFound("There is no such connection to a repository.")


def _exists() -> Conflict:
    text = "There is another connection to a repository with this name."
    return Conflict(text, code="repository_connection_exists")
