"""The roof: builds every object from the settings, starts them in order, stops them in reverse.

Owns that order and nothing else; what a command prints and how it ends is the command line's.
"""

import asyncio
import math
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal
from uuid import uuid4

import msgspec
from prometheus_client import CollectorRegistry

from chatd.api.application import HealthApplication, build_application
from chatd.api.auth import ADMIN_TOKEN_FILE as TOKEN_FILE
from chatd.api.auth import ADMIN_USER_ID, TokenTable, admin_token
from chatd.api.deps import ApiDeps
from chatd.api.health import HealthRoutes
from chatd.api.server import Application, BoundAddress, ListenError, bind
from chatd.api.server import serve as listen
from chatd.database import connect_config, keep_database_up, open_database
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChangeId, WorkerId
from chatd.domain.ports import Clock, Env, Tool
from chatd.domain.prompt.instructions import Instructions
from chatd.model_directory import ModelDirectory, build_registry
from chatd.replica import Replica, replica_config
from chatd.settings.schema import Settings, SettingsError
from chatd.store import migrator
from chatd.telemetry import Gauges, Telemetry
from chatd.workspace_services import (
    LocalWorkspaceControl,
    WorkspaceServices,
    check_workspace_settings,
    workspace_config,
)


class ProcessRole(msgspec.Struct, frozen=True, kw_only=True):
    """What this process does: what it answers on its port, if anything, and whether it runs
    chats."""

    answers: Literal["api", "health", "nothing"] = "api"
    works: bool = True


FULL_ROLE: Final = ProcessRole()


class ReadyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to tell once everything runs."""

    url: str | None
    token_file: str | None
    model: str
    migrated: tuple[str, ...]


class LifecycleCallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """Who hears of it: `ready` once, `stopping` with the number of chats that still run."""

    ready: Callable[[ReadyInfo], None]
    stopping: Callable[[int], None] = lambda _running: None


class NoTools:
    """Satisfies `ports.ToolSource`: there are no workspaces to act in."""

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
    told: LifecycleCallbacks,
    job: ProcessRole = FULL_ROLE,
) -> int:
    """Run until `stop` is set. Everything that was started is stopped again, whatever happens, but
    for workspaces: how many of them go on is what is returned."""
    token = _given_token(env, settings)
    check_workspace_settings(settings, env)
    own = build_registry(settings, env, clock)
    try:
        async with (
            _port(settings, job) as port,
            open_database(settings, env) as server,
            asyncio.TaskGroup() as group,
        ):
            migrated = await migrator.up(server.dsn)
            watch = group.create_task(keep_database_up(server, clock), name="database watch")
            registry = CollectorRegistry()
            telemetry = Telemetry(registry)
            surroundings = Env(clock=clock, emit=telemetry, new_id=uuid4, new_change_id=_change_id)
            models = ModelDirectory(own, surroundings)
            connect = connect_config(settings, server.dsn)
            me = WorkerId(surroundings.new_id())
            hands = None

            def announce(chat: Chat, kind: str) -> None:
                replica.announce_chat(chat, kind)

            enabled = settings.workspaces.enabled and (job.works or job.answers == "api")
            config = workspace_config(settings, env, connect) if enabled else None
            if config is not None and job.works:
                hands = WorkspaceServices(config, surroundings, me, announce=announce)
            tools = NoTools() if hands is None else hands.tools
            shape = replica_config(settings, connect, works=job.works)
            replica = Replica(
                shape,
                surroundings,
                models=models,
                tools=tools,
                title_models=models.title_models,
                me=me,
            )
            pool = replica.database.pool
            rooms = (
                None if config is None else LocalWorkspaceControl(config, surroundings, pool, hands)
            )
            gauges = _gauges(registry, settings, replica)
            async with replica.running(), _running(hands):
                await models.declare(pool)
                readers = [
                    group.create_task(models.run(), name="models"),
                    group.create_task(gauges.run(pool, surroundings), name="backlog"),
                ]
                house = RunningProcess(
                    replica=replica,
                    models=models,
                    registry=registry,
                    stop=stop,
                    workspaces=rooms,
                    port=port,
                    token=token,
                )
                await _open(settings, job, house, told=told, migrated=tuple(migrated))
                for reader in readers:
                    reader.cancel()
            watch.cancel()
        return 0 if hands is None else await hands.left_running()
    finally:
        await own.close()


def _gauges(registry: CollectorRegistry, settings: Settings, replica: Replica) -> Gauges:
    gauges, pool = Gauges(registry), replica.database.pool

    def tick_age() -> float:
        """Not a number without a worker, and before it has begun."""
        age = replica.lease.age_s
        return math.nan if age is None else age

    gauges.running.set_function(lambda: replica.worker.running)
    gauges.slots.labels("chats").set(settings.worker.slots)
    gauges.slots.labels("subagents").set(settings.worker.child_slots)
    gauges.tick_age.set_function(tick_age)
    gauges.connections.set_function(lambda: pool.size)
    gauges.connections_limit.set(settings.database.pool_size)
    gauges.connections_waiting.set_function(lambda: pool.waiting)
    return gauges


class RunningProcess(msgspec.Struct, frozen=True, kw_only=True):
    """All that runs by the time the deps are opened."""

    replica: Replica
    models: ModelDirectory
    registry: CollectorRegistry
    stop: asyncio.Event
    workspaces: LocalWorkspaceControl | None
    port: socket.socket | None
    token: str | None


async def _open(
    settings: Settings,
    job: ProcessRole,
    house: RunningProcess,
    *,
    told: LifecycleCallbacks,
    migrated: tuple[str, ...],
) -> None:
    """Until a stop is asked for and what runs has come to an end. The port stays open for so
    long: whoever asks there is told that this replica goes away."""
    default = await house.models.default()
    named = "none" if default is None else default.config.name
    given = house.token is not None or job.answers != "api"

    def ready(where: BoundAddress | None) -> None:
        told.ready(
            ReadyInfo(
                url=None if where is None else where.url,
                token_file=None if given else str(settings.data_dir / TOKEN_FILE),
                model=named,
                migrated=migrated,
            )
        )

    if house.port is None:
        ready(None)
        await _leave(house, told)
        return
    app = _front(settings, job, house)
    shut = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(listen(app, house.port, ready, shut), name="listen")
        group.create_task(_leave(house, told, app), name="leave").add_done_callback(
            lambda _done: shut.set()
        )


async def _leave(
    house: RunningProcess, told: LifecycleCallbacks, app: Application | None = None
) -> None:
    """When a stop is asked for: streams are sent away while the steps under way end."""
    await house.stop.wait()
    told.stopping(house.replica.worker.running)
    async with asyncio.TaskGroup() as group:
        if app is not None:
            group.create_task(app.close(), name="close streams")
        group.create_task(house.replica.drain(), name="drain")


def _front(settings: Settings, job: ProcessRole, house: RunningProcess) -> Application:
    pool, stop = house.replica.database.pool, house.stop
    if job.answers == "health":
        return HealthApplication(HealthRoutes(pool, house.registry, stop.is_set))
    return build_application(_deps(house, admin_token(house.token, settings.data_dir)))


def _given_token(env: Mapping[str, str], settings: Settings) -> str | None:
    """Judged before anything has begun. Set but empty counts as not set, as for every key."""
    given = env.get("CHATD_ADMIN_TOKEN") or None
    try:
        return given and admin_token(given, settings.data_dir)
    except ChatdError as error:
        raise SettingsError(error.message) from None


@asynccontextmanager
async def _port(settings: Settings, job: ProcessRole) -> AsyncGenerator[socket.socket | None]:
    """First of all: a server that cannot have its port must not take chats that it leaves a
    moment later, again and again if it is started again and again."""
    if job.answers == "nothing":
        yield None
        return
    try:
        port = await bind(settings.server.host, settings.server.port)
    except ListenError as error:
        text = f"{error.message}. Does chatd run already? --host and --port choose another place"
        raise ListenError(f"{text}; port 0 is any that is free.") from error
    with port:
        yield port


@asynccontextmanager
async def _running(hands: WorkspaceServices | None) -> AsyncGenerator[None]:
    if hands is None:
        yield
        return
    async with hands.running():
        yield


def _change_id() -> ChangeId:
    """Never 0, which stands for changes that nobody asks after."""
    return ChangeId(secrets.randbits(62) + 1)


def _deps(house: RunningProcess, token: str) -> ApiDeps:
    replica = house.replica
    return ApiDeps(
        pool=replica.database.pool,
        transactor=replica.transactor,
        announce=replica.announce_chat,
        offer=replica.worker.reserve_slot,
        feeds=replica.feeds,
        watches=replica.watches,
        models=house.models,
        tokens=TokenTable({token: ADMIN_USER_ID}),
        env=replica.env,
        registry=house.registry,
        draining=house.stop.is_set,
        known=replica.feeds.known,
        workspaces=house.workspaces,
        budget=replica.budget,
    )
