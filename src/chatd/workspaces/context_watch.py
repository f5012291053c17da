"""Looks every while whether the instructions of this host's workspaces have changed.

An agent cannot call the server, which it may not be able to reach; so it is asked, and answers at
once what it has found by itself. What has not changed is not written again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Env
from chatd.domain.workspace.agent_api import WorkspaceContext
from chatd.domain.workspace.entities import AgentId, AgentRow
from chatd.domain.workspace.rules import agent_status
from chatd.store.conn import Conn
from chatd.store.workspace import agents
from chatd.workspaces.context import Contexts

EVERY_S: Final = 30.0
WITHIN_S: Final = 10.0
AT_ONCE: Final = 8


class ContextWatch:
    """`read` asks one agent."""

    def __init__(
        self,
        conn: Conn,
        contexts: Contexts,
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

    async def look(self) -> None:
        known = await agents.list_on_host(self._conn, self._hosts)
        now = self._env.clock.now()
        living = [agent for agent in known if agent_status(agent, now) == "connected"]
        self._seen = {a.id: self._seen[a.id] for a in living if a.id in self._seen}
        room = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for agent in living:
                group.create_task(self._look_at(agent, room), name=f"context {agent.id}")

    async def _look_at(self, agent: AgentRow, room: asyncio.Semaphore) -> None:
        async with room:
            try:
                async with asyncio.timeout(WITHIN_S):
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
