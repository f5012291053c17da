"""The rows of complete files: read, list, delete. Every statement contains the reader: the owner of
the file, or a user who may read a chat that links it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import Actor, UserActor, row_filter
from chatd.domain.errors import Conflict, Forbidden, NotFound
from chatd.domain.files import StoredFile
from chatd.domain.ids import ChatId, FileId, UserId
from chatd.store.conn import Conn
from chatd.store.errors import MissingReference
from chatd.store.file.uploads import FILE_COLUMNS, DeadUpload, file_from_row
from chatd.store.row_access import SHARING_ENABLED

# $2 is the user who must own the file or a chat that names it, or NULL for every file. $3: such a
# chat may also be shared with the user. It counts, because the planner may turn EXISTS into a scan
# of all links.
_IS_READABLE: Final[LiteralString] = """
    ($2::uuid IS NULL OR f.owner_id = $2 OR (
        SELECT count(*) FROM chat_files l JOIN chats c ON c.id = l.chat_id
        WHERE l.file_id = f.id AND c.deleted_at IS NULL AND (c.owner_id = $2 OR $3 AND (
            SELECT count(*) FROM chat_shares s
            WHERE s.chat_id = c.root_chat_id AND (s.user_id = $2 OR s.group_id IN (
                SELECT g.group_id FROM group_members g WHERE g.user_id = $2))) > 0)) > 0)"""

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

# One page of all files, by age: those without a link are deleted. The result says where the page
# ended. A file that is linked at this moment makes the statement fail, and it is tried again. By
# arrays: for a join the planner would read all files.
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
                WHERE (SELECT count(*) FROM chat_files l WHERE l.file_id = p.id) = 0))
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
    """Raises NotFound, also for a file that the actor may not read."""
    rows = row_filter(actor, "files.read")
    row = await conn.fetchrow(GET, file_id, rows.owner_id, rows.shared)
    if row is None:
        raise NotFound("There is no such file.")
    return file_from_row(row)


async def list_attachable(
    conn: Conn, ids: Sequence[FileId], actor: UserActor
) -> dict[FileId, StoredFile]:
    """Those of the files that the user may name in a message: own ones, and ones in chats that the
    user can read. A role that may read all files does not count."""
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
    """The files that the messages of the chat name, for a worker that runs the chat."""
    rows = await conn.fetch(LIST_OF_CHAT, chat_id)
    return {FileId(row["id"]): file_from_row(row) for row in rows}


async def delete_own(conn: Conn, file_id: FileId, actor: UserActor) -> DeadUpload:
    """The bytes are left to be removed. Raises NotFound, and Conflict for a file that a message
    names."""
    try:
        row = await conn.fetchrow(DELETE_OWN, file_id, actor.user_id)
    except MissingReference:
        raise Conflict(
            "A chat contains this file. It is deleted with the last such chat.", code="file_in_use"
        ) from None
    if row is None:
        raise NotFound("There is no such file.")
    return DeadUpload(**dict(row))


class SweepPosition(Struct, frozen=True, kw_only=True):
    """Where a sweep over all files has arrived."""

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
    """The user who made a link, with the rights of now, for files only. Raises Forbidden."""
    row = await conn.fetchrow(GET_LINK_USER, user_id)
    if row is None:
        raise Forbidden("The user who made the link has no access any more.", code="link_invalid")
    return UserActor(
        user_id=user_id,
        role=row["role"],
        scopes=frozenset({"files"}),
        reads_shared=row["sharing"],
    )
