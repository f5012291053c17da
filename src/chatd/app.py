"""Composition: build every object from the settings, start them in order, stop them in reverse.

Owns that order. The command line decides what is printed and the exit code.
"""

import asyncio
import math
import os
import random
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Final, Literal
from uuid import uuid4

import msgspec
from prometheus_client import CollectorRegistry

from chatd.api.accounts.accounts import AccountsConfig, build_accounts
from chatd.api.accounts.oidc_client import OidcConfig
from chatd.api.accounts.rate_limits import RequestLimits
from chatd.api.accounts.sign_in import create_link, local_url, sign_in_link
from chatd.api.accounts.site import Site, SiteConfig, is_loopback
from chatd.api.application import HealthApplication, build_application
from chatd.api.auth import ADMIN_TOKEN_FILE as TOKEN_FILE
from chatd.api.auth import admin_token
from chatd.api.deps import ApiDeps, StreamLimits
from chatd.api.health import HealthRoutes
from chatd.api.mcp_ports import McpServices
from chatd.api.model_ports import ModelServices
from chatd.api.schemas.runtime_settings import RetentionDays
from chatd.api.server import Application, BoundAddress, ListenError, bind
from chatd.api.server import serve as listen
from chatd.automation.push_requests import DEFAULT_CONTACT, PushRequests
from chatd.automation.schedule_runner import ScheduleRunner
from chatd.automation.webhook_sender import WebhookSender
from chatd.clock import new_change_id
from chatd.database import connect_config, keep_database_up, open_database
from chatd.demo_worker import DemoWorker, worker_environment
from chatd.domain.access import ADMIN_USER_ID, SystemActor
from chatd.domain.account.identity import IdentityRules
from chatd.domain.chat.row import Chat
from chatd.domain.errors import ChatdError, NotFound
from chatd.domain.file.entities import FileLimits
from chatd.domain.ids import CredentialId, WorkerId
from chatd.domain.ports import Clock, Env, ToolFamily
from chatd.domain.prompt.instructions import Instructions
from chatd.domain.subagents import SubagentLimits
from chatd.engine.subagents import SubagentService
from chatd.mcp_services import McpRuntime, declared_servers, private_hosts
from chatd.model_administration import ModelAdministration
from chatd.model_directory import ModelDirectory
from chatd.model_settings import DEMO_MODEL, build_registry, settings_gaps
from chatd.provider_administration import ProviderAdministration
from chatd.provider_clients import ProviderClients
from chatd.provider_trials import ProviderTrials
from chatd.providers.registry import ProviderRegistry
from chatd.replica import Replica, replica_config
from chatd.runtime_settings import PromptedTools, RuntimeSettings
from chatd.sealed_secrets import KeyRing
from chatd.secret_keys import KeySource, SecretKeys, key_source
from chatd.settings.schema import OidcSettings, Settings, SettingsError
from chatd.store import migrator
from chatd.subagent_models import SubagentModelChoice
from chatd.telemetry import Gauges, Telemetry
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.chat_tools import ChatFileTools, ChatTools
from chatd.tools.questions import QuestionTools
from chatd.tools.skill_directory import SkillDirectory, no_workspace_skills
from chatd.tools.skills import SkillTools
from chatd.tools.subagents import SubagentTools
from chatd.user_keys import UserKeys
from chatd.workspace_control import LocalWorkspaceControl
from chatd.workspace_services import (
    WorkspaceServices,
    check_workspace_settings,
    workspace_config,
)


class ProcessRole(msgspec.Struct, frozen=True, kw_only=True):
    """What this process serves on its port, and whether it runs chats."""

    serves: Literal["api", "health", "nothing"] = "api"
    runs_chats: bool = True


FULL_ROLE: Final = ProcessRole()
SERVE_ACTOR: Final = SystemActor(reason="chatd serve")


class ReadyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line prints once everything runs."""

    url: str | None
    token_file: str | None
    model: str
    migrated: tuple[str, ...]
    sign_in_link: str | None = None


class LifecycleCallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """`ready` is called once; `stopping` with the number of chats that still run.
    `shows_sign_in_link`: it goes to a terminal, so a one-time link may be made for it."""

    shows_sign_in_link: bool = False
    ready: Callable[[ReadyInfo], None]
    stopping: Callable[[int], None] = lambda _running: None


def _report_gaps(settings: Settings, env: Mapping[str, str], environment: Env) -> None:
    for gap in settings_gaps(settings, env):
        environment.emit("settings_incomplete", gap=gap)


async def _no_instructions(chat: Chat) -> Instructions:
    """Of a process without workspaces."""
    del chat
    return Instructions()


def _chat_tools(
    services: WorkspaceServices | None, families: list[ToolFamily], skills: SkillDirectory
) -> ChatTools:
    load = _no_instructions if services is None else services.chat_instructions
    return ChatTools(families, load, skills)


def _first_families(
    services: WorkspaceServices | None, env: Env
) -> tuple[list[ToolFamily], SkillDirectory]:
    """More families may be added to the list until chats run."""
    list_skills = no_workspace_skills if services is None else services.instructions.skills
    skills = SkillDirectory(list_skills, env)
    families: list[ToolFamily] = [QuestionTools(), SkillTools(skills, services)]
    if services is not None:
        families += [services.tools, services.mcp_tools]
    return families, skills


def _subagent_tools(
    settings: Settings, replica: Replica, models: ModelDirectory, runtime_settings: RuntimeSettings
) -> ToolFamily:
    return SubagentTools(
        SubagentService(
            replica.database.pool,
            replica.transactor,
            replica.env,
            reserve_slot=replica.worker.reserve_slot,
            models=SubagentModelChoice(models, runtime_settings, replica.env),
            limits=SubagentLimits(
                running=settings.limits.running_subagents_per_chat,
                total=settings.limits.subagents_per_chat,
            ),
        )
    )


def _add_families(
    families: list[ToolFamily],
    services: WorkspaceServices | None,
    settings: Settings,
    replica: Replica,
) -> None:
    """Those that need the replica's database."""
    pool, env = replica.database.pool, replica.env
    if services is not None:
        files = ChatFileWriter(pool, replica.files, _file_limits(settings), env)
        families.append(ChatFileTools(services, files))


