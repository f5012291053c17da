"""The bindings of chats as the database has them."""

from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace.agent_api import WorkspaceBinding
from chatd.domain.workspace.entities import AgentId
from chatd.domain.workspace.rules import NoAgent, choose_agent
from chatd.store.conn import Conn
from chatd.store.workspace import agents, bindings, workspaces
from chatd.workspaces.bound import WORKSPACE_DELETED, Seen


class BindingRows:
    """Satisfies `bound.Bindings`."""

    def __init__(self, conn: Conn) -> None:
        self._conn = conn

    async def binding(self, chat_id: ChatId) -> WorkspaceBinding | None:
        return await bindings.get(self._conn, chat_id)

    async def agent(self, agent_id: AgentId) -> Seen | None:
        found = await agents.get_with_time(self._conn, agent_id)
        return None if found is None else Seen(agent=found[0], now=found[1])

    async def latest_agent(self, workspace_id: WorkspaceId) -> Seen:
        standing = await workspaces.load_snapshot(self._conn, workspace_id)
        if standing is None or standing.workspace is None or standing.workspace.deleted:
            text = "The chat's workspace is deleted. Call list_templates, then create_workspace."
            raise NoAgent(text, code=WORKSPACE_DELETED)
        return Seen(agent=choose_agent(standing.agents), now=standing.now)

    async def remember(self, binding: WorkspaceBinding) -> bool:
        if binding.workspace_id is None:
            return False
        return await bindings.save_bound_agent(
            self._conn,
            binding.chat_id,
            binding.workspace_id,
            build_id=binding.build_id,
            agent_id=binding.agent_id,
        )
