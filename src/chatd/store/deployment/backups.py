"""Copies all rows of a database out of one snapshot and into an empty one, and keeps the record of
backups and of the restore.

Names of tables and columns come from the catalogue, so a backup is of the schema that is there, and
a restore first makes that schema from the same migrations.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

from msgspec import Struct

from chatd.domain.access.permissions import Actor, require_permission
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import ChatdError, Conflict
from chatd.domain.ids import WorkerId
from chatd.store.account import audit
from chatd.store.chat import workers
from chatd.store.database.conn import Conn, ConnectConfig, DatabaseSession, Row, connect
from chatd.store.database.notifications import publish

COPY_TIMEOUT_S: Final = 6 * 3600.0
"""Limit for copying one table, and for the indexes that are built after it."""
LOCK_KEY: Final = 0x6368_6174_6261_636B  # "chatback": the advisory lock of a scheduled backup
UNFINISHED_TABLE: Final = "chatd_restore_unfinished"
LEFT_OUT: Final = (
    *("schema_migrations", "chat_workers", "secret_key_holders", "model_declarations", "tunnels"),
    *("secret_requests", "backups", "restores", UNFINISHED_TABLE),
)
"""What running processes say of themselves, and the record of backups. The journal of live text,
which is partitioned, is not copied either."""

TABLES: Final[LiteralString] = """
    SELECT c.relname AS name, coalesce(pg_table_size(c.oid), 0) AS bytes,
        ARRAY(SELECT a.attname::text FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND a.attgenerated = '' ORDER BY a.attnum) AS columns
    FROM pg_class c
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'
      AND NOT c.relispartition AND c.relname <> ALL ($1::text[])
    ORDER BY c.relname"""
SEQUENCES: Final[LiteralString] = """
    SELECT sequencename AS name, last_value FROM pg_sequences
    WHERE schemaname = current_schema() AND last_value IS NOT NULL ORDER BY sequencename"""
FACTS: Final[LiteralString] = """
    SELECT now() AS at, current_setting('server_version') AS version,
        (SELECT count(*) FROM files WHERE store = 's3') AS s3_files"""
OBJECTS: Final[LiteralString] = """
    SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace
      AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')"""

FOREIGN_KEYS: Final[LiteralString] = """
    SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) AS dropped,
        format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname,
               pg_get_constraintdef(oid)) AS made
    FROM pg_constraint
    WHERE contype = 'f' AND connamespace = current_schema()::regnamespace AND conparentid = 0
    ORDER BY conrelid::regclass::text, conname"""
INDEXES: Final[LiteralString] = """
    SELECT format('DROP INDEX %s', i.indexrelid::regclass) AS dropped,
        pg_get_indexdef(i.indexrelid) AS made
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'
      AND NOT c.relispartition
      AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid)
    ORDER BY i.indexrelid::regclass::text"""
SET_SEQUENCE: Final[LiteralString] = "SELECT setval(format('%I', $1::text)::regclass, $2::bigint)"
OWNERS: Final[LiteralString] = (
    "SELECT DISTINCT worker_id FROM chats WHERE worker_id IS NOT NULL ORDER BY worker_id"
)

IS_UNFINISHED: Final[LiteralString] = "SELECT to_regclass($1) IS NOT NULL"
HAS_RESTORES: Final[LiteralString] = "SELECT to_regclass('restores') IS NOT NULL"
RECORD_RESTORE: Final[LiteralString] = """
    INSERT INTO restores (backup_id, made_at, made_on) VALUES ($1, $2, $3)"""
RESTORE: Final[LiteralString] = "backup_id, made_at, made_on, restored_at, confirmed_at"
READ_RESTORE: Final[LiteralString] = f"SELECT {RESTORE} FROM restores"
CONFIRM: Final[LiteralString] = f"""
    UPDATE restores SET confirmed_at = now() WHERE confirmed_at IS NULL RETURNING {RESTORE}"""

TRY_LOCK: Final[LiteralString] = "SELECT pg_try_advisory_lock($1)"
# Due: none was made for this long, and the last attempt is some minutes old.
BEGIN: Final[LiteralString] = """
    INSERT INTO backups (id, host, file)
    SELECT $1, $2, $3
    WHERE NOT EXISTS (SELECT FROM backups
                      WHERE bytes IS NOT NULL AND started_at > now() - $4::float8 * interval '1 s')
      AND NOT EXISTS (SELECT FROM backups
                      WHERE started_at > now() - $5::float8 * interval '1 s')
    RETURNING id"""
END: Final[LiteralString] = """
    UPDATE backups SET ended_at = now(), bytes = $2, error = $3 WHERE id = $1"""
