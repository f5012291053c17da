"""Starts the objects of a process in order, and stops them in reverse. The command line decides
what is printed and the exit code."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager

from chatd.api.accounts.authenticator import admin_token
from chatd.api.accounts.site import Site
from chatd.app.api_services import accounts_config
from chatd.app.composition import Composition
from chatd.app.database import connect_config, keep_database_up, open_database, wait_until_accepted
from chatd.app.role import FULL_ROLE, LifecycleCallbacks, ProcessRole
from chatd.app.serving import bound_port, serve_until_stopped
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Clock
from chatd.services.mcp_servers import declared_servers
from chatd.services.models.configuration import build_registry, settings_gaps
from chatd.services.secret_keys import KeySource, key_source
from chatd.services.workspaces import (
    WorkspaceServices,
    check_workspace_settings,
)
from chatd.settings.schema import Settings, SettingsError
from chatd.store import migrator


async def serve(
    settings: Settings,
    env: Mapping[str, str],
    *,
    clock: Clock,
    stop: asyncio.Event,
    callbacks: LifecycleCallbacks,
    role: ProcessRole = FULL_ROLE,
) -> int:
    """Run until `stop` is set, then stop everything that was started except workspaces. Returns the
    number of workspaces that keep running."""
    token = _token_from_environment(env, settings)
    _check_settings(settings, env)
    keys_from = _key_source(settings, env)
    provider_registry = build_registry(settings, env, clock)
    try:
        async with (
            bound_port(settings, role) as port,
            open_database(settings, env, clock) as server,
            asyncio.TaskGroup() as group,
        ):
            migrated = await wait_until_accepted(settings, clock, lambda: migrator.up(server.dsn))
            watch = group.create_task(keep_database_up(server, clock), name="database watch")
            built = Composition(
                settings,
                env,
                role,
                connect=connect_config(settings, server.dsn),
                clock=clock,
                keys_from=keys_from,
                provider_registry=provider_registry,
            )
            for gap in settings_gaps(settings, env):
                built.env.emit("settings_incomplete", gap=gap)
            async with (
                _prepared(built),
                built.replica.running(),
                _running(built.workspaces, settings, clock),
            ):
                async with _working(group, built.background_work()):
                    await serve_until_stopped(
                        built,
                        port,
                        stop,
                        token=token,
                        callbacks=callbacks,
                        migrated=tuple(migrated),
                    )
                await built.models.withdraw()
                await built.secret_keys.stop(built.pool)
            watch.cancel()
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


@asynccontextmanager
async def _prepared(built: Composition) -> AsyncGenerator[None]:
    """What must be known before the worker acquires chats. An error ends the start."""
    pool = built.pool
    try:
        for step in (
            lambda: built.secret_keys.start(pool),
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
async def _running(
    services: WorkspaceServices | None, settings: Settings, clock: Clock
) -> AsyncGenerator[None]:
    if services is None:
        yield
        return
    async with services.running(lambda step: wait_until_accepted(settings, clock, step)):
        yield


def _check_settings(settings: Settings, env: Mapping[str, str]) -> None:
    """Raises SettingsError before anything is started."""
    check_workspace_settings(settings, env)
    declared_servers(settings, env)
    try:
        Site(accounts_config(settings).site)
    except ValueError as error:
        raise SettingsError(f"server.url or server.trusted_proxies: {error}") from None
