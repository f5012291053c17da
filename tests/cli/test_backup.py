"""`chatd backup` and `chatd restore` as an operator runs them, beside a running server; killed in
the middle; and the restored server until it is confirmed."""

import os
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.error import HTTPError

import pytest

from chatd.store.database.conn import ConnectConfig, DatabaseSession, connect
from chatd.store.database.migrator import LOCK_KEY
from chatd.store.deployment.backups import UNFINISHED_TABLE
from tests.support.command_line import ServerProcess
from tests.support.database import TestServer
from tests.support.eventually import eventually

pytestmark = pytest.mark.timeout(240)
PASSPHRASE = "correct horse"


def of(server: ServerProcess) -> tuple[str, ...]:
    return ("--database-url", server.dsn, "--config", str(server.directory / "chatd.toml"))


@pytest.fixture
def copy(test_server: TestServer, tmp_path: Path) -> Generator[ServerProcess]:
    """Where a backup is restored to: an empty database and an empty data directory."""
    name = test_server.new_name()
    server = ServerProcess(test_server.create(name), tmp_path)
    yield server
    server.stop()
    test_server.drop(name)


@asynccontextmanager
async def session_to(server: ServerProcess) -> AsyncGenerator[DatabaseSession]:
    session = await connect(ConnectConfig(dsn=server.dsn))
    try:
        yield session
    finally:
        session.terminate()


def test_a_restored_copy_waits_until_an_administrator_confirms_it(
    server: ServerProcess, copy: ServerProcess, tmp_path: Path
) -> None:
    """Seconds: a second server, and scrypt four times."""
    chat = server.answered_chat("say hello")
    server.request(
        "POST", "/schedules", {"name": "hourly", "cron": "0 * * * *", "prompt": "scheduled"}
    )
    file = tmp_path / "a.backup"
    encrypted = {"CHATD_BACKUP_PASSPHRASE": PASSPHRASE}
    made = server.call("backup", *of(server), "-o", file, env=encrypted)
    assert (made.code, made.out) == (0, f"{file}\n"), made
    assert b"hourly" not in file.read_bytes()
    checked = copy.call("restore", "--check", file, env=encrypted)
    assert "encrypted yes" in checked.out
    restored = copy.call("restore", file, *of(copy), env=encrypted)
    assert restored.code == 0, restored
    assert "confirm-restore" in restored.out
    again = copy.call("restore", file, *of(copy), env=encrypted)
    assert (again.code, "not empty" in again.err) == (1, True), again

    copy.start()
    assert (
        copy.request("GET", f"/chats/{chat}")["title"]
        == server.request("GET", f"/chats/{chat}")["title"]
    )
    assert copy.request("GET", "/auth/me")["restored_from"] is not None
    schedule = copy.request("GET", "/schedules")["items"]
    assert isinstance(schedule, list)
    copy.request("POST", f"/schedules/{schedule[0]['id']}/run")
    waiting = copy.create_chat("answer fast")
    found = copy.call("doctor", *of(copy))
    assert "restored from a backup" in found.out
    assert copy.request("GET", f"/chats/{waiting}")["status"] == "pending"
    assert not copy.request("GET", "/workers")["items"]

    confirmed = copy.call("admin", "confirm-restore", *of(copy))
    assert confirmed.code == 0, confirmed
    copy.done("chats", "tail", waiting, "--until-idle")
    assert copy.request("GET", "/auth/me")["restored_from"] is None
    with pytest.raises(HTTPError, match="409"):
        copy.request("POST", "/restore/confirm")
    audit = copy.call("admin", "audit", *of(copy), "--limit", "5")
    assert "confirmed the restored backup" in audit.out


async def test_a_backup_that_is_killed_leaves_no_file_that_looks_whole(
    server: ServerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "a.backup"
    async with (
        session_to(server) as session,
        session.transaction(),
    ):
        # The backup waits for this table, after it has begun to write.
        await session.execute("LOCK TABLE webhooks IN ACCESS EXCLUSIVE MODE")
        async with server.started("backup", *of(server), "-o", file) as process:

            async def has_begun() -> bool:
                return any(name.endswith(".partial") for name in os.listdir(tmp_path))

            await eventually(has_begun)
            process.send_signal(signal.SIGKILL)
            await process.wait()
    (left,) = os.listdir(tmp_path)
    assert left != file.name
    refused = await server.run("restore", "--check", tmp_path / left)
    assert refused.code == 1, refused


async def test_a_restore_that_is_killed_leaves_a_place_that_serve_refuses(
    server: ServerProcess, copy: ServerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "a.backup"
    await server.ok("backup", *of(server), "-o", file)
    async with session_to(copy) as session:
        # The restore waits here, when the place is marked and nothing else is in it.
        await session.execute("SELECT pg_advisory_lock($1)", LOCK_KEY)
        async with copy.started("restore", file, *of(copy)) as process:

            async def has_begun() -> bool:
                return await session.fetchval(
                    "SELECT to_regclass($1) IS NOT NULL", UNFINISHED_TABLE
                )

            await eventually(has_begun)
            process.send_signal(signal.SIGKILL)
            await process.wait()
    for arguments in (
        ("serve", "--port", "0"),
        ("admin", "audit"),
        ("backup", "-o", tmp_path / "b"),
    ):
        refused = await copy.run(*arguments, *of(copy))
        assert refused.code == 1, refused
        assert "was begun and not finished. Empty it" in refused.err
    # Another host, which has only the database, is told the same.
    elsewhere = {"CHATD_DATA_DIR": str(tmp_path / "other")}
    refused = await copy.run("serve", "--port", "0", *of(copy), env=elsewhere)
    assert "was begun and not finished. Empty it" in refused.err
    found = await copy.run("doctor", *of(copy))
    assert "was begun and not finished" in found.out
    assert os.listdir(copy.directory / "data") == ["restore-unfinished"]
