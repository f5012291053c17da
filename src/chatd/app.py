"""The roof: builds every object from the settings, starts them in order, stops them in reverse.

Owns that order and nothing else; what a command prints and how it ends is the command line's.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from chatd.domain.errors import Unavailable
from chatd.domain.ports import Clock
from chatd.pg.config import Config
from chatd.pg.errors import PgError
from chatd.pg.server import Server, start
from chatd.settings.tree import Settings
from chatd.store import migrate

log = logging.getLogger(__name__)

WATCH_S: Final = 2.0


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to tell once everything runs."""

    migrated: tuple[str, ...]


async def serve(
    settings: Settings,
    env: Mapping[str, str],
    *,
    clock: Clock,
    stop: asyncio.Event,
    ready: Callable[[Ready], None],
) -> None:
    """Run until `stop` is set. Everything that was started is stopped again, whatever happens."""
    async with database(settings, env) as server:
        migrated = await migrate.up(server.dsn)
        ready(Ready(migrated=tuple(migrated)))
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_keep_up(server, clock), name="database watch")
            await stop.wait()
            watch.cancel()


@asynccontextmanager
async def database(settings: Settings, env: Mapping[str, str]) -> AsyncGenerator[Server]:
    """The database of the settings: somebody else's, or the embedded one, started if need be."""
    config = Config(database_url=settings.database.url, data_dir=settings.data_dir / "pg")
    try:
        server = await start(config, env)
    except PgError as error:
        raise Unavailable(str(error), code="database_down") from error
    try:
        yield server
    finally:
        await server.close()


async def _keep_up(server: Server, clock: Clock) -> None:
    """Bring the embedded server back whenever it has died. A failure is told once, not each time
    that we try again."""
    told = False
    while True:
        await clock.sleep(WATCH_S, "database_watch")
        try:
            await server.ensure()
        except PgError as error:
            if not told:
                log.error("the database is down and does not come back: %s", error)
            told = True
        else:
            if told:
                log.info("the database is back")
            told = False