def _file_limits(settings: Settings) -> FileLimits:
    return FileLimits(
        max_bytes=settings.files.max_bytes,
        user_bytes=settings.files.user_bytes,
        user_files=settings.files.user_files,
    )


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
            _bound_port(settings, role) as port,
            open_database(settings, env) as server,
            asyncio.TaskGroup() as group,
        ):
            migrated = await migrator.up(server.dsn)
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
                services = WorkspaceServices(config, environment, worker_id, announce=announce)
            families, skills = _first_families(services, environment)
            tools = _chat_tools(services, families, skills)
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
            _add_families(families, services, settings, replica)
            models.listen_to(replica.config_changes)
            replica.config_changes.subscribe(secret_keys.on_config_change)
            model_services = _model_services(
                models, clients, provider_registry, replica, secret_keys.ring
            )
            workspace_control = (
                None
                if config is None
                else LocalWorkspaceControl(config, environment, pool, services)
            )
            webhook_sender = _webhook_sender(settings, replica, secret_keys.ring)
            families.append(_subagent_tools(settings, replica, models, runtime_settings))
            mcp = _mcp_runtime(settings, env, replica, secret_keys.ring, families)
            demo = _demo_worker(settings, env, role, replica, models)
            async with (
                _prepared(replica, secret_keys, models, mcp),
                replica.running(),
                _running(services),
            ):
                works = {
                    "models": models.run(),
                    "secret keys": secret_keys.run(pool),
                    "webhooks": webhook_sender.run(),
                    "schedules": ScheduleRunner(pool, replica.transactor, environment).run(),
                    "backlog": _gauges(registry, settings, replica).run(pool, environment),
                    "demo worker": demo.run(),
                    "mcp": mcp.run(),
                }
                process = RunningProcess(
                    replica=replica,
                    models=models,
                    model_services=model_services,
                    registry=registry,
                    key_ring=secret_keys.ring,
                    wake_webhooks=webhook_sender.wake,
                    push_public_key=webhook_sender.pushes.public_key,
                    stop=stop,
                    workspaces=workspace_control,
                    port=port,
                    token=token,
                    demo=demo,
                    mcp=mcp.services,
                )
                async with _working(group, works):
                    await _serve_until_stopped(
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


def _model_services(
    models: ModelDirectory,
    clients: ProviderClients,
    own: ProviderRegistry,
    replica: Replica,
    ring: KeyRing,
) -> ModelServices:
    pool, env = replica.database.pool, replica.env
    return ModelServices(
        models=ModelAdministration(models, env),
        providers=ProviderAdministration(models, clients, ring, env),
        user_keys=UserKeys(pool, models, ring, env),
        calls=ProviderTrials(models, clients, own, env),
    )


def _gauges(registry: CollectorRegistry, settings: Settings, replica: Replica) -> Gauges:
    gauges, pool = Gauges(registry), replica.database.pool

    def tick_age() -> float:
        """NaN without a worker and before its first heartbeat."""
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
    """What runs before the port is served."""

    replica: Replica
    models: ModelDirectory
    model_services: ModelServices
    registry: CollectorRegistry
    key_ring: KeyRing
    wake_webhooks: Callable[[], None]
    push_public_key: Callable[[], Awaitable[str]]
    stop: asyncio.Event
    workspaces: LocalWorkspaceControl | None
    port: socket.socket | None
    token: str | None
    demo: DemoWorker
    mcp: McpServices


async def _serve_until_stopped(
    settings: Settings,
    role: ProcessRole,
    process: RunningProcess,
    *,
    callbacks: LifecycleCallbacks,
    migrated: tuple[str, ...],
) -> None:
    """Serve until `stop` is set and the steps in progress have ended. Until then the port stays
    open: clients get an error that says that this replica is stopping."""
    default = await process.models.default()
    named = "none" if default is None else default.config.name
    given = process.token is not None or role.serves != "api"

    secret = None
    if callbacks.shows_sign_in_link and role.serves == "api":
        secret = await _sign_in_secret(process.replica)

    def ready(where: BoundAddress | None) -> None:
        address = settings.server.url or (None if where is None else local_url(where.url))
        callbacks.ready(
            ReadyInfo(
                url=None if where is None else where.url,
                sign_in_link=None if secret is None else sign_in_link(address or "", secret),
                token_file=None if given else str(settings.data_dir / TOKEN_FILE),
                model=named,
                migrated=migrated,
            )
        )

    if process.port is None:
        ready(None)
        await _stop_in_order(process, callbacks)
        return
    app = _build_application(settings, role, process)
    stopped = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(listen(app, process.port, ready, stopped), name="listen")
        group.create_task(_stop_in_order(process, callbacks, app), name="leave").add_done_callback(
            lambda _done: stopped.set()
        )


async def _sign_in_secret(replica: Replica) -> str | None:
    """None if the first administrator is suspended or deleted."""
    pool, link_id = replica.database.pool, CredentialId(replica.env.new_id())
    try:
        return (await create_link(pool, SERVE_ACTOR, ADMIN_USER_ID, link_id))[0]
    except NotFound:
        return None


async def _stop_in_order(
    process: RunningProcess, callbacks: LifecycleCallbacks, app: Application | None = None
) -> None:
    """After `stop`: close the streams while the steps in progress end."""
    await process.stop.wait()
    callbacks.stopping(process.replica.worker.running)
    async with asyncio.TaskGroup() as group:
        if app is not None:
            group.create_task(app.close(), name="close streams")
        group.create_task(process.replica.drain(), name="drain")


def _build_application(
    settings: Settings, role: ProcessRole, process: RunningProcess
) -> Application:
    pool, stop = process.replica.database.pool, process.stop
    if role.serves == "health":
        lease = process.replica.lease
        return HealthApplication(
            HealthRoutes(pool, process.registry, stop.is_set, lambda: lease.error_kind)
        )
    return build_application(_deps(settings, process))


def _key_source(settings: Settings, env: Mapping[str, str]) -> KeySource:
    try:
        return key_source(settings.data_dir, env)
    except ChatdError as error:
        raise SettingsError(error.message) from None


@asynccontextmanager
async def _prepared(
    replica: Replica, secret_keys: SecretKeys, models: ModelDirectory, mcp: McpRuntime
) -> AsyncGenerator[None]:
    """What must be known before the worker acquires chats. An error ends the start."""
    try:
        await secret_keys.start(replica.database.pool)
        await models.declare(replica.database.pool)
        await mcp.declare()
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
async def _bound_port(
    settings: Settings, role: ProcessRole
) -> AsyncGenerator[socket.socket | None]:
    """Bound before anything else: a server that cannot listen must not acquire chats that it
    releases a moment later, at every restart."""
    if role.serves == "nothing":
        yield None
        return
    try:
        port = await bind(settings.server.host, settings.server.port)
    except ListenError as error:
        text = (
            f"{error.message}. Is chatd already running? --host and --port choose another address"
        )
        raise ListenError(f"{text}; port 0 chooses a free one.") from error
    with port:
        yield port


@asynccontextmanager
async def _running(services: WorkspaceServices | None) -> AsyncGenerator[None]:
    if services is None:
        yield
        return
    async with services.running():
        yield


def _demo_worker(
    settings: Settings,
    env: Mapping[str, str],
    role: ProcessRole,
    replica: Replica,
    models: ModelDirectory,
) -> DemoWorker:
    """Wanted only where this machine's browsers alone reach a server that runs chats itself."""
    is_local = role.serves == "api" and role.runs_chats and is_loopback(settings.server.host)

    async def is_wanted() -> bool:
        if not is_local or not settings.demo.kill_worker:
            return False
        default = await models.default()
        return default is not None and default.config.provider == DEMO_MODEL.provider

    return DemoWorker(
        worker_environment(settings, env),
        replica.env.clock,
        own=replica.worker,
        is_wanted=is_wanted,
    )


def _webhook_sender(settings: Settings, replica: Replica, ring: KeyRing) -> WebhookSender:
    pool, env = replica.database.pool, replica.env
    pushes = PushRequests(pool, ring, env, contact=_push_contact(settings))
    private = settings.webhooks.private_addresses
    sender = WebhookSender(pool, ring, env, pushes, allow_private=private)
    replica.on_turn_end = sender.on_turn_end
    return sender


def _retention(settings: Settings) -> RetentionDays:
    chats = settings.chats
    return RetentionDays(
        auto_archive=chats.auto_archive_days,
        archived_chats=chats.retention_days,
        deleted_messages=chats.deleted_messages_days,
        usage=chats.usage_days,
        debug_records=chats.debug_days,
        audit_log=settings.audit.retention_days,
        workspaces=settings.workspaces.retention_days,
    )


def _push_contact(settings: Settings) -> str:
    """Push services refuse addresses that are not public, so loopback is never named."""
    url = settings.server.url
    if settings.webhooks.push_contact is not None:
        return settings.webhooks.push_contact
    return url if url is not None and url.startswith("https://") else DEFAULT_CONTACT


def _accounts_config(settings: Settings) -> AccountsConfig:
    server, limits = settings.server, settings.limits
    return AccountsConfig(
        site=SiteConfig(
            url=server.url,
            allowed_hosts=server.allowed_hosts,
            allowed_origins=server.allowed_origins,
            trusted_proxies=server.trusted_proxies,
        ),
        limits=RequestLimits(
            requests=limits.requests_per_minute,
            chats=limits.new_chats_per_minute,
            files=limits.uploads_per_minute,
        ),
        has_passwords=settings.sign_in.passwords,
        oidc=_oidc_config(settings.oidc),
        identity_rules=IdentityRules(
            allowed_domains=settings.oidc.allowed_domains,
            auto_create=settings.oidc.auto_create,
            link_by_email=settings.oidc.link_by_email,
            groups_claim=settings.oidc.groups_claim,
            admin_groups=settings.oidc.admin_groups,
            viewer_groups=settings.oidc.viewer_groups,
        ),
        managed_groups=settings.oidc.groups,
    )


def _oidc_config(oidc: OidcSettings) -> OidcConfig | None:
    """Raises SettingsError."""
    if oidc.issuer is None:
        return None
    if oidc.client_id is None:
        raise SettingsError("oidc.client_id is missing: oidc.issuer is set")
    return OidcConfig(
        issuer=oidc.issuer,
        client_id=oidc.client_id,
        client_secret=oidc.client_secret,
        name=oidc.name,
        scopes=oidc.scopes,
    )


def _mcp_runtime(
    settings: Settings,
    env: Mapping[str, str],
    replica: Replica,
    ring: KeyRing,
    families: list[ToolFamily],
) -> McpRuntime:
    runtime = McpRuntime(
        replica.database.pool,
        replica.config_changes,
        replica.env,
        ring,
        hosts=private_hosts(settings),
        declared=declared_servers(settings, env),
    )
    # First: a server that a workspace declares must not take the name of a configured one's tool.
    families.insert(0, runtime.tools)
    return runtime


def _check_settings(settings: Settings, env: Mapping[str, str]) -> None:
    """Raises SettingsError before anything is started."""
    check_workspace_settings(settings, env)
    declared_servers(settings, env)
    try:
        Site(_accounts_config(settings).site)
    except ValueError as error:
        raise SettingsError(f"server.url or server.trusted_proxies: {error}") from None


def _deps(settings: Settings, process: RunningProcess) -> ApiDeps:
    replica, limits = process.replica, settings.limits
    token = admin_token(process.token, settings.data_dir)
    if process.token is None and settings.database.url is not None:
        replica.env.emit("admin_token_of_this_host", file=str(settings.data_dir / TOKEN_FILE))
    return ApiDeps(
        pool=replica.database.pool,
        transactor=replica.transactor,
        announce=replica.announce_chat,
        reserve_slot=replica.worker.reserve_slot,
        titles=replica.titles,
        feeds=replica.feeds,
        chat_lists=replica.chat_lists,
        models=process.models,
        model_services=process.model_services,
        accounts=build_accounts(
            replica.database.pool,
            replica.env,
            replica.config_changes,
            _accounts_config(settings),
            fixed={token: ADMIN_USER_ID},
            key_ring=process.key_ring,
        ),
        env=replica.env,
        registry=process.registry,
        files=replica.files,
        key_ring=process.key_ring,
        wake_webhooks=process.wake_webhooks,
        push_public_key=process.push_public_key,
        reaches_private_hosts=settings.webhooks.private_addresses,
        frame_origins=settings.server.frame_origins,
        file_limits=_file_limits(settings),
        draining=process.stop.is_set,
        known=replica.feeds.known,
        workspaces=process.workspaces,
        budget=replica.budget,
        default_limit=replica.default_limit,
        retention=_retention(settings),
        limits=StreamLimits(
            streams_per_user=limits.streams_per_user, topics_per_socket=limits.topics_per_socket
        ),
        database_error=lambda: replica.lease.error_kind,
        demo=process.demo,
        stops_subagents=settings.chats.interrupt_subagents == "stop",
        mcp=process.mcp,
    )
