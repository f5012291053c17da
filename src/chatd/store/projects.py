"""Projects, their members and their files. Every write is audited, and published to all replicas.

`domain.projects` decides. A write locks the project first and then the chats that it takes
out of it, so that of two writes one waits. Who may put a chat into a project is checked by the
statement that does so, under a lock of the membership: a member who is being removed leaves no
chat behind.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, LiteralString
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

from chatd.domain.access.permissions import UserActor, require_permission, require_sharing
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.files import StoredFile
from chatd.domain.ids import ChatId, FileId, ModelConfigId, ProjectId, UserId
from chatd.domain.projects import (
    MAX_MEMBERS,
    MAX_PROJECT_FILES,
    MAX_PROJECTS_PER_USER,
    MemberRole,
    Project,
    ProjectBrief,
    ProjectFile,
    ProjectMember,
    ProjectRight,
    require_right,
    require_room_for_file,
    require_room_for_member,
)
from chatd.store.account import audit
from chatd.store.database import notifications
from chatd.store.database.conn import Conn, DatabaseSession, DuplicateRow, Row, strip_unstorable
from chatd.store.database.pool import Pool
from chatd.store.database.row_access import project_condition
from chatd.store.file_stores import FILE_COLUMNS, file_from_row

# MAX_COUNTED_CHATS is in its text.
_PROJECT: Final[LiteralString] = """
    SELECT p.id, p.name, p.instructions, p.model_config_id, p.template_id, p.version, p.created_at,
        p.updated_at, m.role, o.user_id AS owner_id, u.username AS owner_username,
        (SELECT count(*) FROM project_members n WHERE n.project_id = p.id) AS member_count,
        (SELECT count(*) FROM project_files f WHERE f.project_id = p.id) AS file_count,
        (SELECT count(*) FROM (
            SELECT FROM chats c WHERE c.project_id = p.id AND c.parent_chat_id IS NULL
              AND c.deleted_at IS NULL LIMIT 1000) counted) AS chat_count
    FROM project_members m JOIN projects p ON p.id = m.project_id
    JOIN project_members o ON o.project_id = p.id AND o.role = 'owner'
    JOIN users u ON u.id = o.user_id"""
GET: Final[LiteralString] = f"""
    {_PROJECT} WHERE m.project_id = $1 AND m.user_id = $2 AND {project_condition("m", "$3")}"""
LIST: Final[LiteralString] = f"""
    {_PROJECT} WHERE m.user_id = $1 AND {project_condition("m", "$2")}
    ORDER BY lower(p.name), p.id LIMIT $3"""
# Taken first: no user gets a project while the user is being deleted, nor one too many.
LOCK_USER: Final[LiteralString] = """
    SELECT id FROM users WHERE id = $1 AND deleted_at IS NULL AND status = 'active'
    FOR NO KEY UPDATE"""
COUNT_OF_USER: Final[LiteralString] = "SELECT count(*) FROM project_members WHERE user_id = $1"
INSERT: Final[LiteralString] = """
    WITH made AS (
        INSERT INTO projects (id, name, instructions, model_config_id, template_id)
        VALUES ($1, $2, $3, $4, $5) RETURNING id)
    INSERT INTO project_members (project_id, user_id, role) SELECT id, $6, 'owner' FROM made"""
# All other writes to the project wait; so do chats that are put into it.
LOCK: Final[LiteralString] = "SELECT id FROM projects WHERE id = $1 FOR UPDATE"
UPDATE: Final[LiteralString] = """
    UPDATE projects SET name = coalesce($2, name), instructions = coalesce($3, instructions),
        model_config_id = CASE WHEN $4::boolean THEN $5::uuid ELSE model_config_id END,
        template_id = CASE WHEN $6::boolean THEN $7::uuid ELSE template_id END,
        version = version + 1, updated_at = clock_timestamp()
    WHERE id = $1"""
TOUCH: Final[LiteralString] = """
    UPDATE projects SET version = version + 1, updated_at = clock_timestamp() WHERE id = $1"""
DELETE: Final[LiteralString] = "DELETE FROM projects WHERE id = $1"
LIST_MEMBERS: Final[LiteralString] = """
    SELECT u.id, u.username, u.name, m.role FROM project_members m JOIN users u ON u.id = m.user_id
    WHERE m.project_id = $1 AND u.deleted_at IS NULL
    ORDER BY (m.role <> 'owner'), lower(u.username) LIMIT $2"""
GET_MEMBER: Final[LiteralString] = """
    SELECT u.id, u.username, u.name, m.role FROM project_members m JOIN users u ON u.id = m.user_id
    WHERE m.project_id = $1 AND m.user_id = $2"""
MEMBER_IDS: Final[LiteralString] = """
    SELECT user_id, role FROM project_members WHERE project_id = $1"""
SET_MEMBER: Final[LiteralString] = """
    INSERT INTO project_members (project_id, user_id, role) VALUES ($1, $2, $3)
    ON CONFLICT (project_id, user_id) DO UPDATE SET role = excluded.role"""
REMOVE_MEMBER: Final[LiteralString] = """
    DELETE FROM project_members WHERE project_id = $1 AND user_id = $2"""
# The files of a user are those that the user added. Without a user: all.
REMOVE_FILES_OF: Final[LiteralString] = """
    DELETE FROM project_files p USING files f
    WHERE p.project_id = $1 AND f.id = p.file_id AND f.owner_id = $2"""
# Of each tree the root first, as `chats.lock_tree` does. A second statement clears the column: the
# snapshot of this one lacks a subagent that was made while it waited.
LOCK_CHATS: Final[LiteralString] = """
    SELECT id FROM chats WHERE project_id = $1 AND ($2::uuid IS NULL OR owner_id = $2)
    ORDER BY root_chat_id, (id <> root_chat_id), id FOR NO KEY UPDATE"""
RELEASE_CHATS: Final[LiteralString] = """
    UPDATE chats SET project_id = NULL
    WHERE project_id = $1 AND ($2::uuid IS NULL OR owner_id = $2)"""
# With the membership locked until the transaction has ended; the project first, as `LOCK` does.
PUT_CHATS: Final[LiteralString] = """
    WITH place AS MATERIALIZED (SELECT id FROM projects WHERE id = $2 FOR KEY SHARE),
    member AS MATERIALIZED (
        SELECT m.project_id FROM project_members m
        WHERE m.project_id = (SELECT id FROM place) AND m.user_id = $3 AND m.role <> 'reader'
        FOR KEY SHARE)
    UPDATE chats SET project_id = $2::uuid
    WHERE root_chat_id = $1 AND owner_id = $3
      AND ($2::uuid IS NULL OR EXISTS (SELECT FROM member))"""
LIST_FILES: Final[LiteralString] = f"""
    SELECT p.name AS shown_name, f.* FROM project_files p
    JOIN LATERAL (SELECT {FILE_COLUMNS} FROM files WHERE id = p.file_id) f ON true
    WHERE p.project_id = $1 ORDER BY p.name LIMIT $2"""
ADD_FILE: Final[LiteralString] = """
    INSERT INTO project_files (project_id, file_id, name)
    SELECT $1, f.id, $3 FROM files f WHERE f.id = $2 AND f.owner_id = $4
    ON CONFLICT (project_id, file_id) DO UPDATE SET name = excluded.name"""
REMOVE_FILE: Final[LiteralString] = """
    DELETE FROM project_files WHERE project_id = $1 AND file_id = $2"""
READ_BRIEF: Final[LiteralString] = """
    SELECT p.name, p.instructions, coalesce(t.name, '') AS template
    FROM projects p LEFT JOIN templates t ON t.id = p.template_id AND NOT t.deleted
    WHERE p.id = $1"""
FIND_OF_CHAT: Final[LiteralString] = f"""
    SELECT p.name AS shown_name, f.* FROM chats c
    JOIN project_files p ON p.project_id = c.project_id AND p.name = $2
    JOIN LATERAL (SELECT {FILE_COLUMNS} FROM files WHERE id = p.file_id) f ON true
    WHERE c.id = $1"""
LIST_WATCHING: Final[LiteralString] = """
    SELECT user_id FROM project_members WHERE project_id = $1 AND user_id = ANY ($2::uuid[])"""
EXISTS_TEMPLATE: Final[LiteralString] = """
    SELECT EXISTS (SELECT FROM templates WHERE id = $1 AND NOT deleted)"""


class ProjectPatch(Struct, frozen=True, kw_only=True):
    """UNSET leaves a value as it is. With a `version` the change is refused if the project has
    another one. Names and instructions are clean."""

    name: str | UnsetType = UNSET
    instructions: str | UnsetType = UNSET
    model_config_id: ModelConfigId | UnsetType | None = UNSET
    template_id: UUID | UnsetType | None = UNSET
    version: int | UnsetType = UNSET


async def create(
    session: DatabaseSession,
    actor: UserActor,
    project_id: ProjectId,
    patch: ProjectPatch,
    *,
    ip: str | None = None,
) -> Project:
    """Raises Forbidden, Conflict: the user belongs to too many; InvalidInput for a template that
    does not exist."""
    require_permission(actor, "chats.write")
    await _require_room_for_user(session, actor.user_id, "You belong")
    await _require_template(session, patch)
    name, instructions = _text(patch.name) or "", _text(patch.instructions) or ""
    model, template = _value(patch.model_config_id), _value(patch.template_id)
    await session.execute(INSERT, project_id, name, instructions, model, template, actor.user_id)
    made = await require(session, actor, project_id, None)
    await _record(session, actor, "project.create", project_id, {"name": name}, ip=ip)
    await _publish(session, project_id, [actor.user_id])
    return made


async def get(conn: Conn, actor: UserActor, project_id: ProjectId) -> Project:
    """Raises NotFound, even if the project exists and the actor does not belong to it."""
    require_permission(actor, "chats.read")
    row = await conn.fetchrow(GET, project_id, actor.user_id, actor.reads_shared)
    if row is None:
        raise NotFound("There is no such project.")
    return _project(row)


async def require(
    conn: Conn, actor: UserActor, project_id: ProjectId, right: ProjectRight | None
) -> Project:
    """For a write; without a right it is enough to belong to the project. A token that may write
    need not be allowed to read. Raises NotFound, Forbidden."""
    require_permission(actor, "chats.write")
    row = await conn.fetchrow(GET, project_id, actor.user_id, actor.reads_shared)
    if row is None:
        raise NotFound("There is no such project.")
    project = _project(row)
    if right is not None:
        require_right(project.role, right)
    return project


def require_editor(project: Project) -> None:
    """Raises Forbidden for a reader."""
    require_right(project.role, "edit")


async def lock_for_edit(
    session: DatabaseSession, actor: UserActor, project_id: ProjectId
) -> Project:
    """Other writes to the project wait. Raises NotFound, Forbidden."""
    return await _locked(session, actor, project_id, "edit")


async def list_own(conn: Conn, actor: UserActor) -> Sequence[Project]:
    """The projects to which the actor belongs, by name."""
    require_permission(actor, "chats.read")
    rows = await conn.fetch(LIST, actor.user_id, actor.reads_shared, MAX_PROJECTS_PER_USER)
    return [_project(row) for row in rows]


async def update(
    session: DatabaseSession,
    actor: UserActor,
    project_id: ProjectId,
    patch: ProjectPatch,
    *,
    ip: str | None = None,
) -> Project:
    """Raises NotFound, Forbidden, Conflict for another version, InvalidInput."""
    before = await _locked(session, actor, project_id, "edit")
    if patch.version is not UNSET and patch.version != before.version:
        raise Conflict(
            f"The project has changed: its version is {before.version} now. Read it, then decide"
            " again.",
            code="version_conflict",
        )
    await _require_template(session, patch)
    await session.execute(
        UPDATE,
        project_id,
        _text(patch.name),
        _text(patch.instructions),
        patch.model_config_id is not UNSET,
        _value(patch.model_config_id),
        patch.template_id is not UNSET,
        _value(patch.template_id),
    )
    after = await require(session, actor, project_id, None)
    changed = [
        name
        for name in ("name", "instructions", "model_config_id", "template_id")
        if getattr(before, name) != getattr(after, name)
    ]
    detail = {"name": after.name, "changed": changed}
    await _record(session, actor, "project.update", project_id, detail, ip=ip)
    await _publish(session, project_id)
    return after


async def delete(
    session: DatabaseSession, actor: UserActor, project_id: ProjectId, *, ip: str | None = None
) -> None:
    """Delete it. Its chats stay, without a project. Raises NotFound, Forbidden."""
    before = await _locked(session, actor, project_id, "manage")
    members = await _member_ids(session, project_id)
    await _release_chats(session, project_id, None)
    await session.execute(DELETE, project_id)
    detail = {"name": before.name, "chats": before.chat_count}
    await _record(session, actor, "project.delete", project_id, detail, ip=ip)
    await _publish(session, project_id, members)


async def list_members(
    conn: Conn, actor: UserActor, project_id: ProjectId
) -> Sequence[ProjectMember]:
    """The owner first. Raises NotFound."""
    await get(conn, actor, project_id)
    rows = await conn.fetch(LIST_MEMBERS, project_id, MAX_MEMBERS)
    return [ProjectMember(**dict(row)) for row in rows]


async def set_member(
    session: DatabaseSession,
    actor: UserActor,
    project_id: ProjectId,
    user_id: UserId,
    role: MemberRole,
    *,
    ip: str | None = None,
) -> ProjectMember:
    """Add a member, or give one another role. Raises NotFound, Forbidden, Conflict."""
    before = await _locked(session, actor, project_id, "manage")
    require_sharing(actor)
    members = await _member_ids(session, project_id)
    if members.get(user_id) == role:
        return await _member(session, project_id, user_id)
    if members.get(user_id) == "owner":
        raise Conflict("The owner of a project stays its owner.", code="project_owner")
    if user_id not in members:
        require_room_for_member(len(members))
        await _require_room_for_user(session, user_id, "The user belongs")
    await session.execute(SET_MEMBER, project_id, user_id, role)
    detail = {"name": before.name, "user_id": str(user_id), "role": role}
    await _record(session, actor, "project.set_member", project_id, detail, ip=ip)
    await _publish(session, project_id, [*members, user_id])
    return await _member(session, project_id, user_id)


async def remove_member(
    session: DatabaseSession,
    actor: UserActor,
    project_id: ProjectId,
    user_id: UserId,
    *,
    ip: str | None = None,
) -> None:
    """The member's chats and files leave the project. Members may remove themselves. Raises
    NotFound, Forbidden, Conflict for the owner."""
    right: ProjectRight | None = None if user_id == actor.user_id else "manage"
    before = await _locked(session, actor, project_id, right)
    members = await _member_ids(session, project_id)
    if user_id not in members:
        raise NotFound("The user does not belong to this project.")
    if members[user_id] == "owner":
        raise Conflict("The owner of a project stays its owner.", code="project_owner")
    await session.execute(REMOVE_MEMBER, project_id, user_id)
    await session.execute(REMOVE_FILES_OF, project_id, user_id)
    await _release_chats(session, project_id, user_id)
    detail = {"name": before.name, "user_id": str(user_id)}
    await _record(session, actor, "project.remove_member", project_id, detail, ip=ip)
    await _publish(session, project_id, members)


async def put_chats(
    session: DatabaseSession, owner: UserId, root: ChatId, project_id: ProjectId | None
) -> None:
    """Put a root chat with its subagents into the project, or into none. The caller holds the
    locks of the tree and has checked the chat. Raises NotFound if its owner may not do this."""
    done = await session.execute(PUT_CHATS, root, project_id, owner)
    if done.endswith(" 0"):
        raise NotFound("There is no such project.")
    await notifications.publish(session, ConfigChange(kind="share", id=str(root)))


async def announce_chat(pool: Pool, chat_id: ChatId) -> None:
    """Called after the commit of a new chat in a project, so that its members see it at once.
    Without this, the poll of their lists finds it."""
    async with pool.transaction() as session:
        await notifications.publish(session, ConfigChange(kind="share", id=str(chat_id)))


# Files


async def list_files(conn: Conn, actor: UserActor, project_id: ProjectId) -> Sequence[ProjectFile]:
    """The files by name. Raises NotFound."""
    await get(conn, actor, project_id)
    return await load_files(conn, project_id)


async def load_files(conn: Conn, project_id: ProjectId) -> Sequence[ProjectFile]:
    """The files for a worker that runs a chat of the project, or for a member."""
    return [_file(row) for row in await conn.fetch(LIST_FILES, project_id, MAX_PROJECT_FILES)]


async def add_file(
    session: DatabaseSession,
    actor: UserActor,
    project_id: ProjectId,
    file_id: FileId,
    name: str,
    *,
    ip: str | None = None,
) -> ProjectFile:
    """Add a file of the actor's own. A file that the project already has gets the new name. Raises
    NotFound, Forbidden, Conflict, InvalidInput."""
    before = await _locked(session, actor, project_id, "edit")
    known = {one.file.id for one in await load_files(session, project_id)}
    if file_id not in known:
        require_room_for_file(len(known))
    stored = strip_unstorable(name)
    try:
        done = await session.execute(ADD_FILE, project_id, file_id, stored, actor.user_id)
    except DuplicateRow:
        raise Conflict(
            "The project has another file with this name. Give it another one.",
            code="file_name_taken",
        ) from None
    if done.endswith(" 0"):
        raise InvalidInput("file_id", "you have no such file; upload it first")
    await session.execute(TOUCH, project_id)
    detail = {"name": before.name, "file": stored, "file_id": str(file_id)}
    await _record(session, actor, "project.add_file", project_id, detail, ip=ip)
    await _publish(session, project_id)
    return next(one for one in await load_files(session, project_id) if one.file.id == file_id)


async def remove_file(
    session: DatabaseSession,
    actor: UserActor,
    project_id: ProjectId,
    file_id: FileId,
    *,
    ip: str | None = None,
) -> None:
    """Raises NotFound, Forbidden."""
    before = await _locked(session, actor, project_id, "edit")
    if (await session.execute(REMOVE_FILE, project_id, file_id)).endswith(" 0"):
        raise NotFound("The project has no such file.")
    await session.execute(TOUCH, project_id)
    detail = {"name": before.name, "file_id": str(file_id)}
    await _record(session, actor, "project.remove_file", project_id, detail, ip=ip)
    await _publish(session, project_id)


# For the workers that run chats


async def read_brief(conn: Conn, project_id: ProjectId) -> ProjectBrief | None:
    """None if it is deleted."""
    row = await conn.fetchrow(READ_BRIEF, project_id)
    if row is None:
        return None
    return ProjectBrief(**dict(row), files=tuple(await load_files(conn, project_id)))


async def find_file_of_chat(conn: Conn, chat_id: ChatId, name: str) -> StoredFile | None:
    """The file that the chat's project has now under this name."""
    row = await conn.fetchrow(FIND_OF_CHAT, chat_id, strip_unstorable(name))
    return None if row is None else _file(row).file


