"""Migrate a database to the schema of this version of chatd.

Owns the table of applied files (`migration_files`). One process migrates at a time; the others
wait. A file only adds what older replicas can run with, so a database ahead of the code is fine.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from importlib.resources.abc import Traversable
from typing import Final, Literal, cast

import msgspec

from chatd.domain.errors import ChatdError, Unavailable
from chatd.store.database.conn import ConnectConfig, DatabaseSession, connect
from chatd.store.database.migration_files import (
    Migration,
    MigrationError,
    MigrationStatement,
    load_migrations,
    packaged_migrations,
)

LOCK_KEY: Final = 0x6368_6174_6D69_6772  # "chatmigr": an arbitrary key for the advisory lock

CREATE_RECORD: Final = """
    CREATE TABLE IF NOT EXISTS schema_migrations (
        version integer PRIMARY KEY,
        name text NOT NULL,
        checksum text NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"""
HAS_RECORD: Final = "SELECT to_regclass('schema_migrations') IS NOT NULL"
LIST_APPLIED: Final = """
    SELECT version, name, checksum, applied_at FROM schema_migrations ORDER BY version"""
RECORD_MIGRATION: Final = (
    "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)"
)
TRY_LOCK: Final = "SELECT pg_try_advisory_lock($1)"
PAUSE: Final = "SELECT pg_sleep(0.2)"
LOCK_HOLDER: Final = """
    SELECT format('%s, process %s', coalesce(nullif(application_name, ''), 'unnamed'), a.pid)
    FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.classid::bigint << 32 | l.objid::bigint = $1"""
IS_INVALID_INDEX: Final = """
    SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass($1) AND NOT indisvalid)"""
LIST_FILLED: Final = """
    SELECT format('%I', relname) FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
      AND pg_relation_size(oid) > 0"""
SET_TIMEOUTS: Final = """
    SELECT set_config('lock_timeout', $1, false), set_config('statement_timeout', $2, false)"""

FIRST_FILE_BEFORE_ONE_SCHEMA: Final = "ground_floor"


class AppliedMigration(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    name: str
    checksum: str
    applied_at: datetime


class MigrationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`pending`: files to apply. `ahead`: migrations that a newer version has applied."""

    pending: tuple[Migration, ...] = ()
    ahead: tuple[AppliedMigration, ...] = ()

    @property
    def is_behind(self) -> bool:
        return bool(self.pending)


