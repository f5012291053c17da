"""Writes the files that tools put into a chat: once for each call, whichever worker makes it.

The bytes are judged and stored piece by piece; the memory of a file is bounded by one chunk of the
store.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import Literal

from msgspec import Struct

from chatd.aio import retry_unavailable
from chatd.domain.chat.user_transitions import MAX_FILES_PER_CHAT
from chatd.domain.errors import Conflict, InvalidInput, ToolError, Unavailable, UnsupportedFile
from chatd.domain.files import ByteRange, FileLimits, NewFile, StoredFile
from chatd.domain.ids import FileId
from chatd.domain.media_types import FileInspection
from chatd.domain.ports import Env, FileStore, ToolContext
from chatd.domain.projects import is_text
from chatd.store import file_stores, files, projects
from chatd.store.database.conn import DuplicateRow
from chatd.store.database.pool import Pool
from chatd.store.file_stores import DeadUpload, FileStores

FileOfCall = Literal["", "recording", "poster"]
"""A call has one file, or several of which each has a name."""


class _Received(Struct, frozen=True, kw_only=True):
    media_type: str
    size: int
    sha256: str


class ChatFileWriter:
    def __init__(self, pool: Pool, stores: FileStores, limits: FileLimits, env: Env) -> None:
        self._pool = pool
        self._stores = stores
        self._limits = limits
        self._env = env

    async def find(self, context: ToolContext, part: FileOfCall = "") -> StoredFile | None:
        """The file that an earlier attempt at this call has stored."""
        key = _request_key(context, part)
        return await retry_unavailable(
            self._env.clock, lambda: files.find_of_call(self._pool, context.chat.id, key)
        )

    async def store_result(self, context: ToolContext, name: str, data: bytes) -> StoredFile:
        """Keep the long result of a call as plain text, also HTML, unless half of the files that a
        chat may have are there: the others are for people. Raises as `store`."""

        async def pieces() -> AsyncGenerator[bytes]:
            yield data

        return await self.store(context, name, "text/plain", pieces(), is_result=True)

    async def read_result(self, context: ToolContext, name: str, limit: int) -> bytes:
        """The first bytes of a text file of the chat, by its id. Raises ToolError, Unavailable."""
        found = await files.list_of_chat(self._pool, context.chat.id)
        file = next((one for one in found.values() if str(one.id) == name), None)
        if file is None or not file.media_type.startswith("text/"):
            raise ToolError(f"The chat has no result {name}. Copy the path from the cut result.")
        return await self._read_bytes(file, limit)

    async def read_project_file(self, context: ToolContext, name: str, limit: int) -> bytes:
        """The first bytes of a text file of the chat's project, by its name there. Raises
        ToolError, Unavailable."""
        file = await projects.find_file_of_chat(self._pool, context.chat.id, name)
        if file is None:
            raise ToolError(
                f"The chat's project has no file {name!r}. Its files are in your instructions."
            )
        if not is_text(file.media_type):
            raise ToolError(f"{name!r} is {file.media_type}, not text. Ask the user to attach it.")
        return await self._read_bytes(file, limit)

    async def _read_bytes(self, file: StoredFile, limit: int) -> bytes:
        part = ByteRange(0, min(file.size_bytes, limit))
        async with aclosing(self._stores.of(file.store).read(file, part)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def store(
        self,
        context: ToolContext,
        name: str,
        declared_type: str | None,
        pieces: AsyncGenerator[bytes],
        *,
        is_result: bool = False,
        part: FileOfCall = "",
    ) -> StoredFile:
        """Raises ToolError for a file that cannot be stored, and StaleFence. Nothing is kept of a
        file that is not complete."""
        max_files = MAX_FILES_PER_CHAT // 2 if is_result else MAX_FILES_PER_CHAT
        async with aclosing(pieces):
            try:
                inspection = FileInspection(
                    declared_type,
                    name,
                    takes_markup=is_result,
                    is_recording=part == "recording",
                )
                return await self._store(
                    context, name, inspection, pieces, max_files=max_files, part=part
                )
            except InvalidInput as error:
                raise ToolError(f"{name} cannot be used: it {error.detail}.") from None
            except UnsupportedFile as error:
                raise ToolError(f"{name} cannot be used. {error.message}") from None
            except Conflict as error:
                raise ToolError(f"{name} cannot be stored. {error.message}") from None

    async def _store(
        self,
        context: ToolContext,
        name: str,
        inspection: FileInspection,
        pieces: AsyncGenerator[bytes],
        *,
        max_files: int,
        part: FileOfCall,
    ) -> StoredFile:
        clock, store, file_id = self._env.clock, self._stores.current, FileId(self._env.new_id())
        await retry_unavailable(
            clock,
            lambda: files.begin_for_chat(
                self._pool,
                file_id,
                context.chat.id,
                context.fence,
                store=store.name,
                chunk_bytes=store.chunk_bytes,
            ),
        )
        try:
            received = await self._write(store, file_id, inspection, pieces)
            return await self._finish(
                context, file_id, name, received, max_files=max_files, part=part
            )
        except Exception as error:
            # A cancelled task writes nothing more; maintenance removes what it left.
            await self._remove(store, file_id)
            stored = await self.find(context, part) if _may_be_stored(error) else None
            if stored is None:
                raise
            return stored

    async def _write(
        self,
        store: FileStore,
        file_id: FileId,
        inspection: FileInspection,
        pieces: AsyncGenerator[bytes],
    ) -> _Received:
        digest, number = sha256(), 0
        async with aclosing(_cut(pieces, store.chunk_bytes)) as chunks:
            async for chunk in chunks:
                inspection.feed(chunk)
                digest.update(chunk)
                await self._write_chunk(store, file_id, number, chunk)
                number += 1
        return _Received(
            media_type=inspection.finish(), size=inspection.size, sha256=digest.hexdigest()
        )

    async def _write_chunk(
        self, store: FileStore, file_id: FileId, number: int, chunk: bytes
    ) -> None:
        await retry_unavailable(self._env.clock, lambda: store.write(file_id, number, chunk))

    async def _finish(
        self,
        context: ToolContext,
        file_id: FileId,
        name: str,
        received: _Received,
        *,
        max_files: int,
        part: FileOfCall,
    ) -> StoredFile:
        new = NewFile(
            name=name,
            media_type=received.media_type,
            size_bytes=received.size,
            sha256=received.sha256,
            request_key=_request_key(context, part),
        )
        return await retry_unavailable(
            self._env.clock,
            lambda: files.finish_for_chat(
                self._pool,
                file_id,
                context.chat.id,
                context.fence,
                new=new,
                limits=self._limits,
                max_files=max_files,
            ),
        )

    async def _remove(self, store: FileStore, file_id: FileId) -> None:
        """Best effort: maintenance repeats it. A file that is complete has no upload."""
        with suppress(Unavailable):
            if await file_stores.abandon_upload(self._pool, file_id):
                left = DeadUpload(id=file_id, store=store.name, chunk_bytes=store.chunk_bytes)
                await self._stores.remove_bytes(self._pool, left)


def _request_key(context: ToolContext, part: FileOfCall) -> str:
    return f"tool:{context.call_key}" + (f":{part}" if part else "")


def _may_be_stored(error: Exception) -> bool:
    """Another attempt has stored the file, or the reply to this one was lost."""
    return isinstance(error, DuplicateRow) or (
        isinstance(error, Conflict) and error.code == "upload_ended"
    )


async def _cut(pieces: AsyncGenerator[bytes], size: int) -> AsyncGenerator[bytes]:
    """Pieces of exactly this size; only the last one may be shorter."""
    buffer = bytearray()
    async for piece in pieces:
        buffer += piece
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)
