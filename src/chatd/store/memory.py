"""Notes of the memory: those that users keep, and those that models have proposed.

A note without a project belongs to its user alone, whatever role others have. One of a project is
seen and changed by the members who may write. Writes to the notes of a project lock the project,
and then as all others their user, so that no limit is passed and a deleted user leaves none.
"""

from collections.abc import Sequence
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import Permission, UserActor, require_permission
from chatd.domain.chat.row import Fence
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import (
    Conflict,
    Forbidden,
    InvariantBroken,
    NotFound,
    StaleFence,
    ToolError,
)
from chatd.domain.ids import ChatId, ProjectId, UserId
from chatd.domain.memory import (
    MAX_NOTES,
    MAX_PROPOSALS,
    MemoryNote,
    NoteBrief,
    NoteState,
    moved,
    require_room,
)
from chatd.store import projects
from chatd.store.account import audit
from chatd.store.database import notifications
from chatd.store.database.conn import Conn, DatabaseSession, Row, strip_unstorable
from chatd.store.database.row_access import project_condition

_COLUMNS: Final[LiteralString] = (
    "n.id, n.owner_id, n.project_id, n.chat_id, n.state, n.text, n.enabled, n.place, n.created_at,"
    " n.updated_at"
)
# For rows of `memory_notes n`; $1 is the user, $2 whether the user reads what is shared.
_REACHED: Final[LiteralString] = f"""
    CASE WHEN n.project_id IS NULL THEN n.owner_id = $1 ELSE EXISTS (
        SELECT FROM project_members m WHERE m.project_id = n.project_id AND m.user_id = $1
          AND m.role <> 'reader' AND {project_condition("m", "$2")}) END"""
_ALLOWED: Final[LiteralString] = """
    coalesce((SELECT (document ->> 'memory')::boolean FROM deployment_settings), true)"""

GET: Final[LiteralString] = f"SELECT {_COLUMNS} FROM memory_notes n WHERE n.id = $3 AND {_REACHED}"
LOCK: Final[LiteralString] = f"{GET} FOR UPDATE OF n"
LIST_OWN: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM memory_notes n
    WHERE n.owner_id = $1 AND n.project_id IS NULL AND n.state = $2
    ORDER BY n.place, n.created_at, n.id LIMIT $3"""
LIST_OF_PROJECT: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM memory_notes n WHERE n.project_id = $1
    ORDER BY n.place, n.created_at, n.id LIMIT $2"""
# Taken first: nothing is added to a user who is being deleted, and of two writes one waits.
LOCK_USER: Final[LiteralString] = """
    SELECT id FROM users WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE"""
IS_ALLOWED: Final[LiteralString] = f"SELECT {_ALLOWED}"
# The kept notes of a project; without one, of a user.
_SIBLINGS: Final[LiteralString] = """
    n.state = 'kept' AND CASE WHEN $2::uuid IS NULL
        THEN n.owner_id = $1 AND n.project_id IS NULL ELSE n.project_id = $2 END"""
COUNT: Final[LiteralString] = f"SELECT count(*) FROM memory_notes n WHERE {_SIBLINGS}"
ORDER: Final[LiteralString] = f"""
    SELECT n.id FROM memory_notes n WHERE {_SIBLINGS} ORDER BY n.place, n.created_at, n.id"""
SET_ORDER: Final[LiteralString] = """
    UPDATE memory_notes n SET place = o.place
    FROM unnest($1::uuid[]) WITH ORDINALITY AS o (id, place) WHERE n.id = o.id"""
INSERT: Final[LiteralString] = f"""
    INSERT INTO memory_notes AS n (id, owner_id, project_id, state, text, enabled, place)
    VALUES ($3, $1, $2, 'kept', $4, $5, coalesce((
        SELECT max(n.place) FROM memory_notes n WHERE {_SIBLINGS}), 0) + 1)
    RETURNING {_COLUMNS}"""
UPDATE: Final[LiteralString] = f"""
    UPDATE memory_notes n SET text = coalesce($2, n.text), enabled = coalesce($3, n.enabled),
        updated_at = clock_timestamp()
    WHERE n.id = $1 RETURNING {_COLUMNS}"""
