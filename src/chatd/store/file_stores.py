"""The bytes of files: uploads, and the stores that hold the bytes (the database, or an S3 bucket).

An upload is a row for bytes that belong to no file, from the first chunk until the file is
complete, and again from its deletion until the bytes are removed. A process that dies at any point
leaves at most such a row, which maintenance removes.
"""

import hashlib
import hmac
from collections.abc import AsyncGenerator, Mapping
from datetime import datetime, timedelta
from io import BytesIO
from typing import Final, LiteralString
from urllib.parse import quote, urlsplit

import aiohttp
from msgspec import Struct
from yarl import URL

from chatd.domain.access.permissions import UserActor
from chatd.domain.errors import Conflict, TooManyUploads, Unavailable
from chatd.domain.files import MAX_FILE_BYTES, ByteRange, FileLimits, NewFile, StoredFile
from chatd.domain.ids import FileId
from chatd.domain.ports import Clock, FileStore
from chatd.store.database.conn import Conn, Row

MAX_UPLOADS_AT_ONCE_PER_USER: Final = 20
UPLOAD_DEAD_AFTER: Final = timedelta(hours=1)
"""No request lasts this long, so its process has died."""

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


async def begin_upload(
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


async def finish_upload(
    conn: Conn, file_id: FileId, new: NewFile, limits: FileLimits
) -> StoredFile:
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


async def abandon_upload(conn: Conn, file_id: FileId) -> bool:
    """Maintenance removes the bytes, if the caller does not get to it. False if there is no such
    upload: its file is complete, or the bytes are removed."""
    return await conn.execute(ABANDON, file_id) != "UPDATE 0"


async def list_dead_uploads(conn: Conn, *, limit: int) -> list[DeadUpload]:
    rows = await conn.fetch(LIST_DEAD, UPLOAD_DEAD_AFTER, limit)
    return [DeadUpload(**dict(row)) for row in rows]


async def forget_upload(conn: Conn, file_id: FileId) -> None:
    """Delete the row after the bytes are removed."""
    await conn.execute(FORGET, file_id)


def quota_exceeded(limits: FileLimits) -> Conflict:
    return Conflict(
        f"A user's files may have {limits.user_bytes} bytes and may be {limits.user_files}."
        " Delete files that are no longer needed.",
        code="file_quota_exceeded",
    )


def upload_ended() -> Conflict:
    return Conflict("The upload took too long and was removed. Send it again.", code="upload_ended")


# The bytes of files in the database, one row for each chunk.

DATABASE_CHUNK_BYTES: Final = 256 * 1024

# Only while the upload is open. A repeat after a lost reply writes the same row again.
WRITE: Final[LiteralString] = """
    INSERT INTO file_chunks (file_id, number, data)
    SELECT id, $2, $3 FROM file_uploads WHERE id = $1 AND NOT abandoned FOR KEY SHARE
    ON CONFLICT (file_id, number) DO UPDATE SET data = excluded.data"""

READ: Final[LiteralString] = "SELECT data FROM file_chunks WHERE file_id = $1 AND number = $2"

REMOVE: Final[LiteralString] = "DELETE FROM file_chunks WHERE file_id = $1"


class DatabaseFileStore:
    """Satisfies `ports.FileStore`."""

    name = "database"

    def __init__(self, conn: Conn, *, chunk_bytes: int = DATABASE_CHUNK_BYTES) -> None:
        self._conn = conn
        self.chunk_bytes = chunk_bytes

    async def write(self, file_id: FileId, number: int, chunk: bytes) -> None:
        if await self._conn.execute(WRITE, file_id, number, chunk) == "INSERT 0 0":
            raise upload_ended()

    async def read(self, file: StoredFile, part: ByteRange) -> AsyncGenerator[bytes]:
        """Yields at most one chunk at a time. Raises Unavailable if the file was deleted."""
        size = file.chunk_bytes
        for number in range(part.start // size, -(-part.end // size)):
            chunk: bytes | None = await self._conn.fetchval(READ, file.id, number)
            if chunk is None:
                raise Unavailable(f"The file {file.id} has lost its bytes.", code="file_lost")
            begin = number * size
            yield chunk[max(0, part.start - begin) : part.end - begin]

    async def remove(self, file_id: FileId, chunk_bytes: int) -> None:
        del chunk_bytes
        await self._conn.execute(REMOVE, file_id)

    async def close(self) -> None:
        """Nothing to close: the pool belongs to the caller."""


# Signatures of S3 requests: AWS Signature Version 4 with the rules of S3. Pure.

_ALGORITHM: Final = "AWS4-HMAC-SHA256"


class S3Credentials(Struct, frozen=True, kw_only=True):
    region: str
    access_key_id: str
    secret_access_key: str

    def __repr__(self) -> str:
        return f"S3Credentials(region={self.region!r}, access_key_id={self.access_key_id!r})"


def s3_signature_headers(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes,
    credentials: S3Credentials,
    at: datetime,
) -> dict[str, str]:
    """The headers to add. `url` is encoded as sent and has no query; `headers`, with names in lower
    case, are signed too; `at` is in UTC."""
    target = urlsplit(url)
    digest = hashlib.sha256(body).hexdigest()
    time = at.strftime("%Y%m%dT%H%M%SZ")
    added = {"x-amz-date": time, "x-amz-content-sha256": digest}
    signed = dict(sorted({"host": target.netloc, **headers, **added}.items()))
    names = ";".join(signed)
    lines = "".join(f"{name}:{value.strip()}\n" for name, value in signed.items())
    canonical = f"{method}\n{target.path or '/'}\n\n{lines}\n{names}\n{digest}"
    scope = f"{time[:8]}/{credentials.region}/s3/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = f"{_ALGORITHM}\n{time}\n{scope}\n{hashed}"
    signature = hmac.digest(_key(credentials, scope), to_sign.encode(), "sha256").hex()
    credential = f"{credentials.access_key_id}/{scope}"
    authorization = (
        f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return {**added, "authorization": authorization}


def _key(credentials: S3Credentials, scope: str) -> bytes:
    key = b"AWS4" + credentials.secret_access_key.encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


# The bytes of files in a bucket of an S3-compatible server, one object for each chunk.
#
# Chunks and not multipart uploads: a chunk is written again after a lost reply, an upload that
# broke off leaves plain objects under a known name, and a part of a file is read without the rest.

S3_CHUNK_BYTES: Final = 4 * 1024 * 1024
S3_TIMEOUT_S: Final = 60.0
S3_CONNECT_TIMEOUT_S: Final = 5.0
_MISSING: Final = 404


class S3Config(Struct, frozen=True, kw_only=True):
    """`prefix` comes before the names of all objects, for a bucket with other uses."""

    endpoint: str
    bucket: str
    credentials: S3Credentials
    prefix: str = ""


class S3FileStore:
    """Satisfies `ports.FileStore`."""

    name = "s3"

    def __init__(
        self, config: S3Config, clock: Clock, *, chunk_bytes: int = S3_CHUNK_BYTES
    ) -> None:
        self._config = config
        self._clock = clock
        self.chunk_bytes = chunk_bytes
        self._session: aiohttp.ClientSession | None = None

    async def write(self, file_id: FileId, number: int, chunk: bytes) -> None:
        await self._request("PUT", file_id, number, body=chunk)

    async def read(self, file: StoredFile, part: ByteRange) -> AsyncGenerator[bytes]:
        """Yields at most one chunk at a time. Raises Unavailable."""
        size = file.chunk_bytes
        for number in range(part.start // size, -(-part.end // size)):
            begin = number * size
            first = max(0, part.start - begin)
            last = min(size, part.end - begin, file.size_bytes - begin) - 1
            piece = await self._request(
                "GET", file.id, number, headers={"range": f"bytes={first}-{last}"}
            )
            if len(piece) != last - first + 1:
                raise _lost(file.id)
            yield piece

    async def remove(self, file_id: FileId, chunk_bytes: int) -> None:
        """Removes every possible chunk, because their number is not known."""
        for number in range(-(-MAX_FILE_BYTES // chunk_bytes)):
            await self._request("DELETE", file_id, number)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _url(self, file_id: FileId, number: int) -> str:
        config = self._config
        path = f"{config.bucket}/{config.prefix}{file_id}/{number:05d}"
        return f"{config.endpoint.rstrip('/')}/{quote(path, safe='/-_.~')}"

    async def _request(
        self,
        method: str,
        file_id: FileId,
        number: int,
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> bytes:
        """Raises Unavailable."""
        url, headers = self._url(file_id, number), headers or {}
        signed = s3_signature_headers(
            method,
            url,
            headers=headers,
            body=body,
            credentials=self._config.credentials,
            at=self._clock.now(),
        )
        try:
            async with self._open_session().request(
                method, _as_signed(url), headers={**headers, **signed}, data=BytesIO(body)
            ) as response:
                if response.status == _MISSING and method != "PUT":
                    return _missing(method, file_id)
                if response.status >= 300:
                    raise _refused(response.status)
                return await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text = f"The file store cannot be reached: {type(error).__name__}"
            raise Unavailable(text, code="file_store_down") from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=S3_TIMEOUT_S, sock_connect=S3_CONNECT_TIMEOUT_S)
            self._session = aiohttp.ClientSession(
                timeout=timeout, trust_env=True, auto_decompress=False
            )
        return self._session


def _missing(method: str, file_id: FileId) -> bytes:
    """Deleting an object that does not exist counts as success."""
    if method == "DELETE":
        return b""
    raise _lost(file_id)


def _lost(file_id: FileId) -> Unavailable:
    return Unavailable(f"The file {file_id} has lost its bytes.", code="file_lost")


def _refused(status: int) -> Unavailable:
    """Leaves out the body of the error: it may contain the request."""
    text = f"The file store refused a request with status {status}."
    return Unavailable(text, code="file_store_down" if status >= 500 else "file_store_refused")


def _as_signed(url: str) -> URL:
    """The URL as signed: the client must not encode it in another way."""
    return URL(url, encoded=True)


# The places where the bytes of files are, by the name in a file's row.


class FileStores(Struct, frozen=True, kw_only=True):
    """`current` takes new files. Files in `others` can still be read."""

    current: FileStore
    others: tuple[FileStore, ...] = ()

    def of(self, name: str) -> FileStore:
        """Raises Unavailable for a place that the settings do not name any more."""
        for store in (self.current, *self.others):
            if store.name == name:
                return store
        raise Unavailable(f"The file store {name} is not configured.", code="file_store_missing")

    async def close(self) -> None:
        for store in (self.current, *self.others):
            await store.close()

    async def remove_bytes(self, conn: Conn, left: DeadUpload) -> None:
        """Remove what belongs to no file. Repeating it is harmless. Raises Unavailable."""
        await self.of(left.store).remove(left.id, left.chunk_bytes)
        await forget_upload(conn, left.id)


class FileStoreConfig(Struct, frozen=True, kw_only=True):
    """`uses_s3`: new files go there. Without it a bucket only serves earlier files."""

    s3: S3Config | None = None
    uses_s3: bool = False


def build_file_stores(config: FileStoreConfig, conn: Conn, clock: Clock) -> FileStores:
    """Files of before a change of the settings are read from where they are."""
    database = DatabaseFileStore(conn)
    if config.s3 is None:
        return FileStores(current=database)
    bucket = S3FileStore(config.s3, clock)
    if config.uses_s3:
        return FileStores(current=bucket, others=(database,))
    return FileStores(current=database, others=(bucket,))
