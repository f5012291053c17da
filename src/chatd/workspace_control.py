"""What the API needs of workspaces beyond their rows: connections to agents of this host."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final
from uuid import UUID

from chatd.domain.chat.row import Chat
from chatd.domain.errors import Conflict
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.ports import Env
from chatd.domain.workspace.agent_api import (
    AgentUnreachable,
    DiffScope,
    GitChanges,
    ScopedDiff,
)
from chatd.domain.workspace.entities import AgentRow, FieldProblem, Template, TemplateSpec
from chatd.domain.workspace.rules import AmbiguousAgent, NoAgent
from chatd.domain.workspace.terminals import TerminalSize
from chatd.store.conn import Conn
from chatd.workspace_services import WorkspaceServices, WorkspaceServicesConfig
from chatd.workspaces.agents.agent_client import ConnectedAgent, HttpAgentClient
from chatd.workspaces.agents.agent_monitor import ContextSync
from chatd.workspaces.agents.agent_resolver import AgentConnector, StoredBindings
from chatd.workspaces.agents.people_access import AgentEffects, AgentFiles, AgentTerminal

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
