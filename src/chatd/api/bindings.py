"""What a chat has of its workspace: whom it talks to there, and the instructions it goes by."""

from typing import Final
from uuid import UUID

import msgspec

from chatd.aio.backoff import retry_unavailable
from chatd.api.auth import own
from chatd.api.call import Call, Reply, Route, reply
from chatd.api.doors import Doors
from chatd.api.workspace_shapes import context_reply
from chatd.api.workspace_wire import ByWorkspaceQuery, ChatReply
from chatd.domain.chat.public_chat import public_chat
from chatd.domain.chat.row import Chat
from chatd.domain.errors import Conflict, InvalidInput
from chatd.domain.ids import ChatId, WorkspaceId
from chatd.domain.workspace.entities import AgentRow
from chatd.domain.workspace.rules import AmbiguousAgent, NoAgent, choose_agent
from chatd.store.chat import chats, updates
from chatd.store.workspace import bindings, workspaces

MOST: Final = 25


class BindingRoutes:
    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                method="GET",
                path="/chats/by-workspace",
                name="list_chats_by_workspace",
                summary="By workspace, the chat of mine that moved last there",
                handle=self.by_workspace,
                query=ByWorkspaceQuery,
                gives={200: dict[WorkspaceId, ChatId]},
            ),
            Route(
                method="GET",
                path="/chats/{chat_id}",
                name="get_chat",
                summary="One chat, with what it has of its workspace",
                handle=self.get,
                gives={200: ChatReply},
            ),
            Route(
                method="PUT",
                path="/chats/{chat_id}/context",
                name="pin_context",
                summary="Go by the instructions that are in the workspace now",
                handle=self.pin,
                gives={200: ChatReply},
                refuses=(409,),
            ),
        )

    async def by_workspace(self, call: Call) -> Reply:
        doors, query = self._doors, call.query(ByWorkspaceQuery)
        which = _ids(query.workspace_ids)
        found = await retry_unavailable(
            doors.env.clock, lambda: updates.latest_in(doors.pool, call.caller.user_id, which)
        )
        return reply(found)

    async def get(self, call: Call) -> Reply:
        doors = self._doors
        found = await retry_unavailable(
            doors.env.clock, lambda: chats.get(doors.pool, call.chat_id)
        )
        return await self._told(own(call.caller, found))

    async def pin(self, call: Call) -> Reply:
        doors = self._doors
        found = await retry_unavailable(
            doors.env.clock, lambda: chats.get(doors.pool, call.chat_id)
        )
        chat = own(call.caller, found)
        await retry_unavailable(doors.env.clock, lambda: self._pin(chat))
        if doors.rooms is not None:
            await doors.rooms.bound(chat.id, chat.workspace_id)
        doors.announce(chat, "workspace")
        return await self._told(chat)

    async def _pin(self, chat: Chat) -> None:
        conn = self._doors.pool
        if chat.workspace_id is None:
            raise Conflict("The chat has no workspace.", code="no_workspace")
        agent = await self._agent(chat.workspace_id)
        remembered = await bindings.save_bound_agent(
            conn, chat.id, chat.workspace_id, build_id=agent.build_id, agent_id=agent.id
        )
        if not remembered:
            raise Conflict("The chat's workspace is being changed.", code="workspace_changed")
        if not await bindings.pin_context(conn, chat.id, agent.id, anew=True):
            text = "The workspace has not said yet which instructions it has; try again soon."
            raise Conflict(text, code="no_context")

    async def _agent(self, workspace_id: WorkspaceId) -> AgentRow:
        standing = await workspaces.load_snapshot(self._doors.pool, workspace_id)
        try:
            return choose_agent(() if standing is None else standing.agents)
        except NoAgent:
            raise Conflict("The chat's workspace does not run.", code="no_agent") from None
        except AmbiguousAgent as error:
            raise Conflict(error.message, code=error.code) from None

    async def _told(self, chat: Chat) -> Reply:
        """A chat without a workspace costs no further question."""
        told = ChatReply(**msgspec.structs.asdict(public_chat(chat)))
        if chat.workspace_id is not None:
            told = await retry_unavailable(self._doors.env.clock, lambda: self._with_context(told))
        return reply(told)

    async def _with_context(self, told: ChatReply) -> ChatReply:
        conn = self._doors.pool
        binding = await bindings.get(conn, told.id)
        pinned = await bindings.get_pinned_context(conn, told.id)
        return msgspec.structs.replace(
            told,
            build_id=None if binding is None else binding.build_id,
            agent_id=None if binding is None else binding.agent_id,
            context=None if pinned is None else context_reply(pinned),
        )


def _ids(text: str) -> list[WorkspaceId]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) > MOST:
        raise InvalidInput("workspace_ids", f"at most {MOST} can be asked for at once")
    try:
        return [WorkspaceId(UUID(name)) for name in names]
    except ValueError:
        raise InvalidInput("workspace_ids", "must be ids with commas between them") from None
