"""Everything by which chats act in workspaces, put together.

Owns the wiring and the order of starting and stopping: who builds, who asks whether agents live,
who stops what is overdue, and the tools over all that. Decides nothing. It has connections of its
own to the database: a tool that waits for one never holds up a commit.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from chatd.domain.chat.row import Chat, Fence
from chatd.domain.errors import ChatdError, Conflict
from chatd.domain.ids import ChatId, ToolCallId, WorkerId, WorkspaceId
from chatd.domain.ports import Env, ToolContext
from chatd.domain.workspace.agent_api import (
    AgentApi,
    AgentUnreachable,
    GitChanges,
    WorkspaceContext,
)
from chatd.domain.workspace.entities import AgentRow, FieldProblem, Template, TemplateSpec
from chatd.domain.workspace.rules import AmbiguousAgent, NoAgent
from chatd.engine.tasks import run_contained
from chatd.settings.schema import Settings, SettingsError
from chatd.settings.wording import refused_entry, unknown_key
from chatd.store.chat import chats
from chatd.store.conn import Conn, ConnectConfig
from chatd.store.pool import Pool, PoolConfig
from chatd.tools.chat_tools import ChatTools
from chatd.workspaces.agents.access import AccessDeps, AgentAccess
from chatd.workspaces.agents.client import HttpAgentClient
from chatd.workspaces.agents.identity import derive_agent_key, host_id, server_secret
from chatd.workspaces.agents.resolver import AgentConnector, StoredBindings
from chatd.workspaces.autostop import Autostop
from chatd.workspaces.briefing import Briefings
from chatd.workspaces.builder import Builder, BuilderConfig
from chatd.workspaces.catalogue import Catalogue
from chatd.workspaces.context import Contexts
from chatd.workspaces.context_watch import EVERY_S as CONTEXTS_S
from chatd.workspaces.context_watch import ContextWatch
from chatd.workspaces.heartbeat import EVERY_S as HEARTBEAT_S
from chatd.workspaces.heartbeat import Heartbeat
from chatd.workspaces.local.backend import LocalBackend, LocalConfig
from chatd.workspaces.local.kit import agent_zip
from chatd.workspaces.making import Making, MakingConfig
from chatd.workspaces.provisioning import Provisioning
from chatd.workspaces.reconcile import Reconcile
from chatd.workspaces.templates import TemplateFile, put_templates
from chatd.workspaces.usage import Usage
from chatd.workspaces.waiting import Waiting, Waits

log = logging.getLogger(__name__)

RECONCILE_S: Final = 30.0
AUTOSTOP_S: Final = 60.0
READ_S: Final = 5.0
DIAL_S: Final = 30.0
LAST_LOOK_S: Final = 1.0
STRUCK_S: Final = 15.0
"""Some beats of a builder. One that leaves in good order is struck off while it still builds."""
POOL: Final = 6


class HandsConfig(Struct, frozen=True, kw_only=True):
    """`secret` is shared by all replicas: the keys of agents are made from it. `ttl_s` is the
    operator's word on how long a workspace may run unused."""

    connect: ConnectConfig
    data_dir: Path
    host_id: str
    secret: bytes
    templates: tuple[TemplateFile, ...] = ()
    roots: tuple[Path, ...] = ()
    allow_unsafe: bool = False
    ttl_s: str | None = None
    waits: Waits = Waits()


def check_hands(settings: Settings, env: Mapping[str, str]) -> None:
    """Raises what `hands_config` would for the settings, before there is anything to undo."""
    if not settings.workspaces.enabled:
        return
    _templates(settings)
    if given := env.get("CHATD_SECRET"):
        server_secret(given, settings.data_dir)


def hands_config(settings: Settings, env: Mapping[str, str], connect: ConnectConfig) -> HandsConfig:
    """Raises SettingsError, or another ChatdError if the data directory cannot be used."""
    chosen = settings.workspaces
    return HandsConfig(
        connect=connect,
        data_dir=settings.data_dir,
        host_id=host_id(settings.data_dir),
        # Set but empty counts as not set, as for every key.
        secret=server_secret(env.get("CHATD_SECRET") or None, settings.data_dir),
        templates=_templates(settings),
        roots=chosen.roots,
        allow_unsafe=chosen.allow_unsafe,
        ttl_s=str(chosen.ttl_s),
    )


