"""Brings what an agent says of its workspace into the rows, and pins it to chats.

The agent is asked, not believed: what is too big is refused whole and the last good word stays.
A chat goes by what it has pinned; whoever reads that is told whether there is a newer word.
"""

import asyncio
from typing import Final

from chatd.domain.errors import InvalidInput
from chatd.domain.ids import ChatId
from chatd.domain.ports import Env
from chatd.domain.workspace.agent_api import (
    AgentApi,
    AgentUnreachable,
    PinnedContext,
    WorkspaceContext,
    check_context,
)
from chatd.domain.workspace.entities import AgentId
from chatd.store.conn import Conn
from chatd.store.workspace import bindings

WITHIN_S: Final = 5.0


class Contexts:
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

    async def pull(self, agent_id: AgentId, conn: AgentApi, *, initial: bool = False) -> bool:
        """Ask the agent for what it has to say now. `initial`: it has started anew, and counts
        from the beginning. Raises AgentLost or AgentRefused."""
        try:
            async with asyncio.timeout(WITHIN_S):
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
