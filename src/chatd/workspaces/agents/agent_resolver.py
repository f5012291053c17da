"""Which agent a chat uses, and how to connect to it.

A chat keeps a binding to the agent it used last. The binding is nearly always right, so it is used
without a check until a request fails or is slow; then the agent of the latest build decides.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol

from msgspec import Struct

from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.row import Fence
from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.ports import Clock
from chatd.domain.workspace.agent_api import (
    AgentRefused,
    AgentUnreachable,
    WorkspaceBinding,
    WorkspaceUnavailable,
)
from chatd.domain.workspace.entities import AgentHealth, AgentId, AgentRow, Endpoint
from chatd.domain.workspace.rules import AmbiguousAgent, NoAgent, choose_agent
from chatd.store.database.conn import Conn
from chatd.store.workspace import bindings, workspaces
from chatd.workspaces.agents.agent_client import ConnectedAgent, handshake
from chatd.workspaces.agents.agent_session import (
    AgentSession,
    AgentSigner,
    OpenStream,
    derive_agent_key,
)

WORKSPACE_DELETED: Final = "workspace_deleted"
"""Code of a NoAgent that start_workspace cannot repair."""
MAX_BIND_ATTEMPTS: Final = 2
"""How often the chat's workspace may change during one call before the call fails."""
ENDPOINTS_TIMEOUT_S: Final = 25.0
"""Limit for all endpoints of an agent together; shorter than the timeout of the whole request."""
AGENT_PING_TIMEOUT_S: Final = 5.0


class AgentObservation(Struct, frozen=True, kw_only=True):
    """An agent's row, and the database's time when it was read."""

    agent: AgentRow
    now: datetime


class BindingStore(Protocol):
    """Every method may raise a ChatdError if the database does not answer."""

    async def binding(self, chat_id: ChatId) -> WorkspaceBinding | None:
        """None if there is no such chat."""
        ...

    async def agent(self, agent_id: AgentId) -> AgentObservation | None: ...

    async def latest_agent(self, workspace_id: WorkspaceId) -> AgentObservation:
        """The agent for chats of the latest build. Raises NoAgent and AgentUnclear."""
        ...

    async def remember(self, binding: WorkspaceBinding) -> bool:
        """False, and nothing is written, if the chat has another workspace now."""
        ...

    async def is_owner(self, chat_id: ChatId, fence: Fence) -> bool:
        """Whether the chat's row names this worker under this epoch."""
        ...


class StoredBindings:
    """Satisfies `BindingStore`."""

    def __init__(self, conn: Conn) -> None:
        self._conn = conn

    async def binding(self, chat_id: ChatId) -> WorkspaceBinding | None:
        return await bindings.get(self._conn, WORKER, chat_id)

    async def agent(self, agent_id: AgentId) -> AgentObservation | None:
        found = await workspaces.get_with_time(self._conn, agent_id)
        return None if found is None else AgentObservation(agent=found[0], now=found[1])

    async def latest_agent(self, workspace_id: WorkspaceId) -> AgentObservation:
        snapshot = await workspaces.load_snapshot(self._conn, WORKER, workspace_id)
        if snapshot is None or snapshot.workspace is None or snapshot.workspace.deleted:
            text = "The chat's workspace is deleted. Call list_templates, then create_workspace."
            raise NoAgent(text, code=WORKSPACE_DELETED)
        build = snapshot.build
        is_starting = build is not None and build.active and build.transition == "start"
        if is_starting and not snapshot.agents:
            raise NoAgent("The workspace is being started. Wait for it with start_workspace.")
        return AgentObservation(agent=choose_agent(snapshot.agents), now=snapshot.now)

    async def remember(self, binding: WorkspaceBinding) -> bool:
        if binding.workspace_id is None:
            return False
        return await bindings.save_bound_agent(
            self._conn,
            WORKER,
            binding.chat_id,
            binding.workspace_id,
            build_id=binding.build_id,
            agent_id=binding.agent_id,
        )

    async def is_owner(self, chat_id: ChatId, fence: Fence) -> bool:
        return await bindings.is_owner(self._conn, chat_id, fence)


