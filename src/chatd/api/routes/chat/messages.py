"""Routes that list, send and edit messages, submit client tool results, and change the queue."""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from chatd.api import validation
from chatd.api.deps import ApiDeps
from chatd.api.error_codes import CHAT_STATE_CODES
from chatd.api.operations import (
    REPLAYED,
    appended_result,
    audit_read,
    queued_result,
    replayed_result,
    run_operation,
    send_result,
)
from chatd.api.pages import ItemPosition, NumberPosition, Paging, cut_whole
from chatd.api.request import (
    LARGE_BODY_BYTES,
    NO_CONTENT,
    ApiCaller,
    ApiReply,
    ApiRequest,
    BodySpec,
    reply,
)
from chatd.api.route import ApiRoute
from chatd.api.routes.administration.models import check_effort, find_model
from chatd.api.schemas.messages import (
    EditMessageBody,
    InputCommand,
    InputPart,
    MessageListQuery,
    MessagePage,
    ModelSelection,
    MoveQueuedBody,
    QueueReply,
    SendMessageBody,
    SentReply,
    ToolResultsBody,
)
from chatd.domain.access.permissions import Permission
from chatd.domain.chat.commands import (
    DeleteQueued,
    EditMessage,
    EditQueued,
    MoveQueued,
    PromoteQueued,
    SendMessage,
    SubmitToolResults,
)
from chatd.domain.chat.messages import (
    PublicQueuedMessage,
    QueuedMessage,
    UserInput,
    public_message,
    public_queued,
)
from chatd.domain.chat.parts import Part
from chatd.domain.chat.transitions import LoadedChat
from chatd.domain.chat.user_transitions import sort_queue
from chatd.domain.chat_views.public_chat import PublicChat, public_chat
from chatd.domain.errors import Conflict, InvalidInput, NotFound, QueuedMessageGone
from chatd.domain.files import StoredFile
from chatd.domain.ids import (
    ChatId,
    FileId,
    McpServerId,
    MessageId,
    ModelConfigId,
    QueueId,
    WorkspaceId,
)
from chatd.domain.list_page import ListQuery
from chatd.store import files
from chatd.store.account import audit
from chatd.store.chat import chats, message_pages
from chatd.store.chat.message_pages import MessageRange, StoredMessagePage
from chatd.store.chat.operation import AppliedChange, OperationOutcome
from chatd.store.deployment import mcp_servers

_SEND: Final = BodySpec(SendMessageBody, LARGE_BODY_BYTES)
_EDIT: Final = BodySpec(EditMessageBody, LARGE_BODY_BYTES)
_RESULTS: Final = BodySpec(ToolResultsBody)


