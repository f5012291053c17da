"""Builds every object of a process from the settings, and what the API is given, in the order in
which they depend on each other. Starts nothing.
"""

import asyncio
import math
import os
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from importlib import metadata
from typing import Final, Literal
from uuid import uuid4

import msgspec
from prometheus_client import CollectorRegistry

from chatd.api.accounts.authenticator import ADMIN_TOKEN_FILE as TOKEN_FILE
from chatd.api.accounts.authenticator import AccountsConfig, admin_token, build_accounts
from chatd.api.accounts.oidc import OidcConfig
from chatd.api.accounts.request_limits import RequestLimits
from chatd.api.accounts.site import SiteConfig, is_loopback
from chatd.api.application import HealthApplication, HealthRoutes, build_application
from chatd.api.deps import ApiDeps, GatherMetrics, RetentionDays, StreamLimits
from chatd.api.server import Application
from chatd.api.web_page import is_built
from chatd.app.replica import (
    Replica,
    ReplicaOptions,
    WorkGate,
    nats_config,
    open_database_pools,
    replica_config,
)
from chatd.app.telemetry import Gauges, SlowStatements, Telemetry, open_tracer
from chatd.clock import new_change_id
from chatd.domain.access.accounts import IdentityRules
from chatd.domain.access.permissions import ADMIN_USER_ID
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.diagnosis import SandboxFacts
from chatd.domain.files import FileLimits
from chatd.domain.ids import WorkerId
from chatd.domain.ports import Clock, Env, ToolFamily, ToolSource
from chatd.domain.prompt.instructions import Instructions
from chatd.domain.subagents import SubagentLimits
from chatd.engine.hooks import HookCaller, TurnHooks
from chatd.engine.subagents import SubagentService
from chatd.git_hosts.host_apis import HostApis
from chatd.providers.registry import ProviderRegistry
from chatd.services.hooks import HookAdministration
from chatd.services.mcp_servers import McpServers, declared_servers, private_hosts
from chatd.services.models.configuration import DEMO_MODEL
from chatd.services.models.directory import ModelDirectory
from chatd.services.models.model_administration import ModelAdministration, SubagentModelChoice
from chatd.services.models.provider_administration import ProviderAdministration, UserKeys
from chatd.services.models.provider_clients import ProviderClients
from chatd.services.models.provider_trials import ProviderTrials
from chatd.services.operation.backups import BackupRequest, ScheduleConfig, ScheduledBackups
from chatd.services.operation.demo_worker import DemoWorker, worker_environment
from chatd.services.operation.diagnosis import Doctor, HostFacts, sandbox_facts
from chatd.services.operation.restores import Confirmation
from chatd.services.operation.runtime_settings import PromptedTools, RuntimeSettings
from chatd.services.operation.secret_keys import (
    WORKSPACE_SECRET,
    KeySource,
    SecretKeys,
    WorkspaceSecret,
)
from chatd.services.repositories import RepositoryConnections
from chatd.services.repository_worker import RepositoryWorker
from chatd.services.schedules import ScheduleRunner
from chatd.services.slack.connections import SlackConnections
from chatd.services.slack.slack_api import SlackRequests
from chatd.services.slack.slack_worker import SlackParts, SlackWorker
from chatd.services.webhooks import DEFAULT_CONTACT, PushRequests, WebhookSender
from chatd.services.workspaces.host_credentials import HostCredentials
from chatd.services.workspaces.runner_administration import RunnerAdministration
from chatd.services.workspaces.runners import RUNNER_POOL_SIZE, RunnerServices
from chatd.services.workspaces.templates import TemplateAdministration
from chatd.services.workspaces.workspaces import (
    WorkspaceControl,
    WorkspaceServices,
    WorkspaceServicesConfig,
    workspace_config,
)
from chatd.settings.schema import OidcSettings, Settings, SettingsError
from chatd.settings.shown import shared_digests
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.notifications import ConfigChanges
from chatd.store.database.pool import Pool, PoolConfig
from chatd.store.deployment.backups import RestoreRecord
from chatd.store.file_stores import build_file_stores
from chatd.stream.chat_list import ProjectNotices
from chatd.tools.browser import BrowserTools
from chatd.tools.chat_files import ChatFileWriter
from chatd.tools.chat_tools import ChatFileTools, ChatTools, ToolOrders
from chatd.tools.computer import ComputerTools, DesktopRecordings
from chatd.tools.files import SavedResultTools, save_results
from chatd.tools.memory import MemoryDirectory, MemoryTools
from chatd.tools.plans import QuestionTools
from chatd.tools.projects import ProjectDirectory
from chatd.tools.skills import SkillDirectory, SkillTools, no_workspace_skills
from chatd.tools.subagents import SubagentTools
from chatd.workspaces.agents.agent_session import host_id
from chatd.workspaces.local.kit import agent_zip
from chatd.workspaces.local.local_backend import LocalBackend
from chatd.workspaces.network.workspace_networks import WorkspaceNetworks

