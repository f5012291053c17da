"""Starts the objects of a process in order, serves its port, and stops them in reverse. The command
line decides what is printed and the exit code.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest

from chatd.api.accounts.authenticator import ADMIN_TOKEN_FILE as TOKEN_FILE
from chatd.api.accounts.authenticator import admin_token
from chatd.api.accounts.sign_in import create_link, local_url, sign_in_link
from chatd.api.accounts.site import Site
from chatd.api.server import Application, BoundAddress, ListenError, bind
from chatd.api.server import serve as listen
from chatd.app.composition import (
    FULL_ROLE,
    Composition,
    LifecycleCallbacks,
    ProcessRole,
    ReadyInfo,
    accounts_config,
    build_env,
    build_secret_keys,
    build_served_application,
)
from chatd.app.database import connect_config, keep_database_up, open_database, wait_until_accepted
from chatd.app.process_group import Membership
from chatd.app.replica import Replica, nats_config
from chatd.app.telemetry import check_collector
from chatd.domain.access.permissions import ADMIN_USER_ID, SystemActor
from chatd.domain.errors import ChatdError, NotFound
from chatd.domain.ids import CredentialId
from chatd.domain.ports import Clock
from chatd.services.mcp_servers import declared_servers
from chatd.services.models.configuration import build_registry, settings_gaps
from chatd.services.operation.restores import (
    refuse_unfinished_database,
    refuse_unfinished_directory,
)
from chatd.services.operation.secret_keys import KeySource, SecretKeys, key_source
from chatd.services.workspaces.workspaces import check_workspace_settings
from chatd.settings.schema import Settings, SettingsError
from chatd.store.database import migrator
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.pool import Pool, PoolConfig

# The port of the process: bound first, served until the process stops.

SERVE_ACTOR: Final = SystemActor(reason="chatd serve")


async def serve_until_stopped(
    built: Composition,
    port: socket.socket | None,
    stop: asyncio.Event,
    *,
    token: str | None,
    callbacks: LifecycleCallbacks,
    migrated: tuple[str, ...],
    membership: Membership | None = None,
) -> None:
    """Serve until `stop` is set and the steps in progress have ended. Until then the port stays
    open: clients get an error that says that this replica is stopping."""
    settings, role, clock = built.settings, built.role, built.env.clock
    default = await wait_until_accepted(settings, clock, built.models.default)
    named = "none" if default is None else default.config.name
    given = token is not None or role.serves != "api"

    secret = None
    if callbacks.shows_sign_in_link and role.serves == "api":
        secret = await wait_until_accepted(settings, clock, lambda: _sign_in_secret(built.replica))

    def ready(where: BoundAddress | None) -> None:
        address = settings.server.url or (None if where is None else local_url(where.url))
        callbacks.ready(
            ReadyInfo(
                url=None if where is None else where.url,
                sign_in_link=None if secret is None else sign_in_link(address or "", secret),
                token_file=None if given else str(settings.data_dir / TOKEN_FILE),
                model=named,
                migrated=migrated,
                restored=None if built.confirmation.is_given else built.confirmation.record,
            )
        )

    if port is None:
        ready(None)
        await _stop_in_order(built.replica, stop, callbacks)
        return
    gather = None
    if membership is not None:
        membership.publish_metrics(lambda: generate_latest(built.registry))
        gather = membership.gather_metrics
    app = build_served_application(built, token, stop, gather)
    stopped = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(listen(app, port, ready, stopped), name="listen")
        leaving = group.create_task(
            _stop_in_order(built.replica, stop, callbacks, app), name="leave"
        )
        leaving.add_done_callback(lambda _done: stopped.set())


async def _sign_in_secret(replica: Replica) -> str | None:
    """None if the first administrator is suspended or deleted."""
    pool, link_id = replica.database.pool, CredentialId(replica.env.new_id())
    try:
        return (await create_link(pool, SERVE_ACTOR, ADMIN_USER_ID, link_id))[0]
    except NotFound:
        return None


async def _stop_in_order(
    replica: Replica,
    stop: asyncio.Event,
    callbacks: LifecycleCallbacks,
    app: Application | None = None,
) -> None:
    """After `stop`: close the streams while the steps in progress end."""
    await stop.wait()
    callbacks.stopping(replica.worker.running)
    async with asyncio.TaskGroup() as group:
        if app is not None:
            group.create_task(app.close(), name="close streams")
        group.create_task(replica.drain(), name="drain")


@asynccontextmanager
async def bound_port(settings: Settings, role: ProcessRole) -> AsyncGenerator[socket.socket | None]:
    """Bound before anything else: a server that cannot listen must not acquire chats that it
    releases a moment later, at every restart."""
    if role.serves == "nothing":
        yield None
        return
    with await _bind(settings, is_shared=role.is_member) as port:
        yield port


@asynccontextmanager
async def reserved_port(settings: Settings) -> AsyncGenerator[int]:
    """The number of a port for a group of processes. It is bound here and never served, so that it
    stays the group's while no process listens."""
    with await _bind(settings, is_shared=False) as tried:  # refused if another server has it
        number = tried.getsockname()[1]
    server = structs.replace(settings.server, port=number)
    with await _bind(structs.replace(settings, server=server), is_shared=True):
        yield number


