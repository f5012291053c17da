"""The processes of a bench: database, fake provider, relay and `chatd serve`.

The data directory is on disk, in the system's temporary directory, and is removed with the bench.
"""

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct

from bench import proc_stats
from bench.child_processes import BenchProgram, ChatdProcess, start_chatd, start_program
from bench.clients import TOKEN, ChatdClient, DirectClient
from chatd.pg.config import EmbeddedConfig
from chatd.pg.server import open_server
from chatd.store.database import migrator
from chatd.store.database.conn import ConnectConfig, DatabaseSession, StatementHook, connect
from chatd.store.database.pool import Pool, PoolConfig

_POSTGRES: Final = "postgres"


class BenchDatabase(Struct, frozen=True, kw_only=True):
    dsn: str
    postmaster_pid: int

    @property
    def socket_dir(self) -> str:
        return parse_qs(urlsplit(self.dsn).query)["host"][0]

    @property
    def root_pids(self) -> tuple[int, ...]:
        """The postmaster; none if the server runs on another machine."""
        return () if self.postmaster_pid == 0 else (self.postmaster_pid,)

    def server_cpu_s(self) -> float:
        """Of all server processes, ended ones included. Whole clock ticks: measure seconds."""
        return proc_stats.cpu_s(*self.root_pids)

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
            await session.close(timeout_s=5)


@asynccontextmanager
async def fresh_database(
    settings: Mapping[str, str] | None = None,
) -> AsyncGenerator[BenchDatabase]:
    """An embedded server with chatd's settings and an empty schema."""
    with scratch_dir() as home:
        server = await open_server(
            EmbeddedConfig(data_dir=home / "pg", settings=settings or {}), os.environ
        )
        try:
            await migrator.up(server.dsn)
            yield BenchDatabase(dsn=server.dsn, postmaster_pid=await _postmaster(server.dsn))
        finally:
            await server.close()


def scratch_dir() -> "_ScratchDir":
    return _ScratchDir()


class _ScratchDir:
    """A temporary directory that PostgreSQL's account can traverse."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="chatd-bench-")

    def __enter__(self) -> Path:
        home = Path(self._directory.name)
        home.chmod(0o711)
        return home

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()


@asynccontextmanager
async def external_database(url: str) -> AsyncGenerator[BenchDatabase]:
    """A new database on the server at `url`, dropped when the bench ends."""
    name = f"chatd_bench_{secrets.token_hex(6)}"
    dsn = urlsplit(url)._replace(path=f"/{name}").geturl()
    await _administer(url, f'CREATE DATABASE "{name}"')
    try:
        await migrator.up(dsn)
        yield BenchDatabase(dsn=dsn, postmaster_pid=await _postmaster(dsn))
    finally:
        await _administer(url, f'DROP DATABASE "{name}" WITH (FORCE)')


async def _administer(url: str, sql: str) -> None:
    session = await connect(ConnectConfig(dsn=url))
    try:
        await session.script(sql, timeout_s=60)
    finally:
        await session.close(timeout_s=5)


async def _postmaster(dsn: str) -> int:
    """0 if the server runs on another machine."""
    session = await connect(ConnectConfig(dsn=dsn))
    try:
        backend = await asyncio.to_thread(proc_stats.read_entry, session.backend_pid)
    finally:
        await session.close(timeout_s=5)
    return backend.parent if backend is not None and backend.name == _POSTGRES else 0


class BenchEnvironment(Struct, frozen=True, kw_only=True):
    home: Path
    database: BenchDatabase
    provider: BenchProgram
    relay: BenchProgram
    server: ChatdProcess

    def direct_client(self) -> DirectClient:
        return DirectClient(self.provider.port)

    def relay_client(self) -> DirectClient:
        return DirectClient(self.relay.port)

    def chatd_client(self) -> ChatdClient:
        return ChatdClient(self.server.port)

    async def cpu_s(self) -> float:
        """Of all processes of the server and of PostgreSQL."""
        return await asyncio.to_thread(self.cpu_now_s)

    def cpu_now_s(self) -> float:
        return proc_stats.cpu_s(self.server.pid, *self.database.root_pids)

    async def relay_cpu_s(self) -> float:
        return await asyncio.to_thread(proc_stats.cpu_s, self.relay.pid)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @asynccontextmanager
    async def another_replica(
        self, dsn: str | None = None, *flags: str
    ) -> AsyncGenerator[ChatdProcess]:
        """One more server on the same database, reached by `dsn` if given."""
        where = ("--data-dir", str(self.home / "data"), "--database-url", dsn or self.database.dsn)
        async with start_chatd(
            self.home, server_variables(self.provider), *where, *flags
        ) as server:
            yield server


def server_variables(provider: BenchProgram, *, slots: int = 1000) -> dict[str, str]:
    """Settings of a server that uses the fake provider."""
    url = f"http://127.0.0.1:{provider.port}/v1"
    fake = {"name": "fake", "kind": "openai-compat", "base_url": url}
    model = {"name": "bench", "provider": "fake", "model": "bench", "default": True}
    return {
        "CHATD_PROVIDERS": msgspec.json.encode([fake]).decode(),
        "CHATD_MODELS": msgspec.json.encode([model]).decode(),
        "CHATD_ADMIN_TOKEN": TOKEN,
        "CHATD_LOG_LEVEL": "error",
        "CHATD_CHATS_TITLES": "false",
        "CHATD_WORKER_SLOTS": str(slots),
    }


@asynccontextmanager
async def start_environment(database_url: str | None) -> AsyncGenerator[BenchEnvironment]:
    async with AsyncExitStack() as stack:
        home = stack.enter_context(scratch_dir())
        database = await stack.enter_async_context(
            fresh_database() if database_url is None else external_database(database_url)
        )
        provider = await stack.enter_async_context(start_program("bench.fake_provider"))
        address = f"http://127.0.0.1:{provider.port}/v1/chat/completions"
        relay = await stack.enter_async_context(start_program("bench.relay", address))
        flags = ("--data-dir", str(home / "data"), "--database-url", database.dsn)
        server = await stack.enter_async_context(
            start_chatd(home, server_variables(provider), *flags)
        )
        yield BenchEnvironment(
            home=home, database=database, provider=provider, relay=relay, server=server
        )
