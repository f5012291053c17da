"""Connections to Slack, and which person of Slack is which user. Administrators read and change
connections, users their own links; the server reads them to act upon events (`slack_work`)."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import Actor, UserActor, require_permission
from chatd.domain.access.secret_text import digest
from chatd.domain.deployment.slack import (
    LINK_CODE_LIFETIME_S,
    MAX_CONNECTIONS,
    MAX_LINK_CODES,
    SlackConnection,
    link_digest_text,
)
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.ids import UserId
from chatd.store.account import audit
from chatd.store.database.conn import Conn, DatabaseSession, DuplicateRow, MissingReference, Row
from chatd.store.database.row_access import SHARING_ENABLED
from chatd.store.database.sealed_columns import SealedColumn

SLACK_BOT_TOKEN: Final = SealedColumn(table="slack_connections", column="bot_token")
SLACK_APP_TOKEN: Final = SealedColumn(table="slack_connections", column="app_token")

_COLUMNS: Final[LiteralString] = """
    c.id, c.name, c.template_id, c.project_id, c.model_config_id, c.match_email, c.enabled,
    c.team_id, c.team_name, c.bot_user_id, c.problem, c.created_at, c.updated_at,
    CASE WHEN c.socket_until > now() THEN c.connected_at END AS connected_at,
    t.name AS template_name, p.name AS project_name"""
_FROM: Final[LiteralString] = """
    FROM slack_connections c LEFT JOIN templates t ON t.id = c.template_id
    LEFT JOIN projects p ON p.id = c.project_id"""
# Taken first, so that two administrators cannot both add the last one.
LOCK: Final[LiteralString] = "LOCK TABLE slack_connections IN SHARE ROW EXCLUSIVE MODE"
COUNT: Final[LiteralString] = "SELECT count(*) FROM slack_connections"
INSERT: Final[LiteralString] = """
    INSERT INTO slack_connections (id, name, template_id, project_id, model_config_id, match_email,
        enabled, bot_token, app_token)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"""
GET: Final[LiteralString] = f"SELECT {_COLUMNS} {_FROM} WHERE c.id = $1"
LIST: Final[LiteralString] = f"SELECT {_COLUMNS} {_FROM} ORDER BY c.created_at, c.id"
# Another token forgets what was wrong with the old one. What the
# holder of the socket compares is `updated_at`.
UPDATE: Final[LiteralString] = """
    UPDATE slack_connections SET name = $2, template_id = $3, project_id = $4,
        model_config_id = $5, match_email = $6, enabled = $7, bot_token = coalesce($8, bot_token),
        app_token = coalesce($9, app_token),
        problem = CASE WHEN $8::text IS NULL AND $9::text IS NULL AND enabled THEN problem END,
        updated_at = clock_timestamp()
    WHERE id = $1 RETURNING id"""
DELETE: Final[LiteralString] = "DELETE FROM slack_connections WHERE id = $1"
_SEALED: Final[LiteralString] = "c.bot_token, c.app_token"
OPEN: Final[LiteralString] = f"SELECT {_COLUMNS}, {_SEALED} {_FROM} WHERE c.id = $1"
LIST_OPEN: Final[LiteralString] = f"""
    SELECT {_COLUMNS}, {_SEALED} {_FROM} WHERE c.enabled ORDER BY c.id"""
HAS_ANY: Final[LiteralString] = """
    SELECT EXISTS (SELECT FROM slack_connections WHERE enabled)
        OR EXISTS (SELECT FROM slack_events WHERE due_at IS NOT NULL)"""
SET_PROBLEM: Final[LiteralString] = """
    UPDATE slack_connections SET problem = $2 WHERE id = $1 AND problem IS DISTINCT FROM $2"""
# The id of a person says who it is within a workspace only.
SET_TEAM: Final[LiteralString] = """
    WITH unlinked AS (
        DELETE FROM slack_links l USING slack_connections c
        WHERE l.connection_id = $1 AND c.id = $1 AND c.team_id NOT IN ('', $2))
    UPDATE slack_connections SET team_id = $2, team_name = $3, bot_user_id = $4 WHERE id = $1"""
# The older one of two enabled connections with the same app.
FIND_TWIN: Final[LiteralString] = """
    SELECT o.name FROM slack_connections o JOIN slack_connections c ON c.id = $1
    WHERE o.enabled AND o.team_id = c.team_id AND o.bot_user_id = c.bot_user_id
      AND c.team_id <> '' AND (o.created_at, o.id) < (c.created_at, c.id)
    ORDER BY o.created_at LIMIT 1"""
REST: Final[LiteralString] = """
    UPDATE slack_connections
    SET rest_until = greatest(rest_until, now() + $2::float8 * interval '1 s') WHERE id = $1"""
# One process holds the connection to Slack, until its time is over.
HOLD: Final[LiteralString] = """
    UPDATE slack_connections SET socket_until = now() + $3::float8 * interval '1 s',
        connected_at = CASE WHEN socket_holder = $2 THEN connected_at END, socket_holder = $2
    WHERE id = $1 AND enabled
      AND (socket_holder = $2 OR socket_until IS NULL OR socket_until <= now()) RETURNING id"""
CONNECTED: Final[LiteralString] = """
    UPDATE slack_connections SET connected_at = CASE WHEN $3::boolean THEN now() END
    WHERE id = $1 AND socket_holder = $2"""
RELEASE: Final[LiteralString] = """
    UPDATE slack_connections SET socket_until = now(), connected_at = NULL
    WHERE id = $1 AND socket_holder = $2"""

_PERSON: Final[LiteralString] = f"u.id AS user_id, u.role, u.username, {SHARING_ENABLED} AS sharing"
_IS_ACTIVE: Final[LiteralString] = "u.status = 'active' AND u.deleted_at IS NULL"
FIND_PERSON: Final[LiteralString] = f"""
    SELECT {_PERSON} FROM slack_links l JOIN users u ON u.id = l.user_id
    WHERE l.connection_id = $1 AND l.slack_user = $2 AND {_IS_ACTIVE}"""
FIND_BY_EMAIL: Final[LiteralString] = f"""
    SELECT {_PERSON} FROM users u
    WHERE lower(u.email) = lower($1) AND u.email IS NOT NULL AND NOT u.is_service
      AND {_IS_ACTIVE}"""
INSERT_CODE: Final[LiteralString] = """
    INSERT INTO slack_link_codes (code_sha256, user_id, expires_at)
    SELECT $1, u.id, now() + $3::float8 * interval '1 s' FROM users u
    WHERE u.id = $2 AND u.deleted_at IS NULL RETURNING expires_at"""
TRIM_CODES: Final[LiteralString] = """
    DELETE FROM slack_link_codes WHERE user_id = $1 AND code_sha256 NOT IN (
        SELECT code_sha256 FROM slack_link_codes WHERE user_id = $1
        ORDER BY expires_at DESC LIMIT $2)"""
USE_CODE: Final[LiteralString] = f"""
    WITH used AS (DELETE FROM slack_link_codes WHERE code_sha256 = $1 RETURNING user_id, expires_at)
    SELECT {_PERSON} FROM used JOIN users u ON u.id = used.user_id
    WHERE used.expires_at > now() AND {_IS_ACTIVE}"""
LINK: Final[LiteralString] = """
    INSERT INTO slack_links (id, connection_id, slack_user, slack_name, user_id)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (connection_id, slack_user) DO UPDATE SET user_id = excluded.user_id,
        slack_name = excluded.slack_name, created_at = clock_timestamp()
    RETURNING id"""
LIST_LINKS: Final[LiteralString] = """
    SELECT l.id, l.connection_id, c.name AS connection_name, c.team_name, l.slack_user,
        l.slack_name, l.created_at
    FROM slack_links l JOIN slack_connections c ON c.id = l.connection_id
    WHERE l.user_id = $1 ORDER BY l.created_at, l.id"""
DELETE_LINK: Final[LiteralString] = """
    DELETE FROM slack_links WHERE id = $1 AND user_id = $2 RETURNING slack_name, slack_user"""
DELETE_CODES: Final[LiteralString] = """
    DELETE FROM slack_link_codes WHERE code_sha256 IN (
        SELECT code_sha256 FROM slack_link_codes WHERE expires_at < now()
        ORDER BY expires_at LIMIT $1)"""


class StoredSlack(Struct, frozen=True, kw_only=True):
    """`connected_at`: since when a process is connected to Slack; None: none is."""

    connection: SlackConnection
    template_name: str | None
    project_name: str | None
    connected_at: datetime | None
    created_at: datetime
    updated_at: datetime


class OpenSlack(StoredSlack, frozen=True, kw_only=True):
    sealed_bot_token: str
    sealed_app_token: str


class SlackPerson(Struct, frozen=True, kw_only=True):
    """The user that a person of Slack is."""

    actor: UserActor
    username: str


class SlackLink(Struct, frozen=True, kw_only=True):
    id: UUID
    connection_id: UUID
    connection_name: str
    team_name: str
    slack_user: str
    slack_name: str
    created_at: datetime


async def insert(
    session: DatabaseSession,
    actor: Actor,
    new: SlackConnection,
    *,
    sealed_bot_token: str,
    sealed_app_token: str,
    ip: str | None = None,
) -> StoredSlack:
    """Raises Forbidden, InvalidInput, Conflict."""
    require_permission(actor, "config.write")
    await session.execute(LOCK)
    if await session.fetchval(COUNT) >= MAX_CONNECTIONS:
        text = f"There are {MAX_CONNECTIONS} connections to Slack already. Delete one first."
        raise Conflict(text, code="too_many_slack_connections")
    try:
        await session.execute(
            INSERT,
            new.id,
            new.name,
            new.template_id,
            new.project_id,
            new.model_config_id,
            new.match_email,
            new.enabled,
            sealed_bot_token,
            sealed_app_token,
        )
    except DuplicateRow:
        raise _exists() from None
    except MissingReference:
        raise InvalidInput("project_id", "there is no such project") from None
    return await _changed(session, actor, ip, "slack_connection.create", new.id)


async def update(
    session: DatabaseSession,
    actor: Actor,
    changed: SlackConnection,
    *,
    sealed_bot_token: str | None,
    sealed_app_token: str | None,
    ip: str | None = None,
) -> StoredSlack:
    """None keeps a token. Raises Forbidden, NotFound, InvalidInput, Conflict."""
    require_permission(actor, "config.write")
    try:
        found = await session.fetchval(
            UPDATE,
            changed.id,
            changed.name,
            changed.template_id,
            changed.project_id,
            changed.model_config_id,
            changed.match_email,
            changed.enabled,
            sealed_bot_token,
            sealed_app_token,
        )
    except DuplicateRow:
        raise _exists() from None
    except MissingReference:
        raise InvalidInput("project_id", "there is no such project") from None
    if found is None:
        raise _missing()
    return await _changed(session, actor, ip, "slack_connection.update", changed.id)


async def delete(
    session: DatabaseSession, actor: Actor, connection_id: UUID, *, ip: str | None = None
) -> None:
    """Raises Forbidden, NotFound."""
    require_permission(actor, "config.write")
    await _changed(session, actor, ip, "slack_connection.delete", connection_id)
    await session.execute(DELETE, connection_id)


async def get(conn: Conn, actor: Actor, connection_id: UUID) -> StoredSlack:
    """Raises Forbidden, NotFound."""
    require_permission(actor, "config.read")
    row = await conn.fetchrow(GET, connection_id)
    if row is None:
        raise _missing()
    return _stored(row)


async def list_all(conn: Conn, actor: Actor) -> Sequence[StoredSlack]:
    require_permission(actor, "config.read")
    return [_stored(row) for row in await conn.fetch(LIST)]


async def open_connection(conn: Conn, connection_id: UUID) -> OpenSlack | None:
    """With its sealed tokens, for the server itself."""
    row = await conn.fetchrow(OPEN, connection_id)
    return None if row is None else _opened(row)


async def list_open(conn: Conn) -> Sequence[OpenSlack]:
    """The enabled connections, for the server itself."""
    return [_opened(row) for row in await conn.fetch(LIST_OPEN)]


async def has_any(conn: Conn) -> bool:
    """Whether any connection is enabled, or has events left from when it was. For the server
    itself."""
    return await conn.fetchval(HAS_ANY)


async def set_problem(conn: Conn, connection_id: UUID, problem: str | None) -> None:
    await conn.execute(SET_PROBLEM, connection_id, problem)


async def set_team(
    conn: Conn, connection_id: UUID, *, team_id: str, team_name: str, bot_user_id: str
) -> None:
    await conn.execute(SET_TEAM, connection_id, team_id, team_name, bot_user_id)


async def find_twin(conn: Conn, connection_id: UUID) -> str | None:
    """The name of an older connection with the same app. For the server itself."""
    return await conn.fetchval(FIND_TWIN, connection_id)


async def rest(conn: Conn, connection_id: UUID, seconds: float) -> None:
    """Slack is asked nothing for this connection for so long."""
    await conn.execute(REST, connection_id, seconds)


async def hold(conn: Conn, connection_id: UUID, holder: UUID, seconds: float) -> bool:
    """Whether this process holds the connection to Slack now. To hold it again prolongs it."""
    return await conn.fetchval(HOLD, connection_id, holder, seconds) is not None


async def set_connected(
    conn: Conn, connection_id: UUID, holder: UUID, *, is_connected: bool
) -> None:
    await conn.execute(CONNECTED, connection_id, holder, is_connected)


async def release(conn: Conn, connection_id: UUID, holder: UUID) -> None:
    await conn.execute(RELEASE, connection_id, holder)


# Persons


async def find_person(conn: Conn, connection_id: UUID, slack_user: str) -> SlackPerson | None:
    """The user who linked this person of Slack, if the user may sign in."""
    row = await conn.fetchrow(FIND_PERSON, connection_id, slack_user)
    return None if row is None else _person(row)


async def find_person_by_email(conn: Conn, email: str) -> SlackPerson | None:
    row = await conn.fetchrow(FIND_BY_EMAIL, email)
    return None if row is None else _person(row)


async def make_code(session: DatabaseSession, actor: UserActor, code: str) -> datetime:
    """When it expires. Raises Forbidden, NotFound."""
    require_permission(actor, "account.write")
    sealed = digest(link_digest_text(code))
    expires_at = await session.fetchval(INSERT_CODE, sealed, actor.user_id, LINK_CODE_LIFETIME_S)
    if expires_at is None:
        raise NotFound("There is no such user.")
    await session.execute(TRIM_CODES, actor.user_id, MAX_LINK_CODES)
    return expires_at


async def use_code(
    session: DatabaseSession,
    code: str,
    *,
    connection_id: UUID,
    link_id: UUID,
    slack_user: str,
    slack_name: str,
) -> SlackPerson | None:
    """None: there is no such code, or no longer. It counts once."""
    row = await session.fetchrow(USE_CODE, digest(link_digest_text(code)))
    if row is None:
        return None
    person = _person(row)
    stored = await session.fetchval(
        LINK, link_id, connection_id, slack_user, slack_name, person.actor.user_id
    )
    await audit.record(
        session,
        person.actor,
        action="slack_link.create",
        object_type="slack_link",
        object_id=stored,
        detail={"name": slack_name or slack_user, "slack_user": slack_user},
    )
    return person


async def revoke_code(session: DatabaseSession, code: str) -> bool:
    """Revoke a code that others may have read. Whether it counted."""
    return await session.fetchrow(USE_CODE, digest(link_digest_text(code))) is not None


async def list_links(conn: Conn, actor: UserActor) -> Sequence[SlackLink]:
    """The actor's own."""
    require_permission(actor, "account.read")
    rows = await conn.fetch(LIST_LINKS, actor.user_id)
    return [SlackLink(**{name: row[name] for name in SlackLink.__struct_fields__}) for row in rows]