class MigrationStatus(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    name: str
    state: Literal["applied", "pending", "changed", "ahead"]
    applied_at: datetime | None = None


class MigrationTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait for another migrator, for a statement, for a table lock, and for an index
    that is built concurrently. Running replicas queue behind a table lock, so its wait is short; a
    concurrent build only waits for them."""

    migration_lock_s: float = 120
    statement_s: float = 600
    lock_s: float = 10
    concurrent_s: float = 3600


DEFAULT_MIGRATION_TIMEOUTS: Final = MigrationTimeouts()


def plan_migrations(
    migrations: Sequence[Migration], applied: Sequence[AppliedMigration]
) -> MigrationPlan:
    """What is left to do. Raises MigrationError if the database has another history."""
    done = {a.version: a for a in applied}
    for migration in migrations:
        record = done.get(migration.version)
        if record is not None and record.checksum != migration.checksum:
            raise MigrationError(
                f"{migration.file} has changed since it was applied on "
                f"{record.applied_at:%Y-%m-%d}. Restore the file and put the change into a new one."
            )
    pending = tuple(m for m in migrations if m.version not in done)
    latest = max(done, default=0)
    if pending and pending[0].version < latest:
        raise MigrationError(
            f"{pending[0].file} is not applied, but {latest:04d} is. The database was migrated "
            "from other files."
        )
    known = {m.version for m in migrations}
    return MigrationPlan(pending=pending, ahead=tuple(a for a in applied if a.version not in known))


async def up(
    dsn: str,
    directory: Traversable | None = None,
    timeouts: MigrationTimeouts = DEFAULT_MIGRATION_TIMEOUTS,
    *,
    through: int | None = None,
) -> list[str]:
    """Apply the pending files in order, up to the number `through`; return their names. The planner
    then knows the sizes of all tables, also of those that a file has filled."""
    migrations = load_migrations(directory or packaged_migrations())
    async with _session(dsn, timeouts) as session:
        await _acquire_lock(session, timeouts)
        await session.execute(CREATE_RECORD)
        pending = plan_migrations(migrations, await _applied(session)).pending
        todo = [one for one in pending if through is None or one.version <= through]
        for migration in todo:
            await _apply(session, migration, timeouts)
        if todo:
            await _analyze(session, timeouts)
    return [m.file for m in todo]


async def check(dsn: str, directory: Traversable | None = None) -> MigrationPlan:
    """What `up` would do. Changes nothing and takes no lock."""
    migrations = load_migrations(directory or packaged_migrations())
    async with _session(dsn, DEFAULT_MIGRATION_TIMEOUTS) as session:
        return plan_migrations(migrations, await _applied(session))


async def list_applied(dsn: str) -> list[AppliedMigration]:
    """What the database remembers, in order."""
    async with _session(dsn, DEFAULT_MIGRATION_TIMEOUTS) as session:
        return await _applied(session)


async def analyze(dsn: str) -> None:
    """Update the planner's statistics after a restore has filled tables."""
    async with _session(dsn, DEFAULT_MIGRATION_TIMEOUTS) as session:
        await _analyze(session, DEFAULT_MIGRATION_TIMEOUTS)


async def status(dsn: str, directory: Traversable | None = None) -> list[MigrationStatus]:
    """Every migration of the files or the database. Raises MigrationError for bad files, and for a
    database from before `0001_schema.sql`."""
    migrations = {m.version: m for m in load_migrations(directory or packaged_migrations())}
    async with _session(dsn, DEFAULT_MIGRATION_TIMEOUTS) as session:
        done = {a.version: a for a in await _applied(session)}
    return [
        _status_of(migrations.get(version), done.get(version))
        for version in sorted(migrations.keys() | done.keys())
    ]


def _status_of(migration: Migration | None, done: AppliedMigration | None) -> MigrationStatus:
    match migration, done:
        case Migration(), None:
            return MigrationStatus(version=migration.version, name=migration.name, state="pending")
        case None, AppliedMigration():
            state = "ahead"
        case Migration(), AppliedMigration():
            state = "applied" if migration.checksum == done.checksum else "changed"
        case None, None:
            raise AssertionError("a version without file and record")
    return MigrationStatus(
        version=done.version, name=done.name, state=state, applied_at=done.applied_at
    )


async def _apply(
    session: DatabaseSession, migration: Migration, timeouts: MigrationTimeouts
) -> None:
    """All or nothing for a file in a transaction. A file outside one is recorded after its last
    statement; until then the next process starts it again."""
    if migration.is_transaction:
        async with _named_errors(migration), session.transaction():
            for statement in migration.statements():
                await _run(session, migration, statement, timeouts.statement_s)
            await _record(session, migration)
        return
    async with _named_errors(migration):
        for statement in migration.statements():
            if statement.index is None:
                await _run(session, migration, statement, timeouts.statement_s)
            else:
                await _build_index(session, migration, statement, timeouts)
        await _record(session, migration)


async def _analyze(session: DatabaseSession, timeouts: MigrationTimeouts) -> None:
    """Best effort: the server does the same within minutes. Empty tables are left out: the server
    plans for some rows in a new table, but for none in one that it has seen empty."""
    with suppress(ChatdError):
        for row in await session.fetch(LIST_FILLED):
            await session.script(f"ANALYZE {row[0]}", timeout_s=timeouts.statement_s + 10)


async def _build_index(
    session: DatabaseSession,
    migration: Migration,
    statement: MigrationStatement,
    timeouts: MigrationTimeouts,
) -> None:
    """A build that was cut off leaves an invalid index, which IF NOT EXISTS would keep."""
    limit = _ms(timeouts.concurrent_s)
    await session.execute(SET_TIMEOUTS, limit, limit)
    if await session.fetchval(IS_INVALID_INDEX, statement.index):
        drop = f"DROP INDEX CONCURRENTLY IF EXISTS {statement.index}"
        await session.script(drop, timeout_s=timeouts.concurrent_s + 10)
    await _run(session, migration, statement, timeouts.concurrent_s)
    await session.execute(SET_TIMEOUTS, _ms(timeouts.lock_s), _ms(timeouts.statement_s))


async def _record(session: DatabaseSession, migration: Migration) -> None:
    await session.execute(RECORD_MIGRATION, migration.version, migration.name, migration.checksum)


async def _run(
    session: DatabaseSession, migration: Migration, statement: MigrationStatement, timeout_s: float
) -> None:
    try:
        await session.script(statement.sql, timeout_s=timeout_s + 10)
    except Unavailable:
        raise
    except ChatdError as error:
        place = _place(migration, statement, error)
        raise MigrationError(f"{place}: {error.message}") from error


@asynccontextmanager
async def _named_errors(migration: Migration) -> AsyncGenerator[None]:
    try:
        yield
    except MigrationError:
        raise
    except Unavailable as error:
        text = f"{migration.file}: {error.message}"
        raise Unavailable(text, code=error.code, maybe_applied=error.maybe_applied) from error
    except ChatdError as error:
        raise MigrationError(f"{migration.file}: {error.message}") from error


def _place(migration: Migration, statement: MigrationStatement, error: ChatdError) -> str:
    position = cast("str | None", getattr(error.__cause__, "position", None))
    if position is None:
        return migration.file
    line = statement.first_line + statement.sql.count("\n", 0, int(position) - 1)
    return f"{migration.file}, line {line}"


async def _acquire_lock(session: DatabaseSession, timeouts: MigrationTimeouts) -> None:
    """Poll for the lock in short statements. A statement that waits for the lock holds a snapshot,
    and the concurrent build of an index waits for the end of every older snapshot: the two would
    wait for each other."""
    clock = asyncio.get_running_loop()
    give_up_at = clock.time() + timeouts.migration_lock_s
    while not await session.fetchval(TRY_LOCK, LOCK_KEY):
        if clock.time() >= give_up_at:
            holder = await session.fetchval(LOCK_HOLDER, LOCK_KEY) or "it has just ended"
            raise Unavailable(
                f"Another migration still runs after {timeouts.migration_lock_s:g} s ({holder}).",
                code="migration_busy",
            )
        await session.execute(PAUSE)


async def _applied(session: DatabaseSession) -> list[AppliedMigration]:
    """Raises MigrationError for a database from before `0001_schema.sql`."""
    if not await session.fetchval(HAS_RECORD):
        return []
    found = [msgspec.convert(dict(r), AppliedMigration) for r in await session.fetch(LIST_APPLIED)]
    if any(a.version == 1 and a.name == FIRST_FILE_BEFORE_ONE_SCHEMA for a in found):
        raise MigrationError(
            "An earlier version of chatd, whose schema this version cannot migrate, made this"
            " database; nothing was changed. To keep its chats, run that version, save each chat"
            " with `chatd chats export ID --format jsonl -o FILE`, start this version with a new"
            " --data-dir (or an empty --database-url) and load each file with `chatd chats import"
            " FILE`: docs/operating.md, section Upgrade, has the commands for all chats."
        )
    return found


@asynccontextmanager
async def _session(dsn: str, timeouts: MigrationTimeouts) -> AsyncGenerator[DatabaseSession]:
    config = ConnectConfig(
        dsn=dsn,
        application_name="chatd migrate",
        statement_timeout_s=timeouts.statement_s,
        lock_timeout_s=timeouts.lock_s,
    )
    session = await connect(config)
    try:
        yield session
    finally:
        # Ending the session releases the lock.
        session.terminate()


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))
