"""The roof: builds every object from the settings, starts them in order, stops them in reverse.

Owns that order and nothing else; what a command prints and how it ends is the command line's.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final
from uuid import uuid4

import msgspec
from prometheus_client import CollectorRegistry

from chatd.api.auth import ADMIN, Tokens, admin_token
from chatd.api.auth import FILE as TOKEN_FILE
from chatd.api.build import build
from chatd.api.doors import Doors
from chatd.api.serve import Bound
from chatd.api.serve import serve as listen
from chatd.domain.chat import Chat
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChangeId
from chatd.domain.ports import Clock, Env, Tool
from chatd.domain.prompt_text import Instructions
from chatd.engine.slots import SlotsConfig
from chatd.engine.worker import WorkerConfig
from chatd.models import directory
from chatd.pg.config import Config
from chatd.pg.errors import PgError
from chatd.pg.server import Server, start
from chatd.providers.directory import Directory
from chatd.replica import Replica, ReplicaConfig
from chatd.settings.tree import Settings
from chatd.store import migrate
from chatd.store.conn import ConnectConfig
from chatd.telemetry import Telemetry

log = logging.getLogger(__name__)

WATCH_S: Final = 2.0


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to tell once everything runs."""

    url: str
    token_file: str | None
    model: str
    migrated: tuple[str, ...]


class NoTools:
    """Satisfies `ports.ToolSource`: there is no workspace to act in yet."""

    async def tools(self, chat: Chat) -> Sequence[Tool]:
        del chat
        return ()

    async def instructions(self, chat: Chat) -> Instructions:
        del chat
        return Instructions()


async def serve(
    settings: Settings,
    env: Mapping[str, str],
    *,
    clock: Clock,
    stop: asyncio.Event,
    ready: Callable[[Ready], None],
) -> None:
    """Run until `stop` is set. Everything that was started is stopped again, whatever happens."""
    models = directory(settings, env, clock)
    async with database(settings, env) as server:
        migrated = await migrate.up(server.dsn)
        watch = asyncio.create_task(_keep_up(server, clock), name="database watch")
        try:
            registry = CollectorRegistry()
            telemetry = Telemetry(registry)
            replica = _replica(settings, server.dsn, models, telemetry, clock)
            telemetry.running.set_function(lambda: replica.worker.running)
            async with replica.running():
                token = admin_token(env.get("CHATD_ADMIN_TOKEN"), settings.data_dir)
                doors = _doors(replica, models, token, registry, stop)
                default = await models.default()

                def bound(where: Bound) -> None:
                    given = "CHATD_ADMIN_TOKEN" in env
                    ready(
                        Ready(
                            url=where.url,
                            token_file=None if given else str(settings.data_dir / TOKEN_FILE),
                            model="none" if default is None else default.name,
                            migrated=tuple(migrated),
                        )
                    )

                await listen(build(doors), settings.server.host, settings.server.port, bound, stop)
        finally:
            watch.cancel()
            await models.close()


def _replica(
    settings: Settings, dsn: str, models: Directory, telemetry: Telemetry, clock: Clock
) -> Replica:
    connect = ConnectConfig(
        dsn=dsn,
        statement_timeout_s=settings.database.statement_timeout_s,
        lock_timeout_s=settings.database.lock_timeout_s,
    )
    slots = SlotsConfig(roots=settings.worker.slots, children=settings.worker.child_slots)
    config = ReplicaConfig(
        connect=connect,
        pool_size=settings.database.pool_size,
        worker=WorkerConfig(slots=slots, drain_s=settings.worker.drain_s),
    )
    surroundings = Env(clock=clock, emit=telemetry, new_id=uuid4, new_change_id=_change_id)
    return Replica(config, surroundings, models=models, tools=NoTools())


def _change_id() -> ChangeId:
    """Never 0, which stands for changes that nobody asks after."""
    return ChangeId(secrets.randbits(62) + 1)


def _doors(
    replica: Replica,
    models: Directory,
    token: str,
    registry: CollectorRegistry,
    stop: asyncio.Event,
) -> Doors:
    return Doors(
        pool=replica.database.pool,
        transactor=replica.transactor,
        tell=replica.told,
        announce=replica.announce,
        offer=replica.worker.offer,
        feeds=replica.feeds,
        watches=replica.watches,
        models=models,
        tokens=Tokens({token: ADMIN}),
        env=replica.env,
        registry=registry,
        draining=stop.is_set,
    )


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
