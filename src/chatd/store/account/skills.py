"""Personal skills: instructions for certain tasks that a user has written, for all chats of the
user."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import Actor, UserActor, require_permission
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import Conflict, Forbidden, NotFound
from chatd.domain.ids import UserId
from chatd.store.database import notifications
from chatd.store.database.conn import Conn, DatabaseSession, DuplicateRow, Row, strip_unstorable

MAX_SKILLS_PER_USER: Final = 100

_COLUMNS: Final[LiteralString] = "id, name, description, body, created_at, updated_at"
# Taken first, so that two requests of one user cannot both add the last skill, and none is added
# to a user who is being deleted.
LOCK_USER: Final[LiteralString] = """
    SELECT id FROM users WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE"""
INSERT: Final[LiteralString] = f"""
    INSERT INTO user_skills (id, owner_id, name, description, body)
    SELECT $1, $2, $3, $4, $5 WHERE (SELECT count(*) FROM user_skills WHERE owner_id = $2) < $6
    RETURNING {_COLUMNS}"""
GET: Final[LiteralString] = f"SELECT {_COLUMNS} FROM user_skills WHERE id = $1 AND owner_id = $2"
LIST: Final[LiteralString] = """
    SELECT id, name, description, '' AS body, created_at, updated_at FROM user_skills
    WHERE owner_id = $1 ORDER BY name LIMIT $2"""
READ_BODY: Final[LiteralString] = "SELECT body FROM user_skills WHERE owner_id = $1 AND name = $2"
UPDATE: Final[LiteralString] = f"""
    UPDATE user_skills SET name = coalesce($3, name), description = coalesce($4, description),
        body = coalesce($5, body), updated_at = now()
    WHERE id = $1 AND owner_id = $2 RETURNING {_COLUMNS}"""
DELETE: Final[LiteralString] = """
    DELETE FROM user_skills WHERE id = $1 AND owner_id = $2 RETURNING id"""


class PersonalSkill(Struct, frozen=True, kw_only=True):
    """A skill; lists leave out its body."""

    id: UUID
    name: str
    description: str
    body: str
    created_at: datetime
    updated_at: datetime


class SkillPatch(Struct, frozen=True, kw_only=True):
    """None leaves a value as it is."""

    name: str | None = None
    description: str | None = None
    body: str | None = None


async def insert(
    session: DatabaseSession, actor: UserActor, skill_id: UUID, new: SkillPatch
) -> PersonalSkill:
    """Raises Conflict: the user has too many skills, or one with this name. Raises NotFound if the
    user has been deleted."""
    require_permission(actor, "account.write")
    if await session.fetchval(LOCK_USER, actor.user_id) is None:
        raise NotFound("There is no such user.")
    try:
        row = await session.fetchrow(
            INSERT, skill_id, actor.user_id, *_values(new), MAX_SKILLS_PER_USER
        )
    except DuplicateRow:
        raise _name_taken() from None
    if row is None:
        raise Conflict(
            f"You have {MAX_SKILLS_PER_USER} skills. Delete one first.", code="too_many_skills"
        )
    await _publish(session, actor)
    return _skill(row)


async def get(conn: Conn, actor: UserActor, skill_id: UUID) -> PersonalSkill:
    """Raises NotFound."""
    require_permission(actor, "account.read")
    return _found(await conn.fetchrow(GET, skill_id, actor.user_id))


async def list_of(conn: Conn, actor: Actor, owner_id: UserId) -> Sequence[PersonalSkill]:
    """Sorted by name. A worker reads those of the owners of its chats; a user reads only its
    own."""
    _require_reader(actor, owner_id)
    return [_skill(row) for row in await conn.fetch(LIST, owner_id, MAX_SKILLS_PER_USER)]


async def read_body(conn: Conn, actor: Actor, owner_id: UserId, name: str) -> str | None:
    _require_reader(actor, owner_id)
    return await conn.fetchval(READ_BODY, owner_id, name)


async def update(
    session: DatabaseSession, actor: UserActor, skill_id: UUID, patch: SkillPatch
) -> PersonalSkill:
    """Raises NotFound, and Conflict if another skill of the user has the name."""
    require_permission(actor, "account.write")
    try:
        row = await session.fetchrow(UPDATE, skill_id, actor.user_id, *_values(patch))
    except DuplicateRow:
        raise _name_taken() from None
    await _publish(session, actor)
    return _found(row)


async def delete(session: DatabaseSession, actor: UserActor, skill_id: UUID) -> None:
    """Raises NotFound."""
    require_permission(actor, "account.write")
    if await session.fetchval(DELETE, skill_id, actor.user_id) is None:
        raise _missing()
    await _publish(session, actor)


def _require_reader(actor: Actor, owner_id: UserId) -> None:
    if isinstance(actor, UserActor):
        require_permission(actor, "account.read")
        if actor.user_id != owner_id:
            raise Forbidden("These are the skills of another user.")


async def _publish(session: DatabaseSession, actor: UserActor) -> None:
    await notifications.publish(session, ConfigChange(kind="settings", id=str(actor.user_id)))


def _values(given: SkillPatch) -> tuple[str | None, ...]:
    values = (given.name, given.description, given.body)
    return tuple(None if value is None else strip_unstorable(value) for value in values)


def _found(row: Row | None) -> PersonalSkill:
    if row is None:
        raise _missing()
    return _skill(row)


def _skill(row: Row) -> PersonalSkill:
    return PersonalSkill(**dict(row))


def _missing() -> NotFound:
    return NotFound("There is no such skill.")


def _name_taken() -> Conflict:
    return Conflict("You have a skill with this name. Choose another name.", code="skill_exists")
