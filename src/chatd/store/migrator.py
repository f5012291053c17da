"""Migrate a database to the schema of this version of chatd.

Owns the numbered files `migrations/NNNN_name.sql` and the table of applied ones. Each file runs in
one transaction, and one process migrates at a time; the others wait. A released file is never
edited and only adds what older replicas can run with, so a database ahead of the code is fine.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, Literal, cast

import msgspec

from chatd.domain.errors import ChatdError, Unavailable
from chatd.store.conn import ConnectConfig, DatabaseSession, connect

LOCK_KEY: Final = 0x6368_6174_6D69_6772  # "chatmigr": an arbitrary key for the advisory lock

_NAME = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.sql")
_ENDS_TRANSACTION = re.compile(
    r"^\s*(commit|rollback|start\s+transaction|begin)(\s+(work|transaction))?\s*;",
    re.IGNORECASE | re.MULTILINE,
)

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
LOCK: Final = "SELECT pg_advisory_lock($1)"
LOCK_HOLDER: Final = """
    SELECT format('%s, process %s', coalesce(nullif(application_name, ''), 'unnamed'), a.pid)
    FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.classid::bigint << 32 | l.objid::bigint = $1"""


class MigrationError(ChatdError):
    """The database does not match the files, or a file failed. An operator must decide."""

    code = "migration_failed"


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    name: str
    sql: str

    @property
    def file(self) -> str:
        return f"{self.version:04d}_{self.name}.sql"

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


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
    """How long to wait for another migrator, for a statement, and for a table lock. The last is
    short, because statements of running replicas queue behind it."""

    migration_lock_s: float = 120
    statement_s: float = 600
    lock_s: float = 10


DEFAULT_MIGRATION_TIMEOUTS: Final = MigrationTimeouts()


def packaged_migrations() -> Traversable:
    return files("chatd.store") / "migrations"


def load_migrations(directory: Traversable) -> list[Migration]:
    """The files in order. Raises MigrationError for a bad name, number or statement."""
    found: list[Migration] = []
    for entry in sorted(directory.iterdir(), key=lambda e: e.name):
        if not entry.name.endswith(".sql"):
            continue
        if (match := _NAME.fullmatch(entry.name)) is None:
            raise MigrationError(f"{entry.name}: a migration must be named NNNN_name.sql.")
        sql = entry.read_text(encoding="utf-8")  # text mode: the same checksum for all line endings
        if _ENDS_TRANSACTION.search(sql):
            raise MigrationError(f"{entry.name}: must not begin or end a transaction.")
        found.append(Migration(version=int(match["version"]), name=match["name"], sql=sql))
    for expected, migration in enumerate(found, start=1):
        if migration.version != expected:
            raise MigrationError(
                f"{migration.file}: expected number {expected:04d}; numbers start at 0001, "
                "without gaps, each used once."
            )
    return found


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
) -> list[str]:
    """Apply the pending files in order; return their names."""
    migrations = load_migrations(directory or packaged_migrations())
    async with _session(dsn, timeouts) as session:
        await _acquire_lock(session, timeouts)
        await session.execute(CREATE_RECORD)
        todo = plan_migrations(migrations, await _applied(session)).pending
        for migration in todo:
            await _apply(session, migration, timeouts)
    return [m.file for m in todo]


async def check(dsn: str, directory: Traversable | None = None) -> MigrationPlan:
    """What `up` would do. Changes nothing and takes no lock."""
    migrations = load_migrations(directory or packaged_migrations())
    async with _session(dsn, DEFAULT_MIGRATION_TIMEOUTS) as session:
        return plan_migrations(migrations, await _applied(session))


async def status(dsn: str, directory: Traversable | None = None) -> list[MigrationStatus]:
    """Every migration of the files or the database. Raises MigrationError for bad files only."""
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
    try:
        async with session.transaction():
            await session.script(migration.sql, timeout_s=timeouts.statement_s + 10)
            await session.execute(
                RECORD_MIGRATION, migration.version, migration.name, migration.checksum
            )
    except Unavailable as error:
        text = f"{migration.file}: {error.message}"
        raise Unavailable(text, code=error.code, maybe_applied=error.maybe_applied) from error
    except ChatdError as error:
        raise MigrationError(f"{_place(migration, error)}: {error.message}") from error


def _place(migration: Migration, error: ChatdError) -> str:
    position = cast("str | None", getattr(error.__cause__, "position", None))
    if position is None:
        return migration.file
    line = migration.sql.count("\n", 0, int(position) - 1) + 1
    return f"{migration.file}, line {line}"


async def _acquire_lock(session: DatabaseSession, timeouts: MigrationTimeouts) -> None:
    await session.execute(
        "SELECT set_config('lock_timeout', $1, false)", _ms(timeouts.migration_lock_s)
    )
    try:
        await session.execute(LOCK, LOCK_KEY)
    except Unavailable as error:
        if error.code != "database_busy":
            raise
        holder = await session.fetchval(LOCK_HOLDER, LOCK_KEY) or "it has just ended"
        raise Unavailable(
            f"Another migration still runs after {timeouts.migration_lock_s:g} s ({holder}).",
            code="migration_busy",
        ) from error
    await session.execute("SELECT set_config('lock_timeout', $1, false)", _ms(timeouts.lock_s))


async def _applied(session: DatabaseSession) -> list[AppliedMigration]:
    if not await session.fetchval(HAS_RECORD):
        return []
    return [
        AppliedMigration(
            version=r["version"], name=r["name"], checksum=r["checksum"], applied_at=r["applied_at"]
        )
        for r in await session.fetch(LIST_APPLIED)
    ]


@asynccontextmanager
async def _session(dsn: str, timeouts: MigrationTimeouts) -> AsyncGenerator[DatabaseSession]:
    config = ConnectConfig(
        dsn=dsn,
        application_name="chatd migrate",
        statement_timeout_s=max(timeouts.statement_s, timeouts.migration_lock_s + 10),
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
