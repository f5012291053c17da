"""Throw-away ground to measure on: an embedded server of our own or a lent one, and what it costs.

Owns the server's life and reading the processor time of its processes. The data directory is
on disk, in the system's temporary directory, and goes when the bench ends.
"""

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from chatd.bench import proc
from chatd.pg.config import EmbeddedConfig
from chatd.pg.server import open_server
from chatd.store import migrator
from chatd.store.conn import ConnectConfig, DatabaseSession, StatementHook, connect
from chatd.store.pool import Pool, PoolConfig

_POSTGRES: Final = "postgres"


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    dsn: str
    postmaster: int

    @property
    def socket_dir(self) -> str:
        return parse_qs(urlsplit(self.dsn).query)["host"][0]

    @property
    def processes(self) -> tuple[int, ...]:
        """The root of the server's processes; none if it runs on another machine."""
        return () if self.postmaster == 0 else (self.postmaster,)

    def server_cpu_s(self) -> float:
        """Of the server and every process it has or had. Whole clock ticks: use over seconds."""
        return proc.cpu_s(*self.processes)

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
    async def session(self, *, statement_timeout_s: float = 60) -> AsyncGenerator[DatabaseSession]:
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
        server = await open_server(
            EmbeddedConfig(data_dir=home / "pg", settings=settings or {}), os.environ
        )
        try:
            await migrator.up(server.dsn)
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


@asynccontextmanager
async def lent(url: str) -> AsyncGenerator[Ground]:
    """A database of our own on somebody's server, dropped when the bench ends."""
    name = f"chatd_bench_{secrets.token_hex(6)}"
    dsn = urlsplit(url)._replace(path=f"/{name}").geturl()
    await _administer(url, f'CREATE DATABASE "{name}"')
    try:
        await migrator.up(dsn)
        yield Ground(dsn=dsn, postmaster=await _postmaster(dsn))
    finally:
        await _administer(url, f'DROP DATABASE "{name}" WITH (FORCE)')


async def _administer(url: str, sql: str) -> None:
    session = await connect(ConnectConfig(dsn=url))
    try:
        await session.script(sql, within_s=60)
    finally:
        await session.close(within_s=5)


async def _postmaster(dsn: str) -> int:
    """0 if the server's processes are not to be seen from here."""
    session = await connect(ConnectConfig(dsn=dsn))
    try:
        backend = await asyncio.to_thread(proc.entry, session.backend_pid)
    finally:
        await session.close(within_s=5)
    return backend.parent if backend is not None and backend.name == _POSTGRES else 0
