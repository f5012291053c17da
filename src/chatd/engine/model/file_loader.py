"""Loads the files of a chat for a prompt: within the limits of the model, and from a bounded cache,
because every step of a turn sends the same files again.
"""

from collections import OrderedDict
from contextlib import aclosing
from typing import Final

from chatd.aio import retry_unavailable
from chatd.domain.errors import Unavailable
from chatd.domain.files import ByteRange
from chatd.domain.ids import ChatId, FileId
from chatd.domain.model.protocol import AcceptedFiles
from chatd.domain.ports import Env
from chatd.domain.prompt.prompt_files import PlannedFile, ResolvedFile, plan_files
from chatd.store import files
from chatd.store.database.conn import Conn
from chatd.store.file_stores import FileStores

MAX_CACHED_FILE_BYTES: Final = 64 * 1024 * 1024
"""Of all chats of this process together."""
_LOST: Final = "file_lost"


class FileLoader:
    """A file never changes, so that its bytes can be kept. The least recently used go first."""

    def __init__(
        self,
        conn: Conn,
        env: Env,
        stores: FileStores,
        *,
        max_cached_bytes: int = MAX_CACHED_FILE_BYTES,
    ) -> None:
        self._conn = conn
        self._env = env
        self._stores = stores
        self._max_cached_bytes = max_cached_bytes
        self._cached: OrderedDict[tuple[FileId, int], bytes] = OrderedDict()
        self._cached_bytes = 0

    @property
    def cached_bytes(self) -> int:
        return self._cached_bytes

    async def load(
        self, chat_id: ChatId, named: list[str], accepts: AcceptedFiles
    ) -> dict[str, ResolvedFile]:
        """The files by id; those that are gone are missing. Raises Unavailable."""
        stored = await retry_unavailable(
            self._env.clock, lambda: files.list_of_chat(self._conn, chat_id), tag="file_retry"
        )
        by_name = {str(file_id): file for file_id, file in stored.items()}
        plan = plan_files(named, by_name, accepts)
        found = dict(plan.notes)
        for planned in plan.load:
            data = await self._read(planned)
            if data is not None:
                file = planned.file
                found[str(file.id)] = ResolvedFile(
                    media_type=file.media_type, data=data, name=file.name, size=file.size_bytes
                )
        return found

    async def _read(self, planned: PlannedFile) -> bytes | None:
        key = (planned.file.id, planned.load_bytes)
        if (data := self._cached.get(key)) is not None:
            self._cached.move_to_end(key)
            return data
        try:
            data = await retry_unavailable(
                self._env.clock, lambda: self._read_store(planned), tag="file_retry"
            )
        except Unavailable as error:
            if error.code != _LOST:
                raise
            self._env.emit("file_lost", file_id=planned.file.id)
            return None
        self._keep(key, data)
        return data

    async def _read_store(self, planned: PlannedFile) -> bytes:
        store = self._stores.of(planned.file.store)
        part = ByteRange(0, planned.load_bytes)
        async with aclosing(store.read(planned.file, part)) as pieces:
            return b"".join([piece async for piece in pieces])

    def _keep(self, key: tuple[FileId, int], data: bytes) -> None:
        if len(data) > self._max_cached_bytes or key in self._cached:
            return
        self._cached[key] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > self._max_cached_bytes:
            _, dropped = self._cached.popitem(last=False)
            self._cached_bytes -= len(dropped)