TRIM: Final[LiteralString] = """
    DELETE FROM backups WHERE id IN (
        SELECT id FROM backups ORDER BY started_at DESC OFFSET $1)"""
LATEST: Final[LiteralString] = """
    SELECT (SELECT max(started_at) FROM backups WHERE bytes IS NOT NULL) AS made_at,
        (SELECT error FROM backups WHERE ended_at IS NOT NULL ORDER BY started_at DESC LIMIT 1)
            AS error, now() AS now"""

ATTEMPTS_KEPT: Final = 200


class CopiedTable(Struct, frozen=True, kw_only=True):
    """`bytes` is its size on the server's disk, for the progress only."""

    name: str
    columns: tuple[str, ...]
    bytes: int


class SnapshotFacts(Struct, frozen=True, kw_only=True):
    at: datetime
    postgres: str
    tables: tuple[CopiedTable, ...]
    sequences: dict[str, int]
    s3_files: int


class Snapshot:
    """One session in a transaction that sees the database as it was at its beginning."""

    def __init__(self, session: DatabaseSession, facts: SnapshotFacts) -> None:
        self._session = session
        self.facts = facts

    async def copy(self, table: CopiedTable, write: Callable[[bytes], Awaitable[None]]) -> int:
        """Returns the number of rows."""
        return await self._session.copy_out(
            table.name, table.columns, write, timeout_s=COPY_TIMEOUT_S
        )


def _patient(config: ConnectConfig, name: str) -> ConnectConfig:
    """Allows statements as much time as the data needs, because they may wait for a slow disk."""
    named = config.named(name, tcp_user_timeout="0", maintenance_work_mem="128MB")
    return ConnectConfig(
        dsn=named.dsn,
        application_name=named.application_name,
        settings=named.settings,
        statement_timeout_s=COPY_TIMEOUT_S,
        lock_timeout_s=30,
        idle_in_transaction_s=600,
    )


@asynccontextmanager
async def open_snapshot(config: ConnectConfig) -> AsyncGenerator[Snapshot]:
    """All tables are locked as a reader locks them: no migration changes them until the end, and
    chats go on. Raises ChatdError."""
    session = await connect(_patient(config, "backup"))
    try:
        await session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        rows = await session.fetch(TABLES, list(LEFT_OUT))
        if not rows:
            raise ChatdError("The database has no tables of chatd.", code="no_deployment")
        names = ", ".join(_quoted(row["name"]) for row in rows)
        await session.script(f"LOCK TABLE {names} IN ACCESS SHARE MODE", timeout_s=60)
        tables = tuple(_table(row) for row in await session.fetch(TABLES, list(LEFT_OUT)))
        facts = await session.fetchrow(FACTS)
        assert facts is not None  # a SELECT without FROM has one row
        sequences = {row["name"]: row["last_value"] for row in await session.fetch(SEQUENCES)}
        yield Snapshot(
            session,
            SnapshotFacts(
                at=facts["at"],
                postgres=facts["version"],
                tables=tables,
                sequences=sequences,
                s3_files=facts["s3_files"],
            ),
        )
    finally:
        session.terminate()


def _table(row: Row) -> CopiedTable:
    return CopiedTable(name=row["name"], columns=tuple(row["columns"]), bytes=row["bytes"])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Restore


async def begin_restore(config: ConnectConfig) -> None:
    """Mark the database as unfinished, before anything else is in it. Raises Conflict if it is not
    empty."""
    session = await connect(_patient(config, "restore"))
    try:
        async with session.transaction():
            if await session.fetchval(OBJECTS):
                raise Conflict(
                    "The database is not empty: it has tables already. Name an empty one with"
                    " --database-url (createdb makes one).",
                    code="not_empty",
                )
            await session.script(f"CREATE TABLE {UNFINISHED_TABLE} ()", timeout_s=60)
    finally:
        session.terminate()


async def is_unfinished(config: ConnectConfig) -> bool:
    """Whether a restore into this database began and did not end."""
    session = await connect(config)
    try:
        return await session.fetchval(IS_UNFINISHED, UNFINISHED_TABLE)
    finally:
        session.terminate()


class RowTarget:
    """Fills the tables of a fresh schema in one transaction. Foreign keys and indexes are dropped
    first and made again at the end, which checks all rows, and is faster."""

    def __init__(self, session: DatabaseSession, columns: dict[str, frozenset[str]]) -> None:
        self._session = session
        self._columns = columns

    def check(self, table: str, columns: Sequence[str]) -> None:
        """Raises Conflict if this schema has no such table or column."""
        if not set(columns) <= self._columns.get(table, frozenset()):
            text = f"The backup has a table {table!r} that is not of this schema."
            raise Conflict(text, code="foreign_backup")

    async def fill(self, table: str, columns: Sequence[str], source: AsyncIterable[bytes]) -> int:
        self.check(table, columns)
        return await self._session.copy_in(table, columns, source, timeout_s=COPY_TIMEOUT_S)


