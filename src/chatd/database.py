"""The database of the settings: somebody else's, or the embedded one, which is started, and brought
back when it has died."""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from chatd.domain.errors import ChatdError, Unavailable
from chatd.domain.ports import Clock
from chatd.pg.config import EmbeddedConfig, PgError
from chatd.pg.server import PostgresServer, open_server
from chatd.settings.tree import Settings, redact_url
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
    """Started if need be; left when this ends."""
    config = EmbeddedConfig(database_url=settings.database.url, data_dir=settings.data_dir / "pg")
    try:
        server = await open_server(config, env)
    except PgError as error:
        raise Unavailable(str(error), code="database_down") from error
    try:
        if settings.database.url is not None:
            await _greeted(settings.database.url)
        yield server
    finally:
        await server.close()


async def _greeted(url: str) -> None:
    """Nobody should have to guess which database it was that could not be used."""
    try:
        await check_server(ConnectConfig(dsn=url))
    except ChatdError as error:
        text = f"{error.message} It was looked for at {redact_url(url)}"
        raise ChatdError(text, code=error.code) from error


async def keep_database_up(server: PostgresServer, clock: Clock) -> None:
    """Bring the embedded server back whenever it has died. A failure is told once, not each time
    that we try again."""
    told = False
    while True:
        await clock.sleep(DATABASE_CHECK_INTERVAL_S, "database_watch")
        try:
            await server.ensure_running()
        except PgError as error:
            if not told:
                log.error("the database is down and does not come back: %s", error)
            told = True
        else:
            if told:
                log.info("the database is back")
            told = False