class MessageRoutes:
    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        return (
            ApiRoute(
                endpoint="GET /chats/{chat_id}/messages",
                permission="chats.read",
                summary="List messages by page; the first page includes the queue",
                description=(
                    "Newest first; with `after_id`, oldest first. A page of large messages ends"
                    " before `limit`."
                ),
                handle=self.list_messages,
                query=MessageListQuery,
                replies={200: MessagePage},
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/messages",
                permission="chats.write",
                summary="Send a message; `busy_behavior` decides what happens in a busy chat",
                description=(
                    "An idle chat starts to answer at once. `queued` says if the message waits in"
                    " the queue."
                ),
                handle=self.send_message,
                body_spec=_SEND,
                replies={200: SentReply},
                errors=(
                    *CHAT_STATE_CODES,
                    *("chat_busy", "queue_full", "usage_limit_exceeded", "too_many_files"),
                    *("effort_not_supported", "no_workspace"),
                ),
                keyed=True,
                starts_work=True,
            ),
            ApiRoute(
                endpoint="PATCH /chats/{chat_id}/messages/{message_id}",
                permission="chats.write",
                summary="Edit a message; later messages are deleted",
                description=(
                    "The message and all later ones are deleted, and the queue; the new content"
                    " gets a new id and is answered. What is deleted is kept as a version."
                ),
                handle=self.edit_message,
                body_spec=_EDIT,
                replies={200: SentReply},
                errors=(
                    *CHAT_STATE_CODES,
                    *("usage_limit_exceeded", "too_many_files", "effort_not_supported"),
                    "no_workspace",
                ),
                keyed=True,
                starts_work=True,
            ),
            ApiRoute(
                endpoint="POST /chats/{chat_id}/tool-results",
                permission="chats.write",
                summary="Submit the results of all pending client tool calls",
                description=(
                    "For a chat whose status is `requires_action`, before the deadline of each"
                    " call: the time that its tool declares, or five minutes."
                ),
                handle=self.submit_tool_results,
                body_spec=_RESULTS,
                replies={200: PublicChat},
                errors=(*CHAT_STATE_CODES,),
                keyed=True,
                starts_work=True,
            ),
        )

    async def list_messages(self, request: ApiRequest) -> ApiReply:
        query = request.query(MessageListQuery)
        paging = Paging(request, query, NumberPosition)
        which = _range(query, paging.position)
        found = await self._deps.read(
            message_pages.load_page, request.caller.actor, request.chat_id, which
        )
        if found is None:
            raise NotFound("There is no such chat.")
        await audit_read(self._deps, request.caller, found.chat)
        cursor = (
            paging.make_cursor(NumberPosition(found.messages[-1].id)) if found.has_more else None
        )
        return reply(_page(request.chat_id, found, cursor))

    async def send_message(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_SEND)
        key = request.idempotency_key("send", request.chat_id, body)
        deps, caller = self._deps, request.caller
        user_input = await build_user_input(deps, request, body)
        command = SendMessage(
            prompt=user_input,
            when_busy=body.busy_behavior,
            mcp_server_ids=await choose_mcp_servers(deps, body.mcp_server_ids),
        )
        outcome = await run_operation(deps, caller, request.chat_id, command, key)
        if isinstance(outcome, AppliedChange) and outcome.request is not None:
            found = await replayed_result(deps, caller, outcome.chat, outcome.request)
            return reply(found, headers=REPLAYED)
        return reply(await send_result(deps, caller, outcome))

    async def edit_message(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_EDIT)
        key = request.idempotency_key("edit", request.chat_id, body, request.message_id)
        user_input = await build_user_input(self._deps, request, body)
        command = EditMessage(message_id=request.message_id, prompt=user_input)
        outcome = await run_operation(self._deps, request.caller, request.chat_id, command, key)
        if isinstance(outcome, AppliedChange) and outcome.request is not None:
            found = await replayed_result(self._deps, request.caller, outcome.chat, outcome.request)
            return reply(found, headers=REPLAYED)
        return reply(appended_result(outcome))

    async def submit_tool_results(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_RESULTS)
        command = SubmitToolResults(results=validation.check_tool_results(body.results))
        key = request.idempotency_key("results", request.chat_id, body)
        outcome = await run_operation(self._deps, request.caller, request.chat_id, command, key)
        is_replay = isinstance(outcome, AppliedChange) and outcome.request is not None
        return reply(public_chat(outcome.chat), headers=REPLAYED if is_replay else None)


async def build_user_input(
    deps: ApiDeps, request: ApiRequest, body: SendMessageBody | EditMessageBody
) -> UserInput:
    """Raises InvalidInput, also for an effort that the model does not take; Conflict for a command
    in a chat without a workspace."""
    caller, chat_id = request.caller, request.chat_id
    content = await build_content(deps, caller, body.content)
    if has_command(body.content):
        actor = caller.actor
        chat = await deps.read(chats.get_for_command, actor, chat_id, "chats.write")
        if chat is None:
            raise NotFound("There is no such chat.")
        await record_command(deps, request, chat.workspace_id, chat_id)
    model_id = await choose_model(deps, caller, chat_id, body)
    return UserInput(
        content=content,
        created_by=caller.user_id,
        model_config_id=model_id,
        reasoning_effort=body.reasoning_effort,
        mode=body.mode,
    )


def has_command(content: Sequence[InputPart]) -> bool:
    return any(isinstance(part, InputCommand) for part in content)


async def record_command(
    deps: ApiDeps, request: ApiRequest, workspace_id: WorkspaceId | None, chat_id: ChatId
) -> None:
    """In the audit log, before it runs. The command itself is in the chat. Raises Conflict."""
    if workspace_id is None:
        raise Conflict(
            "The chat has no workspace to run a command in. Choose one for the chat first.",
            code="no_workspace",
        )
    author = deps.author(request)
    await deps.retry(
        lambda: audit.record(
            deps.pool,
            author.actor,
            ip=author.ip,
            action="workspace.command",
            object_type="workspace",
            object_id=workspace_id,
            detail={"chat_id": str(chat_id)},
        )
    )