# What a process is started for, and what it tells its starter.


class ProcessRole(msgspec.Struct, frozen=True, kw_only=True):
    """What this process serves on its port, and whether it runs chats. A member shares its port
    with other processes."""

    serves: Literal["api", "health", "nothing"] = "api"
    runs_chats: bool = True
    is_member: bool = False


FULL_ROLE: Final = ProcessRole()


class ReadyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line prints once everything runs."""

    url: str | None
    token_file: str | None
    model: str
    migrated: tuple[str, ...]
    sign_in_link: str | None = None
    restored: RestoreRecord | None = None
    """Set while a restored deployment waits for its confirmation."""


class LifecycleCallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """`ready` is called once; `stopping` with the number of chats that still run.
    `shows_sign_in_link`: it goes to a terminal, so a one-time link may be made for it."""

    shows_sign_in_link: bool = False
    ready: Callable[[ReadyInfo], None]
    stopping: Callable[[int], None] = lambda _running: None


def build_env(settings: Settings, registry: CollectorRegistry, clock: Clock) -> Env:
    emit = Telemetry(registry)
    return Env(
        clock=clock,
        emit=emit,
        tracer=open_tracer(settings.otel, emit),
        new_id=uuid4,
        new_change_id=new_change_id,
        jitter=random.random,
    )


def _watch_statements(
    connect: ConnectConfig, settings: Settings, registry: CollectorRegistry, env: Env
) -> ConnectConfig:
    slow = SlowStatements(registry, env.emit, env.clock)
    watch = slow.watch(settings.database.slow_statement_s)
    return msgspec.structs.replace(connect, watch=watch)


def build_secret_keys(
    settings: Settings, variables: Mapping[str, str], role: ProcessRole, source: KeySource, env: Env
) -> SecretKeys:
    """To be started before the rest is built: a host may get its secrets from another one."""
    workspaces = None
    if settings.workspaces.enabled and (role.runs_chats or role.serves == "api"):
        # As for every setting, an empty variable counts as not set.
        given = variables.get(WORKSPACE_SECRET) or None
        workspaces = WorkspaceSecret(data_dir=settings.data_dir, given=given)
    return SecretKeys(
        source,
        env,
        f"{socket.gethostname()}, process {os.getpid()}",
        version=metadata.version("chatd"),
        settings=shared_digests(settings),
        workspaces=workspaces,
        host_id=host_id(settings.data_dir),
        # All servers on an embedded database have one data directory.
        joins=settings.server.join and settings.database.url is not None,
    )


class Composition:
    """What a process is made of. `workspaces` exist where chats run, `workspace_control` also where
    only the API is served."""

    def __init__(
        self,
        settings: Settings,
        variables: Mapping[str, str],
        role: ProcessRole,
        *,
        connect: ConnectConfig,
        env: Env,
        registry: CollectorRegistry,
        secret_keys: SecretKeys,
        provider_registry: ProviderRegistry,
    ) -> None:
        self.settings = settings
        self.role = role
        self.registry = registry
        self.env = env
        self.connect = connect = _watch_statements(connect, settings, self.registry, env)
        replicating = replica_config(settings, connect, runs_chats=role.runs_chats)
        database = open_database_pools(replicating)
        self.pool = pool = database.pool
        self.changes = changes = ConfigChanges()
        workspaces: WorkspaceServicesConfig | None = None
        if (secret := secret_keys.workspace_secret) is not None:
            workspaces = workspace_config(settings, secret, connect, has_worker=role.runs_chats)
        self.secret_keys = secret_keys
        self.key_ring = ring = secret_keys.ring
        clients = ProviderClients(ring, env, variables)
        self.models = models = ModelDirectory(provider_registry, env, clients, changes)
        changes.subscribe(self.secret_keys.on_config_change)
        self.model_administration = ModelAdministration(models, env)
        self.provider_administration = ProviderAdministration(models, clients, ring, env)
        self.provider_trials = ProviderTrials(models, clients, provider_registry, env)
        self.user_keys = UserKeys(pool, models, ring, env)
        self.runtime_settings = RuntimeSettings(pool, changes)
        self.confirmation = Confirmation(pool, env)
        changes.subscribe(self.confirmation.on_config_change)

        self.git_hosts = HostApis(ring, env, allow_private=settings.repositories.private_addresses)
        worker_id = WorkerId(env.new_id())
        self.runners: RunnerServices | None = None
        self.workspaces: WorkspaceServices | None = None
        self._own_backend: LocalBackend | None = None
        self.workspace_control: WorkspaceControl | None = None
        if (config := workspaces) is not None:
            own = None
            if role.runs_chats:
                own = LocalBackend(
                    config.local,
                    agent=agent_zip(),
                    clock=env.clock,
                    networks=WorkspaceNetworks(config.local.data_dir, env.clock),
                )
                self._own_backend = own
            runner_pool = Pool(PoolConfig(connect=connect, max_size=RUNNER_POOL_SIZE))
            self.runners = runners = RunnerServices(
                config.runners,
                env,
                worker_id,
                runner_pool,
                own=own,
                may_build=lambda: self.confirmation.is_given,
                ring=ring,
                git_hosts=self.git_hosts,
            )
            changes.subscribe(runners.on_config_change)
            if own is not None:
                self.workspaces = WorkspaceServices(
                    config, env, runners, own, announce=self._announce, ring=ring
                )
            self.workspace_control = WorkspaceControl(
                env, pool, runners, self.workspaces, ttl_s=config.ttl_s
            )
        self._file_stores = files = build_file_stores(replicating.files, pool, env.clock)
        self._chat_files = ChatFileWriter(pool, files, file_limits(settings), env)
        self.mcp = McpServers(
            pool,
            changes,
            env,
            ring,
            hosts=private_hosts(settings),
            declared=declared_servers(settings, variables),
        )
        self.replica = replica = Replica(
            replicating,
            env,
            models=models,
            build_tools=self._build_tools,
            options=ReplicaOptions(
                title_models=models.title_models,
                records_calls=self.runtime_settings.records_calls,
                on_turn_end=self._on_turn_end,
                worker_id=worker_id,
                hooks=TurnHooks(
                    pool,
                    changes,
                    env,
                    HookCaller(ring, env, allow_private=settings.hooks.private_addresses),
                ),
                gate=WorkGate(
                    is_open=lambda: self.confirmation.is_given, wait=self.confirmation.wait
                ),
            ),
            database=database,
            changes=changes,
            files=files,
        )
        self.webhooks = WebhookSender(
            pool,
            ring,
            env,
            PushRequests(
                pool,
                ring,
                env,
                contact=_push_contact(settings),
                summarize=replica.titles.label_turn if settings.chats.titles else None,
                allows_answer_links=self.runtime_settings.allows_answer_links,
            ),
            allow_private=settings.webhooks.private_addresses,
        )
        self.repositories = RepositoryWorker(
            pool,
            replica.transactor,
            env,
            self.git_hosts,
            self.workspace_control,
            site=_site(settings),
        )
        self.slack = SlackWorker(
            pool,
            replica.transactor,
            env,
            SlackParts(
                ring=ring,
                requests=SlackRequests(
                    settings.slack.api_url,
                    env.clock,
                    allow_private=settings.slack.private_addresses,
                ),
                workspaces=self.workspace_control,
                stores=files,
                limits=file_limits(settings),
                site=_site(settings),
            ),
        )
        self.project_notices = ProjectNotices(
            pool, replica.chat_lists, changes, replica.background_tasks
        )
        self.demo = DemoWorker(
            worker_environment(settings, variables),
            env.clock,
            own=replica.worker,
            is_wanted=self._is_demo_wanted,
        )

    def _build_tools(self, replica: Replica) -> ToolSource:
        """The tools of all families. Of two tools with one name the first family's counts."""
        env, pool, workspaces, files = self.env, self.pool, self.workspaces, self._chat_files
        limits = self.settings.limits
        list_skills = no_workspace_skills if workspaces is None else workspaces.instructions.skills
        skills = SkillDirectory(pool, self.changes, list_skills, env)
        memory = MemoryDirectory(pool, self.changes, env)
        subagents = SubagentService(
            pool,
            replica.transactor,
            env,
            reserve_slot=replica.reserve_slot,
            models=SubagentModelChoice(self.models, self.runtime_settings, env),
            limits=SubagentLimits(
                running=limits.running_subagents_per_chat,
                total=limits.subagents_per_chat,
            ),
        )
        families: list[ToolFamily] = [
            # Before workspaces: no server that a workspace declares takes the name of a
            # configured one's tool, and read_file also reads results that are files of the chat.
            self.mcp.tools,
            SavedResultTools(workspaces, files),
            QuestionTools(),
            SkillTools(skills, workspaces),
            MemoryTools(memory),
        ]
        recordings: DesktopRecordings | None = None
        if workspaces is not None:
            if self.settings.workspaces.desktop_recordings:
                recordings = DesktopRecordings(workspaces, files, env)
            families += [workspaces.tools, workspaces.mcp_tools, ChatFileTools(workspaces, files)]
            families.append(
                ComputerTools(workspaces, files, workspaces.load_screen, env, recordings)
            )
            families.append(BrowserTools(workspaces, workspaces.load_spec, env))
        families.append(SubagentTools(subagents, recordings))
        load = _no_instructions if workspaces is None else workspaces.chat_instructions
        save = save_results(workspaces, files)
        directory = ProjectDirectory(pool, self._file_stores, self.changes, env)
        orders = ToolOrders(pool, env)
        tools = ChatTools(families, load, skills, orders, save, projects=directory, memory=memory)
        return PromptedTools(tools, self.runtime_settings, env)

    # Called only while the replica runs, which is built after those who call them.

    def _announce(self, chat: Chat, kind: str) -> None:
        self.replica.announce_chat(chat, kind)

    def _on_turn_end(self) -> None:
        self.webhooks.on_turn_end()
        self.repositories.on_turn_end()
        self.slack.on_turn_end()

    async def sandbox_facts(self) -> SandboxFacts | None:
        """None where this process has no workspaces, or has not yet tried what works."""
        report = None if self._own_backend is None else self._own_backend.detected
        return None if report is None else sandbox_facts(report)

    async def _is_demo_wanted(self) -> bool:
        """Only where this machine's browsers alone reach a server that runs chats itself."""
        role, settings = self.role, self.settings
        is_alone = role.serves == "api" and role.runs_chats and not role.is_member
        is_local = is_alone and is_loopback(settings.server.host)
        if not is_local or not settings.demo.kill_worker:
            return False
        default = await self.models.default()
        return default is not None and default.config.provider == DEMO_MODEL.provider

    def background_work(self) -> Mapping[str, Coroutine[object, object, None]]:
        """What runs beside the chats, by name. Called once."""
        pool, env = self.pool, self.env
        return {
            "models": self.models.run(),
            "secret keys": self.secret_keys.run(pool),
            "webhooks": self._confirmed(self.webhooks.run),
            "repositories": self._confirmed(self.repositories.run),
            "slack": self._confirmed(self.slack.run),
            "slack sockets": self._confirmed(self.slack.sockets.run),
            "schedules": self._confirmed(ScheduleRunner(pool, self.replica.transactor, env).run),
            "backlog": self._gauges().run(pool, env),
            "demo worker": self.demo.run(),
            "mcp": self.mcp.run(),
            "backups": self._make_backups(),
        }

    async def _confirmed(self, run: Callable[[], Awaitable[None]]) -> None:
        """What a restored copy does not do before an administrator confirms it."""
        await self.confirmation.wait()
        await run()

    async def _make_backups(self) -> None:
        config = self.settings.backup
        if not config.every_hours:
            return
        await self.confirmation.wait()
        request = backup_request(self.settings, self.connect, self.secret_keys.source)
        schedule = ScheduleConfig(
            directory=self.settings.data_dir / (config.directory or "backups"),
            every_s=config.every_hours * 3600,
            keep=config.keep,
        )
        await ScheduledBackups(self.pool, request, schedule, self.env).run()

    def _count_runners(self) -> int:
        return 0 if self.runners is None else len(self.runners.links.all())

    def _gauges(self) -> Gauges:
        gauges, pool, replica, settings = (
            Gauges(self.registry),
            self.pool,
            self.replica,
            self.settings,
        )

        def tick_age() -> float:
            """NaN without a worker and before its first heartbeat."""
            age = replica.lease.age_s
            return math.nan if age is None else age

        gauges.running.set_function(lambda: replica.worker.running)
        gauges.kept_history_bytes.set_function(lambda: replica.kept_histories.size)
        gauges.slots.labels("chats").set(settings.worker.slots)
        gauges.slots.labels("subagents").set(settings.worker.child_slots)
        gauges.runners.set_function(self._count_runners)
        gauges.tick_age.set_function(tick_age)
        gauges.connections.set_function(lambda: pool.size)
        gauges.connections_limit.set(settings.database.pool_size)
        bus = "postgresql" if replica.nats is None else "nats"
        gauges.notifications.labels(bus).set_function(lambda: replica.hears_hints)
        gauges.dropped_hints.set_function(lambda: replica.publisher.dropped_hints)
        gauges.connections_waiting.set_function(lambda: pool.waiting)
        return gauges


