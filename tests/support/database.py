"""PostgreSQL for tests: one server for all test processes, one database for each.

The server is the product's own embedded one; tests marked `stock_server` also run on a server that
is installed on this machine and has PostgreSQL's own settings. All test processes on this machine
share both, and they keep their directories, so that the next run starts at once. The schema is
migrated once into a template, named after the migrations, and cloned from there. After each test
the rows are deleted, and a session that is still open fails the test.

All of it runs in a thread with its own event loop, so that it serves tests of any kind.
"""

import asyncio
import fcntl
import hashlib
import itertools
import os
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, LiteralString, TypeVar, cast
from urllib.parse import urlsplit

import asyncpg

from chatd.pg.binaries import has_postgres_programs, installed_programs, newest_first
from chatd.pg.config import EmbeddedConfig
from chatd.pg.server import PostgresServer, open_server
from chatd.store.database import migrator
from chatd.store.database.conn import ConnectConfig, DatabaseSession, connect
from chatd.store.database.migration_files import load_migrations, packaged_migrations
from tests.support.parked_sessions import SessionPark, parking_sessions

T = TypeVar("T")

# Test data need not survive a crash.
CARELESS: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    "autovacuum": "off",
    "max_connections": "300",
}

# What an untouched server has where the embedded one differs. Its time zone is that of the host.
STOCK: Final = {
    "max_connections": "100",
    "timezone": "Europe/Berlin",
    "log_timezone": "Europe/Berlin",
    "log_checkpoints": "on",
    "jit": "on",
    "dynamic_shared_memory_type": "posix",
    "cluster_name": "",
}

# Rows inserted by migrations are part of the schema: copied aside, and restored after each test.
KEEP_SEEDS: Final = """
    CREATE SCHEMA pristine;
    DO $$ DECLARE t text; n bigint; BEGIN
        FOR t IN SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
                 AND relkind = 'r' AND relname <> 'schema_migrations' LOOP
            EXECUTE format('SELECT count(*) FROM public.%I', t) INTO n;
            IF n > 0 THEN
                EXECUTE format('CREATE TABLE pristine.%I AS TABLE public.%I', t, t);
            END IF;
        END LOOP;
    END $$"""

# Owners of the rows that tests write: small numbers as ids.
TEST_USERS: Final = """
    INSERT INTO users (id, username, role)
    SELECT lpad(to_hex(n), 32, '0')::uuid, 'test-user-' || n, 'member'
    FROM unnest(array(SELECT generate_series(0, 110)) || '{404, 4711}') n"""

TABLES: Final = """
    SELECT relname AS name, to_regclass('pristine.' || relname) IS NOT NULL AS has_seeds
    FROM pg_class WHERE relnamespace = 'public'::regnamespace
    AND relkind = 'r' AND relname <> 'schema_migrations' ORDER BY relname"""

# The changed tables are found by one statement, which the server plans once for all tests.
IS_FILLED: Final = "SELECT '{0}' AS name WHERE EXISTS (SELECT FROM public.{0})"
IS_UNLIKE_SEEDS: Final = """
    SELECT '{0}' WHERE (SELECT string_agg(t::text, '' ORDER BY t::text) FROM public.{0} t)
    IS DISTINCT FROM (SELECT string_agg(t::text, '' ORDER BY t::text) FROM pristine.{0} t)"""

# DELETE and not TRUNCATE, which costs ten times as much on tables this small.
EMPTY: Final = "DELETE FROM public.{0};"
SOW: Final = "INSERT INTO public.{0} OVERRIDING SYSTEM VALUE SELECT * FROM pristine.{0};"
# Tables are emptied in any order. Set once: each change makes the session forget its plans.
NO_FOREIGN_KEYS: Final = "SET session_replication_role = replica"

# Deleted rows take up space until the table is vacuumed, which these tables never are.
SHRINK_EVERY: Final = 200
SHRINK: Final = """
    DO $$ DECLARE t text; BEGIN
        FOR t IN SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
                 AND relkind = 'r' AND relname <> 'schema_migrations'
                 AND pg_relation_size(oid) > 16 * 8192 LOOP
            EXECUTE format('TRUNCATE public.%I CASCADE', t);
        END LOOP;
    END $$"""

OTHERS: Final = """
    SELECT pid, format('%s (%s): %s', application_name, state, left(query, 100)) AS doing
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND backend_type = 'client backend' AND pid <> ALL ($1::int[])"""


