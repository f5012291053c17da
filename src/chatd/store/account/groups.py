"""Groups and their members. Every write is audited, and published to all replicas."""

from collections.abc import Mapping, Sequence
from typing import Final, LiteralString

from chatd.domain.access.accounts import Group, User, redacted_diff
from chatd.domain.access.permissions import Actor, require_permission
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import Conflict, NotFound
from chatd.domain.ids import GroupId, UserId
from chatd.store.account import audit
from chatd.store.database import notifications
from chatd.store.database.conn import (
    Conn,
    DatabaseSession,
    DuplicateRow,
    MissingReference,
    Row,
    strip_unstorable,
)

_COLUMNS: Final[LiteralString] = """
    g.id, g.name, g.created_at,
    (SELECT count(*) FROM group_members m WHERE m.group_id = g.id) AS member_count"""
INSERT: Final[LiteralString] = f"""
    INSERT INTO groups AS g (id, name) VALUES ($1, $2) RETURNING {_COLUMNS}"""
GET: Final[LiteralString] = f"SELECT {_COLUMNS} FROM groups g WHERE g.id = $1"
FIND: Final[LiteralString] = f"SELECT {_COLUMNS} FROM groups g WHERE lower(g.name) = lower($1)"
LIST: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM groups g WHERE lower(g.name) > $1 ORDER BY lower(g.name) LIMIT $2"""
RENAME: Final[LiteralString] = f"""
    UPDATE groups g SET name = $2 WHERE g.id = $1 RETURNING {_COLUMNS}"""
DELETE: Final[LiteralString] = "DELETE FROM groups WHERE id = $1"
LIST_MEMBERS: Final[LiteralString] = """
    SELECT u.id, u.username, u.email, u.name, u.avatar_url, u.role, u.status, u.is_service,
        u.password_hash IS NOT NULL AS has_password, u.created_at, u.updated_at, u.last_seen_at
    FROM group_members m JOIN users u ON u.id = m.user_id
    WHERE m.group_id = $1 AND u.deleted_at IS NULL AND ($2::uuid IS NULL OR m.user_id > $2)
    ORDER BY m.user_id LIMIT $3"""
ADD_MEMBER: Final[LiteralString] = """
    INSERT INTO group_members (user_id, group_id)
    SELECT u.id, $2 FROM users u WHERE u.id = $1 AND u.deleted_at IS NULL
    ON CONFLICT DO NOTHING"""
HAS_USER: Final[LiteralString] = """
    SELECT EXISTS (SELECT FROM users WHERE id = $1 AND deleted_at IS NULL)"""
REMOVE_MEMBER: Final[LiteralString] = """
    DELETE FROM group_members WHERE user_id = $1 AND group_id = $2"""
LIST_OF_USER: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM group_members m JOIN groups g ON g.id = m.group_id
    WHERE m.user_id = $1 ORDER BY lower(g.name)"""


async def create(
    session: DatabaseSession, actor: Actor, group_id: GroupId, name: str, *, ip: str | None = None
) -> Group:
    """Raises Forbidden, Conflict for a name that another group has."""
    require_permission(actor, "config.write")
    try:
        row = await session.fetchrow(INSERT, group_id, strip_unstorable(name))
    except DuplicateRow:
        raise _taken() from None
    assert row is not None
    diff = redacted_diff(None, {"name": name})
    await _finish(session, actor, "group.create", group_id, diff, ip=ip)
    return _group(row)


async def get(conn: Conn, actor: Actor, group_id: GroupId) -> Group:
    """Raises Forbidden, NotFound."""
    require_permission(actor, "config.read")
    return _found(await conn.fetchrow(GET, group_id))


async def find(conn: Conn, actor: Actor, name: str) -> Group | None:
    require_permission(actor, "config.read")
    row = await conn.fetchrow(FIND, strip_unstorable(name))
    return None if row is None else _group(row)


async def list_page(conn: Conn, actor: Actor, *, after: str | None, limit: int) -> Sequence[Group]:
    """Sorted by name, in lower case, from the one after `after`."""
    require_permission(actor, "config.read")
    return [_group(row) for row in await conn.fetch(LIST, after or "", limit)]


async def list_of_user(conn: Conn, actor: Actor, user_id: UserId) -> Sequence[Group]:
    require_permission(actor, "config.read")
    return [_group(row) for row in await conn.fetch(LIST_OF_USER, user_id)]


async def rename(
    session: DatabaseSession, actor: Actor, group_id: GroupId, name: str, *, ip: str | None = None
) -> Group:
    """Raises Forbidden, NotFound, Conflict."""
    require_permission(actor, "config.write")
    before = await get(session, actor, group_id)
    try:
        group = _found(await session.fetchrow(RENAME, group_id, strip_unstorable(name)))
    except DuplicateRow:
        raise _taken() from None
    diff = redacted_diff({"name": before.name}, {"name": group.name})
    await _finish(session, actor, "group.update", group_id, diff, ip=ip)
    return group


async def delete(
    session: DatabaseSession, actor: Actor, group_id: GroupId, *, ip: str | None = None
) -> None:
    """What is shared with the group is no longer shared. Raises Forbidden, NotFound."""
    require_permission(actor, "config.write")
    before = await get(session, actor, group_id)
    await session.execute(DELETE, group_id)
    diff = redacted_diff({"name": before.name}, None)
    await _finish(session, actor, "group.delete", group_id, diff, ip=ip)


async def list_members(
    conn: Conn, actor: Actor, group_id: GroupId, *, after: UserId | None, limit: int
) -> Sequence[User]:
    """Sorted by id. Raises Forbidden."""
    require_permission(actor, "config.read")
    return [User(**dict(row)) for row in await conn.fetch(LIST_MEMBERS, group_id, after, limit)]


async def add_member(
    session: DatabaseSession,
    actor: Actor,
    group_id: GroupId,
    user_id: UserId,
    *,
    ip: str | None = None,
) -> None:
    """Nothing happens if the user is a member. Raises Forbidden, NotFound."""
    require_permission(actor, "config.write")
    try:
        done = await session.execute(ADD_MEMBER, user_id, group_id)
    except MissingReference:
        raise NotFound("There is no such group.") from None
    if done.endswith(" 0"):
        if not await session.fetchval(HAS_USER, user_id):
            raise NotFound("There is no such user.")
        return
    await _finish(session, actor, "group.add_member", group_id, {"user_id": user_id}, ip=ip)


async def remove_member(
    session: DatabaseSession,
    actor: Actor,
    group_id: GroupId,
    user_id: UserId,
    *,
    ip: str | None = None,
) -> None:
    """Raises Forbidden, NotFound."""
    require_permission(actor, "config.write")
    if (await session.execute(REMOVE_MEMBER, user_id, group_id)).endswith(" 0"):
        raise NotFound("The user is not a member of this group.")
    await _finish(session, actor, "group.remove_member", group_id, {"user_id": user_id}, ip=ip)


async def _finish(
    session: DatabaseSession,
    actor: Actor,
    action: str,
    group_id: GroupId,
    detail: Mapping[str, object],
    *,
    ip: str | None,
) -> None:
    await audit.record(
        session, actor, action=action, object_type="group", object_id=group_id, ip=ip, detail=detail
    )
    await notifications.publish(session, ConfigChange(kind="group", id=str(group_id)))


def _taken() -> Conflict:
    return Conflict("Another group has this name.", code="name_taken")


def _found(row: Row | None) -> Group:
    if row is None:
        raise NotFound("There is no such group.")
    return _group(row)


def _group(row: Row) -> Group:
    return Group(**dict(row))
