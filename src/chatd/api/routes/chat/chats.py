"""Routes that create, update, delete, interrupt, compact and name chats.

`chat_lists` has the list, `chat_workspaces` the route that gets one chat.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final
from uuid import UUID

from msgspec import UNSET, UnsetType, structs

from chatd.api import validation
from chatd.api.deps import ApiDeps
from chatd.api.error_codes import CHAT_STATE_CODES
from chatd.api.operations import REPLAYED, create_chat, run_operation
from chatd.api.request import NO_CONTENT, ApiCaller, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.administration.models import check_effort, find_model_or_default
from chatd.api.routes.chat.messages import (
    build_content,
    choose_mcp_servers,
    has_command,
    record_command,
)
from chatd.api.schemas.chats import (
    CreateChatBody,
    InterruptBody,
    ReadBody,
    TitleReply,
    UpdateChatBody,
)
from chatd.domain.access.permissions import WORKER
from chatd.domain.chat.commands import (
    CreateChat,
    DeleteTree,
    InterruptChat,
    InterruptTree,
    RequestCompaction,
    ResumeQueue,
    UpdateChat,
)
from chatd.domain.chat.messages import Draft, Message, UserInput
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.row import Chat
from chatd.domain.chat_views.public_chat import NOTHING_READ, PublicChat, ReaderView, public_chat
from chatd.domain.errors import Conflict, NotFound, Unavailable
from chatd.domain.ids import ChatId, MessageId, ModelConfigId, ProjectId
from chatd.domain.projects import Project
from chatd.domain.prompt.titles import chat_excerpt, fallback_title, title_input
from chatd.domain.tool_policy.rules import ToolRule, check_rule
from chatd.store import projects
from chatd.store.chat import chats, message_pages, messages, updates
from chatd.store.chat.message_pages import MessageRange
from chatd.store.chat.operation import AppliedChange
from chatd.store.workspace import bindings

_CREATE: Final = BodySpec(CreateChatBody)
_PATCH: Final = BodySpec(UpdateChatBody)
_READ: Final = BodySpec(ReadBody)
_INTERRUPT: Final = BodySpec(InterruptBody)


class ChatRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /chats",
                permission="chats.create",
                summary="Create a chat with its first message",
                description="The chat starts to answer at once. Follow it by its events.",
                handle=self.create_chat,
                body_spec=_CREATE,
                replies={201: PublicChat},
                errors=(
                    "no_model",
                    "effort_not_supported",
                    "usage_limit_exceeded",
                    "chat_exists",
                    "parent_archived",
                    "not_found",
                    "too_many_files",
                ),
                keyed=True,
                starts_work=True,
            ),
            ApiRoute(
                endpoint="PATCH /chats/{chat_id}",
                permission="chats.write",
                summary="Update title, labels, pin, workspace, mode, servers, project or archived",
                handle=self.amend_chat,
                body_spec=_PATCH,
                replies={200: PublicChat},
                errors=(*CHAT_STATE_CODES, "parent_archived", "too_many_pins", "not_a_root_chat"),
            ),
            ApiRoute(
                endpoint="DELETE /chats/{chat_id}",
                permission="chats.control",
                summary="Delete a root chat with its subagents; running ones are stopped",
                description=(
                    "The chat and its subagents are stopped and invisible at once. Usage and"
                    " workspaces stay."
                ),
                handle=self.delete_chat,
                replies={204: None},
                errors=("not_a_root_chat",),
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/read",
                permission="chats.read",
                summary="Mark a chat as read up to a message; the mark only moves forward",
                handle=self.mark_read,
                body_spec=_READ,
                replies={204: None},
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/interrupt",
                permission="chats.control",
                summary="Interrupt a chat; the partial answer is kept",
                description=(
                    "Then the queue goes on with its next message; with `hold` it waits until it is"
                    " resumed, a message is sent or one is promoted. A chat that waits for"
                    " subagents stops waiting; with `subagents` they are stopped too."
                ),
                handle=self.interrupt_chat,
                body_spec=_INTERRUPT,
                body_optional=True,
                replies={200: PublicChat},
                errors=(*CHAT_STATE_CODES,),
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/resume",
                permission="chats.write",
                summary="Start the next message of a queue that waits",
                description=(
                    "For a chat with a queue that was held by an interrupt or waits behind an"
                    " error. Changes nothing if no queue waits."
                ),
                handle=self.resume_chat,
                replies={200: PublicChat},
                errors=(*CHAT_STATE_CODES,),
                starts_work=True,
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/compact",
                permission="chats.write",
                summary="Replace the history of an idle chat by a summary",
                handle=self.compact_chat,
                replies={202: PublicChat},
                errors=(*CHAT_STATE_CODES, "nothing_to_compact", "usage_limit_exceeded"),
                starts_work=True,
            ),
        )

    async def create_chat(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_CREATE)
        key = request.idempotency_key("create", request.caller.user_id, body)
        command = await self._command(request, body)
        outcome = await create_chat(self._deps, request.caller, command, key)
        headers = {"location": f"/api/v1/chats/{outcome.chat.id}"}
        chat, view = outcome.chat, new_view(request.caller)
        if chat.project_id is not None:
            view = await announce_in_project(self._deps, request.caller, chat)
        if isinstance(outcome, AppliedChange) and outcome.request is not None:
            headers |= REPLAYED
            view = await get_view(self._deps, request.caller, chat)
        return reply(public_chat(chat, view), 201, headers)

    async def _command(self, request: ApiRequest, body: CreateChatBody) -> CreateChat:
        workspace_id = validation.clean_workspace_id(body.workspace_id)
        if workspace_id is not None:
            caller = request.caller
            await self._deps.read(
                bindings.require_usable_workspace, caller.actor, workspace_id, caller.user_id
            )
        content = await build_content(self._deps, request.caller, body.content)
        chat_id = ChatId(self._deps.env.new_id())
        if has_command(body.content):
            await record_command(self._deps, request, workspace_id, chat_id)
        project = await self._project(request.caller, body)
        model = None if project is None else await self._project_model(project, body)
        if model is None:
            model = await find_model_or_default(self._deps.models, body)
        await check_effort(self._deps.models, model, body.reasoning_effort)
        system = validation.clean_system_prompt(body.system_prompt)
        before = Draft(role="system", content=(TextPart(text=system or ""),), visibility="model")
        return CreateChat(
            id=chat_id,
            owner_id=request.caller.user_id,
            title=fallback_title(title_input(content, {})),
            before=() if system is None else (before,),
            prompt=UserInput(
                content=content,
                created_by=request.caller.user_id,
                model_config_id=model,
                reasoning_effort=body.reasoning_effort,
            ),
            model_config_id=model,
            reasoning_effort=body.reasoning_effort,
            model_required=body.model_required,
            labels=validation.check_labels(body.labels),
            workspace_id=workspace_id,
            mode=body.mode,
            client_tools=validation.check_client_tools(body.client_tools),
            max_cost_micros=body.max_cost_micros,
            rules=_rules(body),
            mcp_server_ids=await choose_mcp_servers(self._deps, body.mcp_server_ids),
            project_id=None if project is None else project.id,
        )

    async def _project(self, caller: ApiCaller, body: CreateChatBody) -> Project | None:
        """Raises NotFound, and Forbidden for a reader of the project."""
        if body.project_id is None:
            return None
        project_id = ProjectId(body.project_id)
        return await self._deps.read(projects.require, caller.actor, project_id, "edit")

    async def _project_model(self, project: Project, body: CreateChatBody) -> ModelConfigId | None:
        """The default model of the project, if the body names none and it can be used."""
        if project.model_config_id is None or (body.model or body.model_config_id):
            return None
        known = await self._deps.models.get(project.model_config_id)
        return None if known is None or not known.enabled else known.config.id

    async def amend_chat(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_PATCH)
        command = _update(body)
        if not isinstance(body.mcp_server_ids, UnsetType):
            servers = await choose_mcp_servers(deps, body.mcp_server_ids)
            command = structs.replace(command, mcp_server_ids=servers)
        if isinstance(body.project_id, UUID):
            project_id = ProjectId(body.project_id)
            await deps.read(projects.require, request.caller.actor, project_id, "edit")
        outcome = await run_operation(deps, request.caller, request.chat_id, command)
        chat = outcome.chat
        if command.workspace_id is not UNSET:
            if deps.workspaces is not None:
                await deps.workspaces.on_bound(chat.id, chat.workspace_id)
            deps.announce(chat, "workspace")
        if command.title is not None:
            deps.announce(chat, "title")
        elif _is_amended(command):
            deps.announce(chat, "amended")
        for other in outcome.repinned:
            deps.announce(other, "amended")
        return reply(public_chat(chat))

    async def delete_chat(self, request: ApiRequest) -> ApiReply:
        await run_operation(self._deps, request.caller, request.chat_id, DeleteTree())
        return NO_CONTENT

    async def mark_read(self, request: ApiRequest) -> ApiReply:
        deps, body = self._deps, await request.body(_READ)
        actor, chat_id, up_to = request.caller.actor, request.chat_id, MessageId(body.message_id)
        found = await deps.retry(lambda: updates.move_read_mark(deps.pool, actor, chat_id, up_to))
        if found is None:
            raise NotFound("There is no such chat.")
        chat, has_moved = found
        if has_moved:
            deps.announce(chat, "read")
        return NO_CONTENT

    async def interrupt_chat(self, request: ApiRequest) -> ApiReply:
        body = await request.optional_body(_INTERRUPT, InterruptBody())
        hold = body.queue == "hold"
        stops_subagents = (
            self._deps.stops_subagents if body.subagents is None else body.subagents == "stop"
        )
        kind = InterruptTree if stops_subagents else InterruptChat
        command = kind(hold_queue=hold)
        outcome = await run_operation(self._deps, request.caller, request.chat_id, command)
        return reply(public_chat(outcome.chat))

    async def resume_chat(self, request: ApiRequest) -> ApiReply:
        outcome = await run_operation(self._deps, request.caller, request.chat_id, ResumeQueue())
        return reply(public_chat(outcome.chat))

    async def compact_chat(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        compactable = await deps.read(
            messages.is_compactable, request.caller.actor, request.chat_id
        )
        command = RequestCompaction(compactable=compactable)
        outcome = await run_operation(deps, request.caller, request.chat_id, command)
        return reply(public_chat(outcome.chat), 202)


async def announce_in_project(deps: ApiDeps, owner: ApiCaller, chat: Chat) -> ReaderView:
    """The members of the project see the new chat at once. Best effort: their lists are polled."""
    with suppress(Unavailable):
        await projects.announce_chat(deps.pool, chat.id)
    view = await get_view(deps, owner, chat)
    return new_view(owner) if view is None else view


async def get_view(deps: ApiDeps, reader: ApiCaller, chat: Chat) -> ReaderView | None:
    """How the reader sees a chat that was read for this reader. None if it is removed meanwhile."""
    actor = reader.actor
    views = await deps.read(updates.list_views_of, actor, [chat.id])
    return views.get(chat.id)


def new_view(owner: ApiCaller, read_up_to: MessageId = NOTHING_READ) -> ReaderView:
    """How the owner sees a new chat."""
    return ReaderView(is_owner=True, owner_username=owner.username, read_up_to=read_up_to)


def _is_amended(command: UpdateChat) -> bool:
    values = (command.labels, command.pin_order, command.mode, command.model_required)
    chosen = (command.mcp_server_ids, command.project_id)
    return any(value is not None for value in values) or any(one is not UNSET for one in chosen)


def _rules(body: CreateChatBody) -> tuple[ToolRule, ...]:
    return tuple(
        check_rule(rule, f"tool_rules[{index}]") for index, rule in enumerate(body.tool_rules)
    )


def _update(body: UpdateChatBody) -> UpdateChat:
    return UpdateChat(
        title=validation.check_title(body.title) if isinstance(body.title, str) else None,
        labels=validation.check_labels(body.labels) if isinstance(body.labels, dict) else None,
        pin_order=body.pin_order if isinstance(body.pin_order, int) else None,
        archived=body.archived if isinstance(body.archived, bool) else None,
        workspace_id=UNSET
        if isinstance(body.workspace_id, UnsetType)
        else validation.clean_workspace_id(body.workspace_id),
        project_id=ProjectId(body.project_id)
        if isinstance(body.project_id, UUID)
        else body.project_id,
        mode=None if isinstance(body.mode, UnsetType) else body.mode,
        model_required=body.model_required if isinstance(body.model_required, bool) else None,
    )


TITLE_LEASE_S: Final = 60.0
"""A second request within this time is refused while the first one runs. Longer than a model call
for a title may take."""
_FIRST: Final = MessageRange(after=MessageId(0), limit=5)
_RECENT: Final = MessageRange(limit=60)


class TitleRoutes:
    """Let a model name a chat. `ChatRoutes` has the route that renames it."""

    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="POST /chats/{chat_id}/title/regenerate",
                permission="chats.write",
                summary="Let a model name the chat; a rename meanwhile wins",
                handle=self.regenerate_title,
                replies={200: PublicChat},
                errors=(
                    *CHAT_STATE_CODES,
                    "title_in_progress",
                    "nothing_to_name",
                    "title_failed",
                    "usage_limit_exceeded",
                ),
                starts_work=True,
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/title/propose",
                permission="chats.write",
                summary="Let a model propose a title, without saving it",
                handle=self.propose_title,
                replies={200: TitleReply},
                errors=(
                    *CHAT_STATE_CODES,
                    "title_in_progress",
                    "nothing_to_name",
                    "title_failed",
                    "usage_limit_exceeded",
                ),
                starts_work=True,
            ),
        )

    async def regenerate_title(self, request: ApiRequest) -> ApiReply:
        deps = self._deps
        async with self._leased(request) as chat:
            title = await self._suggest(chat)
            named = await deps.retry(
                lambda: chats.set_title(
                    deps.pool, request.caller.actor, chat.id, expected=chat.title, title=title
                )
            )
        if named is not None:
            deps.announce(named, "title")
        return reply(public_chat(named or await self._get(request)))

    async def propose_title(self, request: ApiRequest) -> ApiReply:
        async with self._leased(request) as chat:
            return reply(TitleReply(title=await self._suggest(chat)))

    @asynccontextmanager
    async def _leased(self, request: ApiRequest) -> AsyncGenerator[Chat]:
        """The chat, while no other request generates a title for it. If this process dies or the
        release fails, the lease ends by itself."""
        deps, chat_id, actor = self._deps, request.chat_id, request.caller.actor
        chat, lease_id = await self._get(request), deps.env.new_id()
        is_held = await deps.retry(
            lambda: updates.acquire_title_lease(
                deps.pool, actor, chat_id, lease_id, seconds=TITLE_LEASE_S
            )
        )
        if not is_held:
            raise Conflict(
                "A title is being generated for this chat. Wait for it.", code="title_in_progress"
            )
        try:
            yield chat
        finally:
            with suppress(Unavailable):
                await updates.release_title_lease(deps.pool, chat_id, lease_id)

    async def _get(self, request: ApiRequest) -> Chat:
        deps = self._deps
        found = await deps.read(
            chats.get_for_command, request.caller.actor, request.chat_id, "chats.write"
        )
        if found is None:
            raise NotFound("There is no such chat.")
        return found

    async def _suggest(self, chat: Chat) -> str:
        """The model reads the messages, as in a turn: a token that may only write can ask."""
        deps = self._deps
        first = await deps.read(message_pages.load_page, WORKER, chat.id, _FIRST)
        recent = await deps.read(message_pages.load_page, WORKER, chat.id, _RECENT)
        if first is None or recent is None:
            raise NotFound("There is no such chat.")
        rows = {row.id: row for row in (*first.messages, *recent.messages[::-1])}
        history = tuple(rows.values())
        excerpt = chat_excerpt(history) or _first_prompt(history)
        if not excerpt:
            raise Conflict("The chat has no text to name it by.", code="nothing_to_name")
        return await deps.titles.suggest(chat, excerpt)


def _first_prompt(history: Sequence[Message]) -> str:
    """For a chat that has only quotes of files."""
    first = next((row for row in history if row.starts_turn), None)
    return "" if first is None else title_input(first.content, {})