async def list_members_among(
    conn: Conn, project_id: ProjectId, users: Collection[UserId]
) -> list[UserId]:
    rows = await conn.fetch(LIST_WATCHING, project_id, list(users))
    return [UserId(row["user_id"]) for row in rows]


async def _locked(
    session: DatabaseSession, actor: UserActor, project_id: ProjectId, right: ProjectRight | None
) -> Project:
    """Raises NotFound, Forbidden."""
    await session.fetchval(LOCK, project_id)
    return await require(session, actor, project_id, right)


async def _require_room_for_user(session: DatabaseSession, user_id: UserId, who: str) -> None:
    if await session.fetchval(LOCK_USER, user_id) is None:
        raise NotFound("There is no such active user.")
    if await session.fetchval(COUNT_OF_USER, user_id) >= MAX_PROJECTS_PER_USER:
        raise Conflict(
            f"{who} to {MAX_PROJECTS_PER_USER} projects. Leave or delete one first.",
            code="too_many_projects",
        )


async def _require_template(session: DatabaseSession, patch: ProjectPatch) -> None:
    template = _value(patch.template_id)
    if template is not None and not await session.fetchval(EXISTS_TEMPLATE, template):
        raise InvalidInput("template_id", "there is no such template")


async def _member_ids(session: DatabaseSession, project_id: ProjectId) -> dict[UserId, str]:
    rows = await session.fetch(MEMBER_IDS, project_id)
    return {UserId(row["user_id"]): row["role"] for row in rows}


