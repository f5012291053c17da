"""The hands of all chats on this replica: one connection for each turn, made when first needed.

Owns when a turn's connection begins and ends. A turn is known by its chat and the epoch of whoever
runs it; nobody says when it ends, so one that has not been used for a while is let go.
"""

from typing import Final

from msgspec import Struct

from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.ports import ToolContext
from chatd.domain.workspace.agent_api import AgentApi
from chatd.workspaces.agent_wire import OnBehalf
from chatd.workspaces.client import AgentClient
from chatd.workspaces.connecting import Means, TurnConnection

IDLE_S: Final = 2 * 3600.0
"""Longer than any call takes: one that waits does not say that it still uses its turn. It costs
little, because a turn holds no open connection between two questions."""


class _Turn(Struct, kw_only=True):
    """`workspace_id` is what the chat's row said when it was last seen."""

    epoch: int
    workspace_id: WorkspaceId | None
    connection: TurnConnection[AgentClient]
    used_at: float


class Reaching:
    """Satisfies `domain.hands.Hands`."""

    def __init__(self, means: Means[AgentClient]) -> None:
        self._means = means
        self._turns: dict[ChatId, _Turn] = {}

    async def connect(self, context: ToolContext) -> AgentApi:
        return await (await self.connection(context)).get()

    async def connection(self, context: ToolContext) -> TurnConnection[AgentClient]:
        chat = context.chat
        turn = await self._current(chat, context.fence.epoch)
        turn.used_at = self._means.clock.monotonic()
        if turn.workspace_id != chat.workspace_id:
            # News of the row, which may have reached us by another way already.
            turn.workspace_id = chat.workspace_id
            if turn.connection.bound.workspace_id != chat.workspace_id:
                await turn.connection.select(chat.workspace_id)
        return turn.connection

    async def _current(self, chat: Chat, epoch: int) -> _Turn:
        await self._let_go_of_idle()
        while (turn := self._turns.get(chat.id)) is not None and turn.epoch != epoch:
            if turn.epoch > epoch:
                # A runner that has lost its chat and does not know yet. The agent will tell it.
                return self._turn(chat, epoch)
            await self.end(chat.id)
        if turn is None:
            turn = self._turns[chat.id] = self._turn(chat, epoch)
        return turn

    def _turn(self, chat: Chat, epoch: int) -> _Turn:
        parents = () if chat.parent_chat_id is None else (chat.parent_chat_id,)
        on_behalf = OnBehalf(chat_id=chat.id, ancestors=parents, epoch=epoch)
        return _Turn(
            epoch=epoch,
            workspace_id=chat.workspace_id,
            connection=TurnConnection(self._means, on_behalf),
            used_at=self._means.clock.monotonic(),
        )

    def in_use(self) -> set[WorkspaceId]:
        """Where a call waits just now."""
        return set[WorkspaceId]().union(*(t.connection.in_use for t in self._turns.values()))

    async def bound(self, chat_id: ChatId, workspace_id: WorkspaceId) -> None:
        """The chat has been given another workspace."""
        if (turn := self._turns.get(chat_id)) is not None:
            await turn.connection.select(workspace_id)

    async def end(self, chat_id: ChatId) -> None:
        """The chat's turn is over."""
        if (turn := self._turns.pop(chat_id, None)) is not None:
            await turn.connection.close()

    async def close(self) -> None:
        for chat_id in list(self._turns):
            await self.end(chat_id)
        await self._means.dials.close()

    async def _let_go_of_idle(self) -> None:
        now = self._means.clock.monotonic()
        idle = [chat_id for chat_id, turn in self._turns.items() if now - turn.used_at > IDLE_S]
        for chat_id in idle:
            await self.end(chat_id)