KEEP: Final[LiteralString] = f"""
    UPDATE memory_notes n SET state = 'kept', project_id = $2, text = $4,
        updated_at = clock_timestamp(), place = coalesce((
            SELECT max(n.place) FROM memory_notes n WHERE {_SIBLINGS}), 0) + 1
    WHERE n.id = $3 AND n.owner_id = $1 RETURNING {_COLUMNS}"""
DISMISS: Final[LiteralString] = f"""
    UPDATE memory_notes n SET state = 'dismissed', updated_at = clock_timestamp()
    WHERE n.id = $1 RETURNING {_COLUMNS}"""
FORGET_DISMISSED: Final[LiteralString] = """
    DELETE FROM memory_notes WHERE id IN (
        SELECT id FROM memory_notes WHERE owner_id = $1 AND state = 'dismissed'
        ORDER BY updated_at DESC, id OFFSET $2)"""
DELETE: Final[LiteralString] = "DELETE FROM memory_notes WHERE id = $1"

_OWNED: Final[LiteralString] = """
    SELECT c.id, c.owner_id FROM chats c WHERE c.id = $2 AND c.worker_id = $3 AND c.epoch = $4"""
FIND_PROPOSED: Final[LiteralString] = f"""
    SELECT {_COLUMNS} FROM memory_notes n WHERE n.id = $1 AND n.owner_id = $2"""
COUNT_PROPOSED: Final[LiteralString] = """
    SELECT count(*) FILTER (WHERE state = 'proposed') AS proposed,
        count(*) FILTER (WHERE state <> 'dismissed' AND text = $2) AS same
    FROM memory_notes WHERE owner_id = $1 AND project_id IS NULL"""
PROPOSE: Final[LiteralString] = f"""
    INSERT INTO memory_notes AS n (id, owner_id, chat_id, state, text)
    SELECT $1, owned.owner_id, owned.id, 'proposed', $5 FROM ({_OWNED}) owned
    ON CONFLICT (id) DO NOTHING RETURNING {_COLUMNS}"""

READ_BRIEF: Final[LiteralString] = f"""
    SELECT {_ALLOWED} AS allowed,
        coalesce((SELECT document ->> 'memory' FROM user_settings WHERE user_id = $1), 'notes')
            AS choice,
        ARRAY(SELECT n.text FROM memory_notes n
              WHERE n.owner_id = $1 AND n.project_id IS NULL AND n.state = 'kept' AND n.enabled
              ORDER BY n.place, n.created_at, n.id LIMIT $2) AS texts"""
READ_OF_PROJECT: Final[LiteralString] = f"""
    SELECT n.text FROM memory_notes n
    WHERE n.project_id = $1 AND n.state = 'kept' AND n.enabled AND {_ALLOWED}
    ORDER BY n.place, n.created_at, n.id LIMIT $2"""
# The channel of a direct message in Slack begins with a D.
IS_ANSWERED_IN_PUBLIC: Final[LiteralString] = """
    SELECT EXISTS (SELECT FROM repository_threads WHERE chat_id = $1)
        OR EXISTS (
            SELECT FROM slack_threads WHERE chat_id = $1 AND NOT starts_with(channel, 'D'))"""


class NotePatch(Struct, frozen=True, kw_only=True):
    """None leaves a value as it is. The text is clean; `place` is from 1."""

    text: str | None = None
    enabled: bool | None = None
    place: int | None = None


async def insert(
    session: DatabaseSession,
    actor: UserActor,
    note_id: UUID,
    *,
    text: str,
    project_id: ProjectId | None = None,
    enabled: bool = True,
    ip: str | None = None,
) -> MemoryNote:
    """Raises Forbidden if the deployment allows no notes, NotFound, and Conflict: there are too
    many."""
    await _begin(session, actor, project_id)
    await _require_memory(session)
    await _require_room(session, actor, project_id)
    stored = strip_unstorable(text)
    made = _written(
        await session.fetchrow(INSERT, actor.user_id, project_id, note_id, stored, enabled)
    )
    await _finish(session, actor, made, "project.add_note", ip=ip)
    return made