async def _member(
    session: DatabaseSession, project_id: ProjectId, user_id: UserId
) -> ProjectMember:
    row = await session.fetchrow(GET_MEMBER, project_id, user_id)
    assert row is not None  # written by this transaction
    return ProjectMember(**dict(row))


async def _release_chats(
    session: DatabaseSession, project_id: ProjectId, owner: UserId | None
) -> None:
    await session.fetch(LOCK_CHATS, project_id, owner)
    await session.execute(RELEASE_CHATS, project_id, owner)


async def _record(
    session: DatabaseSession,
    actor: UserActor,
    action: str,
    project_id: ProjectId,
    detail: Mapping[str, object],
    *,
    ip: str | None,
) -> None:
    await audit.record(
        session,
        actor,
        action=action,
        object_type="project",
        object_id=project_id,
        ip=ip,
        detail=detail,
    )


async def _publish(
    session: DatabaseSession, project_id: ProjectId, access_of: Collection[UserId] = ()
) -> None:
    """`access_of` are the users whose access to chats has changed."""
    await notifications.publish(session, ConfigChange(kind="project", id=str(project_id)))
    for user_id in dict.fromkeys(access_of):
        await notifications.publish(session, ConfigChange(kind="project_access", id=str(user_id)))


def _text(value: str | UnsetType) -> str | None:
    return None if isinstance(value, UnsetType) else strip_unstorable(value)


def _value(value: UUID | UnsetType | None) -> UUID | None:
    return None if isinstance(value, UnsetType) else value


def _project(row: Row) -> Project:
    return Project(**dict(row))


def _file(row: Row) -> ProjectFile:
    return ProjectFile(name=row["shown_name"], file=file_from_row(row))
