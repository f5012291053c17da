"""The bytes of files in the database, one row for each chunk."""

from collections.abc import AsyncGenerator
from typing import Final, LiteralString

from chatd.domain.errors import Unavailable
from chatd.domain.files import ByteRange, StoredFile
from chatd.domain.ids import FileId
from chatd.store.conn import Conn
from chatd.store.file.uploads import upload_ended

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
        """The pool is not this store's own."""
