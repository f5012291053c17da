"""A durable database server of one test, which the test can kill, put back to an older state, and
deprive of its disk."""

import os
import signal
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from chatd.pg.config import EmbeddedConfig
from chatd.pg.server import PostgresServer, open_server
from chatd.store.database import migrator
from tests.support.chaos.cluster_copy import ClusterCopy, copy_cluster
from tests.support.chaos.database_clock import DatabaseClock
from tests.support.chaos.small_disk import SmallDisk, small_disk
from tests.support.database import STOCK, insert_test_users, scratch_space
from tests.support.eventually import eventually

SMALL: Final = {
    "shared_buffers": "16MB",
    "max_connections": "100",
    "fsync": "on",
    "max_wal_size": "64MB",
    "wal_keep_size": "48MB",  # A copy needs the log since it began.
}
STOP_TIMEOUT_S: Final = 60.0


class KillableServer:
    def __init__(self, server: PostgresServer, disk: SmallDisk, copies: Path) -> None:
        self.disk = disk
        self.clock = DatabaseClock(server.dsn)
        self._server = server
        self._cluster = data_dir_on(disk) / "cluster"
        self._copies = copies
        self._copy_count = 0

    @property
    def dsn(self) -> str:
        return self._server.dsn

    async def kill(self) -> None:
        """Kill the postmaster. Its backends exit when they notice; some still send a reply."""
        os.kill(self._pid(), signal.SIGKILL)

    async def restart(self) -> None:
        await self._server.ensure_running()

    async def copy(self) -> ClusterCopy:
        self._copy_count += 1
        return await copy_cluster(self.dsn, self._cluster, self._copies / f"{self._copy_count}")

    async def fail_over(self, copy: ClusterCopy) -> None:
        """Stop all processes at once, without a last checkpoint, and start from the copy."""
        os.kill(self._pid(), signal.SIGQUIT)
        await eventually(self._has_stopped, within_s=STOP_TIMEOUT_S)
        await copy.put_back(self._cluster)
        await self.restart()

    def _pid(self) -> int:
        return int((self._cluster / "postmaster.pid").read_text().splitlines()[0])

    async def _has_stopped(self) -> bool:
        return not (self._cluster / "postmaster.pid").exists()


def data_dir_on(disk: SmallDisk) -> Path:
    return disk.path / "pg"


@asynccontextmanager
async def killable_server(
    *,
    has_clock: bool = False,
    has_small_disk: bool = False,
    stock_programs: Path | None = None,
) -> AsyncGenerator[KillableServer]:
    """Takes a second or two: the cluster is created and migrated. `has_clock`: the test sets the
    database's clock. `has_small_disk`: the test fills the disk, if it may mount one. With
    `stock_programs` it is an installed PostgreSQL with the settings that it comes with."""
    async with small_disk(is_wanted=has_small_disk) as disk:
        with tempfile.TemporaryDirectory(prefix="chatd-copies-", dir=scratch_space()) as copies:
            config = EmbeddedConfig(
                data_dir=data_dir_on(disk),
                bin_dir=stock_programs,
                settings=SMALL if stock_programs is None else STOCK,
            )
            server = await open_server(config, os.environ)
            try:
                killable = KillableServer(server, disk, Path(copies))
                if has_clock:
                    await killable.clock.install()
                await migrator.up(server.dsn)
                await insert_test_users(server.dsn)
                yield killable
            finally:
                disk.free()
                await server.close()
