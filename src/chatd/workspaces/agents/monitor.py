"""Asks the agents of this host whether they live, and writes down who has answered.

How an agent is asked is passed in. One that does not answer once is not yet disconnected: that
takes a silence, and one that has never answered is still on its way. Those that are well are
asked first: a host full of dead ones must not make the living look dead.

Brings what an agent says of its workspace into the rows, and pins it to chats.

The agent is asked, not believed: what is too big is refused whole and the last good word stays.
A chat goes by what it has pinned; whoever reads that is told whether there is a newer word.

Looks every while whether the instructions of this host's workspaces have changed.

An agent cannot call the server, which it may not be able to reach; so it is asked, and answers at
once what it has found by itself. What has not changed is not written again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from chatd.domain.errors import ChatdError, InvalidInput
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.domain.workspace.agent_api import (
    AgentApi,
    AgentUnreachable,
    PinnedContext,
    WorkspaceContext,
    check_context,
)
from chatd.domain.workspace.entities import AgentHealth, AgentId, AgentRow
from chatd.domain.workspace.rules import AGENT_DISCONNECTED_AFTER_S, agent_status
from chatd.store.conn import Conn
from chatd.store.workspace import agents, bindings

AGENT_CHECK_INTERVAL_S: Final = 10.0
AGENT_CHECK_TIMEOUT_S: Final = 5.0
MAX_CONCURRENT_CHECKS: Final = 32

Ping = Callable[[AgentRow], Awaitable[AgentHealth]]
"""Raises if there is no pulse to speak of."""


class AgentMonitor:
    """`look` is done every ten seconds."""

    def __init__(self, conn: Conn, ping: Ping, env: Env, hosts: Sequence[str]) -> None:
        self._conn = conn
        self._ping = ping
        self._env = env
        self._hosts = hosts

    async def check_agents(self) -> None:
        known = await agents.list_on_host(self._conn, self._hosts)
        well = [agent for agent in known if _is_well(agent)]
        await self._round(well)
        await self._round([agent for agent in known if not _is_well(agent)])

    async def _round(self, asked: Sequence[AgentRow]) -> None:
        pulses: dict[AgentId, AgentHealth] = {}
        room = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)
        async with asyncio.TaskGroup() as group:
            for agent in asked:
                group.create_task(self._ask(agent, room, pulses), name=f"ping {agent.id}")
        if pulses:
            await agents.record_healthy(self._conn, pulses)
        if silent := [agent.id for agent in asked if agent.id not in pulses]:
            for agent_id in await agents.record_missed(
                self._conn, silent, silent_s=AGENT_DISCONNECTED_AFTER_S
            ):
                self._env.emit("agent_disconnected", agent_id=agent_id)
        for agent in asked:
            if (pulse := pulses.get(agent.id)) is not None and _is_news(agent, pulse):
                self._env.emit("agent_appeared", agent_id=agent.id, lifecycle=pulse.lifecycle)

    async def _ask(
        self, agent: AgentRow, room: asyncio.Semaphore, pulses: dict[AgentId, AgentHealth]
    ) -> None:
        async with room:
            try:
                async with asyncio.timeout(AGENT_CHECK_TIMEOUT_S):
                    pulses[agent.id] = await self._ping(agent)
            except Exception as error:  # noqa: BLE001 - one must not make all others look dead
                kind = error.code if isinstance(error, ChatdError) else type(error).__name__
                self._env.emit("agent_silent", agent_id=agent.id, reason=kind)


def _is_well(agent: AgentRow) -> bool:
    return agent.last_connected_at is not None and agent.disconnected_at is None


def _is_news(agent: AgentRow, pulse: AgentHealth) -> bool:
    return (
        agent.last_connected_at is None
        or agent.disconnected_at is not None
        or agent.boot_id != pulse.boot_id
        or agent.lifecycle != pulse.lifecycle
    )


CONTEXT_READ_TIMEOUT_S: Final = 5.0


class ContextSync:
    def __init__(self, conn: Conn, env: Env) -> None:
        self._conn = conn
        self._env = env

    async def store(self, agent_id: AgentId, context: WorkspaceContext, *, initial: bool) -> bool:
        """False if it was refused: too big, or older than what is there."""
        try:
            check_context(context)
        except InvalidInput as error:
            self._env.emit("context_refused", agent_id=agent_id, error_kind=error.code)
            return False
        return await bindings.save_context(self._conn, agent_id, context, initial=initial)

    async def sync_context(
        self, agent_id: AgentId, conn: AgentApi, *, initial: bool = False
    ) -> bool:
        """Ask the agent for what it has to say now. `initial`: it has started anew, and counts
        from the beginning. Raises AgentLost or AgentRefused."""
        try:
            async with asyncio.timeout(CONTEXT_READ_TIMEOUT_S):
                context = await conn.context()
        except TimeoutError as error:
            raise AgentUnreachable(
                "The workspace agent did not say in time what is there."
            ) from error
        return await self.store(agent_id, context, initial=initial)

    async def pinned(self, chat_id: ChatId, agent_id: AgentId | None) -> PinnedContext | None:
        """What the chat goes by. The first time, or when its agent is another one, it pins what
        that agent has said last. None if no agent has said anything yet."""
        if agent_id is not None:
            await bindings.pin_context(self._conn, chat_id, agent_id)
        return await bindings.get_pinned_context(self._conn, chat_id)


CONTEXT_CHECK_INTERVAL_S: Final = 30.0
CONTEXT_CHECK_TIMEOUT_S: Final = 10.0
MAX_CONCURRENT_CONTEXT_READS: Final = 8


class ContextMonitor:
    """`read` asks one agent."""

    def __init__(
        self,
        conn: Conn,
        contexts: ContextSync,
        read: Callable[[AgentRow], Awaitable[WorkspaceContext]],
        env: Env,
        hosts: Sequence[str],
    ) -> None:
        self._conn = conn
        self._contexts = contexts
        self._read = read
        self._env = env
        self._hosts = hosts
        self._seen: dict[AgentId, tuple[str, int]] = {}

    async def check_contexts(self) -> None:
        known = await agents.list_on_host(self._conn, self._hosts)
        now = self._env.clock.now()
        living = [agent for agent in known if agent_status(agent, now) == "connected"]
        self._seen = {a.id: self._seen[a.id] for a in living if a.id in self._seen}
        room = asyncio.Semaphore(MAX_CONCURRENT_CONTEXT_READS)
        async with asyncio.TaskGroup() as group:
            for agent in living:
                group.create_task(self._look_at(agent, room), name=f"context {agent.id}")

    async def _look_at(self, agent: AgentRow, room: asyncio.Semaphore) -> None:
        async with room:
            try:
                async with asyncio.timeout(CONTEXT_CHECK_TIMEOUT_S):
                    context = await self._read(agent)
                before = self._seen.get(agent.id)
                if before == (agent.boot_id, context.version):
                    return
                # A new life of the agent counts from the beginning.
                initial = before is None or before[0] != agent.boot_id
                await self._contexts.store(agent.id, context, initial=initial)
                # What was refused, or is there from another replica, is not offered again.
                self._seen[agent.id] = (agent.boot_id, context.version)
            except (ChatdError, TimeoutError) as error:
                kind = error.code if isinstance(error, ChatdError) else "timeout"
                self._env.emit("context_not_read", agent_id=agent.id, error_kind=kind)