async def choose_model(
    deps: ApiDeps, caller: ApiCaller, chat_id: ChatId, body: ModelSelection
) -> ModelConfigId | None:
    """The model that the body names. Raises InvalidInput, also for an effort that it, or else the
    chat's model, does not take."""
    model_id = None
    if body.model is not None or body.model_config_id is not None:
        model_id = await find_model(deps.models, body)
    if body.reasoning_effort is not None:
        chosen = model_id or await _model_of_chat(deps, caller, chat_id)
        await check_effort(deps.models, chosen, body.reasoning_effort)
    return model_id


async def _model_of_chat(deps: ApiDeps, caller: ApiCaller, chat_id: ChatId) -> ModelConfigId | None:
    """None also for a chat that the caller may not read: the command refuses it."""
    chat = await deps.read(chats.get, caller.actor, chat_id)
    return None if chat is None else chat.model_config_id


async def choose_mcp_servers(
    deps: ApiDeps, ids: Sequence[UUID] | None
) -> tuple[McpServerId, ...] | None:
    """Raises InvalidInput that names all unknown ones."""
    if not ids:
        return None if ids is None else ()
    return await deps.read(mcp_servers.choose, ids)


async def build_content(
    deps: ApiDeps, caller: ApiCaller, parts: Sequence[InputPart]
) -> tuple[Part, ...]:
    """Raises InvalidInput, also for a file that the caller may not read."""
    named = validation.list_named_files(parts)
    found: Mapping[FileId, StoredFile] = {}
    if named:
        found = await deps.read(files.list_attachable, named, caller.actor)
    return validation.check_content(parts, found)


def _range(query: MessageListQuery, last: NumberPosition | None) -> MessageRange:
    before, after = query.before_id, query.after_id
    if before is not None and after is not None and before <= after:
        raise InvalidInput("before_id", "must be above after_id")
    if last is not None:
        before, after = (last.number, None) if after is None else (before, last.number)
    return MessageRange(
        before=None if before is None else MessageId(before),
        after=None if after is None else MessageId(after),
        limit=query.limit,
    )


def _page(chat_id: ChatId, page: StoredMessagePage, cursor: str | None) -> MessagePage:
    seen = (public_message(chat_id, row) for row in page.messages)
    return MessagePage(
        items=tuple(message for message in seen if message is not None),
        queued_messages=tuple(public_queued(chat_id, row) for row in page.queue),
        has_more=page.has_more,
        next_cursor=cursor,
        version=page.chat.snapshot_version,
    )


_MOVE: Final = BodySpec(MoveQueuedBody)


