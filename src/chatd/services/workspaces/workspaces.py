"""What chats and people need of workspaces.

`WorkspaceServices` are all services by which chats use them, put together: the tools, their access
to agents, instructions, the use that is recorded and what is stopped without use. They share the
database pool of `runners`, so that a tool that waits for a connection never delays a commit.
`WorkspaceControl` is what the API needs.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.row import Chat, Fence
from chatd.domain.computer_use import Screen
from chatd.domain.decode_errors import (
    describe_entry_error,
    describe_unknown_key,
    show_value,
)
from chatd.domain.errors import ChatdError, Conflict
from chatd.domain.ids import ChatId, ToolCallId, WorkspaceId
from chatd.domain.ports import Env, ToolContext
from chatd.domain.prompt.instructions import Instructions
from chatd.domain.workspace.agent_api import (
    AgentUnreachable,
    DiffScope,
    GitChanges,
    ScopedDiff,
    TerminalSize,
    WorkspaceMcpServer,
)
from chatd.domain.workspace.entities import (
    AgentRow,
    FieldProblem,
    Template,
    TemplateSpec,
    screen_size,
)
from chatd.domain.workspace.network import Refusal
from chatd.domain.workspace.rules import AmbiguousAgent, NoAgent
from chatd.domain.workspace.template_definition import TemplateDefinition, find_template_problems
from chatd.log_event import LogEvent
from chatd.sealed_secrets import KeyRing
from chatd.services.workspaces.people_access import (
    AgentDesktop,
    AgentEffects,
    AgentFiles,
    AgentTerminal,
)
from chatd.services.workspaces.port_access import AgentPorts
from chatd.services.workspaces.runners import (
    RunnerServices,
    RunnerServicesConfig,
    default_peer_address,
    run_every,
)
from chatd.settings.schema import Settings, SettingsError
from chatd.store.chat import chats
from chatd.store.database.conn import Conn, ConnectConfig
from chatd.store.workspace import bindings
from chatd.tools.chat_tools import WorkspaceTools
from chatd.tools.workspaces import WorkspaceMcpTools
from chatd.workspaces.agents.agent_access import AccessDeps, AgentAccess
from chatd.workspaces.agents.agent_client import AgentClient, ConnectedAgent
from chatd.workspaces.agents.agent_monitor import ContextSync
from chatd.workspaces.agents.agent_resolver import StoredBindings
from chatd.workspaces.agents.agent_session import host_id, server_secret
from chatd.workspaces.build_maintenance import ActivityTracker, Autostop
from chatd.workspaces.build_requests import (
    BuildRequests,
    BuildWaits,
    WaitTimeouts,
)
from chatd.workspaces.diff_status import DiffStatusKeeper, PullRequests
from chatd.workspaces.instructions import WorkspaceInstructions
from chatd.workspaces.local.local_backend import LocalBackend, LocalConfig
from chatd.workspaces.provisioner import WorkspaceProvisioner
from chatd.workspaces.templates import TemplateCatalog, sync_templates

log = logging.getLogger(__name__)

AUTOSTOP_INTERVAL_S: Final = 60.0
FINAL_CHECK_TIMEOUT_S: Final = 1.0


class WorkspaceServicesConfig(Struct, frozen=True, kw_only=True):
    """`ttl_s` is how long an unused workspace may run."""

    runners: RunnerServicesConfig
    local: LocalConfig
    templates: tuple[TemplateDefinition, ...] = ()
    ttl_s: str | None = None
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
    settings: Settings, secret: bytes, connect: ConnectConfig, *, has_worker: bool
) -> WorkspaceServicesConfig:
    """Raises SettingsError, or another ChatdError if the data directory cannot be used."""
    chosen = settings.workspaces
    host = host_id(settings.data_dir)
    return WorkspaceServicesConfig(
        runners=RunnerServicesConfig(
            host_id=host,
            secret=secret,
            peer_address=settings.server.peer_address or default_peer_address(connect.dsn),
            build_slots=chosen.build_slots,
            max_copy_bytes=chosen.max_copy_bytes,
            runners_per_user=chosen.runners_per_user,
            has_worker=has_worker,
        ),
        local=LocalConfig(
            data_dir=settings.data_dir,
            host_id=host,
            roots=chosen.roots,
            allow_unsafe=chosen.allow_unsafe,
            clone_timeout_s=chosen.clone_timeout_s,
        ),
        templates=_templates(settings),
        ttl_s=str(chosen.ttl_s),
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
    """`running` starts the services. `announce` is called for chats with a changed workspace.
    `ring`
    opens the tokens of users for git hosts."""

    def __init__(
        self,
        config: WorkspaceServicesConfig,
        env: Env,
        runners: RunnerServices,
        backend: LocalBackend,
        *,
        announce: Callable[[Chat, str], None],
        ring: KeyRing,
    ) -> None:
        self._config = config
        self._env = env
        self._announce = announce
        self._runners = runners
        self._connector = runners.connector
        self.pool = pool = runners.pool
        self.backend = backend
        self.context_sync = runners.context_sync
        self.activity = ActivityTracker(pool, env, in_use=self._in_use)
        rows = StoredBindings(pool)
        deps = AccessDeps(
            bindings=rows,
            connect=self._connector.connect_agent,
            clock=env.clock,
            on_use=self.activity.touch,
            on_chat_request=self._on_chat_request,
        )
        pull_requests = PullRequests(pool, ring, env, runners.git_hosts, config.git_private_hosts)
        self.diff_status = DiffStatusKeeper(
            pool, env, self._read_sums, announce, pull_requests.complete
        )
        self.access = AgentAccess(deps)
        self.instructions = WorkspaceInstructions(rows, self.context_sync, self._connect, env)
        making = BuildRequests(
            pool,
            BuildWaits(pool, self._connector.ping, env.clock, config.wait_timeouts),
            runners,
            env,
            ttl_s=config.ttl_s,
            wake_worker=runners.build_worker.wake,
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

    async def load_screen(self, chat: Chat) -> Screen | None:
        """The screen of the desktop that the chat's workspace has. Raises Unavailable."""
        spec = await self.load_spec(chat)
        size = None if spec is None else screen_size(spec)
        return None if size is None else Screen(*size)

    async def load_spec(self, chat: Chat) -> TemplateSpec | None:
        """How the chat's workspace was built. Raises Unavailable."""
        return await bindings.get_spec(self.pool, WORKER, chat.id)

    def _on_chat_request(self, chat_id: ChatId) -> None:
        self.diff_status.mark(chat_id)

    async def _read_sums(self, chat: Chat) -> Sequence[ScopedDiff]:
        if chat.workspace_id is None:
            return ()
        latest = await StoredBindings(self.pool).latest_agent(chat.workspace_id)
        agent = await self._connector.connect_agent(latest.agent)
        return await agent.git_diff(chat.id, "chat", chat.turn_message_id, with_text=False)

    async def connect(self, context: ToolContext) -> AgentClient:
        """Satisfies `tools.tool.WorkspaceAccess`."""
        return await self.access.connect(context)

    def _in_use(self) -> set[WorkspaceId]:
        return self.access.in_use()

    async def _connect(self, chat: Chat) -> AgentClient:
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
        """Templates are written before this yields, by `first_step`, which may repeat it."""

        async def write_templates() -> None:
            await sync_templates(self.pool, self._env, self._config.templates)

        try:
            await (write_templates() if first_step is None else first_step(write_templates))
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(service, name=name) for name, service in self._services()
                ]
                yield self
                for service in services:
                    service.cancel()
        finally:
            await self.activity.flush()

    async def left_running(self) -> int:
        """The number of running workspaces; 0 also if the supervisor does not answer."""
        try:
            async with asyncio.timeout(FINAL_CHECK_TIMEOUT_S):
                return await self.backend.running()
        except (ChatdError, TimeoutError):
            return 0

    def _services(self) -> list[tuple[str, Coroutine[None, None, None]]]:
        autostop = Autostop(self.pool, self._env, flush_activity=self.activity.touch_and_flush)

        async def stop_overdue() -> None:
            if await autostop.stop_overdue():
                self._runners.build_worker.wake()

        return [
            ("isolation", self._prepare()),
            ("networks", self.backend.networks.run()),
            ("usage", self.activity.run()),
            ("diff status", self.diff_status.run()),
            ("autostop", run_every(self._env, AUTOSTOP_INTERVAL_S, "autostop", stop_overdue)),
        ]

    async def _prepare(self) -> None:
        """Detect and log the isolation level before the first workspace is created."""
        try:
            await self.backend.prepare()
        except ChatdError as error:
            log.warning(LogEvent(event="workspaces_unavailable", explanation=error.message))