async def delete_link(
    session: DatabaseSession, actor: UserActor, link_id: UUID, *, ip: str | None = None
) -> None:
    """Raises Forbidden, NotFound."""
    require_permission(actor, "account.write")
    row = await session.fetchrow(DELETE_LINK, link_id, actor.user_id)
    if row is None:
        raise NotFound("There is no such link to Slack.")
    await audit.record(
        session,
        actor,
        action="slack_link.delete",
        object_type="slack_link",
        object_id=link_id,
        ip=ip,
        detail={"name": row["slack_name"] or row["slack_user"], "slack_user": row["slack_user"]},
    )


async def delete_codes(conn: Conn, *, limit: int) -> int:
    """Delete the expired codes."""
    status = await conn.execute(DELETE_CODES, limit)
    return int(status.rpartition(" ")[2])


def _person(row: Row) -> SlackPerson:
    actor = UserActor(user_id=UserId(row["user_id"]), role=row["role"], reads_shared=row["sharing"])
    return SlackPerson(actor=actor, username=row["username"])


def _connection(row: Row) -> SlackConnection:
    return msgspec.convert(
        {name: row[name] for name in SlackConnection.__struct_fields__}, SlackConnection
    )


def _stored(row: Row) -> StoredSlack:
    return StoredSlack(
        connection=_connection(row),
        template_name=row["template_name"],
        project_name=row["project_name"],
        connected_at=row["connected_at"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _opened(row: Row) -> OpenSlack:
    known = msgspec.structs.asdict(_stored(row))
    return OpenSlack(**known, sealed_bot_token=row["bot_token"], sealed_app_token=row["app_token"])


async def _changed(
    session: DatabaseSession, actor: Actor, ip: str | None, action: str, connection_id: UUID
) -> StoredSlack:
    """The audit log has all but the tokens."""
    row = await session.fetchrow(GET, connection_id)
    if row is None:
        raise _missing()
    found = _stored(row)
    one = found.connection
    detail = {
        "name": one.name,
        "team": one.team_name,
        "template": found.template_name,
        "project": found.project_name,
        "match_email": one.match_email,
        "enabled": one.enabled,
    }
    await audit.record(
        session,
        actor,
        action=action,
        object_type="slack_connection",
        object_id=connection_id,
        ip=ip,
        detail=detail,
    )
    return found


def _missing() -> NotFound:
    return NotFound("There is no such connection to Slack.")


def _exists() -> Conflict:
    text = "There is another connection to Slack with this name."
    return Conflict(text, code="slack_connection_exists")
