"""Asks the agents of this host whether they live, and writes down who has answered.

How an agent is asked is passed in. One that does not answer once is not yet disconnected: that
takes a silence, and one that has never answered is still on its way. Those that are well are
asked first: a host full of dead ones must not make the living look dead.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from chatd.domain.errors import ChatdError
from chatd.domain.ports import Env
from chatd.domain.workspace.entities import AgentHealth, AgentId, AgentRow
from chatd.domain.workspace.rules import AGENT_DISCONNECTED_AFTER_S
from chatd.store.conn import Conn
from chatd.store.workspace import agents

EVERY_S: Final = 10.0
WITHIN_S: Final = 5.0
AT_ONCE: Final = 32

Ping = Callable[[AgentRow], Awaitable[AgentHealth]]
"""Raises if there is no pulse to speak of."""


class Heartbeat:
    """`look` is done every ten seconds."""

    def __init__(self, conn: Conn, ping: Ping, env: Env, hosts: Sequence[str]) -> None:
        self._conn = conn
        self._ping = ping
        self._env = env
        self._hosts = hosts

    async def look(self) -> None:
        known = await agents.list_on_host(self._conn, self._hosts)
        well = [agent for agent in known if _is_well(agent)]
        await self._round(well)
        await self._round([agent for agent in known if not _is_well(agent)])

    async def _round(self, asked: Sequence[AgentRow]) -> None:
        pulses: dict[AgentId, AgentHealth] = {}
        room = asyncio.Semaphore(AT_ONCE)
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
                async with asyncio.timeout(WITHIN_S):
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
