"""Composition: build every object from the settings, start them in order, stop them in reverse.

Owns that order. The command line decides what is printed and the exit code.
"""

import asyncio
import os
import random
import socket
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from uuid import uuid4

from prometheus_client import CollectorRegistry

from chatd.api.accounts.site import Site
from chatd.api.auth import admin_token
from chatd.app.api_services import RunningProcess, accounts_config
from chatd.app.background_work import (
    build_demo_worker,
    build_gauges,
    build_model_services,
    build_webhook_sender,
)
from chatd.app.role import FULL_ROLE, LifecycleCallbacks, ProcessRole
from chatd.app.serving import bound_port, serve_until_stopped
from chatd.app.tool_families import (
    add_families,
    build_mcp_runtime,
    chat_tools,
    first_families,
    subagent_tools,
)
from chatd.automation.schedule_runner import ScheduleRunner
from chatd.clock import new_change_id
from chatd.database import (
    connect_config,
    keep_database_up,
    open_database,
    wait_until_accepted,
)
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ChatdError
from chatd.domain.ids import WorkerId
from chatd.domain.ports import Clock, Env
from chatd.mcp_services import McpRuntime, declared_servers
from chatd.models.configuration import build_registry, settings_gaps
from chatd.models.directory import ModelDirectory
from chatd.models.provider_clients import ProviderClients
from chatd.replica import Replica, replica_config
from chatd.runtime_settings import PromptedTools, RuntimeSettings
from chatd.secret_keys import KeySource, SecretKeys, key_source
from chatd.settings.schema import Settings, SettingsError
from chatd.store import migrator
from chatd.telemetry import Telemetry
from chatd.tools.skill_directory import SkillDirectory
from chatd.workspace_control import LocalWorkspaceControl
from chatd.workspace_services import (
    WorkspaceServices,
    check_workspace_settings,
    workspace_config,
)


def _report_gaps(settings: Settings, env: Mapping[str, str], environment: Env) -> None:
    for gap in settings_gaps(settings, env):
        environment.emit("settings_incomplete", gap=gap)


def _attach_settings(settings: RuntimeSettings, skills: SkillDirectory, replica: Replica) -> None:
    settings.attach(replica.database.pool, replica.config_changes)
    skills.attach(replica.database.pool, replica.config_changes)
    replica.debug_recorder.gate = settings.records_calls


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
            registry = CollectorRegistry()
            environment = _environment(clock, registry)
            secret_keys = SecretKeys(
                keys_from, environment, f"{socket.gethostname()}, process {os.getpid()}"
            )
            clients = ProviderClients(secret_keys.ring, environment, env)
            models = ModelDirectory(provider_registry, environment, clients)
            _report_gaps(settings, env, environment)
            connect = connect_config(settings, server.dsn)
            worker_id = WorkerId(environment.new_id())
            services: WorkspaceServices | None = None

            def announce(chat: Chat, kind: str) -> None:
                replica.announce_chat(chat, kind)

            enabled = settings.workspaces.enabled and (role.runs_chats or role.serves == "api")
            config = workspace_config(settings, env, connect) if enabled else None
            if config is not None and role.runs_chats:
                services = WorkspaceServices(
                    config, environment, worker_id, announce=announce, ring=secret_keys.ring
                )
            families, skills = first_families(services, environment)
            tools = chat_tools(services, families, skills)
            runtime_settings = RuntimeSettings()
            replica = Replica(
                replica_config(settings, connect, runs_chats=role.runs_chats),
                environment,
                models=models,
                tools=PromptedTools(tools, runtime_settings, environment),
                title_models=models.title_models,
                worker_id=worker_id,
            )
            pool = replica.database.pool
            _attach_settings(runtime_settings, skills, replica)
            add_families(families, services, settings, replica, tools)
            models.listen_to(replica.config_changes)
            replica.config_changes.subscribe(secret_keys.on_config_change)
            model_services = build_model_services(
                models, clients, provider_registry, replica, secret_keys.ring
            )
            workspace_control = (
                None
                if config is None
                else LocalWorkspaceControl(config, environment, pool, services)
            )
            webhooks = build_webhook_sender(settings, replica, secret_keys.ring)
            families.append(subagent_tools(settings, replica, models, runtime_settings))
            mcp = build_mcp_runtime(settings, env, replica, secret_keys.ring, families)
            demo = build_demo_worker(settings, env, role, replica, models)
            async with (
                _prepared(settings, replica, secret_keys, models, mcp),
                replica.running(),
                _running(services, settings, clock),
            ):
                works = {
                    "models": models.run(),
                    "secret keys": secret_keys.run(pool),
                    "webhooks": webhooks.run(),
                    "schedules": ScheduleRunner(pool, replica.transactor, environment).run(),
                    "backlog": build_gauges(registry, settings, replica).run(pool, environment),
                    "demo worker": demo.run(),
                    "mcp": mcp.run(),
                }
                process = RunningProcess(
                    replica=replica,
                    models=models,
                    model_services=model_services,
                    registry=registry,
                    key_ring=secret_keys.ring,
                    wake_webhooks=webhooks.wake,
                    push_public_key=webhooks.pushes.public_key,
                    stop=stop,
                    workspaces=workspace_control,
                    port=port,
                    token=token,
                    demo=demo,
                    mcp=mcp.services,
                )
                async with _working(group, works):
                    await serve_until_stopped(
                        settings, role, process, callbacks=callbacks, migrated=tuple(migrated)
                    )
                await models.withdraw()
                await secret_keys.stop(pool)
            watch.cancel()
        return 0 if services is None else await services.left_running()
    finally:
        await provider_registry.close()


def _environment(clock: Clock, registry: CollectorRegistry) -> Env:
    return Env(
        clock=clock,
        emit=Telemetry(registry),
        new_id=uuid4,
        new_change_id=new_change_id,
        jitter=random.random,
    )


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
async def _prepared(
    settings: Settings,
    replica: Replica,
    secret_keys: SecretKeys,
    models: ModelDirectory,
    mcp: McpRuntime,
) -> AsyncGenerator[None]:
    """What must be known before the worker acquires chats. An error ends the start."""
    pool, clock = replica.database.pool, replica.env.clock
    try:
        for step in (
            lambda: secret_keys.start(pool),
            lambda: models.declare(pool),
            mcp.declare,
        ):
            await wait_until_accepted(settings, clock, step)
        yield
    finally:
        await models.close()
        await replica.database.close()


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
