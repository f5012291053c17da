"""A copy of a running database cluster, to which the database can be put back.

It is what a standby without the last commits, a restored backup or a rolled-back disk holds: every
commit that was acknowledged before `taken_at`, and few or none that came later.
"""

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final, LiteralString

from chatd.store.database.conn import ConnectConfig, connect

BEGIN_COPY: Final[LiteralString] = "SELECT pg_backup_start('chaos', fast => true)"
END_COPY: Final[LiteralString] = "SELECT labelfile FROM pg_backup_stop(wait_for_archive => false)"
WAL: Final = "pg_wal"
NOT_COPIED: Final = {"postmaster.pid", "postmaster.opts", WAL}


class ClusterCopy:
    def __init__(self, directory: Path, taken_at: float) -> None:
        self.taken_at = taken_at
        """By the event loop's clock."""
        self._directory = directory

    async def put_back(self, cluster: Path) -> None:
        """Replace the cluster of a stopped server."""

        def replace() -> None:
            shutil.rmtree(cluster)
            _copy(self._directory, cluster, skip=set())

        await asyncio.to_thread(replace)

    async def remove(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._directory)


async def copy_cluster(dsn: str, cluster: Path, directory: Path) -> ClusterCopy:
    """The log is copied last: it holds all commits up to that moment."""
    config = ConnectConfig(dsn=dsn, application_name="copy", statement_timeout_s=60)
    session = await connect(config)
    try:
        await session.execute(BEGIN_COPY)
        await asyncio.to_thread(_copy, cluster, directory, skip=NOT_COPIED)
        label = str(await session.fetchval(END_COPY))
    finally:
        await session.close(timeout_s=30)
    taken_at = asyncio.get_running_loop().time()
    await asyncio.to_thread(_copy, cluster / WAL, directory / WAL, skip=set())
    _own(directory / "backup_label", cluster, text=label)
    return ClusterCopy(directory, taken_at)


def _copy(source: Path, target: Path, *, skip: set[str]) -> None:
    """A running server creates and removes files meanwhile."""
    target.mkdir(mode=0o700)
    _own(target, source)
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.name in skip:
                continue
            copy = target / entry.name
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    _copy(Path(entry.path), copy, skip=set())
                elif entry.is_file(follow_symlinks=False):
                    shutil.copy(entry.path, copy)
                    _own(copy, Path(entry.path))


def _own(path: Path, like: Path, *, text: str | None = None) -> None:
    """Give the file to the account of the server."""
    if text is not None:
        path.write_text(text)
    owner = like.stat()
    os.chown(path, owner.st_uid, owner.st_gid)