def backup_request(settings: Settings, connect: ConnectConfig, keys: KeySource) -> BackupRequest:
    """As the settings say."""
    return BackupRequest(
        data_dir=settings.data_dir,
        connect=connect,
        keys=keys,
        passphrase=settings.backup.passphrase,
        holds_workspaces=settings.backup.workspaces,
        s3_bucket=settings.files.s3_bucket,
    )


def file_limits(settings: Settings) -> FileLimits:
    return FileLimits(
        max_bytes=settings.files.max_bytes,
        user_bytes=settings.files.user_bytes,
        user_files=settings.files.user_files,
    )


def _site(settings: Settings) -> str | None:
    """The address of the page, for links."""
    return None if settings.server.url is None else settings.server.url.rstrip("/")


def _push_contact(settings: Settings) -> str:
    """Push services refuse addresses that are not public, so loopback is never named."""
    url = settings.server.url
    if settings.webhooks.push_contact is not None:
        return settings.webhooks.push_contact
    return url if url is not None and url.startswith("https://") else DEFAULT_CONTACT


async def _no_instructions(chat: Chat) -> Instructions:
    """Of a process without workspaces."""
    del chat
    return Instructions()


# What the API is given, from the settings and the objects above.


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


def accounts_config(settings: Settings) -> AccountsConfig:
    server, limits = settings.server, settings.limits
    return AccountsConfig(
        site=SiteConfig(
            url=server.url,
            allowed_hosts=server.allowed_hosts,
            allowed_origins=server.allowed_origins,
            trusted_proxies=server.trusted_proxies,
            preview_host=server.preview_host,
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
            trust_email=settings.oidc.trust_email,
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


def _deps(
    built: Composition,
    given_token: str | None,
    stop: asyncio.Event,
    gather_metrics: GatherMetrics | None,
) -> ApiDeps:
    replica, settings = built.replica, built.settings
    limits = settings.limits
    token = admin_token(given_token, settings.data_dir)
    if given_token is None and settings.database.url is not None:
        replica.env.emit("admin_token_of_this_host", file=str(settings.data_dir / TOKEN_FILE))
    return ApiDeps(
        pool=replica.database.pool,
        transactor=replica.transactor,
        announce=replica.announce_chat,
        reserve_slot=replica.reserve_slot,
        titles=replica.titles,
        feeds=replica.feeds,
        chat_lists=replica.chat_lists,
        models=built.models,
        model_administration=built.model_administration,
        provider_administration=built.provider_administration,
        provider_trials=built.provider_trials,
        user_keys=built.user_keys,
        templates=TemplateAdministration(replica.database.pool, replica.env),
        runners=RunnerAdministration(replica.database.pool, replica.env),
        hooks=HookAdministration(
            replica.database.pool,
            built.key_ring,
            replica.env,
            allow_private=settings.hooks.private_addresses,
        ),
        repositories=RepositoryConnections(
            replica.database.pool,
            built.key_ring,
            replica.env,
            built.models.get,
            built.git_hosts,
            wake=built.repositories.wake,
        ),
        slack=SlackConnections(
            replica.database.pool,
            built.key_ring,
            replica.env,
            built.models.get,
            built.slack.requests,
            on_change=built.slack.on_change,
        ),
        host_credentials=HostCredentials(replica.database.pool, built.key_ring, replica.env),
        accounts=build_accounts(
            replica.database.pool,
            replica.env,
            replica.config_changes,
            accounts_config(settings),
            fixed={token: ADMIN_USER_ID},
            key_ring=built.key_ring,
        ),
        env=replica.env,
        registry=built.registry,
        gather_metrics=gather_metrics,
        files=replica.files,
        key_ring=built.key_ring,
        wake_webhooks=built.webhooks.wake,
        push_public_key=built.webhooks.pushes.public_key,
        reaches_private_hosts=settings.webhooks.private_addresses,
        frame_origins=settings.server.frame_origins,
        metrics_token=settings.server.metrics_token,
        file_limits=file_limits(settings),
        web_images=settings.files.web_images,
        draining=stop.is_set,
        known=replica.feeds.known,
        workspaces=built.workspace_control,
        runner_services=built.runners,
        budget=replica.budget,
        default_limit=replica.default_limit,
        retention=_retention(settings),
        limits=StreamLimits(
            streams_per_user=limits.streams_per_user, topics_per_socket=limits.topics_per_socket
        ),
        database_error=lambda: replica.lease.error_kind,
        hears_hints=lambda: replica.nats is None or replica.hears_hints,
        demo=built.demo,
        stops_subagents=settings.chats.interrupt_subagents == "stop",
        mcp=built.mcp,
        confirmation=built.confirmation,
        doctor=Doctor(
            replica.database.pool,
            built.connect,
            built.secret_keys.source,
            HostFacts(
                data_dir=settings.data_dir,
                version=metadata.version("chatd"),
                is_page_built=is_built(),
                sandbox=built.sandbox_facts,
                backup_every_hours=settings.backup.every_hours,
                nats=nats_config(settings),
            ),
            replica.env.clock,
        ),
    )


def build_served_application(
    built: Composition,
    token: str | None,
    stop: asyncio.Event,
    gather_metrics: GatherMetrics | None = None,
) -> Application:
    if built.role.serves == "api":
        return build_application(_deps(built, token, stop, gather_metrics))
    replica = built.replica
    return HealthApplication(
        HealthRoutes(
            built.pool,
            built.registry,
            stop.is_set,
            lambda: replica.lease.error_kind,
            hears_hints=lambda: replica.nats is None or replica.hears_hints,
            metrics_token=built.settings.server.metrics_token,
        )
    )
