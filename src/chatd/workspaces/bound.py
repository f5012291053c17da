"""Which agent a chat talks to: the one it is bound to, or else that of the latest build.

The binding is a cache that is right nearly always, so it is believed until a dial shows
otherwise. Owns what is remembered of it during a turn. Rows are read and written by whoever
satisfies `Bindings`; connections are `connecting`'s business.
"""

import asyncio
from datetime import datetime
from typing import Final, Protocol

from msgspec import Struct

from chatd.domain.errors import ChatdError
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace.agent_api import WorkspaceBinding, WorkspaceUnavailable
from chatd.domain.workspace.entities import AgentId, AgentRow
from chatd.domain.workspace.rules import AmbiguousAgent, NoAgent

WORKSPACE_DELETED: Final = "workspace_deleted"
"""The code of a NoAgent that no start will help."""
ATTEMPTS: Final = 2
"""How often a workspace may change under somebody's hands before that is said."""


class Seen(Struct, frozen=True, kw_only=True):
    """An agent as it was at one moment of the database's time."""

    agent: AgentRow
    now: datetime


class Bindings(Protocol):
    """Any of these may raise a ChatdError because the database cannot be asked."""

    async def binding(self, chat_id: ChatId) -> WorkspaceBinding | None:
        """What the chat's row says now; None if there is no such chat."""
        ...

    async def agent(self, agent_id: AgentId) -> Seen | None: ...

    async def latest_agent(self, workspace_id: WorkspaceId) -> Seen:
        """The agent for chats of the latest build. Raises NoAgent and AgentUnclear."""
        ...

    async def remember(self, binding: WorkspaceBinding) -> bool:
        """False, and nothing is written, if the chat has another workspace by now."""
        ...


class BoundAgent:
    """For one turn of one chat. `binding` is what the chat's row says, if that is known."""

    def __init__(
        self, bindings: Bindings, chat_id: ChatId, binding: WorkspaceBinding | None
    ) -> None:
        self._bindings = bindings
        self._chat_id = chat_id
        self._binding = binding
        self._agent: AgentRow | None = None
        self._lock = asyncio.Lock()

    @property
    def workspace_id(self) -> WorkspaceId | None:
        """As far as it is known."""
        return None if self._binding is None else self._binding.workspace_id

    async def ensure(self) -> AgentRow:
        """The agent the chat is bound to, bound now if it is not. Raises NoHands."""
        async with self._lock:
            for _ in range(ATTEMPTS):
                workspace_id = await self._workspace()
                if self._agent is not None and self._agent.workspace_id == workspace_id:
                    return self._agent
                agent = await self._remembered(workspace_id)
                if agent is None:
                    agent = await self._bind_latest(workspace_id)
                if agent is not None and self.workspace_id == workspace_id:
                    self._agent = agent
                    return agent
        raise being_changed()

    async def bind(self, workspace_id: WorkspaceId, agent: AgentRow) -> bool:
        """False if the chat has another workspace by now, which is then read anew."""
        binding = WorkspaceBinding(
            chat_id=self._chat_id,
            workspace_id=workspace_id,
            build_id=agent.build_id,
            agent_id=agent.id,
        )
        before = self._binding
        remembered = await self._bindings.remember(binding)
        # Somebody of this turn may have selected another one while the row was written.
        if self._binding is not before:
            return self.workspace_id == workspace_id
        self._binding = binding if remembered else None
        self._agent = agent if remembered else None
        return remembered

    def select(self, workspace_id: WorkspaceId | None) -> None:
        """The chat has been given another workspace, or none."""
        self._binding = WorkspaceBinding(chat_id=self._chat_id, workspace_id=workspace_id)
        self._agent = None

    def forget(self) -> None:
        """Next time everything is read anew."""
        self._binding = None
        self._agent = None

    async def _workspace(self) -> WorkspaceId:
        """The row is read again only while no workspace is known: it may have come late."""
        if self.workspace_id is None:
            self._binding = await self._bindings.binding(self._chat_id)
        if self.workspace_id is None:
            raise WorkspaceUnavailable(
                "This chat has no workspace. Call list_templates, then create_workspace."
            )
        return self.workspace_id

    async def _remembered(self, workspace_id: WorkspaceId) -> AgentRow | None:
        agent_id = None if self._binding is None else self._binding.agent_id
        if agent_id is None:
            return None
        try:
            seen = await self._bindings.agent(agent_id)
        except ChatdError:
            # The latest build says as much; and if it cannot be read either, that is told.
            return None
        return seen.agent if seen is not None and seen.agent.workspace_id == workspace_id else None

    async def _bind_latest(self, workspace_id: WorkspaceId) -> AgentRow | None:
        """None if the chat has another workspace by now."""
        try:
            agent = (await self._bindings.latest_agent(workspace_id)).agent
        except (NoAgent, AmbiguousAgent) as error:
            self.forget()
            raise no_hands(error) from error
        return agent if await self.bind(workspace_id, agent) else None


def no_hands(error: NoAgent | AmbiguousAgent) -> WorkspaceUnavailable:
    """Which agent is meant is for a person to say."""
    ask = " Tell the user." if isinstance(error, AmbiguousAgent) else ""
    return WorkspaceUnavailable(f"{error.message}{ask}", code=error.code)


def being_changed() -> WorkspaceUnavailable:
    return WorkspaceUnavailable("The chat's workspace is being changed. Try again in a moment.")
