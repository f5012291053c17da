"""What chats and people need of workspaces.

`WorkspaceServices` are all services by which chats use them, put together. It owns their
construction and the order in which they start and stop: the build worker, the periodic checks, and
the tools. It has a database pool of its own, so that a tool that waits for a connection never
delays a commit. `LocalWorkspaceControl` is what the API needs.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chatd.aio import run_contained
from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.decode_errors import (
    describe_entry_error,
    describe_unknown_key,
    show_value,
)
from chatd.domain.errors import ChatdError, Conflict
from chatd.domain.ids import ChatId, ToolCallId, WorkerId, WorkspaceId
from chatd.domain.ports import Env, ToolContext
from chatd.domain.prompt.instructions import Instructions
from chatd.domain.workspace.agent_api import (
    AgentApi,
    AgentUnreachable,
    DiffScope,
    GitChanges,
    ScopedDiff,
    TerminalSize,
    WorkspaceContext,
    WorkspaceMcpServer,
)
from chatd.domain.workspace.entities import AgentRow, FieldProblem, Template, TemplateSpec
from chatd.domain.workspace.rules import AmbiguousAgent, NoAgent
from chatd.domain.workspace.runners import BuildPlace, RunnerId
from chatd.domain.workspace.template_definition import TemplateDefinition, find_template_problems
from chatd.log_event import LogEvent
from chatd.sealed_secrets import KeyRing
from chatd.settings.schema import Settings, SettingsError
from chatd.store.chat import chats
from chatd.store.conn import Conn, ConnectConfig
from chatd.store.pool import Pool, PoolConfig
from chatd.store.workspace import bindings
from chatd.tools.chat_tools import WorkspaceTools
from chatd.tools.workspaces import WorkspaceMcpTools
from chatd.workspaces.agents.agent_access import AccessDeps, AgentAccess
from chatd.workspaces.agents.agent_client import ConnectedAgent, HttpAgentClient
from chatd.workspaces.agents.agent_monitor import AGENT_CHECK_INTERVAL_S as HEARTBEAT_S
from chatd.workspaces.agents.agent_monitor import CONTEXT_CHECK_INTERVAL_S as CONTEXTS_S
from chatd.workspaces.agents.agent_monitor import AgentMonitor, ContextMonitor, ContextSync
from chatd.workspaces.agents.agent_resolver import AgentConnector, StoredBindings
from chatd.workspaces.agents.agent_session import derive_agent_key, host_id, server_secret
from chatd.workspaces.agents.people_access import AgentEffects, AgentFiles, AgentTerminal
from chatd.workspaces.build_maintenance import ActivityTracker, Autostop, Reconciler
from chatd.workspaces.build_requests import (
    BuildRequests,
    BuildRequestsConfig,
    BuildWaits,
    WaitTimeouts,
)
from chatd.workspaces.build_worker import BuildWorker, BuildWorkerConfig, OfferedBackend
from chatd.workspaces.diff_status import DiffStatusKeeper, PullRequests
from chatd.workspaces.instructions import WorkspaceInstructions
from chatd.workspaces.local.kit import agent_zip
from chatd.workspaces.local.local_backend import LocalBackend, LocalConfig
from chatd.workspaces.local.seeds import GIT_CLONE_TIMEOUT_S
from chatd.workspaces.provisioner import WorkspaceProvisioner
from chatd.workspaces.templates import TemplateCatalog, sync_templates

log = logging.getLogger(__name__)

RECONCILE_INTERVAL_S: Final = 30.0
AUTOSTOP_INTERVAL_S: Final = 60.0
CONTEXT_CONNECT_TIMEOUT_S: Final = 5.0
FINAL_CHECK_TIMEOUT_S: Final = 1.0
BUILD_WORKER_GONE_AFTER_S: Final = 15.0
"""A build without a heartbeat for this long is taken over if the row of its worker is deleted. It
is several heartbeats: a draining worker has no row but still builds."""
WORKSPACE_POOL_SIZE: Final = 6


class WorkspaceServicesConfig(Struct, frozen=True, kw_only=True):
    """All replicas share `secret`, from which the agents' keys derive. `ttl_s` is how long an
    unused workspace may run."""

    connect: ConnectConfig
    data_dir: Path
    host_id: str
    secret: bytes
    templates: tuple[TemplateDefinition, ...] = ()
    roots: tuple[Path, ...] = ()
    allow_unsafe: bool = False
    ttl_s: str | None = None
    build_slots: int = BuildWorkerConfig().slots
    clone_timeout_s: float = GIT_CLONE_TIMEOUT_S
    wait_timeouts: WaitTimeouts = WaitTimeouts()
    git_private_hosts: frozenset[str] = frozenset()


def check_workspace_settings(settings: Settings, env: Mapping[str, str]) -> None:
    """Raises what `workspace_config` would raise, before anything has been started."""
    if not settings.workspaces.enabled:
        return
    _templates(settings)
    if given := env.get("CHATD_SECRET"):
        server_secret(given, settings.data_dir)


def workspace_config(
    settings: Settings, env: Mapping[str, str], connect: ConnectConfig
) -> WorkspaceServicesConfig:
    """Raises SettingsError, or another ChatdError if the data directory cannot be used."""
    chosen = settings.workspaces
    return WorkspaceServicesConfig(
        connect=connect,
        data_dir=settings.data_dir,
        host_id=host_id(settings.data_dir),
        # As for every setting, an empty variable counts as not set.
        secret=server_secret(env.get("CHATD_SECRET") or None, settings.data_dir),
        templates=_templates(settings),
        roots=chosen.roots,
        allow_unsafe=chosen.allow_unsafe,
        ttl_s=str(chosen.ttl_s),
        build_slots=chosen.build_slots,
        clone_timeout_s=chosen.clone_timeout_s,
        git_private_hosts=frozenset(host.lower().strip("[]") for host in chosen.git_private_hosts),
    )


def _templates(settings: Settings) -> tuple[TemplateDefinition, ...]:
    kind, given = tuple[TemplateDefinition, ...], list(settings.templates)
    try:
        templates = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(f"templates{describe_entry_error(kind, given, error)}") from None
    if (problem := describe_unknown_key(kind, given)) is not None:
        raise SettingsError(f"templates{problem}")
    for template in templates:
        for wrong in find_template_problems(template):
            raise SettingsError(
                f"templates {show_value(template.name)}: {wrong.field} {wrong.detail}"
            )
    return templates


class WorkspaceServices:
    """`running` starts the services. `worker_id` is that of the worker of chats in this process:
    when it is no longer registered, other build workers acquire its builds. `announce` is called
    for chats with a changed workspace. `ring` opens the tokens of users for git hosts."""

    def __init__(
        self,
        config: WorkspaceServicesConfig,
        env: Env,
        worker_id: WorkerId,
        *,
        announce: Callable[[Chat, str], None],
        ring: KeyRing,
    ) -> None:
        self._config = config
        self._env = env
        self._announce = announce
        self._hosts = (config.host_id,)
        self.pool = pool = Pool(PoolConfig(connect=config.connect, max_size=WORKSPACE_POOL_SIZE))
        self._connector = AgentConnector(
            secret=config.secret, host_id=config.host_id, clock=env.clock
        )
        local = LocalConfig(
            data_dir=config.data_dir,
            host_id=config.host_id,
            roots=config.roots,
            allow_unsafe=config.allow_unsafe,
            clone_timeout_s=config.clone_timeout_s,
        )
        self.backend = LocalBackend(local, agent=agent_zip(), clock=env.clock)
        building = BuildWorkerConfig(
            slots=config.build_slots, worker_gone_after_s=BUILD_WORKER_GONE_AFTER_S
        )
        own = BuildPlace(runner_id=RunnerId(config.host_id), backend=self.backend.kind)
        self.build_worker = BuildWorker(
            worker_id,
            pool,
            lambda: [OfferedBackend(own, self.backend)],
            env,
            building,
            agent_key=partial(derive_agent_key, config.secret),
        )
        self.context_sync = ContextSync(pool, env)
        self.activity = ActivityTracker(pool, env, in_use=self._in_use)
        rows = StoredBindings(pool)
        deps = AccessDeps(
            bindings=rows,
            connect=self._connector.connect_agent,
            clock=env.clock,
            on_use=self.activity.touch,
            on_chat_request=self._on_chat_request,
        )
        pull_requests = PullRequests(pool, ring, env, config.git_private_hosts)
        self.diff_status = DiffStatusKeeper(
            pool, env, self._read_sums, announce, pull_requests.complete
        )
        self.access = AgentAccess(deps)
        self.instructions = WorkspaceInstructions(rows, self.context_sync, self._connect, env)
        making = BuildRequests(
            pool,
            BuildWaits(pool, self._connector.ping, env.clock, config.wait_timeouts),
            {self.backend.kind: self.backend},
            env,
            BuildRequestsConfig(host_id=config.host_id, ttl_s=config.ttl_s),
            wake_worker=self.build_worker.wake,
            on_bound=self._on_bound,
        )
        self.provisioning = WorkspaceProvisioner(pool, TemplateCatalog(pool, env.clock), making)
        self.tools = WorkspaceTools(self, self.provisioning, env.clock)
        self.mcp_tools = WorkspaceMcpTools(self._list_mcp_servers, self, env)

    async def chat_instructions(self, chat: Chat) -> Instructions:
        """Read after the tools of the same step, which know the MCP servers."""
        found = await self.instructions.instructions(chat)
        problems = self.mcp_tools.problems(chat)
        if not problems or found.workspace is None:
            return found
        return replace(found, workspace=f"{found.workspace} {problems}")

    async def _list_mcp_servers(self, chat: Chat) -> Sequence[WorkspaceMcpServer]:
        return await bindings.list_mcp_servers(self.pool, WORKER, chat.id)

    def _on_chat_request(self, chat_id: ChatId) -> None:
        self.diff_status.mark(chat_id)

    async def _read_sums(self, chat: Chat) -> Sequence[ScopedDiff]:
        if chat.workspace_id is None:
            return ()
        latest = await StoredBindings(self.pool).latest_agent(chat.workspace_id)
        agent = await self._connector.connect_agent(latest.agent)
        return await agent.git_diff(chat.id, "chat", chat.turn_message_id, with_text=False)

    async def connect(self, context: ToolContext) -> AgentApi:
        """Satisfies `agent_api.WorkspaceAccess`."""
        return await self.access.connect(context)

    def _in_use(self) -> set[WorkspaceId]:
        return self.access.in_use()

    async def _read_context(self, agent: AgentRow) -> WorkspaceContext:
        connected = await self._connector.connect(
            agent.id, agent.endpoints, timeout_s=CONTEXT_CONNECT_TIMEOUT_S
        )
        return await HttpAgentClient(connected, self._env.clock).context()

    async def _connect(self, chat: Chat) -> AgentApi:
        context = ToolContext(chat=chat, call_id=ToolCallId("briefing"), fence=Fence.of(chat))
        return await self.connect(context)

    async def _on_bound(self, chat_id: ChatId, workspace_id: WorkspaceId) -> None:
        self.access.on_bound(chat_id, workspace_id)
        self.instructions.on_bound(chat_id)
        self.mcp_tools.on_bound(chat_id)
        row = await chats.get(self.pool, WORKER, chat_id)
        if row is not None:
            self._announce(row, "workspace")

    async def on_rebound(self, chat_id: ChatId, workspace_id: WorkspaceId | None) -> None:
        """A user has changed the chat's workspace; the row is written already."""
        if workspace_id is None:
            self.access.forget(chat_id)
        else:
            self.access.on_bound(chat_id, workspace_id)
        self.instructions.on_bound(chat_id)
        self.mcp_tools.on_bound(chat_id)

    @asynccontextmanager
    async def running(
        self, first_step: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]] | None = None
    ) -> AsyncGenerator["WorkspaceServices"]:
        """Templates are written before this yields, by `first_step`, which may repeat it. At the
        end builds finish or are released; processes in workspaces go on."""

        async def write_templates() -> None:
            await sync_templates(self.pool, self._env, self._config.templates)

        try:
            await (write_templates() if first_step is None else first_step(write_templates))
            async with asyncio.TaskGroup() as group:
                building = group.create_task(self.build_worker.run(), name="builder")
                services = [
                    group.create_task(service, name=name) for name, service in self._services()
                ]
                yield self
                await self.build_worker.close()
                await building
                for service in services:
                    service.cancel()
        finally:
            await self.activity.flush()
            await self.pool.close()

    async def left_running(self) -> int:
        """The number of running workspaces; 0 also if the supervisor does not answer."""
        try:
            async with asyncio.timeout(FINAL_CHECK_TIMEOUT_S):
                return await self.backend.running()
        except (ChatdError, TimeoutError):
            return 0

    def _services(self) -> list[tuple[str, Coroutine[None, None, None]]]:
        heartbeat = AgentMonitor(self.pool, self._connector.ping, self._env, self._hosts)
        reconcile = Reconciler(self.pool, self.backend, self._env, self._hosts)
        autostop = Autostop(self.pool, self._env, flush_activity=self.activity.touch_and_flush)
        watch = ContextMonitor(
            self.pool, self.context_sync, self._read_context, self._env, self._hosts
        )

        async def stop_overdue() -> None:
            if await autostop.stop_overdue():
                self.build_worker.wake()

        return [
            ("isolation", self._prepare()),
            ("usage", self.activity.run()),
            ("diff status", self.diff_status.run()),
            ("heartbeat", self._every(HEARTBEAT_S, "heartbeat", heartbeat.check_agents)),
            ("contexts", self._every(CONTEXTS_S, "contexts", watch.check_contexts)),
            ("reconcile", self._every(RECONCILE_INTERVAL_S, "reconcile", reconcile.reconcile_host)),
            ("autostop", self._every(AUTOSTOP_INTERVAL_S, "autostop", stop_overdue)),
        ]

    async def _prepare(self) -> None:
        """Detect and log the isolation level before the first workspace is created."""
        try:
            await self.backend.prepare()
        except ChatdError as error:
            log.warning(LogEvent(event="workspaces_unavailable", explanation=error.message))

    async def _every(
        self, seconds: float, name: str, task: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """A failure is retried at the next interval, and logged once per kind of failure."""
        logged: set[str] = set()

        def failed(error: Exception) -> None:
            kind = type(error).__name__
            if kind not in logged:
                logged.add(kind)
                fields = {"task": name, "error_kind": kind}
                line = LogEvent(
                    event="workspace_task_failed", fields=fields, explanation=str(error)
                )
                log.warning(line)

        while True:
            await self._env.clock.sleep(seconds, name)
            if await run_contained(task(), failed):
                logged.clear()


# What the API needs of workspaces beyond their rows: connections to agents of this host.

AGENT_CONNECT_TIMEOUT_S: Final = 30.0


class LocalWorkspaceControl:
    """Satisfies `api.deps.WorkspaceControl`. Works without a build worker: another replica runs the
    requested builds. Connects to agents of this host. `services` exist if chats run here."""

    def __init__(
        self,
        config: WorkspaceServicesConfig,
        env: Env,
        conn: Conn,
        services: WorkspaceServices | None,
    ) -> None:
        self.host_id = config.host_id
        self.ttl_s = config.ttl_s
        self._env = env
        self._services = services
        self._rows = StoredBindings(conn)
        self._contexts = ContextSync(conn, env)
        self._connector = AgentConnector(
            secret=config.secret, host_id=config.host_id, clock=env.clock
        )

    def wake(self) -> None:
        if self._services is not None:
            self._services.build_worker.wake()

    async def find_problems(
        self, template: Template, spec: TemplateSpec, values: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        """Without a backend here the build itself reports the problems."""
        if self._services is None or self._services.backend.kind != template.backend:
            return ()
        return await self._services.backend.validate(spec, values)

    async def on_bound(self, chat_id: ChatId, workspace_id: WorkspaceId | None) -> None:
        if self._services is not None:
            await self._services.on_rebound(chat_id, workspace_id)

    @asynccontextmanager
    async def git(self, chat: Chat) -> AsyncGenerator[AsyncGenerator[GitChanges]]:
        connected = await self._connect(chat)
        async with aclosing(connected.git_changes(chat.id)) as changes:
            yield changes

    async def read_diff(self, chat: Chat, scope: DiffScope) -> Sequence[ScopedDiff]:
        try:
            async with asyncio.timeout(AGENT_CONNECT_TIMEOUT_S):
                connected = await self._connect(chat)
                turn = chat.turn_message_id
                return await connected.git_diff(chat.id, scope, turn, with_text=True)
        except TimeoutError:
            raise AgentUnreachable("The workspace agent did not answer in time.") from None

    async def terminal(self, chat: Chat, terminal_id: UUID, size: TerminalSize) -> AgentTerminal:
        agent = await self._connect(chat)
        terminal = AgentTerminal(agent, chat.id, terminal_id, lambda: self._on_use(chat))
        await terminal.open(size)
        return terminal

    def _on_use(self, chat: Chat) -> None:
        """A replica without a worker does not count use; another one sees the chat's own calls."""
        if self._services is not None and chat.workspace_id is not None:
            self._services.activity.touch(chat.workspace_id)

    async def refresh_context(self, chat: Chat) -> None:
        connected = await self._connect(chat)
        client = HttpAgentClient(connected, self._env.clock)
        await self._contexts.sync_context(connected.agent_id, client)

    async def effects(self, chat: Chat) -> AgentEffects:
        self._on_use(chat)
        return AgentEffects(await self._connect(chat), self._env.clock, chat)

    async def files(self, chat: Chat) -> AgentFiles:
        return AgentFiles(await self._connect(chat))

    async def _connect(self, chat: Chat) -> ConnectedAgent:
        try:
            async with asyncio.timeout(AGENT_CONNECT_TIMEOUT_S):
                return await self._connector.connect_agent(await self._agent(chat))
        except TimeoutError:
            raise AgentUnreachable("The workspace agent did not answer in time.") from None

    async def _agent(self, chat: Chat) -> AgentRow:
        if chat.workspace_id is None:
            raise Conflict("The chat has no workspace.", code="no_workspace")
        try:
            return (await self._rows.latest_agent(chat.workspace_id)).agent
        except NoAgent:
            raise Conflict("The chat's workspace does not run.", code="no_agent") from None
        except AmbiguousAgent as error:
            raise Conflict(error.message, code=error.code) from None
