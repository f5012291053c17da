"""The check of an external PostgreSQL: poolers are refused, unsafe settings are named."""

import asyncio
import logging
import os
import pwd
import shutil
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs, urlsplit

import pytest

from chatd.app.database import open_database
from chatd.domain.errors import ChatdError
from chatd.settings.schema import DatabaseSettings, Settings
from chatd.store.database.conn import ConnectConfig, DatabaseSession
from chatd.store.database.pool import check_server, unsafe_settings
from tests.support.clock import FakeClock
from tests.support.store import session_to

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")


@pytest.fixture
def open_directory() -> Generator[Path]:
    """Other accounts may enter it: PgBouncer does not run as root."""
    with TemporaryDirectory(prefix="chatd-pooler-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@asynccontextmanager
async def pgbouncer(dsn: str, at: Path, *settings: str) -> AsyncGenerator[str]:
    """A PgBouncer in front of the database; yields the address through it."""
    assert PGBOUNCER is not None
    url = urlsplit(dsn)
    host, database = parse_qs(url.query)["host"][0], url.path[1:]
    config = at / "pgbouncer.ini"
    lines = [
        "[databases]",
        f"{database} = host={host} port=5432 user=chatd",
        "[pgbouncer]",
        "listen_addr =",
        f"unix_socket_dir = {at}",
        "listen_port = 6432",
        "auth_type = any",
        "pool_mode = transaction",
        *settings,
    ]
    config.write_text("\n".join(lines))
    account = pwd.getpwuid(os.stat(host).st_uid).pw_name  # may use the server's socket
    process = await asyncio.create_subprocess_exec(
        PGBOUNCER, "-u", account, str(config), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(20):
            while b"process up" not in (line := await process.stderr.readline()):
                assert line, "PgBouncer did not start"
        yield f"postgresql://chatd@/{database}?host={at}&port=6432&sslmode=disable"
    finally:
        process.terminate()
        await process.communicate()


@pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param((), id="it refuses our startup parameters"),
        pytest.param(
            ("ignore_startup_parameters = " + ",".join(ConnectConfig(dsn="").server_settings()),),
            id="it drops our startup parameters",
        ),
    ],
)
async def test_a_connection_pooler_is_refused_and_named(
    dsn: str, open_directory: Path, settings: tuple[str, ...]
) -> None:
    async with pgbouncer(dsn, open_directory, *settings) as through:
        with pytest.raises(ChatdError, match="connection pooler, such as PgBouncer") as refused:
            await check_server(ConnectConfig(dsn=through))
    assert refused.value.code == "database_pooler"


async def test_a_server_that_may_lose_commits_is_reported(dsn: str) -> None:
    found = await check_server(ConnectConfig(dsn=dsn, settings={"synchronous_commit": "off"}))
    assert found["synchronous_commit"] == "off"
    async with session_to(dsn) as session:
        fsync = await session.fetchval("SELECT current_setting('fsync')")
    found = await check_server(ConnectConfig(dsn=dsn, settings={"synchronous_commit": "on"}))
    assert "synchronous_commit" not in found
    assert ("fsync" in found) == (fsync == "off")


@pytest.mark.parametrize(
    ("found", "unsafe"),
    [
        ({"synchronous_commit": "remote_apply", "fsync": "on"}, {}),
        ({"synchronous_commit": "local", "fsync": "off"}, {"fsync": "off"}),
    ],
)
def test_only_settings_that_are_off_are_unsafe(
    found: Mapping[str, str], unsafe: Mapping[str, str]
) -> None:
    assert unsafe_settings(found) == unsafe


@asynccontextmanager
async def exhausted(dsn: str) -> AsyncGenerator[tuple[str, DatabaseSession]]:
    """An address for which the server has no connection left, and a session that can change
    that."""
    role = f"crowded_{os.getpid()}"
    async with session_to(dsn) as session:
        await session.script(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0", timeout_s=9)
        try:
            url = urlsplit(dsn)
            netloc = url.netloc.replace("chatd", role, 1)
            yield url._replace(netloc=netloc).geturl(), session
        finally:
            await session.script(f"DROP ROLE {role}", timeout_s=9)


@pytest.mark.covers("F45")
@pytest.mark.stock_server
async def test_a_start_waits_for_a_connection_and_says_so(
    dsn: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with exhausted(dsn) as (url, session):
        settings = Settings(data_dir=Path("/nowhere"), database=DatabaseSettings(url=url))

        async def start() -> str:
            async with open_database(settings, {}, clock) as server:
                return server.dsn

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            with caplog.at_level(logging.WARNING):
                starting = group.create_task(start())
                await clock.advance_past("database_start_retry")
                await clock.wait_for_sleeper("database_start_retry")
            assert "too many connections" in caplog.text
            assert "database.start_wait_s" in caplog.text
            role = urlsplit(url).username
            await session.script(f"ALTER ROLE {role} CONNECTION LIMIT 9", timeout_s=9)
            await clock.advance_past("database_start_retry")
            assert await starting == url


async def test_a_start_does_not_wait_for_ever(dsn: str, clock: FakeClock) -> None:
    async with exhausted(dsn) as (url, _):
        database = DatabaseSettings(url=url, start_wait_s=0.0)
        settings = Settings(data_dir=Path("/nowhere"), database=database)
        with pytest.raises(ChatdError, match="Raise max_connections") as refused:
            async with open_database(settings, {}, clock):
                pass
        assert refused.value.code == "database_busy"
