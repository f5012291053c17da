"""The bindings of chats as the database has them."""

from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace import AgentId
from chatd.domain.workspace_context import Binding
from chatd.domain.workspace_rules import NoAgent, choose_agent
from chatd.store import agents, bindings, workspaces
from chatd.store.conn import Conn
from chatd.workspaces.bound import WORKSPACE_DELETED, Seen


class BindingRows:
    """Satisfies `bound.Bindings`."""

    def __init__(self, conn: Conn) -> None:
        self._conn = conn

    async def binding(self, chat_id: ChatId) -> Binding | None:
        return await bindings.get(self._conn, chat_id)

    async def agent(self, agent_id: AgentId) -> Seen | None:
        found = await agents.seen(self._conn, agent_id)
        return None if found is None else Seen(agent=found[0], now=found[1])

    async def latest_agent(self, workspace_id: WorkspaceId) -> Seen:
        standing = await workspaces.standing(self._conn, workspace_id)
        if standing is None or standing.workspace is None or standing.workspace.deleted:
            text = "The chat's workspace is deleted. Call list_templates, then create_workspace."
            raise NoAgent(text, code=WORKSPACE_DELETED)
        return Seen(agent=choose_agent(standing.agents), now=standing.now)

    async def remember(self, binding: Binding) -> bool:
        if binding.workspace_id is None:
            return False
        return await bindings.remember(
            self._conn,
            binding.chat_id,
            binding.workspace_id,
            build_id=binding.build_id,
            agent_id=binding.agent_id,
        )