class AgentResolver:
    """The binding of one chat, read when first needed and kept until `forget` or `select`."""

    def __init__(self, store: BindingStore, chat_id: ChatId) -> None:
        self._store = store
        self._chat_id = chat_id
        self._binding: WorkspaceBinding | None = None
        self._agent: AgentRow | None = None
        self._lock = asyncio.Lock()

    @property
    def workspace_id(self) -> WorkspaceId | None:
        """None even before the binding has been read."""
        return None if self._binding is None else self._binding.workspace_id

    async def resolve(self) -> AgentRow:
        """The agent the chat is bound to. Binds the chat to the latest build's agent if it has no
        binding, or one to an agent that is gone. Raises WorkspaceUnavailable."""
        async with self._lock:
            for _ in range(MAX_BIND_ATTEMPTS):
                workspace_id = await self._read_workspace()
                if self._agent is not None and self._agent.workspace_id == workspace_id:
                    return self._agent
                agent = await self._bound_agent(workspace_id)
                if agent is None:
                    latest = await self.latest(workspace_id)
                    agent = latest.agent if await self.bind(latest.agent) else None
                if agent is not None and self.workspace_id == workspace_id:
                    self._agent = agent
                    return agent
        raise workspace_changing_error()

    async def latest(self, workspace_id: WorkspaceId) -> AgentObservation:
        """The agent of the latest build. Raises WorkspaceUnavailable; then the next call reads
        the binding again."""
        try:
            return await self._store.latest_agent(workspace_id)
        except (NoAgent, AmbiguousAgent) as error:
            self.forget()
            # Which of several agents is meant, only the user can decide.
            advice = " Tell the user." if isinstance(error, AmbiguousAgent) else ""
            raise WorkspaceUnavailable(f"{error.message}{advice}", code=error.code) from error

    async def bind(self, agent: AgentRow) -> bool:
        """False if the chat has another workspace now; the next `resolve` reads it."""
        binding = WorkspaceBinding(
            chat_id=self._chat_id,
            workspace_id=agent.workspace_id,
            build_id=agent.build_id,
            agent_id=agent.id,
        )
        before = self._binding
        is_stored = await self._store.remember(binding)
        # Another call of this turn may have selected a workspace while the row was written.
        if self._binding is not before:
            return self.workspace_id == agent.workspace_id
        self._binding = binding if is_stored else None
        self._agent = agent if is_stored else None
        return is_stored

    def select(self, workspace_id: WorkspaceId | None) -> None:
        """The chat's workspace was changed to this one, or this one was rebuilt."""
        self._binding = WorkspaceBinding(chat_id=self._chat_id, workspace_id=workspace_id)
        self._agent = None

    def forget(self) -> None:
        self._binding = None
        self._agent = None

    async def _read_workspace(self) -> WorkspaceId:
        """Reads the row again while no workspace is known: a tool may have created one."""
        if self.workspace_id is None:
            self._binding = await self._store.binding(self._chat_id)
        if self.workspace_id is None:
            raise WorkspaceUnavailable(
                "This chat has no workspace. Call list_templates, then create_workspace."
            )
        return self.workspace_id

    async def _bound_agent(self, workspace_id: WorkspaceId) -> AgentRow | None:
        agent_id = None if self._binding is None else self._binding.agent_id
        if agent_id is None:
            return None
        try:
            seen = await self._store.agent(agent_id)
        except ChatdError:
            # The latest build names the agent too. If it cannot be read either, that read raises.
            return None
        return seen.agent if seen is not None and seen.agent.workspace_id == workspace_id else None


def workspace_changing_error() -> WorkspaceUnavailable:
    return WorkspaceUnavailable("The chat's workspace is being changed. Try again in a moment.")


class AgentConnector:
    """Makes the handshake with an agent at the first of its endpoints that answers.

    `host_id` is this host: an endpoint of another runner is reached by `open_stream`.
    """

    def __init__(
        self, *, secret: bytes, host_id: str, clock: Clock, open_stream: OpenStream
    ) -> None:
        self._secret = secret
        self._host_id = host_id
        self._clock = clock
        self._open_stream = open_stream

    async def connect(
        self,
        agent_id: AgentId,
        endpoints: Sequence[Endpoint],
        *,
        timeout_s: float = ENDPOINTS_TIMEOUT_S,
    ) -> ConnectedAgent:
        """Raises AgentUnreachable with the error of the first endpoint if none answers."""
        lost: AgentUnreachable | None = None
        until = self._clock.monotonic() + timeout_s
        for endpoint in endpoints:
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            try:
                return await self._connect(agent_id, endpoint, left)
            except AgentUnreachable as error:
                lost = lost or error
        if lost is not None:
            raise lost
        raise AgentUnreachable(
            "The workspace agent has no endpoint. Start the workspace with start_workspace."
        )

    async def connect_agent(self, agent: AgentRow) -> ConnectedAgent:
        return await self.connect(agent.id, agent.endpoints)

    async def ping(
        self, agent: AgentRow, *, timeout_s: float = AGENT_PING_TIMEOUT_S
    ) -> AgentHealth:
        """Raises AgentUnreachable."""
        connected = await self.connect(agent.id, agent.endpoints, timeout_s=timeout_s)
        hello = connected.hello
        return AgentHealth(
            boot_id=hello.boot_id,
            lifecycle="ready" if hello.ready else "starting",
            directory=hello.directory,
        )

    async def _connect(
        self, agent_id: AgentId, endpoint: Endpoint, timeout_s: float
    ) -> ConnectedAgent:
        key = derive_agent_key(self._secret, agent_id)
        signer = AgentSigner(agent_id, key, lambda: self._clock.now().timestamp())
        is_here = endpoint.host_id in ("", self._host_id)
        session = AgentSession(agent_id, endpoint, signer, None if is_here else self._open_stream)
        try:
            hello = await handshake(session, agent_id, timeout_s=timeout_s)
        except AgentRefused as error:
            raise AgentUnreachable(f"The workspace agent refuses: {error.message}.") from None
        return ConnectedAgent(session, agent_id, hello)
