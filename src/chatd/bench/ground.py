"""Throw-away ground to measure on: an embedded server of our own, and what it costs.

Owns the server's life and reading the processor time of its processes. The data directory is
on disk, in the system's temporary directory, and goes when the bench ends.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from chatd.pg.config import Config
from chatd.pg.server import start
from chatd.store import migrate
from chatd.store.conn import ConnectConfig, Session, StatementHook, connect
from chatd.store.pool import Pool, PoolConfig

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    dsn: str
    postmaster: int

    @property
    def socket_dir(self) -> str:
        return parse_qs(urlsplit(self.dsn).query)["host"][0]

    def server_cpu_s(self) -> float:
        """Of the server and every process it has or had. Whole clock ticks: use over seconds."""
        own, reaped, _ = _ticks(self.postmaster)
        living = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                ticks, _, parent = _ticks(int(entry.name))
                living += ticks if parent == self.postmaster else 0
        return (own + reaped + living) / _TICKS_A_SECOND

    @asynccontextmanager
    async def pool(
        self, size: int, *, on_statement: StatementHook | None = None, dsn: str | None = None
    ) -> AsyncGenerator[Pool]:
        link = ConnectConfig(dsn=dsn or self.dsn, application_name="bench")
        pool = Pool(PoolConfig(connect=link, max_size=size), on_statement=on_statement)
        try:
            yield pool
        finally:
            await pool.close()

    @asynccontextmanager
    async def session(self, *, statement_timeout_s: float = 60) -> AsyncGenerator[Session]:
        link = ConnectConfig(dsn=self.dsn, statement_timeout_s=statement_timeout_s)
        session = await connect(link)
        try:
            yield session
        finally:
            await session.close(within_s=5)


@asynccontextmanager
async def fresh(settings: Mapping[str, str] | None = None) -> AsyncGenerator[Ground]:
    """A server with the schema and nothing else, set up as the product sets it up."""
    with scratch_dir() as home:
        server = await start(Config(data_dir=home / "pg", settings=settings or {}), os.environ)
        try:
            await migrate.up(server.dsn)
            yield Ground(dsn=server.dsn, postmaster=await _postmaster(server.dsn))
        finally:
            await server.close()


def scratch_dir() -> "_ScratchDir":
    return _ScratchDir()


class _ScratchDir:
    """A temporary directory that another account may pass through, as the server's must."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="chatd-bench-")

    def __enter__(self) -> Path:
        home = Path(self._directory.name)
        home.chmod(0o711)
        return home

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()


async def _postmaster(dsn: str) -> int:
    session = await connect(ConnectConfig(dsn=dsn))
    try:
        return (await asyncio.to_thread(_ticks, session.backend_pid))[2]
    finally:
        await session.close(within_s=5)


def _ticks(pid: int) -> tuple[int, int, int]:
    """Processor time of a process, of its children that have ended, and its parent."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0, 0
    fields = line.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14]), int(fields[1])