def _templates(settings: Settings) -> tuple[TemplateFile, ...]:
    kind, given = tuple[TemplateFile, ...], list(settings.templates)
    try:
        templates = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(f"templates{refused_entry(kind, given, error)}") from None
    if (said := unknown_key(kind, given)) is not None:
        raise SettingsError(f"templates{said}")
    return templates


class Hands:
    """Construction starts nothing; `running` does. `me` is the worker of chats in this process:
    when it is struck off, others know that its builds have lost their builder, too. `announce` is
    told of chats whose workspace has changed."""

    def __init__(
        self,
        config: HandsConfig,
        env: Env,
        me: WorkerId,
        *,
        announce: Callable[[Chat, str], None],
    ) -> None:
        self._config = config
        self._env = env
        self._announce = announce
        self._hosts = (config.host_id,)
        self.pool = pool = Pool(PoolConfig(connect=config.connect, max_size=POOL))
        self._connector = AgentConnector(
            secret=config.secret, host_id=config.host_id, clock=env.clock
        )
        local = LocalConfig(
            data_dir=config.data_dir,
            host_id=config.host_id,
            roots=config.roots,
            allow_unsafe=config.allow_unsafe,
        )
        self.backend = LocalBackend(
            local,
            agent=agent_zip(),
            dial_key=partial(derive_agent_key, config.secret),
            clock=env.clock,
        )
        building = BuilderConfig(hosts=self._hosts, struck_s=STRUCK_S)
        self.builder = Builder(me, pool, [self.backend], env, building)
        self.contexts = Contexts(pool, env)
        self.usage = Usage(pool, env, in_use=self._in_use)
        rows = StoredBindings(pool)
        deps = AccessDeps(
            bindings=rows,
            connect=self._connector.connect_agent,
            clock=env.clock,
            on_use=self.usage.used,
        )
        self.access = AgentAccess(deps)
        self.briefings = Briefings(rows, self.contexts, self._connect, env)
        making = Making(
            pool,
            Waiting(pool, self._connector.ping, env.clock, config.waits),
            {self.backend.kind: self.backend},
            env,
            MakingConfig(host_id=config.host_id, ttl_s=config.ttl_s),
            wake=self.builder.wake,
            bound=self._bound,
        )
        self.provisioning = Provisioning(pool, Catalogue(pool, env.clock), making)
        self.tools = ChatTools(self, self.provisioning, self.briefings.instructions, env.clock)

    async def connect(self, context: ToolContext) -> AgentApi:
        """Satisfies `domain.hands.Hands`."""
        return await self.access.connect(context)

    def _in_use(self) -> set[WorkspaceId]:
        return self.access.in_use()

    async def _read_context(self, agent: AgentRow) -> WorkspaceContext:
        connected = await self._connector.connect(agent.id, agent.endpoints, timeout_s=READ_S)
        return await HttpAgentClient(connected, self._env.clock).context()

    async def _connect(self, chat: Chat) -> AgentApi:
        context = ToolContext(chat=chat, call_id=ToolCallId("briefing"), fence=Fence.of(chat))
        return await self.connect(context)

    async def _bound(self, chat_id: ChatId, workspace_id: WorkspaceId) -> None:
        self.access.on_bound(chat_id, workspace_id)
        self.briefings.bound(chat_id)
        row = await chats.get(self.pool, chat_id)
        if row is not None:
            self._announce(row, "workspace")

    async def rebound(self, chat_id: ChatId, workspace_id: WorkspaceId | None) -> None:
        """A person has given the chat another workspace, or none; the rows say so already."""
        if workspace_id is None:
            self.access.forget(chat_id)
        else:
            self.access.on_bound(chat_id, workspace_id)
        self.briefings.bound(chat_id)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Hands"]:
        """Templates are there when this begins. Leaving lets builds end or hands them on; what
        runs in workspaces goes on in any case."""
        try:
            await put_templates(self.pool, self._env, self._config.templates)
            async with asyncio.TaskGroup() as group:
                building = group.create_task(self.builder.run(), name="builder")
                services = [
                    group.create_task(service, name=name) for name, service in self._services()
                ]
                yield self
                await self.builder.close()
                await building
                for service in services:
                    service.cancel()
        finally:
            await self.usage.flush()
            await self.pool.close()

    async def left_running(self) -> int:
        """How many workspaces go on when this process has left; 0 also if nobody says."""
        try:
            async with asyncio.timeout(LAST_LOOK_S):
                return await self.backend.running()
        except (ChatdError, TimeoutError):
            return 0

    def _services(self) -> list[tuple[str, Coroutine[None, None, None]]]:
        heartbeat = Heartbeat(self.pool, self._connector.ping, self._env, self._hosts)
        reconcile = Reconcile(self.pool, self.backend, self._env, self._hosts)
        autostop = Autostop(self.pool, self._env, tell_use=self.usage.tell)
        watch = ContextWatch(self.pool, self.contexts, self._read_context, self._env, self._hosts)

        async def stop_overdue() -> None:
            if await autostop.look():
                self.builder.wake()

        return [
            ("isolation", self._prepare()),
            ("usage", self.usage.run()),
            ("heartbeat", self._every(HEARTBEAT_S, "heartbeat", heartbeat.look)),
            ("contexts", self._every(CONTEXTS_S, "contexts", watch.look)),
            ("reconcile", self._every(RECONCILE_S, "reconcile", reconcile.look)),
            ("autostop", self._every(AUTOSTOP_S, "autostop", stop_overdue)),
        ]

    async def _prepare(self) -> None:
        """What keeps workspaces apart from this host is tried and said aloud before the first is
        made, so that nobody is surprised later."""
        try:
            await self.backend.prepare()
        except ChatdError as error:
            log.warning("workspaces cannot be made here: %s", error.message)

    async def _every(
        self, seconds: float, name: str, look: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """Whatever fails is tried again the next time, and said once for each kind of failure."""
        said: set[str] = set()

        def failed(error: Exception) -> None:
            kind = type(error).__name__
            if kind not in said:
                said.add(kind)
                log.warning("%s failed: %s: %s", name, kind, error)

        while True:
            await self._env.clock.sleep(seconds, name)
            if await run_contained(look(), failed):
                said.clear()


class Rooms:
    """Satisfies `api.doors.Rooms`. Needs no builder: what is asked for is found by those who have
    one, and an agent is dialled if it is on this host. `hands` are there if chats run here."""

    def __init__(self, config: HandsConfig, env: Env, conn: Conn, hands: Hands | None) -> None:
        self.host_id = config.host_id
        self.ttl_s = config.ttl_s
        self._env = env
        self._hands = hands
        self._rows = StoredBindings(conn)
        self._connector = AgentConnector(
            secret=config.secret, host_id=config.host_id, clock=env.clock
        )

    def wake(self) -> None:
        if self._hands is not None:
            self._hands.builder.wake()

    async def problems(
        self, template: Template, spec: TemplateSpec, values: Mapping[str, str]
    ) -> Sequence[FieldProblem]:
        """Without a builder there is nobody to ask: then it is the build that says so."""
        if self._hands is None or self._hands.backend.kind != template.backend:
            return ()
        return await self._hands.backend.validate(spec, values)

    async def bound(self, chat_id: ChatId, workspace_id: WorkspaceId | None) -> None:
        if self._hands is not None:
            await self._hands.rebound(chat_id, workspace_id)

    @asynccontextmanager
    async def git(self, chat: Chat) -> AsyncGenerator[AsyncGenerator[GitChanges]]:
        try:
            async with asyncio.timeout(DIAL_S):
                agent = await self._agent(chat)
                connected = await self._connector.connect_agent(agent)
        except TimeoutError:
            raise AgentUnreachable("The workspace agent did not answer in time.") from None
        async with aclosing(connected.git_changes(chat.id)) as changes:
            yield changes

    async def _agent(self, chat: Chat) -> AgentRow:
        if chat.workspace_id is None:
            raise Conflict("The chat has no workspace.", code="no_workspace")
        try:
            return (await self._rows.latest_agent(chat.workspace_id)).agent
        except NoAgent:
            raise Conflict("The chat's workspace does not run.", code="no_agent") from None
        except AmbiguousAgent as error:
            raise Conflict(error.message, code=error.code) from None
