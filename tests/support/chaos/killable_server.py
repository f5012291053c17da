"""A durable database server of one test, which the test can kill."""

import os
import signal
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from chatd.pg.config import EmbeddedConfig
from chatd.pg.server import PostgresServer, open_server
from chatd.store import migrator
from tests.support.database import scratch_space

SMALL: Final = {"shared_buffers": "16MB", "max_connections": "40", "fsync": "on"}


class KillableServer:
    def __init__(self, server: PostgresServer, data_dir: Path) -> None:
        self._server = server
        self._data_dir = data_dir

    @property
    def dsn(self) -> str:
        return self._server.dsn

    async def kill(self) -> None:
        """Kill the postmaster. Its backends exit when they notice; some still send a reply."""
        lock = self._data_dir / "cluster" / "postmaster.pid"
        os.kill(int(lock.read_text().splitlines()[0]), signal.SIGKILL)

    async def restart(self) -> None:
        await self._server.ensure_running()


@asynccontextmanager
async def killable_server() -> AsyncGenerator[KillableServer]:
    """Takes a second or two: the cluster is created and migrated."""
    with tempfile.TemporaryDirectory(prefix="chatd-mortal-", dir=scratch_space()) as home:
        os.chmod(home, 0o711)  # the server may run under another account
        data_dir = Path(home) / "pg"
        server = await open_server(EmbeddedConfig(data_dir=data_dir, settings=SMALL), os.environ)
        try:
            await migrator.up(server.dsn)
            yield KillableServer(server, data_dir)
        finally:
            await server.close()
