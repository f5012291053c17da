"""What an operator asks a database about itself: its version, clock, connections and sizes, and
whether its notifications arrive. No rows of users."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, LiteralString

from msgspec import Struct

from chatd.domain.deployment.diagnosis import DatabaseFacts
from chatd.store.database.conn import ConnectConfig, DatabaseSession, connect
from chatd.store.database.pool import unsafe_settings

LISTENER_WAIT_S: Final = 5.0
FACTS: Final[LiteralString] = """
    SELECT clock_timestamp() AS now, current_setting('server_version_num')::int AS version,
        pg_is_in_recovery() AS is_standby,
        current_setting('max_connections')::int AS max_connections,
        (SELECT sum(numbackends) FROM pg_stat_database)::int AS connections,
        pg_database_size(current_database()) AS bytes,
        current_setting('synchronous_commit') AS synchronous_commit,
        current_setting('fsync') AS fsync,
        current_setting('full_page_writes') AS full_page_writes"""
TABLES: Final[LiteralString] = """
    SELECT s.relname AS name, s.n_live_tup AS rows, s.n_dead_tup AS dead_rows,
        pg_total_relation_size(s.relid) AS bytes,
        greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed_at,
        greatest(s.last_analyze, s.last_autoanalyze) AS analyzed_at
    FROM pg_stat_user_tables s WHERE s.schemaname = current_schema() ORDER BY bytes DESC, name"""


class TableStatistics(Struct, frozen=True, kw_only=True):
    """`rows` and `dead_rows` are the server's estimates."""

    name: str
    rows: int
    dead_rows: int
    bytes: int
    vacuumed_at: datetime | None
    analyzed_at: datetime | None


async def read_facts(config: ConnectConfig, now: Callable[[], datetime]) -> DatabaseFacts:
    """On a session of its own: the pool may be the problem. Raises ChatdError."""
    session = await connect(config)
    try:
        before = now()
        row = await session.fetchrow(FACTS)
        middle = before + (now() - before) / 2
    finally:
        session.terminate()
    assert row is not None  # a SELECT without FROM has one row
    names = ("synchronous_commit", "fsync", "full_page_writes")
    return DatabaseFacts(
        version=row["version"],
        is_standby=row["is_standby"],
        connections=row["connections"],
        max_connections=row["max_connections"],
        bytes=row["bytes"],
        server_offset_s=(row["now"] - middle).total_seconds(),
        unsafe=unsafe_settings({name: row[name] for name in names}),
    )


async def read_tables(config: ConnectConfig) -> Sequence[TableStatistics]:
    """The largest first."""
    session = await connect(config)
    try:
        return [TableStatistics(**dict(row)) for row in await session.fetch(TABLES)]
    finally:
        session.terminate()


async def measure_notification(config: ConnectConfig) -> float | None:
    """Seconds until a notification comes back by another session; None if it does not."""
    listening, sending = await connect(config), None
    try:
        sending = await connect(config)
        return await _measure(listening, sending)
    finally:
        listening.terminate()
        if sending is not None:
            sending.terminate()


async def _measure(listening: DatabaseSession, sending: DatabaseSession) -> float | None:
    channel, loop = f"chatd_doctor_{listening.backend_pid}", asyncio.get_running_loop()
    arrived: asyncio.Future[float] = loop.create_future()

    def on_notification(_pid: int, _payload: str) -> None:
        if not arrived.done():
            arrived.set_result(loop.time())

    await listening.listen(channel, on_notification)
    sent = loop.time()
    await sending.execute("SELECT pg_notify($1, '')", channel)
    with suppress(TimeoutError):
        async with asyncio.timeout(LISTENER_WAIT_S):
            return await arrived - sent
    return None
