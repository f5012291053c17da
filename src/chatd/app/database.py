"""The database that the settings name: an external server, or the embedded one, which this process
starts and restarts."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

from chatd.aio import Backoff, retry_unavailable
from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ports import Clock
from chatd.log_event import LogEvent
from chatd.pg.config import ClusterLayout, EmbeddedConfig, PgError
from chatd.pg.server import PostgresServer, open_server
from chatd.settings.schema import Settings, redact_url
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import TEMPORARY_CODES, check_server

log = logging.getLogger(__name__)

DATABASE_CHECK_INTERVAL_S: Final = 2.0
START_BACKOFF: Final = Backoff(first_delay_s=0.25, max_delay_s=5.0)

T = TypeVar("T")


def connect_config(settings: Settings, dsn: str) -> ConnectConfig:
    return ConnectConfig(
        dsn=dsn,
        statement_timeout_s=settings.database.statement_timeout_s,
        lock_timeout_s=settings.database.lock_timeout_s,
    )


async def wait_until_accepted(
    settings: Settings, clock: Clock, step: Callable[[], Awaitable[T]]
) -> T:
    """Repeat a step of the start while the database answers that it takes no connection now, for at
    most `database.start_wait_s`. Raises the last error."""

    def report(error: Unavailable, failures: int) -> None:
        limit = f"{settings.database.start_wait_s:g} s (database.start_wait_s)"
        event = LogEvent(
            event="database_awaited",
            fields={"error_kind": error.code, "failures": failures},
            explanation=f"{error.message.rstrip('.')}; chatd tries again for up to {limit}",
        )
        log.warning(event)

    return await retry_unavailable(
        clock,
        step,
        tag="database_start_retry",
        delay=START_BACKOFF.delay,
        budget_s=settings.database.start_wait_s,
        on_failure=report,
        codes=TEMPORARY_CODES,
    )


def has_database(settings: Settings) -> bool:
    """Whether `open_database` would create none. Raises ChatdError if that cannot be read."""
    if settings.database.url is not None:
        return True
    try:
        return ClusterLayout(data_dir=settings.data_dir / "pg", socket_dir=Path()).cluster.exists()
    except OSError as error:
        raise ChatdError(f"cannot read {settings.data_dir}: {error.strerror}") from error


@asynccontextmanager
async def open_database(
    settings: Settings, env: Mapping[str, str], clock: Clock
) -> AsyncGenerator[PostgresServer]:
    """Start the embedded server if no URL is set; stop using it at the end."""
    config = EmbeddedConfig(database_url=settings.database.url, data_dir=settings.data_dir / "pg")
    try:
        server = await open_server(config, env)
    except PgError as error:
        raise Unavailable(str(error), code="database_down") from error
    try:
        if settings.database.url is not None:
            await _check_external(settings, settings.database.url, clock)
        yield server
    finally:
        await server.close()


async def _check_external(settings: Settings, url: str, clock: Clock) -> None:
    """An error names the database, without its password."""
    config = ConnectConfig(dsn=url)
    try:
        unsafe = await wait_until_accepted(settings, clock, lambda: check_server(config))
    except ChatdError as error:
        text = f"{error.message} The address is {redact_url(url)}"
        raise ChatdError(text, code=error.code) from error
    for name, value in unsafe.items():
        why = "a crash or failover may lose messages that chatd has confirmed; set it to on"
        log.warning(LogEvent(event="database_unsafe", fields={name: value}, explanation=why))


async def keep_database_up(server: PostgresServer, clock: Clock) -> None:
    """Restart the embedded server whenever it has died. Only the first of several failures is
    logged."""
    reported = False
    while True:
        await clock.sleep(DATABASE_CHECK_INTERVAL_S, "database_watch")
        try:
            await server.ensure_running()
        except PgError as error:
            if not reported:
                log.error(LogEvent(event="database_restart_failed", explanation=str(error)))
            reported = True
        else:
            if reported:
                log.info(LogEvent(event="database_recovered"))
            reported = False
