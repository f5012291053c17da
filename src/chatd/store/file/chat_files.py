"""Files that tools put into a chat. Every statement contains the fence of the worker: one that has
lost its chat writes nothing.

The file, its link to the chat and its part of the owner's total are one statement, so that no file
is left without a chat. A call has one file, by its request key.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString

from chatd.domain.access.permissions import Actor
from chatd.domain.chat.row import Fence
from chatd.domain.chat.user_transitions import MAX_FILES_PER_CHAT
from chatd.domain.errors import StaleFence, TooManyFiles
from chatd.domain.files import FileLimits, NewFile, StoredFile
from chatd.domain.ids import ChatId, FileId
from chatd.store.chat import chats
from chatd.store.conn import Conn
from chatd.store.file.uploads import FILE_COLUMNS, file_from_row, quota_exceeded, upload_ended
from chatd.store.pool import Pool
from chatd.store.row_access import chat_condition, chat_reach

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


async def begin(
    conn: Conn, file_id: FileId, chat_id: ChatId, fence: Fence, *, store: str, chunk_bytes: int
) -> None:
    """Raises StaleFence. A repeat after a lost reply changes nothing."""
    status = await conn.execute(
        BEGIN_FOR_CHAT, file_id, chat_id, fence.worker_id, fence.epoch, store, chunk_bytes
    )
    if status == "INSERT 0 0":
        raise _stale(chat_id)


async def finish(
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
        # Also after a lost reply: the caller then finds the file of its call.
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
