"""Rows about bindings and agents, as a test writes them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace.agent_api import WorkspaceBinding
from chatd.domain.workspace.entities import AgentId, AgentRow, BuildId
from chatd.domain.workspace.rules import choose_agent
from chatd.workspaces.bound import Seen

CHAT = ChatId(UUID(int=10))
HOME, AWAY = WorkspaceId(UUID(int=20)), WorkspaceId(UUID(int=21))
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def agent(number: int, workspace_id: WorkspaceId = HOME) -> AgentRow:
    return AgentRow(
        id=AgentId(UUID(int=number)),
        build_id=BuildId(UUID(int=number + 100)),
        workspace_id=workspace_id,
        name="main",
        created_at=NOW - timedelta(hours=1),
        last_connected_at=NOW,
    )


FIRST, SECOND, FAR = agent(1), agent(2), agent(3, AWAY)


class Tables:
    """Satisfies `Bindings`, and counts what it is asked."""

    def __init__(self) -> None:
        self.row = WorkspaceBinding(chat_id=CHAT, workspace_id=HOME)
        self.agents = {each.id: each for each in (FIRST, SECOND, FAR)}
        self.latest: dict[WorkspaceId, AgentRow] = {HOME: FIRST, AWAY: FAR}
        self.asked: list[str] = []
        self.broken: set[str] = set()
        self.on_latest: Callable[[], None] | None = None

    def bound_to(self, row: AgentRow) -> None:
        self.row = WorkspaceBinding(
            chat_id=CHAT, workspace_id=row.workspace_id, build_id=row.build_id, agent_id=row.id
        )

    async def binding(self, chat_id: ChatId) -> WorkspaceBinding | None:
        self._ask("binding")
        assert chat_id == self.row.chat_id
        return self.row

    async def agent(self, agent_id: AgentId) -> Seen | None:
        self._ask("agent")
        found = self.agents.get(agent_id)
        return None if found is None else Seen(agent=found, now=NOW)

    async def latest_agent(self, workspace_id: WorkspaceId) -> Seen:
        self._ask("latest")
        if self.on_latest is not None:
            self.on_latest()
        found = self.latest.get(workspace_id)
        return Seen(agent=choose_agent([] if found is None else [found]), now=NOW)

    async def remember(self, binding: WorkspaceBinding) -> bool:
        self._ask("remember")
        if self.row.workspace_id != binding.workspace_id:
            return False
        self.row = binding
        return True

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what in self.broken:
            raise Unavailable("no database")