class QueueRoutes:
    """List, edit, move, promote and delete queued messages."""

    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps

    def routes(self) -> tuple[ApiRoute, ...]:
        item = "/chats/{chat_id}/queue/{queue_id}"
        return (
            ApiRoute(
                endpoint="GET /chats/{chat_id}/queue",
                permission="chats.read",
                summary="List queued messages in order",
                handle=self.list_queue,
                query=ListQuery,
                replies={200: QueueReply},
            ),
            ApiRoute(
                endpoint=f"PATCH {item}",
                permission="chats.write",
                summary="Edit a queued message",
                handle=self.edit_queued,
                body_spec=_EDIT,
                replies={200: PublicQueuedMessage},
                errors=(
                    *CHAT_STATE_CODES,
                    *("queued_message_gone", "too_many_files", "effort_not_supported"),
                    "no_workspace",
                ),
            ),
            ApiRoute(
                endpoint=f"POST {item}/move",
                permission="chats.write",
                summary="Move a queued message before another one, or to the end",
                handle=self.move_queued,
                body_spec=_MOVE,
                replies={200: QueueReply},
                errors=(*CHAT_STATE_CODES, "queued_message_gone"),
            ),
            ApiRoute(
                endpoint=f"POST {item}/promote",
                permission="chats.write",
                summary="Promote a queued message: 200 when sent, 202 after an interrupt",
                description=(
                    "200: the message is in history. 202: the running answer is interrupted first."
                ),
                handle=self.promote_queued,
                replies={200: SentReply, 202: SentReply},
                errors=(*CHAT_STATE_CODES, "queued_message_gone"),
                starts_work=True,
            ),
            ApiRoute(
                endpoint=f"DELETE {item}",
                permission="chats.write",
                summary="Delete a queued message, if it is still in the queue",
                handle=self.delete_queued,
                replies={204: None},
                errors=(*CHAT_STATE_CODES, "queued_message_gone"),
            ),
        )

    async def list_queue(self, request: ApiRequest) -> ApiReply:
        paging = Paging(request, request.query(ListQuery), ItemPosition)
        found = await self._load(request)
        await audit_read(self._deps, request.caller, found.chat)
        whole = _queue_reply(found)
        # A queue is short, and read whole.
        shown, cursor = cut_whole(paging, whole.items, lambda item: UUID(int=item.id))
        page = msgspec.structs.replace(
            whole, items=tuple(shown), has_more=cursor is not None, next_cursor=cursor
        )
        return reply(page)

    async def edit_queued(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_EDIT)
        user_input = await build_user_input(self._deps, request, body)
        command = EditQueued(id=request.queue_id, prompt=user_input)
        outcome = await run_operation(self._deps, request.caller, request.chat_id, command)
        seen = _rewritten(outcome) or _find(
            await self._load(request, "chats.write"), request.queue_id
        )
        if seen is None:
            raise QueuedMessageGone(
                "The message left the queue after it was edited; its new text is in history."
            )
        return reply(public_queued(request.chat_id, seen))

    async def move_queued(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_MOVE)
        before = None if body.before is None else QueueId(body.before)
        command = MoveQueued(id=request.queue_id, before=before)
        await run_operation(self._deps, request.caller, request.chat_id, command)
        return reply(_queue_reply(await self._load(request, "chats.write")))

    async def promote_queued(self, request: ApiRequest) -> ApiReply:
        item = request.queue_id
        command = PromoteQueued(id=item)
        outcome = await run_operation(self._deps, request.caller, request.chat_id, command)
        change = outcome.change if isinstance(outcome, AppliedChange) else None
        if change is None or change.promote > 0:
            first = None if change is None else change.after.next_message_id - change.promote
            return reply(appended_result(outcome, None if first is None else MessageId(first)))
        return reply(queued_result(outcome, item, _steering(outcome, item)), 202)

    async def delete_queued(self, request: ApiRequest) -> ApiReply:
        command = DeleteQueued(id=request.queue_id)
        await run_operation(self._deps, request.caller, request.chat_id, command)
        return NO_CONTENT

    async def _load(self, request: ApiRequest, permission: Permission = "chats.read") -> LoadedChat:
        found = await self._deps.read(
            chats.load_for_transition,
            request.caller.actor,
            request.chat_id,
            permission,
            with_queue=True,
        )
        if found is None:
            raise NotFound("There is no such chat.")
        return found


def _queue_reply(found: LoadedChat) -> QueueReply:
    """The whole queue as one page."""
    queue = tuple(public_queued(found.chat.id, row) for row in sort_queue(found.queue))
    return QueueReply(
        items=queue,
        has_more=False,
        next_cursor=None,
        queued_messages=queue,
        version=found.chat.snapshot_version,
    )


def _find(loaded: LoadedChat | None, item: QueueId) -> QueuedMessage | None:
    queue = () if loaded is None else loaded.queue
    return next((row for row in queue if row.id == item), None)


def _rewritten(outcome: OperationOutcome) -> QueuedMessage | None:
    """The queued message as it was, with the values that the change replaced."""
    if not isinstance(outcome, AppliedChange) or outcome.change is None:
        return None
    new = outcome.change.rewrite[0]
    row = _find(outcome.loaded, new.id)
    if row is None:
        return None
    return msgspec.structs.replace(
        row,
        content=new.prompt.content,
        model_config_id=new.prompt.model_config_id,
        reasoning_effort=new.prompt.reasoning_effort,
        mode=new.prompt.mode,
    )


def _steering(outcome: OperationOutcome, item: QueueId) -> PublicQueuedMessage | None:
    row = _find(outcome.loaded, item) if isinstance(outcome, AppliedChange) else None
    if row is None:
        return None
    return public_queued(outcome.chat.id, msgspec.structs.replace(row, steer=True))
