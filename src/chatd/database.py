"""The database that the settings name: an external server, or the embedded one, which this process
starts and restarts."""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ports import Clock
from chatd.log_event import LogEvent
from chatd.pg.config import EmbeddedConfig, PgError
from chatd.pg.server import PostgresServer, open_server
from chatd.settings.schema import Settings, redact_url
from chatd.store.conn import ConnectConfig
from chatd.store.server_check import check_server

log = logging.getLogger(__name__)

DATABASE_CHECK_INTERVAL_S: Final = 2.0


def connect_config(settings: Settings, dsn: str) -> ConnectConfig:
    return ConnectConfig(
        dsn=dsn,
        statement_timeout_s=settings.database.statement_timeout_s,
        lock_timeout_s=settings.database.lock_timeout_s,
    )


@asynccontextmanager
async def open_database(
    settings: Settings, env: Mapping[str, str]
) -> AsyncGenerator[PostgresServer]:
    """Start the embedded server if no URL is set; stop using it at the end."""
    config = EmbeddedConfig(database_url=settings.database.url, data_dir=settings.data_dir / "pg")
    try:
        server = await open_server(config, env)
    except PgError as error:
        raise Unavailable(str(error), code="database_down") from error
    try:
        if settings.database.url is not None:
            await _check_external(settings.database.url)
        yield server
    finally:
        await server.close()


async def _check_external(url: str) -> None:
    """An error names the database, without its password."""
    try:
        unsafe = await check_server(ConnectConfig(dsn=url))
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
