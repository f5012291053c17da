"""Migrations: applied once each, whole or not at all, by one process at a time."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chatd.domain.errors import Unavailable
from chatd.store.database import migrator
from chatd.store.database.conn import ConnectConfig, DatabaseSession, connect
from chatd.store.database.migration_files import (
    Migration,
    MigrationError,
    load_migrations,
    packaged_migrations,
)
from chatd.store.database.migrator import (
    AppliedMigration,
    MigrationPlan,
    MigrationStatus,
    MigrationTimeouts,
)
from tests.support.eventually import eventually

AT = datetime(2026, 3, 27, tzinfo=UTC)
ONE = "CREATE TABLE one (id int);"
TWO = "CREATE TABLE two (id int);"
GATE = "SELECT pg_advisory_xact_lock(7);"


def migration(version: int, sql: str = "SELECT 1") -> Migration:
    return Migration(version=version, name=f"step{version}", sql=sql)


def applied(version: int, sql: str = "SELECT 1") -> AppliedMigration:
    done = migration(version, sql)
    return AppliedMigration(version=version, name=done.name, checksum=done.checksum, applied_at=AT)


M1, M2, M3 = (migration(v) for v in (1, 2, 3))
A1, A2, A3 = (applied(v) for v in (1, 2, 3))


@pytest.mark.parametrize(
    ("files", "done", "expected"),
    [
        ([], [], MigrationPlan()),
        ([M1, M2], [], MigrationPlan(pending=(M1, M2))),
        ([M1, M2, M3], [A1], MigrationPlan(pending=(M2, M3))),
        ([M1, M2], [A1, A2], MigrationPlan()),
        ([M1], [A1, A2, A3], MigrationPlan(ahead=(A2, A3))),
        ([], [A1], MigrationPlan(ahead=(A1,))),
    ],
)
def test_what_is_left_to_do(
    files: list[Migration], done: list[AppliedMigration], expected: MigrationPlan
) -> None:
    assert migrator.plan_migrations(files, done) == expected
    assert expected.is_behind == bool(expected.pending)


@pytest.mark.parametrize(
    ("files", "done", "complaint"),
    [
        ([migration(1, "SELECT 2")], [A1], "0001_step1.sql has changed since .* 2026-03-27"),
        ([migration(1, "SELECT 2"), M2], [A1, A2, A3], "0001_step1.sql has changed"),
        ([M1, M2, M3], [A1, A3], "0002_step2.sql is not applied, but 0003 is"),
        ([M1], [A2], "0001_step1.sql is not applied, but 0002 is"),
    ],
)
def test_a_history_from_other_files_is_refused(
    files: list[Migration], done: list[AppliedMigration], complaint: str
) -> None:
    with pytest.raises(MigrationError, match=complaint):
        migrator.plan_migrations(files, done)


def folder(path: Path, files: Mapping[str, str]) -> Path:
    path.mkdir(exist_ok=True)
    for name, sql in files.items():
        (path / name).write_text(sql)
    return path


def test_files_are_read_in_order_and_other_files_are_left_alone(tmp_path: Path) -> None:
    folder(tmp_path, {"0002_b.sql": TWO, "0001_a.sql": ONE, "README.md": "not SQL"})
    assert [m.file for m in load_migrations(tmp_path)] == ["0001_a.sql", "0002_b.sql"]


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (["0001_a.sql", "0003_b.sql"], "0003_b.sql: expected number 0002"),
        (["0001_a.sql", "0001_b.sql"], "0001_b.sql: expected number 0002"),
        (["0002_a.sql"], "0002_a.sql: expected number 0001"),
        (["1_a.sql"], "1_a.sql: a migration must be named NNNN_name.sql"),
        (["0001-a.sql"], "0001-a.sql: a migration must be named NNNN_name.sql"),
    ],
)
def test_numbers_have_no_gaps_and_no_doubles(
    tmp_path: Path, files: list[str], complaint: str
) -> None:
    folder(tmp_path, dict.fromkeys(files, ONE))
    with pytest.raises(MigrationError, match=complaint):
        load_migrations(tmp_path)


@pytest.mark.parametrize("statement", ["COMMIT;", "begin;", "  Rollback ;", "START TRANSACTION;"])
def test_a_file_that_would_end_its_transaction_is_refused(tmp_path: Path, statement: str) -> None:
    folder(tmp_path, {"0001_a.sql": f"{ONE}\n{statement}\n{TWO}"})
    with pytest.raises(MigrationError, match="must not begin or end a transaction"):
        load_migrations(tmp_path)


def test_a_function_body_may_begin_and_end(tmp_path: Path) -> None:
    body = "CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$\nBEGIN\nRETURN 1;\nEND;\n$$;"
    folder(tmp_path, {"0001_a.sql": body})
    assert [m.sql for m in load_migrations(tmp_path)] == [body]


def test_a_checkout_with_other_line_ends_is_the_same_migration(tmp_path: Path) -> None:
    (tmp_path / "0001_a.sql").write_bytes(b"SELECT 1;\r\nSELECT 2;\r\n")
    (crossed,) = load_migrations(tmp_path)
    assert crossed.sql == "SELECT 1;\nSELECT 2;\n"


@pytest.fixture
async def onlooker(empty_dsn: str) -> AsyncGenerator[DatabaseSession]:
    session = await connect(ConnectConfig(dsn=empty_dsn, application_name="onlooker"))
    yield session
    await session.close(timeout_s=30)


@asynccontextmanager
async def gate_shut(onlooker: DatabaseSession) -> AsyncGenerator[None]:
    await onlooker.execute("SELECT pg_advisory_lock(7)")
    yield
    await onlooker.execute("SELECT pg_advisory_unlock(7)")


async def tables(onlooker: DatabaseSession) -> list[str]:
    rows = await onlooker.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return sorted(row["tablename"] for row in rows)


async def are_connected(onlooker: DatabaseSession, count: int) -> bool:
    found = await onlooker.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'chatd migrate'"
    )
    return found == count


async def waiting_for_locks(onlooker: DatabaseSession, count: int) -> bool:
    found = await onlooker.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event = 'advisory'"
    )
    return found == count


@pytest.mark.stock_server
async def test_tables_with_rows_have_statistics_after_a_migration(
    empty_dsn: str, tmp_path: Path, onlooker: DatabaseSession
) -> None:
    filled = "CREATE TABLE filled AS SELECT n FROM generate_series(1, 1000) n;"
    await migrator.up(empty_dsn, folder(tmp_path, {"0001_a.sql": f"{ONE}\n{filled}"}))
    known = await onlooker.fetch(
        "SELECT relname, reltuples FROM pg_class WHERE relname IN ('one', 'filled') ORDER BY 1"
    )
    assert [tuple(row) for row in known] == [("filled", 1000), ("one", -1)]


async def test_what_is_pending_is_applied_in_order_and_only_once(
    empty_dsn: str, tmp_path: Path
) -> None:
    folder(tmp_path, {"0001_a.sql": ONE, "0002_b.sql": "ALTER TABLE one ADD COLUMN more int;"})
    assert await migrator.up(empty_dsn, tmp_path) == ["0001_a.sql", "0002_b.sql"]
    assert await migrator.up(empty_dsn, tmp_path) == []


@pytest.mark.stock_server
async def test_the_packaged_migrations_make_a_database_that_is_up_to_date(empty_dsn: str) -> None:
    assert (await migrator.check(empty_dsn)).is_behind
    assert await migrator.up(empty_dsn) == [m.file for m in load_migrations(packaged_migrations())]
    assert await migrator.check(empty_dsn) == MigrationPlan()


async def test_checking_an_empty_database_leaves_it_empty(
    empty_dsn: str, onlooker: DatabaseSession, tmp_path: Path
) -> None:
    folder(tmp_path, {"0001_a.sql": ONE})
    assert (await migrator.check(empty_dsn, tmp_path)).is_behind
    assert await migrator.status(empty_dsn, tmp_path) == [
        MigrationStatus(version=1, name="a", state="pending")
    ]
    assert await tables(onlooker) == []


async def test_status_tells_applied_changed_pending_and_unknown_apart(
    empty_dsn: str, tmp_path: Path
) -> None:
    newer = {f"000{n}_{name}.sql": "SELECT 1" for n, name in enumerate("abcd", start=1)}
    await migrator.up(empty_dsn, folder(tmp_path / "newer", newer))
    here = folder(tmp_path / "here", {"0001_a.sql": "SELECT 1", "0002_b.sql": "SELECT 2"})
    standings = await migrator.status(empty_dsn, here)
    assert [(s.version, s.name, s.state) for s in standings] == [
        (1, "a", "applied"),
        (2, "b", "changed"),
        (3, "c", "ahead"),
        (4, "d", "ahead"),
    ]
    assert all(s.applied_at is not None for s in standings)


async def test_a_database_ahead_of_the_code_is_fine_to_run_on(
    empty_dsn: str, tmp_path: Path
) -> None:
    newer = folder(tmp_path / "newer", {"0001_a.sql": ONE, "0002_b.sql": TWO})
    older = folder(tmp_path / "older", {"0001_a.sql": ONE})
    await migrator.up(empty_dsn, newer)
    plan = await migrator.check(empty_dsn, older)
    assert not plan.is_behind
    assert [a.name for a in plan.ahead] == ["b"]
    assert await migrator.up(empty_dsn, older) == []


async def test_a_changed_file_stops_everything_that_follows_it(
    empty_dsn: str, onlooker: DatabaseSession, tmp_path: Path
) -> None:
    await migrator.up(empty_dsn, folder(tmp_path, {"0001_a.sql": ONE}))
    folder(tmp_path, {"0001_a.sql": ONE.replace("int", "bigint"), "0002_b.sql": TWO})
    with pytest.raises(MigrationError, match=r"0001_a\.sql has changed"):
        await migrator.up(empty_dsn, tmp_path)
    with pytest.raises(MigrationError, match=r"0001_a\.sql has changed"):
        await migrator.check(empty_dsn, tmp_path)
    assert await tables(onlooker) == ["one", "schema_migrations"]


async def test_a_file_that_fails_leaves_nothing_and_is_named_with_its_line(
    empty_dsn: str, onlooker: DatabaseSession, tmp_path: Path
) -> None:
    folder(tmp_path, {"0001_a.sql": ONE, "0002_b.sql": f"{TWO}\n\nSELECT * FROM nowhere;"})
    with pytest.raises(MigrationError, match=r"0002_b\.sql, line 3: .*nowhere"):
        await migrator.up(empty_dsn, tmp_path)
    assert await tables(onlooker) == ["one", "schema_migrations"]
    folder(tmp_path, {"0002_b.sql": TWO})
    assert await migrator.up(empty_dsn, tmp_path) == ["0002_b.sql"]


async def test_a_session_lost_in_the_middle_leaves_nothing_half_done(
    empty_dsn: str, onlooker: DatabaseSession, tmp_path: Path
) -> None:
    folder(tmp_path, {"0001_a.sql": ONE + GATE})
    async with gate_shut(onlooker), asyncio.TaskGroup() as group:
        lost = group.create_task(refused(empty_dsn, tmp_path))
        await eventually(lambda: waiting_for_locks(onlooker, 1))
        await onlooker.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'advisory' "
            "AND datname = current_database()"
        )
        error = await lost
    assert error.message.startswith("0001_a.sql: ")
    assert not error.maybe_applied
    assert await tables(onlooker) == ["schema_migrations"]
    assert await migrator.up(empty_dsn, tmp_path) == ["0001_a.sql"]


async def refused(
    dsn: str, directory: Path, bounds: MigrationTimeouts = migrator.DEFAULT_MIGRATION_TIMEOUTS
) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        await migrator.up(dsn, directory, bounds)
    return caught.value


async def test_no_migrator_waits_for_another_beyond_the_timeout(
    empty_dsn: str, onlooker: DatabaseSession, tmp_path: Path
) -> None:
    await onlooker.execute("SELECT pg_advisory_lock($1)", migrator.LOCK_KEY)
    error = await refused(empty_dsn, tmp_path, MigrationTimeouts(migration_lock_s=0.05))
    assert error.code == "migration_busy"
    assert f"(onlooker, process {onlooker.backend_pid})" in error.message


async def test_no_migration_waits_for_a_table_lock_beyond_the_timeout(
    empty_dsn: str, onlooker: DatabaseSession, tmp_path: Path
) -> None:
    await onlooker.execute("CREATE TABLE busy (id int)")
    folder(tmp_path, {"0001_a.sql": "ALTER TABLE busy ADD COLUMN more int;"})
    async with onlooker.transaction():
        await onlooker.execute("LOCK TABLE busy")
        error = await refused(empty_dsn, tmp_path, MigrationTimeouts(lock_s=0.05))
    assert error.code == "database_busy"
    assert await migrator.up(empty_dsn, tmp_path) == ["0001_a.sql"]


PROCESS = """
import asyncio, pathlib, sys
from chatd.store.database import migrator
print(asyncio.run(migrator.up(sys.argv[1], pathlib.Path(sys.argv[2]))))
"""


async def start_migrator(dsn: str, directory: Path) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, dsn, str(directory), stdout=PIPE
    )


async def said(process: Process) -> str:
    async with asyncio.timeout(20):
        out, _ = await process.communicate()
    return out.decode().strip()


async def test_of_two_processes_that_start_together_one_migrates_and_one_waits(
    empty_dsn: str, onlooker: DatabaseSession, tmp_path: Path
) -> None:
    folder(tmp_path, {"0001_a.sql": ONE + GATE, "0002_b.sql": TWO})
    async with gate_shut(onlooker):
        processes = [await start_migrator(empty_dsn, tmp_path) for _ in range(2)]
        # One stands at the gate in the middle of its first file, the other waits for that one.
        await eventually(lambda: waiting_for_locks(onlooker, 1), within_s=20)
        await eventually(lambda: are_connected(onlooker, 2), within_s=20)
    heard = [await said(process) for process in processes]
    assert sorted(heard) == ["['0001_a.sql', '0002_b.sql']", "[]"]
    assert await tables(onlooker) == ["one", "schema_migrations", "two"]


async def test_a_migrator_killed_in_the_middle_makes_way_for_the_next(
    empty_dsn: str, onlooker: DatabaseSession, tmp_path: Path
) -> None:
    folder(tmp_path, {"0001_a.sql": ONE + GATE})
    async with gate_shut(onlooker):
        victim = await start_migrator(empty_dsn, tmp_path)
        await eventually(lambda: waiting_for_locks(onlooker, 1), within_s=20)
        victim.kill()
        await victim.wait()
    assert await migrator.up(empty_dsn, tmp_path) == ["0001_a.sql"]


TABLE = "CREATE TABLE busy (id int);"
INDEX = "CREATE INDEX CONCURRENTLY IF NOT EXISTS busy_id ON busy (id);"
OUTSIDE_FILE = f"-- outside a transaction\n-- Finds one by its id; quickly.\n{INDEX}\n"


@asynccontextmanager
async def open_write(dsn: str) -> AsyncGenerator[None]:
    """A transaction that has written to the table: a concurrent build waits for its end."""
    session = await connect(ConnectConfig(dsn=dsn, idle_in_transaction_s=60))
    async with session.transaction():
        await session.execute("INSERT INTO busy VALUES (1)")
        yield
    await session.close(timeout_s=30)


async def is_building(onlooker: DatabaseSession) -> bool:
    return await onlooker.fetchval(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock' AND query LIKE '%CONCURRENTLY%' AND pid <> pg_backend_pid())"
    )


async def valid_indexes(onlooker: DatabaseSession) -> dict[str, bool]:
    rows = await onlooker.fetch(
        "SELECT indexrelid::regclass::text AS name, indisvalid FROM pg_index "
        "WHERE indrelid = 'busy'::regclass"
    )
    return {row["name"]: row["indisvalid"] for row in rows}


async def test_replicas_write_to_a_table_while_its_index_is_built(
    empty_dsn: str, onlooker: DatabaseSession, tmp_path: Path
) -> None:
    await migrator.up(empty_dsn, folder(tmp_path, {"0001_a.sql": TABLE}))
    folder(tmp_path, {"0002_b.sql": OUTSIDE_FILE})
    async with asyncio.TaskGroup() as group:
        async with open_write(empty_dsn):
            building = group.create_task(migrator.up(empty_dsn, tmp_path))
            await eventually(lambda: is_building(onlooker))
            await onlooker.execute("INSERT INTO busy VALUES (2)")
        assert await building == ["0002_b.sql"]
    assert await valid_indexes(onlooker) == {"busy_id": True}
    assert await migrator.up(empty_dsn, tmp_path) == []


async def test_two_processes_that_start_together_build_an_index_once(
    empty_dsn: str, onlooker: DatabaseSession, tmp_path: Path
) -> None:
    await migrator.up(empty_dsn, folder(tmp_path, {"0001_a.sql": TABLE}))
    folder(tmp_path, {"0002_b.sql": OUTSIDE_FILE})
    async with open_write(empty_dsn):
        processes = [await start_migrator(empty_dsn, tmp_path) for _ in range(2)]
        await eventually(lambda: is_building(onlooker), within_s=20)
        await eventually(lambda: are_connected(onlooker, 2), within_s=20)
    heard = [await said(process) for process in processes]
    assert sorted(heard) == ["['0002_b.sql']", "[]"]
    assert await valid_indexes(onlooker) == {"busy_id": True}


async def test_an_index_that_a_killed_migrator_left_invalid_is_built_again(
    empty_dsn: str, onlooker: DatabaseSession, tmp_path: Path
) -> None:
    await migrator.up(empty_dsn, folder(tmp_path, {"0001_a.sql": TABLE}))
    folder(tmp_path, {"0002_b.sql": OUTSIDE_FILE})
    async with open_write(empty_dsn):
        victim = await start_migrator(empty_dsn, tmp_path)
        await eventually(lambda: is_building(onlooker), within_s=20)
        victim.kill()
        await victim.wait()
        await eventually(lambda: are_connected(onlooker, 0), within_s=20)
    assert await valid_indexes(onlooker) == {"busy_id": False}
    assert await migrator.up(empty_dsn, tmp_path) == ["0002_b.sql"]
    assert await valid_indexes(onlooker) == {"busy_id": True}


async def test_a_statement_that_fails_outside_a_transaction_is_named_with_its_line(
    empty_dsn: str, tmp_path: Path
) -> None:
    folder(
        tmp_path, {"0001_a.sql": TABLE, "0002_b.sql": f"{OUTSIDE_FILE}UPDATE\n  nowhere SET a=1;"}
    )
    with pytest.raises(MigrationError, match=r"0002_b\.sql, line 5: .*nowhere"):
        await migrator.up(empty_dsn, tmp_path)
    folder(tmp_path, {"0002_b.sql": OUTSIDE_FILE})
    assert await migrator.up(empty_dsn, tmp_path) == ["0002_b.sql"]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX busy_id ON busy (id);",
        "CREATE INDEX CONCURRENTLY busy_id ON busy (id);",
        "ALTER TABLE busy ADD COLUMN more int;",
        "INSERT INTO busy VALUES (1);",
    ],
)
def test_a_statement_that_cannot_run_twice_is_refused_outside_a_transaction(
    tmp_path: Path, statement: str
) -> None:
    folder(tmp_path, {"0001_a.sql": f"{OUTSIDE_FILE}\n{statement}"})
    with pytest.raises(MigrationError, match=r"0001_a\.sql, line 5: .* cannot run again"):
        load_migrations(tmp_path)


@pytest.mark.stock_server
async def test_the_packaged_files_outside_a_transaction_can_run_again(
    empty_dsn: str, onlooker: DatabaseSession
) -> None:
    await migrator.up(empty_dsn)
    outside = [m for m in load_migrations(packaged_migrations()) if not m.is_transaction]
    for migration in outside:
        for statement in migration.statements():
            await onlooker.script(statement.sql, timeout_s=30)


OLD_DATABASE = """
    CREATE TABLE schema_migrations (version integer PRIMARY KEY, name text NOT NULL,
        checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp());
    INSERT INTO schema_migrations (version, name, checksum)
    VALUES (1, 'ground_floor', 'a'), (2, 'hands', 'b');
    CREATE TABLE chats (title text);
    INSERT INTO chats VALUES ('Kept');"""


async def test_a_database_from_before_the_one_schema_is_refused_and_says_how_to_keep_chats(
    empty_dsn: str, onlooker: DatabaseSession
) -> None:
    await onlooker.script(OLD_DATABASE, timeout_s=30)
    for attempt in (migrator.up, migrator.check, migrator.status):
        with pytest.raises(MigrationError) as refused:
            await attempt(empty_dsn)
        message = refused.value.message
        assert "chatd chats export ID --format jsonl -o FILE" in message
        assert "chatd chats import FILE" in message
    assert await tables(onlooker) == ["chats", "schema_migrations"]
    assert await onlooker.fetchval("SELECT title FROM chats") == "Kept"
    assert await onlooker.fetchval("SELECT count(*) FROM schema_migrations") == 2


def test_comments_and_layout_of_a_file_may_change_and_its_statements_may_not() -> None:
    text = "-- Who reads it.\nCREATE TABLE a (\n    b int  -- a number\n);"
    same = "CREATE TABLE a ( b int );\n-- The readers."
    assert migration(1, text).checksum == migration(1, same).checksum
    assert migration(1, text).checksum != migration(1, same.replace("int", "bigint")).checksum
