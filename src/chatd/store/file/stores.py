"""The places where the bytes of files are, by the name in a file's row."""

from msgspec import Struct

from chatd.domain.errors import Unavailable
from chatd.domain.ports import Clock, FileStore
from chatd.store.conn import Conn
from chatd.store.file import uploads
from chatd.store.file.database_store import DatabaseFileStore
from chatd.store.file.s3_store import S3Config, S3FileStore
from chatd.store.file.uploads import DeadUpload


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
        """Remove what belongs to no file. To repeat it is harmless. Raises Unavailable."""
        await self.of(left.store).remove(left.id, left.chunk_bytes)
        await uploads.forget(conn, left.id)


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
