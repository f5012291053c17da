"""Chats: create, list, change, and stop. Looking at one is in `bindings`."""

from typing import Final

from msgspec import UNSET, UnsetType

from chatd.aio.backoff import retry_unavailable
from chatd.api import checks
from chatd.api.call import NOTHING, Call, Reply, Route, Takes, reply
from chatd.api.doors import Doors
from chatd.api.listing import listed
from chatd.api.models import chosen_or_default
from chatd.api.operations import REPLAYED, create_chat, run_operation
from chatd.api.wire import CreateBody, ListedChat, ListQuery, PatchBody
from chatd.domain.chat.commands import CreateChat, InterruptChat, RequestCompaction, UpdateChat
from chatd.domain.chat.messages import Draft, UserInput
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.public_chat import PublicChat, public_chat
from chatd.domain.ids import ChatId
from chatd.domain.prompt.titles import fallback_title, title_input
from chatd.store.chat import updates
from chatd.store.chat.transactor import AppliedChange

_CREATE: Final = Takes(CreateBody)
_PATCH: Final = Takes(PatchBody)


class ChatRoutes:
    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def routes(self) -> tuple[Route, ...]:
        return (
            Route(
                method="POST",
                path="/chats",
                name="create_chat",
                summary="Begin a chat with a first message",
                handle=self.create,
                takes=_CREATE,
                gives={201: PublicChat},
                refuses=(409,),
                keyed=True,
                starts_work=True,
            ),
            Route(
                method="GET",
                path="/chats",
                name="list_chats",
                summary="My chats: pinned ones first, then the newest",
                handle=self.list,
                query=ListQuery,
                gives={200: list[ListedChat]},
            ),
            Route(
                method="PATCH",
                path="/chats/{chat_id}",
                name="amend_chat",
                summary="Change title, labels, pin, workspace or archive; all or nothing",
                handle=self.amend,
                takes=_PATCH,
                gives={204: None},
                refuses=(409,),
            ),
            Route(
                method="POST",
                path="/chats/{chat_id}/interrupt",
                name="interrupt_chat",
                summary="Stop what the chat is doing; what was said so far is kept",
                handle=self.interrupt,
                gives={200: PublicChat},
                refuses=(409,),
            ),
            Route(
                method="POST",
                path="/chats/{chat_id}/compact",
                name="compact_chat",
                summary="Summarize an idle chat, so that the model has less to read",
                handle=self.compact,
                gives={202: PublicChat},
                refuses=(409,),
                starts_work=True,
            ),
        )

    async def create(self, call: Call) -> Reply:
        body = await call.body(_CREATE)
        request = call.request("create", call.caller.user_id, body)
        command = await self._command(call, body)
        outcome = await create_chat(self._doors, call.caller, command, request)
        headers = {"location": f"/api/v1/chats/{outcome.chat.id}"}
        if isinstance(outcome, AppliedChange) and outcome.request is not None:
            headers |= REPLAYED
        return reply(public_chat(outcome.chat), 201, headers)

    async def _command(self, call: Call, body: CreateBody) -> CreateChat:
        workspace_id = checks.workspace_id(body.workspace_id)
        if workspace_id is not None:
            pool, owner = self._doors.pool, call.caller.user_id
            await retry_unavailable(
                self._doors.env.clock,
                lambda: updates.usable_workspace(pool, workspace_id, owner),
            )
        checks.no_mcp_servers(body.mcp_server_ids)
        content = checks.content(body.content)
        model = await chosen_or_default(self._doors.models, body)
        system = checks.system_prompt(body.system_prompt)
        before = Draft(role="system", content=(TextPart(text=system or ""),), visibility="model")
        return CreateChat(
            id=ChatId(self._doors.env.new_id()),
            owner_id=call.caller.user_id,
            title=fallback_title(title_input(content, {})),
            before=() if system is None else (before,),
            prompt=UserInput(
                content=content,
                created_by=call.caller.user_id,
                model_config_id=model,
                reasoning_effort=body.reasoning_effort,
            ),
            model_config_id=model,
            reasoning_effort=body.reasoning_effort,
            labels=checks.labels(body.labels),
            workspace_id=workspace_id,
            mode=checks.mode(body.mode),
            client_tools=checks.client_tools(body.client_tools),
        )

    async def list(self, call: Call) -> Reply:
        query = call.query(ListQuery)
        found = await retry_unavailable(
            self._doors.env.clock, lambda: listed(self._doors.pool, call.caller, query)
        )
        return reply(found)

    async def amend(self, call: Call) -> Reply:
        doors, body = self._doors, await call.body(_PATCH)
        command = _update(body)
        outcome = await run_operation(doors, call.caller, call.chat_id, command)
        chat = outcome.chat
        if command.workspace_id is not UNSET:
            if doors.rooms is not None:
                await doors.rooms.bound(chat.id, chat.workspace_id)
            doors.announce(chat, "workspace")
        if command.title is not None:
            doors.announce(chat, "title")
        elif command.labels is not None or command.pin_order is not None:
            doors.announce(chat, "amended")
        return NOTHING

    async def interrupt(self, call: Call) -> Reply:
        outcome = await run_operation(self._doors, call.caller, call.chat_id, InterruptChat())
        return reply(public_chat(outcome.chat))

    async def compact(self, call: Call) -> Reply:
        doors = self._doors
        compactable = await retry_unavailable(
            doors.env.clock, lambda: updates.compactable(doors.pool, call.chat_id)
        )
        command = RequestCompaction(compactable=compactable)
        outcome = await run_operation(doors, call.caller, call.chat_id, command)
        return reply(public_chat(outcome.chat), 202)


def _update(body: PatchBody) -> UpdateChat:
    return UpdateChat(
        title=checks.title(body.title) if isinstance(body.title, str) else None,
        labels=checks.labels(body.labels) if isinstance(body.labels, dict) else None,
        pin_order=body.pin_order if isinstance(body.pin_order, int) else None,
        archived=body.archived if isinstance(body.archived, bool) else None,
        workspace_id=UNSET
        if isinstance(body.workspace_id, UnsetType)
        else checks.workspace_id(body.workspace_id),
    )
