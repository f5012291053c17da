"""Uploads: the rows of bytes that belong to no file, from the first chunk until the file is
complete, and again from its deletion until the bytes are removed.

A process that dies at any point leaves at most such a row, which maintenance removes.
"""

from datetime import timedelta
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.access.permissions import UserActor
from chatd.domain.errors import Conflict, TooManyUploads
from chatd.domain.files import FileLimits, NewFile, StoredFile
from chatd.domain.ids import FileId
from chatd.store.conn import Conn, Row

MAX_UPLOADS_AT_ONCE_PER_USER: Final = 20
UPLOAD_DEAD_AFTER: Final = timedelta(hours=1)
"""No request lasts that long, so that its process has died."""

FILE_COLUMNS: Final[LiteralString] = (
    "id, owner_id, name, media_type, size_bytes, sha256, store, chunk_bytes, created_at"
)

BEGIN: Final[LiteralString] = """
    INSERT INTO file_uploads (id, owner_id, store, chunk_bytes)
    SELECT $1, $2, $3, $4
    WHERE (SELECT count(*) FROM file_uploads WHERE owner_id = $2 AND NOT abandoned) < $5
    ON CONFLICT (id) DO UPDATE SET store = excluded.store
        WHERE file_uploads.owner_id = excluded.owner_id"""

HAS_ROOM: Final[LiteralString] = """
    SELECT files < $2 AND bytes + $3 <= $4 FROM file_totals WHERE owner_id = $1"""

# The file, its part of the owner's total and the end of the upload are one statement. Without room
# in the totals it writes nothing, and the upload stays for `abandon`.
FINISH: Final[LiteralString] = f"""
    WITH upload AS MATERIALIZED (
        SELECT id, owner_id, store, chunk_bytes FROM file_uploads
        WHERE id = $1 AND NOT abandoned FOR UPDATE),
    counted AS (
        INSERT INTO file_totals AS t (owner_id, files, bytes)
        SELECT owner_id, 1, $4::bigint FROM upload WHERE $7::bigint >= 1 AND $4 <= $8::bigint
        ON CONFLICT (owner_id) DO UPDATE SET files = t.files + 1, bytes = t.bytes + excluded.bytes
            WHERE t.files < $7 AND t.bytes + excluded.bytes <= $8
        RETURNING owner_id),
    ended AS (
        DELETE FROM file_uploads u USING counted WHERE u.id = $1)
    INSERT INTO files (id, owner_id, name, media_type, size_bytes, sha256, store, chunk_bytes,
        request_key)
    SELECT u.id, u.owner_id, $2, $3, $4, $5, u.store, u.chunk_bytes, $6
    FROM upload u JOIN counted USING (owner_id)
    RETURNING {FILE_COLUMNS}"""

GET_FINISHED: Final[LiteralString] = f"SELECT {FILE_COLUMNS} FROM files WHERE id = $1"

IS_OPEN: Final[LiteralString] = "SELECT true FROM file_uploads WHERE id = $1 AND NOT abandoned"

ABANDON: Final[LiteralString] = "UPDATE file_uploads SET abandoned = true WHERE id = $1"

# Two replicas may remove the same bytes: the second finds none.
LIST_DEAD: Final[LiteralString] = """
    SELECT id, store, chunk_bytes FROM file_uploads
    WHERE abandoned OR started_at < now() - $1::interval
    ORDER BY started_at LIMIT $2"""

FORGET: Final[LiteralString] = "DELETE FROM file_uploads WHERE id = $1"


class DeadUpload(Struct, frozen=True, kw_only=True):
    id: FileId
    store: str
    chunk_bytes: int


def file_from_row(row: Row) -> StoredFile:
    return StoredFile(**{name: row[name] for name in StoredFile.__struct_fields__})


async def begin(
    conn: Conn, file_id: FileId, actor: UserActor, *, store: str, chunk_bytes: int
) -> None:
    """Raises TooManyUploads. A repeat after a lost reply changes nothing."""
    status = await conn.execute(
        BEGIN, file_id, actor.user_id, store, chunk_bytes, MAX_UPLOADS_AT_ONCE_PER_USER
    )
    if status == "INSERT 0 0":
        raise TooManyUploads(MAX_UPLOADS_AT_ONCE_PER_USER)


async def check_quota(conn: Conn, actor: UserActor, size: int, limits: FileLimits) -> None:
    """Raises Conflict before the first byte is read. `finish` decides."""
    found = await conn.fetchval(HAS_ROOM, actor.user_id, limits.user_files, size, limits.user_bytes)
    if found is False or size > limits.user_bytes or limits.user_files < 1:
        raise quota_exceeded(limits)


async def finish(conn: Conn, file_id: FileId, new: NewFile, limits: FileLimits) -> StoredFile:
    """The file exists from now on. Raises Conflict: no room in the quota, or maintenance has ended
    the upload. Raises DuplicateRow if a file has the same request key."""
    row = await conn.fetchrow(
        FINISH,
        file_id,
        new.name,
        new.media_type,
        new.size_bytes,
        new.sha256,
        new.request_key,
        limits.user_files,
        limits.user_bytes,
    )
    if row is None:  # an earlier attempt may have lost its reply
        row = await conn.fetchrow(GET_FINISHED, file_id)
    if row is not None:
        return file_from_row(row)
    if await conn.fetchval(IS_OPEN, file_id):
        raise quota_exceeded(limits)
    raise upload_ended()


async def abandon(conn: Conn, file_id: FileId) -> bool:
    """Maintenance removes the bytes, if the caller does not get to it. False if there is no such
    upload: its file is complete, or the bytes are removed."""
    return await conn.execute(ABANDON, file_id) != "UPDATE 0"


async def list_dead(conn: Conn, *, limit: int) -> list[DeadUpload]:
    rows = await conn.fetch(LIST_DEAD, UPLOAD_DEAD_AFTER, limit)
    return [DeadUpload(**dict(row)) for row in rows]


async def forget(conn: Conn, file_id: FileId) -> None:
    """After its bytes are removed."""
    await conn.execute(FORGET, file_id)


def quota_exceeded(limits: FileLimits) -> Conflict:
    return Conflict(
        f"A user's files may have {limits.user_bytes} bytes and may be {limits.user_files}."
        " Delete files that are no longer needed.",
        code="file_quota_exceeded",
    )


def upload_ended() -> Conflict:
    return Conflict("The upload took too long and was removed. Send it again.", code="upload_ended")