async def list_kept(
    conn: Conn, actor: UserActor, project_id: ProjectId | None
) -> Sequence[MemoryNote]:
    """In their order: the actor's own, or those of a project. Raises NotFound, and Forbidden for
    a reader of the project."""
    require_permission(actor, "account.read")
    if project_id is None:
        return await _list_own(conn, actor, "kept", MAX_NOTES)
    projects.require_editor(await projects.get(conn, actor, project_id))
    return [_note(row) for row in await conn.fetch(LIST_OF_PROJECT, project_id, MAX_NOTES)]


async def list_proposed(conn: Conn, actor: UserActor) -> Sequence[MemoryNote]:
    """Those that wait for the actor's decision, oldest first."""
    require_permission(actor, "account.read")
    return await _list_own(conn, actor, "proposed", MAX_PROPOSALS)


async def get(
    conn: Conn, actor: UserActor, note_id: UUID, permission: Permission = "account.read"
) -> MemoryNote:
    """Raises NotFound."""
    require_permission(actor, permission)
    return _found(await conn.fetchrow(GET, actor.user_id, actor.reads_shared, note_id))


async def update(
    session: DatabaseSession,
    actor: UserActor,
    note_id: UUID,
    patch: NotePatch,
    *,
    ip: str | None = None,
) -> MemoryNote:
    """Raises NotFound, also for a proposal: that is accepted or dismissed."""
    before = await get(session, actor, note_id, "account.write")
    await _begin(session, actor, before.project_id)
    before = await _locked(session, actor, note_id)
    if before.state != "kept":
        raise NotFound("This note is only proposed. Accept it first.")
    text = None if patch.text is None else strip_unstorable(patch.text)
    if patch.place is not None:
        rows = await session.fetch(ORDER, actor.user_id, before.project_id)
        order = moved([row["id"] for row in rows], note_id, patch.place)
        await session.execute(SET_ORDER, order)
    after = _written(await session.fetchrow(UPDATE, note_id, text, patch.enabled))
    await _finish(session, actor, after, "project.change_note", ip=ip)
    return after


async def delete(
    session: DatabaseSession, actor: UserActor, note_id: UUID, *, ip: str | None = None
) -> None:
    """Raises NotFound."""
    before = await get(session, actor, note_id, "account.write")
    await _begin(session, actor, before.project_id)
    before = await _locked(session, actor, note_id)
    await session.execute(DELETE, note_id)
    await _finish(session, actor, before, "project.remove_note", ip=ip)


async def accept(
    session: DatabaseSession,
    actor: UserActor,
    note_id: UUID,
    *,
    text: str,
    project_id: ProjectId | None = None,
    ip: str | None = None,
) -> MemoryNote:
    """Keep a proposal with this text. One that is kept already stays as it is. Raises NotFound,
    Forbidden, Conflict."""
    await get(session, actor, note_id, "account.write")
    await _begin(session, actor, project_id)
    before = await _locked(session, actor, note_id)
    if before.state == "kept":
        return before
    await _require_memory(session)
    await _require_room(session, actor, project_id)
    stored = strip_unstorable(text)
    made = _written(await session.fetchrow(KEEP, actor.user_id, project_id, note_id, stored))
    await _finish(session, actor, made, "project.add_note", ip=ip)
    return made


async def dismiss(session: DatabaseSession, actor: UserActor, note_id: UUID) -> MemoryNote:
    """Again: does nothing. Raises NotFound, and Conflict: the note is kept."""
    await get(session, actor, note_id, "account.write")
    await _begin(session, actor, None)
    before = await _locked(session, actor, note_id)
    if before.state == "kept":
        raise Conflict("The note is kept already. Remove it instead.", code="note_kept")
    made = _written(await session.fetchrow(DISMISS, note_id))
    await session.execute(FORGET_DISMISSED, actor.user_id, MAX_PROPOSALS)
    return made


# For the workers that run chats