# What the API needs of workspaces beyond their rows: connections to agents of this host.

AGENT_CONNECT_TIMEOUT_S: Final = 30.0


class WorkspaceControl:
    """What the API needs of workspaces beyond their rows. Replicas without a build worker have it
    too: another replica runs the builds. `services` is None if no chats run here. `ttl_s` is the
    time after which an unused workspace stops."""

    def __init__(
        self,
        env: Env,
        conn: Conn,
        runners: RunnerServices,
        services: WorkspaceServices | None,
        *,
        ttl_s: str | None,
    ) -> None:
        self.ttl_s = ttl_s
        self.max_copy_bytes = runners.max_copy_bytes
        self._env = env
        self._runners = runners
        self._services = services
        self._rows = StoredBindings(conn)
        self._contexts = ContextSync(conn, env)
        self._connector = runners.connector
        self.ports = AgentPorts(self._connect_to, env.clock, self._touch)

    def new_host(self, template: Template, spec: TemplateSpec) -> str | None:
        """The runner on which a new workspace is built; None: the first that fits takes it."""
        return self._runners.new_host(template.backend, spec)

    def wake(self) -> None:
        """Let the build worker look for builds now."""
        self._runners.build_worker.wake()

    async def find_problems(
        self, template: Template, spec: TemplateSpec, values: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        """Problems that would certainly make a start with these values fail."""
        return await self._runners.find_problems(template.backend, spec, values)

    async def on_bound(self, chat_id: ChatId, workspace_id: WorkspaceId | None) -> None:
        """The chat's workspace or pinned instructions changed: forget the cached ones."""
        if self._services is not None:
            await self._services.on_rebound(chat_id, workspace_id)

    @asynccontextmanager
    async def git(self, chat: Chat) -> AsyncGenerator[AsyncGenerator[GitChanges]]:
        """Changes in the chat's git repositories. Raises Conflict or AgentLost within 30 s."""
        connected = await self._connect(chat)
        async with aclosing(connected.git_changes(chat.id)) as changes:
            yield changes

    async def read_diff(self, chat: Chat, scope: DiffScope) -> Sequence[ScopedDiff]:
        """What the scope has changed. Raises Conflict, AgentRefused or AgentLost within 30 s."""
        try:
            async with asyncio.timeout(AGENT_CONNECT_TIMEOUT_S):
                connected = await self._connect(chat)
                turn = chat.turn_message_id
                return await connected.git_diff(chat.id, scope, turn, with_text=True)
        except TimeoutError:
            raise AgentUnreachable("The workspace agent did not answer in time.") from None

    async def terminal(self, chat: Chat, terminal_id: UUID, size: TerminalSize) -> AgentTerminal:
        """Open a terminal in the chat's workspace, or find it again. Raises Conflict, AgentRefused
        or AgentLost within a minute."""
        agent = await self._connect(chat)
        terminal = AgentTerminal(agent, chat.id, terminal_id, lambda: self._on_use(chat))
        await terminal.open(size)
        return terminal

    async def desktop(self, chat: Chat, person: str) -> AgentDesktop:
        """The desktop of the chat's workspace for this person. Raises Conflict or AgentLost within
        30 s."""
        return AgentDesktop(await self._connect(chat), person, lambda: self._on_use(chat))

    def _on_use(self, chat: Chat) -> None:
        if chat.workspace_id is not None:
            self._touch(chat.workspace_id)

    def _touch(self, workspace_id: WorkspaceId) -> None:
        """A replica without a worker does not count use; another one sees the chat's own calls."""
        if self._services is not None:
            self._services.activity.touch(workspace_id)

    async def refresh_context(self, chat: Chat) -> None:
        """Store the instructions of the chat's workspace as they are now. Raises Conflict,
        AgentUnreachable or AgentRefused within 40 s."""
        connected = await self._connect(chat)
        client = AgentClient(connected, self._env.clock)
        await self._contexts.sync_context(connected.agent_id, client)

    async def effects(self, chat: Chat) -> AgentEffects:
        """Lets a person act in the workspace. Raises Conflict or AgentLost within 30 s."""
        self._on_use(chat)
        return AgentEffects(await self._connect(chat), self._env.clock, chat)

    async def files(self, chat: Chat) -> AgentFiles:
        """The files of the chat's workspace. Raises Conflict or AgentLost within 30 s."""
        return await self._files(_workspace_of(chat))

    async def workspace_files(self, workspace_id: WorkspaceId) -> AgentFiles:
        """The files of a workspace, to copy many: the workspace counts as used."""
        self._touch(workspace_id)
        return await self._files(workspace_id)

    async def refusals(self, workspace_id: WorkspaceId) -> Sequence[Refusal]:
        """What the proxy of a running workspace has refused. Raises Conflict, AgentRefused,
        AgentUnreachable."""
        agent = await self._connect_to(workspace_id)
        return await AgentFiles(agent, self._env.clock, lambda: None).refusals()

    async def _files(self, workspace_id: WorkspaceId) -> AgentFiles:
        agent = await self._connect_to(workspace_id)
        return AgentFiles(agent, self._env.clock, lambda: self._touch(workspace_id))

    async def _connect(self, chat: Chat) -> ConnectedAgent:
        return await self._connect_to(_workspace_of(chat))

    async def _connect_to(self, workspace_id: WorkspaceId) -> ConnectedAgent:
        try:
            async with asyncio.timeout(AGENT_CONNECT_TIMEOUT_S):
                return await self._connector.connect_agent(await self._agent(workspace_id))
        except TimeoutError:
            raise AgentUnreachable("The workspace agent did not answer in time.") from None

    async def _agent(self, workspace_id: WorkspaceId) -> AgentRow:
        try:
            return (await self._rows.latest_agent(workspace_id)).agent
        except NoAgent:
            raise Conflict("The workspace does not run: start it.", code="no_agent") from None
        except AmbiguousAgent as error:
            raise Conflict(error.message, code=error.code) from None


def _workspace_of(chat: Chat) -> WorkspaceId:
    if chat.workspace_id is None:
        raise Conflict("The chat has no workspace.", code="no_workspace")
    return chat.workspace_id