class TestServer:
    """The shared server, with an event loop in a thread for its sessions. With `stock_programs` it
    is the installed server whose programs are there, as it is without any settings."""

    __test__ = False

    def __init__(self, stock_programs: Path | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="test-database", daemon=True
        )
        self._thread.start()
        self._numbers = itertools.count(1)
        self._home = installation_home()
        config = _config(self._home)
        if stock_programs is not None:
            self._home /= f"stock-{stock_programs.parent.name}"
            self._home.mkdir(mode=0o711, exist_ok=True)
            config = EmbeddedConfig(
                data_dir=self._home / "pg", bin_dir=stock_programs, settings=STOCK
            )
        self._data_dir = self._home / "pg"
        self._server: PostgresServer = self.run(open_server(config, os.environ))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    def dsn(self, database: str) -> str:
        return urlsplit(self._server.dsn)._replace(path=f"/{database}").geturl()

    def new_name(self) -> str:
        """Contains the process id, which tells the owner and whether the database can be
        removed."""
        return f"test_{os.getpid()}_{next(self._numbers)}"

    def create(self, name: str, *, template: str = "template0") -> str:
        """Create a database of this process, empty unless a template is named."""
        self._admin(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return self.dsn(name)

    def drop(self, name: str) -> None:
        self._admin(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def clone(self) -> "Clone":
        """A database with the current schema. Also removes databases of killed test processes."""
        with _turn(self._home):
            databases = self.run(self._databases())
            template = f"template_{_schema_id()}"
            for name in databases - {template}:
                if name.startswith("template_") or _is_orphan(name):
                    self.drop(name)
            if template not in databases:
                self._build(template)
            name = self.new_name()
            return Clone(self, name, self.create(name, template=template))

    @contextmanager
    def cloned(self) -> Generator["Clone"]:
        """The database for the tests of this process, which share its sessions."""
        clone = self.clone()
        with parking_sessions(clone.dsn) as park:
            clone.park = park
            yield clone
            clone.drop()

    def read_cpu_s(self) -> float:
        """Of the server and of its processes that have ended; 0 where that is not told."""
        try:
            pid = int((self._data_dir / "cluster" / "postmaster.pid").read_text().split()[0])
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError, IndexError):
            return 0.0
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.run(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _build(self, template: str) -> None:
        unfinished = "template_unfinished"
        dsn = self.create(unfinished)
        self.run(migrator.up(dsn))
        self.run(_once(dsn, TEST_USERS))
        self.run(_once(dsn, KEEP_SEEDS))
        self._admin(f"ALTER DATABASE {unfinished} RENAME TO {template}")

    def _admin(self, sql: str) -> None:
        self.run(_once(self.dsn("postgres"), sql))

    async def _databases(self) -> set[str]:
        session = await connect(_link(self.dsn("postgres")))
        try:
            return {
                row["datname"] for row in await session.fetch("SELECT datname FROM pg_database")
            }
        finally:
            await session.close(timeout_s=30)


class Clone:
    """The database of one test process. Sessions in the `park` belong to no test."""

    def __init__(self, server: TestServer, name: str, dsn: str) -> None:
        self._server = server
        self._name = name
        self._session: DatabaseSession | None = None
        self._cleaned = 0
        self._changed_query: LiteralString = ""
        self._seeded: set[str] = set()
        self.dsn = dsn
        self.park: SessionPark | None = None

    def clean(self, *, patience_s: float = 2) -> list[str]:
        """Delete all rows of the test. Returns what the sessions that are still open are doing."""
        return self._server.run(self._clean(patience_s))

    def drop(self) -> None:
        if self._session is not None:
            self._server.run(self._session.close(timeout_s=30))
        self._server.drop(self._name)

    async def _clean(self, patience_s: float) -> list[str]:
        session = self._session
        if session is None or not session.is_reusable:
            self._session = session = await connect(_link(self.dsn))
            await session.script(NO_FOREIGN_KEYS, timeout_s=30)
        parked = self.park.pids if self.park is not None else set[int]()
        left = await _others_left(session, parked, patience_s)
        self._cleaned += 1
        if self._cleaned % SHRINK_EVERY == 0:
            await session.script(SHRINK, timeout_s=30)
        changed = [row["name"] for row in await session.fetch(await self._find_changed(session))]
        if changed:
            emptied = (EMPTY.format(table) for table in changed)
            sown = (SOW.format(table) for table in changed if table in self._seeded)
            script = "".join(("BEGIN;", *emptied, *sown, "COMMIT"))
            await session.script(script, timeout_s=30)
        return left

    async def _find_changed(self, session: DatabaseSession) -> LiteralString:
        if not self._changed_query:
            tables = {row["name"]: row["has_seeds"] for row in await session.fetch(TABLES)}
            self._seeded = {name for name, has_seeds in tables.items() if has_seeds}
            checks = [
                (IS_UNLIKE_SEEDS if name in self._seeded else IS_FILLED).format(name)
                for name in tables
            ]
            self._changed_query = cast("LiteralString", " UNION ALL ".join(checks))
        return self._changed_query


class OwnServer:
    """A server for one test, which may stop and restart it."""

    def __init__(self, home: Path) -> None:
        home.chmod(0o711)  # the server may run under another account, which must be able to enter
        self._config = EmbeddedConfig(data_dir=home / "pg", settings=CARELESS)
        self._server: PostgresServer | None = None
        self.dsn = ""

    async def start(self) -> None:
        self._server = await open_server(self._config, os.environ)
        self.dsn = self._server.dsn

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()
            self._server = None


@asynccontextmanager
async def own_server_in(parent: Path) -> AsyncGenerator[OwnServer]:
    with tempfile.TemporaryDirectory(prefix="chatd-own-", dir=parent) as home:
        server = OwnServer(Path(home))
        try:
            await server.start()
            yield server
        finally:
            await server.stop()


async def _others_left(
    session: DatabaseSession, parked: Collection[int], patience_s: float
) -> list[str]:
    """Sessions of other clients that are not parked. A backend takes a moment to notice that its
    client has gone."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        others = await session.fetch(OTHERS, parked)
        if not others or loop.time() >= deadline:
            break
        await asyncio.sleep(0.005)
    for row in others:
        await session.fetchval("SELECT pg_terminate_backend($1, 5000)", row["pid"])
    return [row["doing"] for row in others]


async def insert_test_users(dsn: str) -> None:
    await _once(dsn, TEST_USERS)


async def _once(dsn: str, sql: str) -> None:
    session = await connect(_link(dsn))
    try:
        await session.script(sql, timeout_s=30)
    finally:
        await session.close(timeout_s=30)


def _link(dsn: str) -> ConnectConfig:
    return ConnectConfig(dsn=dsn, application_name="test rig", statement_timeout_s=60)


def _config(home: Path) -> EmbeddedConfig:
    """CHATD_TEST_DATABASE_URL names a server to use instead of the embedded one."""
    url = os.environ.get("CHATD_TEST_DATABASE_URL")
    return EmbeddedConfig(database_url=url, data_dir=home / "pg", settings=CARELESS)


def find_stock_programs() -> Path | None:
    """The newest PostgreSQL that the machine's package manager has installed. None: tests run on
    the embedded server only. CHATD_TEST_STOCK_PROGRAMS names another directory; empty: none."""
    if (named := os.environ.get("CHATD_TEST_STOCK_PROGRAMS")) is not None:
        return Path(named) if named else None
    installed = [path for path in installed_programs() if has_postgres_programs(path)]
    return next(iter(newest_first(installed)), None)


def scratch_space() -> Path:
    """In memory if possible."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def installation_home() -> Path:
    """What the runs of an installation share, such as the server, whose version comes with it."""
    installation = hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]
    home = scratch_space() / f"chatd-test-{os.geteuid()}-{installation}"
    home.mkdir(mode=0o711, exist_ok=True)
    return home


def _schema_id() -> str:
    known = "".join(m.name + m.checksum for m in load_migrations(packaged_migrations()))
    return hashlib.sha256((known + TEST_USERS + KEEP_SEEDS).encode()).hexdigest()[:12]


def _is_orphan(database: str) -> bool:
    kind, _, pid = database.partition("_")
    if kind != "test" or not (pid := pid.partition("_")[0]).isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


@contextmanager
def _turn(home: Path) -> Generator[None]:
    """One test process at a time; the kernel releases the lock of a process that dies."""
    with (home / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


Asks = Callable[[object, Collection[int], float | None], Awaitable[object]]

LOOKUP_METHOD: Final = "_introspect_types"
FIRST_USER_TYPE_OID: Final = 16_384
"""Types that a database defines are numbered from here, differently in each database."""


@contextmanager
def cache_type_lookups() -> Generator[None]:
    """Look up each set of built-in types once while the context is open.

    The first statement of a session with an array makes asyncpg query the server for its type. That
    costs the server ten times as much as the rest of the session, and tests open thousands. Types
    that a database defines are looked up each time, as in production.
    """
    sessions: type[object] = asyncpg.Connection
    ask = cast("Asks", getattr(sessions, LOOKUP_METHOD))
    answers: dict[frozenset[int], object] = {}

    async def remember(session: object, types: Collection[int], timeout: float | None) -> object:
        asked = frozenset(types)
        if max(asked) >= FIRST_USER_TYPE_OID:
            return await ask(session, types, timeout)
        if asked not in answers:
            answers[asked] = await ask(session, types, timeout)
        return answers[asked]

    setattr(sessions, LOOKUP_METHOD, remember)
    try:
        yield
    finally:
        setattr(sessions, LOOKUP_METHOD, ask)