@asynccontextmanager
async def open_target(
    config: ConnectConfig, sequences: dict[str, int]
) -> AsyncGenerator[RowTarget]:
    """Commits at the end. The rows that migrations insert give way to those of the backup."""
    session = await connect(_patient(config, "restore"))
    try:
        async with session.transaction():
            rows = await session.fetch(TABLES, list(LEFT_OUT))
            dropped = [*await session.fetch(FOREIGN_KEYS), *await session.fetch(INDEXES)]
            for one in dropped:
                await session.script(one["dropped"], timeout_s=60)
            names = ", ".join(_quoted(row["name"]) for row in rows)
            await session.script(f"TRUNCATE {names}", timeout_s=60)
            yield RowTarget(session, {row["name"]: frozenset(row["columns"]) for row in rows})
            # Indexes first: a foreign key may rely on one.
            for one in reversed(dropped):
                await session.script(one["made"], timeout_s=COPY_TIMEOUT_S)
            for name, last in sequences.items():
                await session.fetchval(SET_SEQUENCE, name, last)
    finally:
        session.terminate()


class RestoreRecord(Struct, frozen=True, kw_only=True):
    """`made_at` and `made_on`: when and on which host the backup was made."""

    backup_id: UUID
    made_at: datetime
    made_on: str
    restored_at: datetime
    confirmed_at: datetime | None


async def finish_restore(
    config: ConnectConfig, backup_id: UUID, made_at: datetime, made_on: str
) -> None:
    """The schema is the newest. Chats whose workers ran at the time of the backup become pending,
    and the database is no longer unfinished: all in one transaction."""
    session = await connect(_patient(config, "restore"))
    try:
        async with session.transaction():
            for row in await session.fetch(OWNERS):
                await workers.release(session, WorkerId(row["worker_id"]))
            await session.execute(RECORD_RESTORE, backup_id, made_at, made_on)
            await session.script(f"DROP TABLE {UNFINISHED_TABLE}", timeout_s=60)
    finally:
        session.terminate()


async def read_restore(conn: Conn) -> RestoreRecord | None:
    """None if this database was never restored from a backup."""
    if not await conn.fetchval(HAS_RESTORES):
        return None
    row = await conn.fetchrow(READ_RESTORE)
    return None if row is None else _restore(row)


def _restore(row: Row) -> RestoreRecord:
    return RestoreRecord(**dict(row))


async def confirm_restore(
    session: DatabaseSession, actor: Actor, *, ip: str | None = None
) -> RestoreRecord:
    """Confirm the restore, which all replicas hear of. Raises Conflict if there is none to
    confirm."""
    require_permission(actor, "config.write")
    row = await session.fetchrow(CONFIRM)
    if row is None:
        text = "This deployment was not restored from a backup, or that is confirmed already."
        raise Conflict(text, code="nothing_to_confirm")
    await audit.record(
        session,
        actor,
        action="restore.confirm",
        object_type="settings",
        object_id="deployment",
        ip=ip,
        detail={"backup_id": str(row["backup_id"])},
    )
    await publish(session, ConfigChange(kind="settings"))
    return _restore(row)


# Scheduled backups


@asynccontextmanager
async def one_at_a_time(config: ConnectConfig) -> AsyncGenerator[bool]:
    """Whether no other process makes a scheduled backup of this database. The lock goes with the
    process."""
    session = await connect(config.named("backup lock"))
    try:
        yield await session.fetchval(TRY_LOCK, LOCK_KEY)
    finally:
        session.terminate()


async def begin(
    conn: Conn, backup_id: UUID, host: str, file: str, *, every_s: float, retry_s: float
) -> bool:
    """Record an attempt if one is due. Called under the lock."""
    begun = await conn.fetchval(BEGIN, backup_id, host, file, every_s, retry_s)
    return begun is not None


async def end(conn: Conn, backup_id: UUID, *, size: int | None, error: str | None) -> None:
    await conn.execute(END, backup_id, size, error)
    await conn.execute(TRIM, ATTEMPTS_KEPT)


class LatestBackup(Struct, frozen=True, kw_only=True):
    """`made_at`: when the newest whole one began. `error`: why the last attempt failed."""

    made_at: datetime | None
    error: str | None
    now: datetime


async def read_latest(conn: Conn) -> LatestBackup:
    row = await conn.fetchrow(LATEST)
    assert row is not None  # a SELECT without FROM has one row
    return LatestBackup(**dict(row))