async def _bind(settings: Settings, *, is_shared: bool) -> socket.socket:
    try:
        return await bind(settings.server.host, settings.server.port, is_shared=is_shared)
    except ListenError as error:
        text = (
            f"{error.message}. Is chatd already running? --host and --port choose another address"
        )
        raise ListenError(f"{text}; port 0 chooses a free one.") from error


async def serve(
    settings: Settings,
    env: Mapping[str, str],
    *,
    clock: Clock,
    stop: asyncio.Event,
    callbacks: LifecycleCallbacks,
    role: ProcessRole = FULL_ROLE,
    membership: Membership | None = None,
) -> int:
    """Run until `stop` is set, then stop everything that was started except workspaces. Returns the
    number of workspaces that keep running. `membership`: this process is one of a group."""
    refuse_unfinished_directory(settings.data_dir)
    token = _token_from_environment(env, settings)
    check_settings(settings, env)
    keys_from = _key_source(settings, env)
    provider_registry = build_registry(settings, env, clock)
    try:
        async with (
            bound_port(settings, role) as port,
            open_database(settings, env, clock) as server,
            asyncio.TaskGroup() as group,
        ):
            connect = connect_config(settings, server.dsn)
            await wait_until_accepted(settings, clock, lambda: refuse_unfinished_database(connect))
            migrated = await wait_until_accepted(settings, clock, lambda: migrator.up(server.dsn))
            watch = group.create_task(keep_database_up(server, clock), name="database watch")
            registry = CollectorRegistry()
            own_env = build_env(settings, registry, clock)
            secret_keys = build_secret_keys(settings, env, role, keys_from, own_env)
            await _start_keys(secret_keys, connect, settings, clock)
            built = Composition(
                settings,
                env,
                role,
                connect=connect,
                env=own_env,
                registry=registry,
                secret_keys=secret_keys,
                provider_registry=provider_registry,
            )
            for gap in settings_gaps(settings, env):
                built.env.emit("settings_incomplete", gap=gap)
            async with (
                _prepared(built),
                built.replica.running(),
                _running(built, settings, clock),
            ):
                async with _working(group, built.background_work()):
                    await serve_until_stopped(
                        built,
                        port,
                        stop,
                        token=token,
                        callbacks=callbacks,
                        migrated=tuple(migrated),
                        membership=membership,
                    )
                await built.models.withdraw()
                await built.secret_keys.stop(built.pool)
            watch.cancel()
        await built.env.tracer.close()
        return 0 if built.workspaces is None else await built.workspaces.left_running()
    finally:
        await provider_registry.close()


@asynccontextmanager
async def _working(
    group: asyncio.TaskGroup, works: Mapping[str, Coroutine[object, object, None]]
) -> AsyncGenerator[None]:
    """Background work of the process, by name."""
    tasks = [group.create_task(work, name=name) for name, work in works.items()]
    yield
    for task in tasks:
        task.cancel()


def _key_source(settings: Settings, env: Mapping[str, str]) -> KeySource:
    try:
        return key_source(settings.data_dir, env)
    except ChatdError as error:
        raise SettingsError(error.message) from None


async def _start_keys(
    keys: SecretKeys, connect: ConnectConfig, settings: Settings, clock: Clock
) -> None:
    pool = Pool(PoolConfig(connect=connect, max_size=1))
    try:
        await wait_until_accepted(settings, clock, lambda: keys.start(pool))
    finally:
        await pool.close()


@asynccontextmanager
async def _prepared(built: Composition) -> AsyncGenerator[None]:
    """What must be known before the worker acquires chats. An error ends the start."""
    pool = built.pool
    try:
        for step in (
            built.confirmation.start,
            lambda: built.models.declare(pool),
            built.mcp.declare,
        ):
            await wait_until_accepted(built.settings, built.env.clock, step)
        yield
    finally:
        await built.models.close()
        await built.replica.database.close()


def _token_from_environment(env: Mapping[str, str], settings: Settings) -> str | None:
    """Checked before anything starts. An empty variable counts as not set."""
    given = env.get("CHATD_ADMIN_TOKEN") or None
    try:
        return given and admin_token(given, settings.data_dir)
    except ChatdError as error:
        raise SettingsError(error.message) from None


@asynccontextmanager
async def _running(built: Composition, settings: Settings, clock: Clock) -> AsyncGenerator[None]:
    """Runners, and workspaces where chats run. Steps that end during the stop need both."""
    async with AsyncExitStack() as stack:
        if built.runners is not None:
            await stack.enter_async_context(built.runners.running())
        if built.workspaces is not None:
            first = built.workspaces.running(
                lambda step: wait_until_accepted(settings, clock, step)
            )
            await stack.enter_async_context(first)
        yield


def check_settings(settings: Settings, env: Mapping[str, str]) -> None:
    """Raises SettingsError before anything is started."""
    check_workspace_settings(settings, env)
    declared_servers(settings, env)
    check_collector(settings.otel)
    nats_config(settings)
    try:
        Site(accounts_config(settings).site)
    except ValueError as error:
        raise SettingsError(f"server.url or server.trusted_proxies: {error}") from None
