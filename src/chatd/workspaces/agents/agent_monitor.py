"""Periodic checks of the agents that this replica reaches by itself: their health, and the context
of their workspaces.

An agent counts as disconnected after a silence, not after one failed check. Connected agents are
checked first, so that many dead agents cannot delay them.

An agent cannot call the server, so the server polls its context (instruction files and skills). A
context that is too large is refused whole, and the last valid one stays. A chat uses the context
that is pinned to it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from chatd.domain.access.permissions import WORKER
from chatd.domain.errors import ChatdError, InvalidInput
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.domain.workspace.agent_api import (
    AgentUnreachable,
    PinnedContext,
    WorkspaceContext,
    check_context,
)
from chatd.domain.workspace.entities import AgentHealth, AgentId, AgentRow
from chatd.domain.workspace.rules import AGENT_DISCONNECTED_AFTER_S, agent_status
from chatd.store.database.conn import Conn
from chatd.store.workspace import bindings, workspaces
from chatd.workspaces.agents.agent_client import AgentClient

AGENT_CHECK_INTERVAL_S: Final = 10.0
AGENT_CHECK_TIMEOUT_S: Final = 5.0
MAX_CONCURRENT_CHECKS: Final = 32

Ping = Callable[[AgentRow], Awaitable[AgentHealth]]
"""Raises if the agent does not answer."""


class AgentMonitor:
    """Called every 10 seconds."""

    def __init__(
        self, conn: Conn, ping: Ping, env: Env, hosts: Callable[[], Sequence[str]]
    ) -> None:
        self._conn = conn
        self._ping = ping
        self._env = env
        self._hosts = hosts

    async def check_agents(self) -> None:
        known = await workspaces.list_agents_on_host(self._conn, self._hosts())
        connected = [agent for agent in known if _is_connected(agent)]
        await self._check_all(connected)
        await self._check_all([agent for agent in known if not _is_connected(agent)])

    async def _check_all(self, checked: Sequence[AgentRow]) -> None:
        found: dict[AgentId, AgentHealth] = {}
        slots = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)
        async with asyncio.TaskGroup() as group:
            for agent in checked:
                group.create_task(self._check(agent, slots, found), name=f"ping {agent.id}")
        if found:
            await workspaces.record_agent_healthy(self._conn, found)
        if silent := [agent.id for agent in checked if agent.id not in found]:
            for agent_id in await workspaces.record_agent_missed(
                self._conn, silent, missed_after_s=AGENT_DISCONNECTED_AFTER_S
            ):
                self._env.emit("agent_disconnected", agent_id=agent_id)
        for agent in checked:
            if (health := found.get(agent.id)) is not None and _has_changed(agent, health):
                self._env.emit("agent_connected", agent_id=agent.id, lifecycle=health.lifecycle)

    async def _check(
        self, agent: AgentRow, slots: asyncio.Semaphore, found: dict[AgentId, AgentHealth]
    ) -> None:
        async with slots:
            try:
                async with asyncio.timeout(AGENT_CHECK_TIMEOUT_S):
                    found[agent.id] = await self._ping(agent)
            except Exception as error:  # noqa: BLE001 - one failure must not end the round
                kind = error.code if isinstance(error, ChatdError) else type(error).__name__
                self._env.emit("agent_check_missed", agent_id=agent.id, reason=kind)


def _is_connected(agent: AgentRow) -> bool:
    return agent.last_connected_at is not None and agent.disconnected_at is None


def _has_changed(agent: AgentRow, health: AgentHealth) -> bool:
    return (
        agent.last_connected_at is None
        or agent.disconnected_at is not None
        or agent.boot_id != health.boot_id
        or agent.lifecycle != health.lifecycle
    )


CONTEXT_READ_TIMEOUT_S: Final = 5.0


class ContextSync:
    def __init__(self, conn: Conn, env: Env) -> None:
        self._conn = conn
        self._env = env

    async def store(self, agent_id: AgentId, context: WorkspaceContext, *, initial: bool) -> bool:
        """False if it was refused: too large, or older than the stored context."""
        try:
            check_context(context)
        except InvalidInput as error:
            self._env.emit("context_rejected", agent_id=agent_id, error_kind=error.code)
            return False
        return await bindings.save_context(self._conn, agent_id, context, initial=initial)

    async def sync_context(
        self, agent_id: AgentId, conn: AgentClient, *, initial: bool = False
    ) -> bool:
        """Read the agent's context and store it. `initial`: the agent has restarted and counts its
        versions from the start. Raises AgentUnreachable and AgentRefused."""
        try:
            async with asyncio.timeout(CONTEXT_READ_TIMEOUT_S):
                context = await conn.context()
        except TimeoutError as error:
            raise AgentUnreachable(
                "The workspace agent did not send its context in time."
            ) from error
        return await self.store(agent_id, context, initial=initial)

    async def pinned(self, chat_id: ChatId, agent_id: AgentId | None) -> PinnedContext | None:
        """The context of the chat. Pins the agent's latest context if none is pinned, or that of
        another agent. None if no agent has sent a context yet."""
        if agent_id is not None:
            await bindings.pin_context(self._conn, WORKER, chat_id, agent_id)
        return await bindings.get_pinned_context(self._conn, WORKER, chat_id)


CONTEXT_CHECK_INTERVAL_S: Final = 10.0
CONTEXT_CHECK_TIMEOUT_S: Final = 10.0
MAX_CONCURRENT_CONTEXT_READS: Final = 8


class ContextMonitor:
    """Stores contexts that have changed. `read` reads the context of one agent."""

    def __init__(
        self,
        conn: Conn,
        contexts: ContextSync,
        read: Callable[[AgentRow], Awaitable[WorkspaceContext]],
        env: Env,
        hosts: Callable[[], Sequence[str]],
    ) -> None:
        self._conn = conn
        self._contexts = contexts
        self._read = read
        self._env = env
        self._hosts = hosts
        self._seen: dict[AgentId, tuple[str, int]] = {}

    async def check_contexts(self) -> None:
        known = await workspaces.list_agents_on_host(self._conn, self._hosts())
        now = self._env.clock.now()
        living = [agent for agent in known if agent_status(agent, now) == "connected"]
        self._seen = {a.id: self._seen[a.id] for a in living if a.id in self._seen}
        slots = asyncio.Semaphore(MAX_CONCURRENT_CONTEXT_READS)
        async with asyncio.TaskGroup() as group:
            for agent in living:
                group.create_task(self._check_context(agent, slots), name=f"context {agent.id}")

    async def _check_context(self, agent: AgentRow, slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                async with asyncio.timeout(CONTEXT_CHECK_TIMEOUT_S):
                    context = await self._read(agent)
                before = self._seen.get(agent.id)
                if before == (agent.boot_id, context.version):
                    return
                # A restarted agent counts its versions from the start.
                initial = before is None or before[0] != agent.boot_id
                await self._contexts.store(agent.id, context, initial=initial)
                # A refused context, or one that another replica stored, is not stored again.
                self._seen[agent.id] = (agent.boot_id, context.version)
            except (ChatdError, TimeoutError) as error:
                kind = error.code if isinstance(error, ChatdError) else "timeout"
                self._env.emit("context_read_failed", agent_id=agent.id, error_kind=kind)
