"""Periodic removal of files that no chat names, of bytes that belong to no file, and of old request
keys. Every replica runs it; to do it twice is harmless.
"""

from contextlib import suppress
from datetime import timedelta
from typing import Final

from chatd.aio import PeriodicTask
from chatd.domain.errors import Unavailable
from chatd.domain.ports import Env
from chatd.store import file_stores, files
from chatd.store.chat.idempotency import REQUEST_RETENTION
from chatd.store.conn import Conn, MissingReference
from chatd.store.file_stores import FileStores
from chatd.store.files import SweepPosition

UNLINKED_FILE_LIFETIME: Final = timedelta(days=1)
FILE_SWEEP_INTERVAL_S: Final = 600.0
_FILES_PER_PAGE: Final = 500
_PAGES_PER_SWEEP: Final = 20
_UPLOADS_PER_SWEEP: Final = 200
_KEYS_PER_SWEEP: Final = 10_000


class FileSweep:
    """Walks over all files, some pages in each run, and begins again at the end."""

    def __init__(self, conn: Conn, env: Env, stores: FileStores) -> None:
        self._conn = conn
        self._env = env
        self._stores = stores
        self._position = SweepPosition()

    async def run(self) -> None:
        with suppress(MissingReference):  # a message has just named one of them
            await self._delete_unlinked()
        await self._remove_bytes()
        await files.clear_old_keys(self._conn, REQUEST_RETENTION, limit=_KEYS_PER_SWEEP)

    async def _delete_unlinked(self) -> None:
        deleted = 0
        for _ in range(_PAGES_PER_SWEEP):
            page = await files.sweep(
                self._conn, self._position, UNLINKED_FILE_LIFETIME, limit=_FILES_PER_PAGE
            )
            if page is None:
                self._position = SweepPosition()
                break
            self._position = page.position
            deleted += page.deleted
        if deleted:
            self._env.emit("files_deleted", files=deleted)

    async def _remove_bytes(self) -> None:
        """Bytes that cannot be removed now do not hold up the others."""
        for left in await file_stores.list_dead_uploads(self._conn, limit=_UPLOADS_PER_SWEEP):
            try:
                await self._stores.remove_bytes(self._conn, left)
            except Unavailable as error:
                self._env.emit("file_not_removed", file_id=left.id, error_kind=error.code)


def file_tasks(conn: Conn, env: Env, stores: FileStores) -> tuple[PeriodicTask, ...]:
    sweep = FileSweep(conn, env, stores)
    return (PeriodicTask(name="sweep_files", interval_s=FILE_SWEEP_INTERVAL_S, work=sweep.run),)
