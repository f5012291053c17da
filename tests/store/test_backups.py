"""A backup of all rows as of one moment, its restore into an empty database, and the schedule."""

import asyncio
import io
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import LiteralString, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.chat.states import State
from chatd.domain.errors import ChatdError, Conflict
from chatd.domain.ids import ChatId
from chatd.sealed_secrets import new_key
from chatd.services.operation import backup_file, restores
from chatd.services.operation.backup_file import BackupReader, EntryStart, Manifest
from chatd.services.operation.backups import (
    RETRY_INTERVAL_S,
    BackupRequest,
    ScheduleConfig,
    ScheduledBackups,
    backup_name,
    new_backup_file,
    prune,
    write_backup,
)
from chatd.services.operation.restores import RestoreUnfinished
from chatd.services.operation.secret_keys import KEY_FILE, KeySource
from chatd.store.chat import chats
from chatd.store.database import migrator
from chatd.store.database.conn import Conn, ConnectConfig, DatabaseSession, connect
from chatd.store.database.pool import Pool
from chatd.store.deployment import backups
from tests.store.account_cases import prepare_accounts
from tests.store.owned_row_cases import prepare_owned_rows
from tests.support.clock import FakeClock
from tests.support.factories import AT, CHAT, HARNESS, OWNER
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.stream_replica import Emitted, env_with
from tests.support.workspaces import insert_workspace

CATALOGUE = """
    SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
        || convalidated AS line
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
    UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT table_name || column_name || data_type || ordinal_position
    FROM information_schema.columns WHERE table_schema = 'public' ORDER BY line"""
# What the restore changes itself: a running chat has no worker afterwards.
CHANGED = frozenset({"chats", "chat_runs", "restores"})


def report(done: int, expected: int, what: str) -> None:
    del done, expected, what


async def contents(conn: Conn) -> dict[str, str]:
    """Each table as a digest of its rows."""
    names = await conn.fetch(
        """SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
           AND relkind = 'r' AND NOT relispartition ORDER BY 1"""
    )
    found: dict[str, str] = {}
    for row in names:
        name = row["relname"]
        if name not in backups.LEFT_OUT:
            digest = f"SELECT md5(string_agg(t::text, '' ORDER BY t::text)) FROM {name} t"
            found[name] = await conn.fetchval(cast("LiteralString", digest)) or ""
    return found


async def catalogue(conn: Conn) -> list[str]:
    return [row["line"] for row in await conn.fetch(CATALOGUE)]


@asynccontextmanager
async def session_to(dsn: str) -> AsyncGenerator[DatabaseSession]:
    session = await connect(ConnectConfig(dsn=dsn))
    try:
        yield session
    finally:
        session.terminate()


class Deployment:
    """A database with rows of many tables, and a data directory with secrets and a workspace."""

    def __init__(self, pool: Pool, dsn: str, directory: Path) -> None:
        self.pool = pool
        self.directory = directory
        keys = KeySource(path=directory / KEY_FILE)
        self.request = BackupRequest(data_dir=directory, connect=ConnectConfig(dsn=dsn), keys=keys)

    async def fill(self) -> None:
        await insert_seed(self.pool, Seed(state=State.R1, chat_id=CHAT))
        await insert_workspace(self.pool, 1)
        await prepare_accounts(self.pool)
        await prepare_owned_rows(self.pool)
        for name in (KEY_FILE, "secret", "host-id", "admin-token"):
            (self.directory / name).write_text(f"{new_key().encode()}\n")
        home = self.directory / "ws" / str(UUID(int=7)) / "home"
        home.mkdir(parents=True)
        (home / "note.txt").write_text("a file")
        (home / "note.txt").chmod(0o664)
        (home / "sub").mkdir(mode=0o750)
        (home / "out").symlink_to("/etc")
        (home / "sub" / "link").symlink_to("../note.txt")
        (home / "loop").symlink_to("loop")
        (home / "through-a-file").symlink_to("note.txt/x")
        os.mkfifo(home / "pipe")

    async def back_up(self, target: Path, request: BackupRequest | None = None) -> None:
        async with new_backup_file(target) as stream:
            await write_backup(request or self.request, stream, UUID(int=8), report)

    async def report_backup(self) -> list[tuple[int, int, str]]:
        reports: list[tuple[int, int, str]] = []

        def note(done: int, expected: int, what: str) -> None:
            reports.append((done, expected, what))

        await write_backup(self.request, io.BytesIO(), UUID(int=8), note)
        return reports


@pytest.fixture
async def deployment(pool: Pool, dsn: str, tmp_path: Path) -> Deployment:
    directory = tmp_path / "data"
    directory.mkdir()
    found = Deployment(pool, dsn, directory)
    await found.fill()
    return found


async def restore(file: Path, dsn: str, directory: Path) -> None:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[ConnectConfig]:
        yield ConnectConfig(dsn=dsn)

    with file.open("rb") as stream:
        await restores.restore(stream, None, directory, opened, report)


