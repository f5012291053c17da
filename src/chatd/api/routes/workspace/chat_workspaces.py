"""Routes about a chat and its workspace: the binding and the pinned context."""

from typing import Final
from uuid import UUID

import msgspec

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import AGENT_CODES, CHAT_STATE_CODES
from chatd.api.operations import audit_read
from chatd.api.request import ApiCaller, ApiReply, ApiRequest, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.chat.chats import get_view
from chatd.api.routes.workspace.builds import require_workspaces
from chatd.api.schemas.workspaces import (
    ChatDiffReply,
    ChatReply,
    DiffQuery,
    LatestChats,
    LatestChatsQuery,
    context_reply,
    mcp_server_reply,
)
from chatd.domain.access.permissions import Actor
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.public_chat import public_chat
from chatd.domain.errors import Conflict, InvalidInput, NotFound
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable
from chatd.domain.workspace.entities import AgentRow
from chatd.domain.workspace.rules import AmbiguousAgent, NoAgent, choose_agent
from chatd.store.chat import chats
from chatd.store.workspace import bindings, workspaces

MAX_WORKSPACE_IDS: Final = 25


class ChatWorkspaceRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /chats/by-workspace",
                permission="chats.read",
                summary="Get the latest chat of each workspace",
                handle=self.list_chats_by_workspace,
                query=LatestChatsQuery,
                replies={200: LatestChats},
            ),
            ApiRoute(
                endpoint="GET /chats/{chat_id}",
                permission="chats.read",
                summary="Get a chat with its workspace binding and context",
                handle=self.get_chat,
                replies={200: ChatReply},
            ),
            ApiRoute(
                endpoint="GET /chats/{chat_id}/diff",
                permission="chats.read",
                summary="Get what a turn, a chat or the working tree has changed, as unified diffs",
                handle=self.get_diff,
                query=DiffQuery,
                replies={200: ChatDiffReply},
                errors=(*AGENT_CODES, "workspaces_off"),
            ),
            ApiRoute(
                endpoint="PUT /chats/{chat_id}/context",
                permission="chats.write",
                summary="Pin the workspace's current instructions and skills to a chat",
                description="The chat keeps those that it has pinned until then, also when files of"
                " the workspace change: `context.dirty` says so. MCP servers are not pinned.",
                handle=self.pin_context,
                replies={200: ChatReply},
                errors=(
                    "no_workspace",
                    "no_agent",
                    "no_context",
                    "workspace_changed",
                    "workspaces_off",
                    *CHAT_STATE_CODES,
                ),
            ),
        )

    async def list_chats_by_workspace(self, request: ApiRequest) -> ApiReply:
        deps, query = self._deps, request.query(LatestChatsQuery)
        which = _ids(query.workspace_ids)
        found = await deps.read(bindings.latest_chat_per_workspace, request.caller.actor, which)
        return reply(found)

    async def get_chat(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        actor = request.caller.actor
        found = await deps.read(chats.get, actor, request.chat_id)
        chat = require_chat(found)
        await audit_read(deps, request.caller, chat)
        return await self._reply(chat, request.caller)

    async def get_diff(self, request: ApiRequest) -> ApiReply:
        deps, actor, scope = self._deps, request.caller.actor, request.query(DiffQuery).scope
        chat = require_chat(await deps.read(chats.get, actor, request.chat_id))
        control = require_workspaces(deps)
        await audit_read(deps, request.caller, chat)
        try:
            found = await control.read_diff(chat, scope)
        except AgentRefused as error:
            raise Conflict(error.message, code="agent_refused") from error
        return reply(ChatDiffReply(scope=scope, repositories=tuple(found)))

    async def pin_context(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        actor = request.caller.actor
        chat = require_chat(
            await deps.read(chats.get_for_command, actor, request.chat_id, "chats.write")
        )
        await self._refresh(actor, chat)
        await deps.retry(lambda: self._pin(actor, chat))
        if deps.workspaces is not None:
            await deps.workspaces.on_bound(chat.id, chat.workspace_id)
        deps.announce(chat, "workspace")
        return await self._reply(chat, request.caller)

    async def _refresh(self, actor: Actor, chat: Chat) -> None:
        """What is stored may be some seconds old. Raises Conflict."""
        if self._deps.workspaces is None or chat.workspace_id is None:
            return
        await self._agent(actor, chat.workspace_id)
        try:
            await self._deps.workspaces.refresh_context(chat)
        except (AgentUnreachable, AgentRefused) as error:
            text = f"The instructions cannot be read now: {error.message} Retry in a moment."
            raise Conflict(text, code="no_context") from error

    async def _pin(self, actor: Actor, chat: Chat) -> None:
        conn = self._deps.pool
        if chat.workspace_id is None:
            raise Conflict(
                "The chat has no workspace. Set workspace_id first.", code="no_workspace"
            )
        agent = await self._agent(actor, chat.workspace_id)
        is_saved = await bindings.save_bound_agent(
            conn, actor, chat.id, chat.workspace_id, build_id=agent.build_id, agent_id=agent.id
        )
        if not is_saved:
            raise Conflict(
                "The chat's workspace was changed meanwhile. Retry.", code="workspace_changed"
            )
        if not await bindings.pin_context(conn, actor, chat.id, agent.id, replace=True):
            text = "The workspace agent has not reported its instructions yet. Retry in a moment."
            raise Conflict(text, code="no_context")

    async def _agent(self, actor: Actor, workspace_id: WorkspaceId) -> AgentRow:
        snapshot = await workspaces.load_snapshot(self._deps.pool, actor, workspace_id)
        try:
            return choose_agent(() if snapshot is None else snapshot.agents)
        except NoAgent:
            raise Conflict(
                "The chat's workspace is not running. Start it first.", code="no_agent"
            ) from None
        except AmbiguousAgent as error:
            raise Conflict(error.message, code=error.code) from None

    async def _reply(self, chat: Chat, reader: ApiCaller) -> ApiReply:
        view = await get_view(self._deps, reader, chat)
        found = ChatReply(**msgspec.structs.asdict(public_chat(chat, view)))
        if chat.workspace_id is not None:
            found = await self._deps.retry(lambda: self._with_context(reader.actor, found))
        return reply(found)

    async def _with_context(self, actor: Actor, chat: ChatReply) -> ChatReply:
        conn = self._deps.pool
        binding = await bindings.get(conn, actor, chat.id)
        pinned = await bindings.get_pinned_context(conn, actor, chat.id)
        servers = await bindings.list_mcp_servers(conn, actor, chat.id)
        return msgspec.structs.replace(
            chat,
            build_id=None if binding is None else binding.build_id,
            agent_id=None if binding is None else binding.agent_id,
            context=None if pinned is None else context_reply(pinned),
            workspace_mcp_servers=tuple(map(mcp_server_reply, servers)),
        )


def require_chat(found: Chat | None) -> Chat:
    """Raises NotFound for one that was not found or that the caller may not read."""
    if found is None:
        raise NotFound("There is no such chat.")
    return found


def _ids(text: str) -> list[WorkspaceId]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) > MAX_WORKSPACE_IDS:
        raise InvalidInput("workspace_ids", f"must be at most {MAX_WORKSPACE_IDS} ids")
    try:
        return [WorkspaceId(UUID(name)) for name in names]
    except ValueError:
        raise InvalidInput("workspace_ids", "must be ids separated by commas") from None
