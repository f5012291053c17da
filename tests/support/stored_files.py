"""Files in the database of a test, without an upload over HTTP."""

from hashlib import sha256
from uuid import uuid4

from chatd.domain.access.permissions import UserActor
from chatd.domain.chat.parts import FilePart
from chatd.domain.files import FileLimits, NewFile, StoredFile
from chatd.domain.ids import FileId, UserId
from chatd.store import file_stores
from chatd.store.database.pool import Pool
from chatd.store.file_stores import DatabaseFileStore


async def insert_file(
    pool: Pool, owner: UserId, data: bytes, media_type: str, name: str | None = None
) -> StoredFile:
    store, file_id = DatabaseFileStore(pool), FileId(uuid4())
    actor = UserActor(user_id=owner, role="member")
    await file_stores.begin_upload(
        pool, file_id, actor, store=store.name, chunk_bytes=store.chunk_bytes
    )
    for number, start in enumerate(range(0, len(data), store.chunk_bytes)):
        await store.write(file_id, number, data[start : start + store.chunk_bytes])
    new = NewFile(
        name=name, media_type=media_type, size_bytes=len(data), sha256=sha256(data).hexdigest()
    )
    return await file_stores.finish_upload(pool, file_id, new, FileLimits())


def part_of(file: StoredFile) -> FilePart:
    return FilePart(media_type=file.media_type, file_id=str(file.id), name=file.name)