@pytest.mark.stock_server
async def test_a_restored_deployment_has_the_same_rows_constraints_and_files(
    deployment: Deployment, empty_dsn: str, tmp_path: Path
) -> None:
    """More than a second: all migrations, and a copy of every table."""
    file, target = tmp_path / "a.backup", tmp_path / "restored"
    await deployment.back_up(file, replace(deployment.request, holds_workspaces=True))
    await restore(file, empty_dsn, target)
    before = await contents(deployment.pool)
    assert sum(bool(digest) for digest in before.values()) > 20
    async with session_to(empty_dsn) as session:
        after = await contents(session)
        assert {name for name in before if before[name] != after[name]} <= CHANGED
        assert await catalogue(session) == await catalogue(deployment.pool)
        # New rows get numbers that no row of the backup had.
        numbered = "INSERT INTO audit_log (actor, action, object_type, object_id)"
        taken = await deployment.pool.fetchval("SELECT max(id) FROM audit_log")
        new = await session.fetchval(f"{numbered} VALUES ('a', 'b', 'c', 'd') RETURNING id")
        assert new == taken + 1
        chat = present(await chats.get(session, HARNESS, CHAT))
        assert (chat.status, chat.worker_id, chat.orphan_count) == ("running", None, 0)
        record = present(await backups.read_restore(session))
        assert record.confirmed_at is None
    for name in (KEY_FILE, "secret", "host-id", "admin-token"):
        assert (target / name).read_text() == (deployment.directory / name).read_text()
        assert (target / name).stat().st_mode & 0o777 == 0o600
    home = target / "ws" / str(UUID(int=7)) / "home"
    assert (home / "note.txt").read_text() == "a file"
    assert (home / "note.txt").stat().st_mode & 0o777 == 0o664
    assert os.readlink(home / "out") == "/etc"
    assert os.readlink(home / "sub" / "link") == "../note.txt"
    assert not (home / "pipe").exists()
    assert not (target / restores.UNFINISHED_FILE).exists()


async def test_the_progress_of_a_backup_rises_to_the_whole(deployment: Deployment) -> None:
    reports = await deployment.report_backup()
    done = [part for part, _, _ in reports]
    assert done == sorted(done)
    assert {whole for _, whole, _ in reports} == {done[-1]}
    assert len(set(done)) > 10


async def test_a_backup_has_the_rows_of_one_moment_while_users_write(
    deployment: Deployment,
) -> None:
    async with backups.open_snapshot(deployment.request.connect) as snapshot:
        await insert_seed(deployment.pool, Seed(state=State.W, chat_id=ChatId(UUID(int=9))))
        tables = {table.name: table for table in snapshot.facts.tables}
        copied: dict[str, bytes] = {}
        for name in ("chats", "chat_messages"):
            data = bytearray()

            async def write(piece: bytes, data: bytearray = data) -> None:
                data.extend(piece)

            rows = await snapshot.copy(tables[name], write)
            copied[name] = bytes(data)
            assert rows == data.count(b"\n")
    assert copied["chats"].count(b"\n") == 1
    messages = {line.split(b"\t")[0] for line in copied["chat_messages"].splitlines()}
    assert messages == {str(CHAT).encode()}
    assert "chat_journal" not in tables
    assert not set(backups.LEFT_OUT) & set(tables)