async def propose(
    session: DatabaseSession,
    owner: UserId,
    chat_id: ChatId,
    fence: Fence,
    *,
    note_id: UUID,
    text: str,
) -> MemoryNote:
    """A repeat finds the note of the first call, whatever was decided since. Raises StaleFence,
    and ToolError if the user has this note or decides on too many."""
    if await session.fetchval(LOCK_USER, owner) is None:
        raise ToolError("The account of the chat's owner is deleted.")
    row = await session.fetchrow(FIND_PROPOSED, note_id, owner)
    if row is not None:
        return _note(row)
    stored = strip_unstorable(text)
    counts = await session.fetchrow(COUNT_PROPOSED, owner, stored)
    assert counts is not None  # an aggregate has one row
    if counts["same"]:
        raise ToolError("The user has this note, or it is proposed already.")
    if counts["proposed"] >= MAX_PROPOSALS:
        raise ToolError(
            f"{MAX_PROPOSALS} notes wait for the user's decision. Propose no more until then."
        )
    row = await session.fetchrow(PROPOSE, note_id, chat_id, fence.worker_id, fence.epoch, stored)
    if row is None:
        raise StaleFence(f"Chat {chat_id} has another owner.")
    return _note(row)


async def read_brief(conn: Conn, owner: UserId) -> NoteBrief:
    row = await conn.fetchrow(READ_BRIEF, owner, MAX_NOTES)
    assert row is not None  # it has no FROM
    return NoteBrief(allowed=row["allowed"], choice=row["choice"], texts=tuple(row["texts"]))


async def read_of_project(conn: Conn, project_id: ProjectId) -> tuple[str, ...]:
    rows = await conn.fetch(READ_OF_PROJECT, project_id, MAX_NOTES)
    return tuple(row["text"] for row in rows)


async def is_answered_in_public(conn: Conn, chat_id: ChatId) -> bool:
    """Whether others read the answers where the chat was started: at an issue or a pull request,
    or in a channel of Slack."""
    return bool(await conn.fetchval(IS_ANSWERED_IN_PUBLIC, chat_id))


async def _begin(session: DatabaseSession, actor: UserActor, project_id: ProjectId | None) -> None:
    """Locks whose notes will change. Raises NotFound, Forbidden."""
    require_permission(actor, "account.write")
    if project_id is not None:
        await projects.lock_for_edit(session, actor, project_id)
    if await session.fetchval(LOCK_USER, actor.user_id) is None:
        raise NotFound("There is no such user.")


async def _require_memory(session: DatabaseSession) -> None:
    if not await session.fetchval(IS_ALLOWED):
        raise Forbidden(
            "This server takes no notes: an administrator has said so.", code="memory_off"
        )


async def _require_room(
    session: DatabaseSession, actor: UserActor, project_id: ProjectId | None
) -> None:
    count = await session.fetchval(COUNT, actor.user_id, project_id)
    require_room(count, of_project=project_id is not None)


async def _list_own(
    conn: Conn, actor: UserActor, state: NoteState, limit: int
) -> Sequence[MemoryNote]:
    return [_note(row) for row in await conn.fetch(LIST_OWN, actor.user_id, state, limit)]


async def _locked(session: DatabaseSession, actor: UserActor, note_id: UUID) -> MemoryNote:
    return _found(await session.fetchrow(LOCK, actor.user_id, actor.reads_shared, note_id))


async def _finish(
    session: DatabaseSession, actor: UserActor, note: MemoryNote, action: str, *, ip: str | None
) -> None:
    """The audit log names the note of a project and never its text."""
    if note.project_id is None:
        await notifications.publish(session, ConfigChange(kind="settings", id=str(actor.user_id)))
        return
    await audit.record(
        session,
        actor,
        action=action,
        object_type="project",
        object_id=note.project_id,
        ip=ip,
        detail={"note_id": str(note.id)},
    )
    await notifications.publish(session, ConfigChange(kind="project", id=str(note.project_id)))


def _written(row: Row | None) -> MemoryNote:
    if row is None:
        raise InvariantBroken("a note that is locked was not written")
    return _note(row)


def _found(row: Row | None) -> MemoryNote:
    if row is None:
        raise NotFound("There is no such note.")
    return _note(row)


def _note(row: Row) -> MemoryNote:
    return MemoryNote(**dict(row))
