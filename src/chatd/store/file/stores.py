"""The places where the bytes of files are, by the name in a file's row."""

from msgspec import Struct

from chatd.domain.errors import Unavailable
from chatd.domain.ports import FileStore
from chatd.store.conn import Conn
from chatd.store.file import uploads
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

    async def remove_bytes(self, conn: Conn, left: DeadUpload) -> None:
        """Remove what belongs to no file. To repeat it is harmless. Raises Unavailable."""
        await self.of(left.store).remove(left.id, left.chunk_bytes)
        await uploads.forget(conn, left.id)
