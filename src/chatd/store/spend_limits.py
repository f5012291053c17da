"""Spend limits that administrators set. Every write is audited, and published to all replicas."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import Actor, UserActor, require_permission
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.deployment.spend import Period
from chatd.domain.errors import NotFound
from chatd.domain.ids import GroupId, UserId
from chatd.store import config_changes
from chatd.store.account import audit
from chatd.store.conn import Conn, DatabaseSession

GET_DEFAULT: Final[LiteralString] = "SELECT micros, period, updated_at FROM default_spend_limit"
SET_DEFAULT: Final[LiteralString] = """
    INSERT INTO default_spend_limit AS d (micros, period, updated_by) VALUES ($1, $2, $3)
    ON CONFLICT (one) DO UPDATE SET micros = excluded.micros, period = excluded.period,
        updated_at = now(), updated_by = excluded.updated_by
    RETURNING micros, period, updated_at"""
DELETE_DEFAULT: Final[LiteralString] = "DELETE FROM default_spend_limit"

_USER_COLUMNS: Final[LiteralString] = "u.id AS user_id, u.username, u.name, u.avatar_url, l.micros"
LIST_USERS: Final[LiteralString] = f"""
    SELECT {_USER_COLUMNS} FROM user_spend_limits l JOIN users u ON u.id = l.user_id
    WHERE u.deleted_at IS NULL AND lower(u.username) > $1 ORDER BY lower(u.username) LIMIT $2"""
SET_USER: Final[LiteralString] = f"""
    WITH l AS (
        INSERT INTO user_spend_limits AS o (user_id, micros)
        SELECT id, $2 FROM users WHERE id = $1 AND deleted_at IS NULL
        ON CONFLICT (user_id) DO UPDATE SET micros = excluded.micros, updated_at = now()
        RETURNING user_id, micros)
    SELECT {_USER_COLUMNS} FROM l JOIN users u ON u.id = l.user_id"""
DELETE_USER: Final[LiteralString] = "DELETE FROM user_spend_limits WHERE user_id = $1"

_GROUP_COLUMNS: Final[LiteralString] = """
    g.id AS group_id, g.name AS group_name, l.micros,
    (SELECT count(*) FROM group_members m WHERE m.group_id = g.id) AS member_count"""
LIST_GROUPS: Final[LiteralString] = f"""
    SELECT {_GROUP_COLUMNS} FROM group_spend_limits l JOIN groups g ON g.id = l.group_id
    WHERE lower(g.name) > $1 ORDER BY lower(g.name) LIMIT $2"""
SET_GROUP: Final[LiteralString] = f"""
    WITH l AS (
        INSERT INTO group_spend_limits AS o (group_id, micros)
        SELECT id, $2 FROM groups WHERE id = $1
        ON CONFLICT (group_id) DO UPDATE SET micros = excluded.micros, updated_at = now()
        RETURNING group_id, micros)
    SELECT {_GROUP_COLUMNS} FROM l JOIN groups g ON g.id = l.group_id"""
DELETE_GROUP: Final[LiteralString] = "DELETE FROM group_spend_limits WHERE group_id = $1"


class StoredDefault(Struct, frozen=True, kw_only=True):
    """Without `micros` there is no default limit."""

    micros: int | None
    period: Period
    updated_at: datetime


class UserLimit(Struct, frozen=True, kw_only=True):
    user_id: UserId
    username: str
    name: str
    avatar_url: str | None
    micros: int


class GroupLimit(Struct, frozen=True, kw_only=True):
    group_id: GroupId
    group_name: str
    member_count: int
    micros: int


async def get_default(conn: Conn, actor: Actor) -> StoredDefault | None:
    """None: that of the settings holds."""
    require_permission(actor, "config.read")
    row = await conn.fetchrow(GET_DEFAULT)
    return None if row is None else StoredDefault(**dict(row))


async def set_default(
    session: DatabaseSession, actor: UserActor, micros: int | None, period: Period
) -> StoredDefault:
    require_permission(actor, "config.write")
    row = await session.fetchrow(SET_DEFAULT, micros, period, actor.user_id)
    assert row is not None
    detail = {"spend_limit_micros": micros, "period": period}
    await _finish(session, actor, "spend_limit.set_default", "default", detail)
    return StoredDefault(**dict(row))


async def delete_default(session: DatabaseSession, actor: UserActor) -> None:
    """From now on that of the settings holds."""
    require_permission(actor, "config.write")
    await session.execute(DELETE_DEFAULT)
    await _finish(session, actor, "spend_limit.delete_default", "default", {})


async def list_users(
    conn: Conn, actor: Actor, *, after: str = "", limit: int
) -> Sequence[UserLimit]:
    require_permission(actor, "config.read")
    return [UserLimit(**dict(row)) for row in await conn.fetch(LIST_USERS, after.lower(), limit)]


async def set_user(
    session: DatabaseSession, actor: UserActor, user_id: UserId, micros: int
) -> UserLimit:
    """Raises NotFound."""
    require_permission(actor, "config.write")
    row = await session.fetchrow(SET_USER, user_id, micros)
    if row is None:
        raise NotFound("There is no such user.")
    await _finish(session, actor, "spend_limit.set_user", user_id, {"spend_limit_micros": micros})
    return UserLimit(**dict(row))


async def delete_user(session: DatabaseSession, actor: UserActor, user_id: UserId) -> None:
    """Raises NotFound."""
    require_permission(actor, "config.write")
    if (await session.execute(DELETE_USER, user_id)).endswith(" 0"):
        raise NotFound("The user has no spend limit of its own.")
    await _finish(session, actor, "spend_limit.delete_user", user_id, {})


async def list_groups(
    conn: Conn, actor: Actor, *, after: str = "", limit: int
) -> Sequence[GroupLimit]:
    require_permission(actor, "config.read")
    return [GroupLimit(**dict(row)) for row in await conn.fetch(LIST_GROUPS, after.lower(), limit)]


async def set_group(
    session: DatabaseSession, actor: UserActor, group_id: GroupId, micros: int
) -> GroupLimit:
    """Raises NotFound."""
    require_permission(actor, "config.write")
    row = await session.fetchrow(SET_GROUP, group_id, micros)
    if row is None:
        raise NotFound("There is no such group.")
    await _finish(session, actor, "spend_limit.set_group", group_id, {"spend_limit_micros": micros})
    return GroupLimit(**dict(row))


async def delete_group(session: DatabaseSession, actor: UserActor, group_id: GroupId) -> None:
    """Raises NotFound."""
    require_permission(actor, "config.write")
    if (await session.execute(DELETE_GROUP, group_id)).endswith(" 0"):
        raise NotFound("The group has no spend limit.")
    await _finish(session, actor, "spend_limit.delete_group", group_id, {})


async def _finish(
    session: DatabaseSession,
    actor: UserActor,
    action: str,
    object_id: UUID | str,
    detail: Mapping[str, object],
) -> None:
    await audit.record(
        session,
        actor,
        action=action,
        object_type="spend_limit",
        object_id=object_id,
        detail=detail,
    )
    await config_changes.publish(session, ConfigChange(kind="limit", id=str(object_id)))