async def test_a_backup_of_an_older_schema_is_restored_and_migrated(
    deployment: Deployment, empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This version knows one migration more than the database of the backup had."""
    file = tmp_path / "a.backup"
    await deployment.back_up(file)
    content = check(file)
    newest = content.manifest.schema[-1].version
    older = tmp_path / "migrations"
    older.mkdir()
    for path in migrator.packaged_migrations().iterdir():
        (older / path.name).write_text(path.read_text())
    (older / f"{newest + 1:04d}_colour.sql").write_text("ALTER TABLE chats ADD colour text;")
    for module in (migrator, restores):
        monkeypatch.setattr(module, "packaged_migrations", lambda: older)
    await restore(file, empty_dsn, tmp_path / "restored")
    async with session_to(empty_dsn) as session:
        assert await session.fetchval("SELECT count(*) FROM chats WHERE colour IS NULL") == 1
    # The other way round the backup is refused.
    newer = tmp_path / "newer.backup"
    request = replace(deployment.request, connect=ConnectConfig(dsn=empty_dsn))
    await deployment.back_up(newer, request)
    monkeypatch.undo()
    with pytest.raises(Conflict, match="newer than this"):
        check(newer)


def check(file: Path) -> restores.BackupContent:
    with file.open("rb") as stream:
        return restores.check_backup(stream, None, report)


async def test_a_damaged_backup_or_a_place_that_is_not_empty_changes_nothing(
    deployment: Deployment, empty_dsn: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.backup"
    await deployment.back_up(file)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    damaged, cut = tmp_path / "damaged", tmp_path / "cut"
    damaged.write_bytes(data)
    cut.write_bytes(file.read_bytes()[:-1])
    target = tmp_path / "restored"
    for bad in (damaged, cut):
        with pytest.raises(backup_file.BackupUnreadable):
            await restore(bad, empty_dsn, target)
    assert not target.exists()
    with pytest.raises(Conflict, match="not empty: it has"):
        await restore(file, empty_dsn, deployment.directory)
    before = await contents(deployment.pool)
    with pytest.raises(Conflict, match="has tables already"):
        await restore(file, deployment.request.connect.dsn, target)
    assert await contents(deployment.pool) == before
    assert list(target.iterdir()) == []
    async with session_to(empty_dsn) as session:
        assert await contents(session) == {}


async def test_a_restore_that_failed_half_way_is_refused_by_a_server(
    deployment: Deployment, empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, target = tmp_path / "a.backup", tmp_path / "restored"
    await deployment.back_up(file)

    async def full(dsn: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(migrator, "analyze", full)
        with pytest.raises(ChatdError, match="unfinished"):
            await restore(file, empty_dsn, target)
    with pytest.raises(RestoreUnfinished, match="Empty it"):
        restores.refuse_unfinished_directory(target)
    with pytest.raises(RestoreUnfinished, match="Empty it"):
        await restores.refuse_unfinished_database(ConnectConfig(dsn=empty_dsn))
    with pytest.raises(Conflict, match="not finished"):
        await restore(file, empty_dsn, target)


async def test_keys_are_left_out_on_request_and_files_in_s3_need_their_bucket(
    deployment: Deployment, tmp_path: Path
) -> None:
    file = tmp_path / "a.backup"
    await deployment.back_up(file, replace(deployment.request, holds_keys=False))
    found = check(file)
    key_id = deployment.request.keys.read()[-1].id
    assert (found.manifest.keys, found.manifest.key_ids) == ("left_out", (key_id,))
    assert KEY_FILE not in found.files
    assert deployment.directory.joinpath(KEY_FILE).read_bytes().strip() not in file.read_bytes()
    await deployment.pool.execute(
        """INSERT INTO files (id, owner_id, media_type, size_bytes, sha256, store, chunk_bytes)
           VALUES ($1, $2, 'text/plain', 1, '', 's3', 1)""",
        *(UUID(int=8), OWNER),
    )
    again = tmp_path / "b.backup"
    with pytest.raises(ChatdError, match="name no bucket"):
        await deployment.back_up(again)
    assert not again.exists()
    await deployment.back_up(again, replace(deployment.request, s3_bucket="files"))
    with again.open("rb") as stream:
        pieces = BackupReader(stream).read(None)
        manifest = next(pieces)
        assert isinstance(manifest, Manifest)
        assert (manifest.s3_bucket, manifest.s3_files) == ("files", 1)
        assert isinstance(next(pieces), EntryStart)


# The schedule


def scheduled(
    deployment: Deployment, clock: FakeClock, directory: Path, *, keep: int = 2
) -> tuple[ScheduledBackups, Emitted]:
    emitted = Emitted()
    config = ScheduleConfig(directory=directory, every_s=3600, keep=keep)
    env = env_with(clock, emitted)
    return ScheduledBackups(deployment.pool, deployment.request, config, env), emitted


async def test_of_several_replicas_one_makes_the_backup_that_is_due(
    deployment: Deployment, clock: FakeClock, tmp_path: Path
) -> None:
    replicas = [scheduled(deployment, clock, tmp_path / "b")[0] for _ in range(3)]
    made = await asyncio.gather(*(replica.run_due() for replica in replicas))
    assert sorted(made) == [False, False, True]
    assert not any([await replica.run_due() for replica in replicas])
    (file,) = (tmp_path / "b").iterdir()
    check(file)
    latest = await backups.read_latest(deployment.pool)
    assert (latest.made_at is not None, latest.error) == (True, None)
    await deployment.pool.execute("UPDATE backups SET started_at = now() - interval '61 min'")
    clock.advance(3700)
    assert await replicas[0].run_due()


async def test_a_backup_that_fails_is_recorded_and_tried_again_later(
    deployment: Deployment, clock: FakeClock, tmp_path: Path
) -> None:
    blocked = tmp_path / "b"
    blocked.write_text("a file where the directory should be")
    schedule, emitted = scheduled(deployment, clock, blocked)
    assert not await schedule.run_due()
    assert emitted.counts["backup_failed"] == 1
    assert "File exists" in present((await backups.read_latest(deployment.pool)).error)
    blocked.unlink()
    assert not await schedule.run_due()
    await deployment.pool.execute(
        "UPDATE backups SET started_at = started_at - $1::float8 * interval '1 s'",
        RETRY_INTERVAL_S,
    )
    assert await schedule.run_due()
    assert (await backups.read_latest(deployment.pool)).error is None


def test_old_backups_and_unfinished_files_are_removed_and_no_other_file(tmp_path: Path) -> None:
    names = [backup_name(AT + timedelta(hours=hour)) for hour in range(5)]
    for name in (*names, "other.backup", "chatd.toml"):
        (tmp_path / name).touch()
    for name, age in (("old", timedelta(days=2)), ("new", timedelta(hours=1))):
        partial = tmp_path / f".{names[0]}.{name}.partial"
        partial.touch()
        at = (AT - age).timestamp()
        os.utime(partial, (at, at))
    assert prune(tmp_path, 2, AT) == 3
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*names[3:], "other.backup", "chatd.toml", f".{names[0]}.new.partial"}
