"""The rows of complete files: read, list, delete. Every statement contains the reader: the owner of
the file, or a user who may read a chat that links it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import Actor, UserActor, row_filter
from chatd.domain.chat.row import Fence
from chatd.domain.chat.user_transitions import MAX_FILES_PER_CHAT
from chatd.domain.errors import Conflict, Forbidden, NotFound, StaleFence, TooManyFiles
from chatd.domain.files import FileLimits, NewFile, StoredFile
from chatd.domain.ids import ChatId, FileId, UserId
from chatd.store.chat import chats
from chatd.store.database.conn import Conn, MissingReference
from chatd.store.database.pool import Pool
from chatd.store.database.row_access import SHARING_ENABLED, chat_condition, chat_reach
from chatd.store.file_stores import (
    FILE_COLUMNS,
    DeadUpload,
    file_from_row,
    quota_exceeded,
    upload_ended,
)

# $2 is the user who must own the file or a chat that names it, or NULL for every file. $3: such a
# chat may also be shared with the user or be in a project of the user, and so may the file. It
# counts, because the planner may turn EXISTS into a scan of all links.
_IS_READABLE: Final[LiteralString] = """
    ($2::uuid IS NULL OR f.owner_id = $2 OR (
        SELECT count(*) FROM chat_files l JOIN chats c ON c.id = l.chat_id
        WHERE l.file_id = f.id AND c.deleted_at IS NULL AND (c.owner_id = $2 OR $3 AND ((
            SELECT count(*) FROM chat_shares s
            WHERE s.chat_id = c.root_chat_id AND (s.user_id = $2 OR s.group_id IN (
                SELECT g.group_id FROM group_members g WHERE g.user_id = $2))) > 0 OR (
            SELECT count(*) FROM project_members pm
            WHERE pm.project_id = c.project_id AND pm.user_id = $2) > 0))) > 0 OR (
        SELECT count(*) FROM project_files l JOIN project_members pm USING (project_id)
        WHERE l.file_id = f.id AND pm.user_id = $2 AND (pm.role = 'owner' OR $3)) > 0)"""

GET: Final[LiteralString] = f"""
    SELECT {FILE_COLUMNS} FROM files f WHERE f.id = $1 AND {_IS_READABLE}"""

GET_MANY: Final[LiteralString] = f"""
    SELECT {FILE_COLUMNS} FROM files f WHERE f.id = ANY ($1::uuid[]) AND {_IS_READABLE}"""

GET_BY_REQUEST: Final[LiteralString] = f"""
    SELECT {FILE_COLUMNS} FROM files WHERE request_key = $1 AND owner_id = $2"""

LIST_OWN: Final[LiteralString] = f"""
    SELECT {FILE_COLUMNS} FROM files
    WHERE owner_id = $1 AND ($2::timestamptz IS NULL OR (created_at, id) < ($2, $3::uuid))
    ORDER BY created_at DESC, id DESC LIMIT $4"""

LIST_OF_CHAT: Final[LiteralString] = f"""
    SELECT {FILE_COLUMNS} FROM files
    WHERE id IN (SELECT file_id FROM chat_files WHERE chat_id = $1)"""

# The foreign key of chat_files refuses a file that a chat names. The bytes stay behind for
# maintenance, as those of an abandoned upload.
_DELETED: Final[LiteralString] = """
        RETURNING id, owner_id, size_bytes, store, chunk_bytes),
    counted AS (
        UPDATE file_totals t SET files = t.files - g.files, bytes = t.bytes - g.bytes
        FROM (SELECT owner_id, count(*) AS files, sum(size_bytes) AS bytes
              FROM gone GROUP BY owner_id) g
        WHERE t.owner_id = g.owner_id),
    left_over AS (
        INSERT INTO file_uploads (id, owner_id, store, chunk_bytes, abandoned)
        SELECT id, owner_id, store, chunk_bytes, true FROM gone)"""

DELETE_OWN: Final[LiteralString] = f"""
    WITH gone AS (
        DELETE FROM files WHERE id = $1 AND owner_id = $2
    {_DELETED}
    SELECT id, store, chunk_bytes FROM gone"""

# One page of all files, by age: those without a link to a chat or a project are deleted. The result
# says where the page ended. A file that is linked at this moment makes the statement fail, and it
# is tried again. By arrays: for a join the planner would read all files.
SWEEP: Final[LiteralString] = f"""
    WITH page AS MATERIALIZED (
        SELECT f.id, f.created_at FROM files f
        WHERE f.created_at < now() - $1::interval
          AND (f.created_at, f.id) > (coalesce($2, '-infinity'::timestamptz), $3::uuid)
        ORDER BY f.created_at, f.id LIMIT $4),
    gone AS (
        DELETE FROM files WHERE id = ANY (ARRAY(
            SELECT id FROM files WHERE id = ANY (ARRAY(
                SELECT p.id FROM page p
                WHERE (SELECT count(*) FROM chat_files l WHERE l.file_id = p.id) = 0
                  AND (SELECT count(*) FROM project_files l WHERE l.file_id = p.id) = 0))
            FOR UPDATE SKIP LOCKED))
    {_DELETED}
    SELECT created_at, id, (SELECT count(*) FROM gone) AS deleted
    FROM page ORDER BY created_at DESC, id DESC LIMIT 1"""

CLEAR_OLD_KEYS: Final[LiteralString] = """
    UPDATE files SET request_key = NULL WHERE id = ANY (ARRAY(
        SELECT id FROM files
        WHERE request_key IS NOT NULL AND created_at < now() - $1::interval
        LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED))"""

GET_LINK_USER: Final[LiteralString] = f"""
    SELECT role, {SHARING_ENABLED} AS sharing FROM users
    WHERE id = $1 AND status = 'active' AND deleted_at IS NULL"""


async def get(conn: Conn, file_id: FileId, actor: Actor) -> StoredFile:
    """Raises NotFound, even if the file exists and the actor may not read it."""
    rows = row_filter(actor, "files.read")
    row = await conn.fetchrow(GET, file_id, rows.owner_id, rows.shared)
    if row is None:
        raise NotFound("There is no such file.")
    return file_from_row(row)


async def list_attachable(
    conn: Conn, ids: Sequence[FileId], actor: UserActor
) -> dict[FileId, StoredFile]:
    """Which of the files the user may name in a message: own ones, and ones in chats that the user
    can read. A role that may read all files does not count."""
    rows = await conn.fetch(GET_MANY, list(ids), actor.user_id, actor.reads_shared)
    return {FileId(row["id"]): file_from_row(row) for row in rows}


async def get_by_request(conn: Conn, request_key: str, actor: UserActor) -> StoredFile | None:
    row = await conn.fetchrow(GET_BY_REQUEST, request_key, actor.user_id)
    return None if row is None else file_from_row(row)


async def list_own(
    conn: Conn, actor: UserActor, *, after: tuple[datetime, FileId] | None, limit: int
) -> list[StoredFile]:
    """The newest first."""
    at, file_id = after or (None, None)
    return [
        file_from_row(row) for row in await conn.fetch(LIST_OWN, actor.user_id, at, file_id, limit)
    ]


async def list_of_chat(conn: Conn, chat_id: ChatId) -> dict[FileId, StoredFile]:
    """The files that the messages of the chat name, for the worker that runs it."""
    rows = await conn.fetch(LIST_OF_CHAT, chat_id)
    return {FileId(row["id"]): file_from_row(row) for row in rows}


async def delete_own(conn: Conn, file_id: FileId, actor: UserActor) -> DeadUpload:
    """The bytes are left to be removed. Raises NotFound, and Conflict for a file that a message
    names."""
    try:
        row = await conn.fetchrow(DELETE_OWN, file_id, actor.user_id)
    except MissingReference:
        raise Conflict(
            "A chat or a project contains this file. It is deleted with the last such chat, and can"
            " be deleted when no project has it.",
            code="file_in_use",
        ) from None
    if row is None:
        raise NotFound("There is no such file.")
    return DeadUpload(**dict(row))


class SweepPosition(Struct, frozen=True, kw_only=True):
    """The position of a sweep over all files."""

    at: datetime | None = None
    file_id: FileId = FileId(UUID(int=0))


class SweptPage(Struct, frozen=True, kw_only=True):
    position: SweepPosition
    deleted: int


async def sweep(
    conn: Conn, position: SweepPosition, unlinked_after: timedelta, *, limit: int
) -> SweptPage | None:
    """Delete the files of the next page that no message names: they were never sent, or their chats
    are deleted. None at the end."""
    row = await conn.fetchrow(SWEEP, unlinked_after, position.at, position.file_id, limit)
    if row is None:
        return None
    reached = SweepPosition(at=row["created_at"], file_id=FileId(row["id"]))
    return SweptPage(position=reached, deleted=row["deleted"])


async def clear_old_keys(conn: Conn, after: timedelta, *, limit: int) -> int:
    status = await conn.execute(CLEAR_OLD_KEYS, after, limit)
    return int(status.rpartition(" ")[2])


async def get_link_user(conn: Conn, user_id: UserId) -> UserActor:
    """The user who made a link, with current rights, for files only. Raises Forbidden."""
    row = await conn.fetchrow(GET_LINK_USER, user_id)
    if row is None:
        raise Forbidden("The user who made the link has no access any more.", code="link_invalid")
    return UserActor(
        user_id=user_id,
        role=row["role"],
        scopes=frozenset({"files"}),
        reads_shared=row["sharing"],
    )


# Files that tools put into a chat. Every statement contains the fence of the worker: one that has
# lost its chat writes nothing.
#
# The file, its link to the chat and its part of the owner's total are one statement, so that no
# file is left without a chat. A call has one file, by its request key.

_OWNED: Final[LiteralString] = """
    SELECT c.id, c.owner_id FROM chats c WHERE c.id = $2 AND c.worker_id = $3 AND c.epoch = $4"""

BEGIN_FOR_CHAT: Final[LiteralString] = f"""
    INSERT INTO file_uploads (id, owner_id, store, chunk_bytes)
    SELECT $1, owned.owner_id, $5, $6 FROM ({_OWNED}) owned
    ON CONFLICT (id) DO UPDATE SET store = excluded.store
        WHERE file_uploads.owner_id = excluded.owner_id"""

FINISH_FOR_CHAT: Final[LiteralString] = f"""
    WITH upload AS MATERIALIZED (
        SELECT u.id, u.owner_id, u.store, u.chunk_bytes FROM file_uploads u, ({_OWNED}) owned
        WHERE u.id = $1 AND u.owner_id = owned.owner_id AND NOT u.abandoned
          AND (SELECT count(*) FROM chat_files l WHERE l.chat_id = $2) < $12::bigint
        FOR UPDATE OF u),
    counted AS (
        INSERT INTO file_totals AS t (owner_id, files, bytes)
        SELECT owner_id, 1, $7::bigint FROM upload WHERE $10::bigint >= 1 AND $7 <= $11::bigint
        ON CONFLICT (owner_id) DO UPDATE SET files = t.files + 1, bytes = t.bytes + excluded.bytes
            WHERE t.files < $10 AND t.bytes + excluded.bytes <= $11
        RETURNING owner_id),
    ended AS (
        DELETE FROM file_uploads u USING counted WHERE u.id = $1),
    linked AS (
        INSERT INTO chat_files (chat_id, file_id) SELECT $2, $1 FROM counted)
    INSERT INTO files (id, owner_id, name, media_type, size_bytes, sha256, store, chunk_bytes,
        request_key)
    SELECT u.id, u.owner_id, $5, $6, $7, $8, u.store, u.chunk_bytes, $9
    FROM upload u JOIN counted USING (owner_id)
    RETURNING {FILE_COLUMNS}"""

WHY_NOT: Final[LiteralString] = f"""
    SELECT (SELECT count(*) FROM ({_OWNED}) owned) AS owned,
        (SELECT count(*) FROM chat_files l WHERE l.chat_id = $2) AS files,
        EXISTS (SELECT FROM file_uploads WHERE id = $1 AND NOT abandoned) AS open"""

FIND_OF_CALL: Final[LiteralString] = f"""
    SELECT {FILE_COLUMNS} FROM files f WHERE f.request_key = $2
      AND EXISTS (SELECT FROM chat_files l WHERE l.chat_id = $1 AND l.file_id = f.id)"""

LIST_PAGE: Final[LiteralString] = f"""
    SELECT {FILE_COLUMNS} FROM files f
    WHERE f.id IN (SELECT l.file_id FROM chat_files l JOIN chats c ON c.id = l.chat_id
                   WHERE l.chat_id = $1 AND {chat_condition("$2", "$3")})
      AND ($4::timestamptz IS NULL OR (f.created_at, f.id) < ($4, $5::uuid))
    ORDER BY f.created_at DESC, f.id DESC LIMIT $6"""


async def begin_for_chat(
    conn: Conn, file_id: FileId, chat_id: ChatId, fence: Fence, *, store: str, chunk_bytes: int
) -> None:
    """Raises StaleFence. A repeat after a lost reply changes nothing."""
    status = await conn.execute(
        BEGIN_FOR_CHAT, file_id, chat_id, fence.worker_id, fence.epoch, store, chunk_bytes
    )
    if status == "INSERT 0 0":
        raise _stale(chat_id)


async def finish_for_chat(
    pool: Pool,
    file_id: FileId,
    chat_id: ChatId,
    fence: Fence,
    *,
    new: NewFile,
    limits: FileLimits,
    max_files: int = MAX_FILES_PER_CHAT,
) -> StoredFile:
    """The chat has the file from now on. Its files are locked before they are counted, as by a
    message that names files: two at once do not pass the limit. Raises StaleFence,
    TooManyFiles, and Conflict: no room in the quota of the owner. Raises DuplicateRow if another
    attempt at the call has stored one."""
    owned = (file_id, chat_id, fence.worker_id, fence.epoch)
    async with pool.transaction() as session:
        await chats.lock_files(session, chat_id)
        row = await session.fetchrow(
            FINISH_FOR_CHAT,
            *owned,
            new.name,
            new.media_type,
            new.size_bytes,
            new.sha256,
            new.request_key,
            limits.user_files,
            limits.user_bytes,
            max_files,
        )
    if row is not None:
        return file_from_row(row)
    why = await pool.fetchrow(WHY_NOT, *owned)
    if why is None or not why["owned"]:
        raise _stale(chat_id)
    if not why["open"]:
        # This also happens after a lost reply: the caller then finds the file of its call.
        raise upload_ended()
    if why["files"] >= max_files:
        raise TooManyFiles(max_files)
    raise quota_exceeded(limits)


async def find_of_call(conn: Conn, chat_id: ChatId, request_key: str) -> StoredFile | None:
    row = await conn.fetchrow(FIND_OF_CALL, chat_id, request_key)
    return None if row is None else file_from_row(row)


async def list_page(
    conn: Conn,
    actor: Actor,
    chat_id: ChatId,
    *,
    after: tuple[datetime, FileId] | None,
    limit: int,
) -> Sequence[StoredFile]:
    """The newest first; none of a chat that the actor may not read."""
    at, file_id = after or (None, None)
    reach = chat_reach(actor, "chats.read")
    rows = await conn.fetch(LIST_PAGE, chat_id, *reach, at, file_id, limit)
    return [file_from_row(row) for row in rows]


def _stale(chat_id: ChatId) -> StaleFence:
    return StaleFence(f"Chat {chat_id} has another owner.")
