"""Routes that list, edit, move, promote and delete queued messages."""

from typing import Final
from uuid import UUID

import msgspec

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import CHAT_STATE_CODES
from chatd.api.operations import appended_result, queued_result, run_operation
from chatd.api.pages import ItemPosition, Paging, cut_whole
from chatd.api.read_audit import audit_read
from chatd.api.request import LARGE_BODY_BYTES, NO_CONTENT, ApiReply, ApiRequest, BodySpec, reply
from chatd.api.route import ApiRoute
from chatd.api.routes.messages import build_user_input
from chatd.api.schemas.messages import EditMessageBody, MoveQueuedBody, QueueReply, SentReply
from chatd.domain.access.permissions import Permission
from chatd.domain.chat.commands import DeleteQueued, EditQueued, MoveQueued, PromoteQueued
from chatd.domain.chat.messages import PublicQueuedMessage, QueuedMessage, public_queued
from chatd.domain.chat.transitions import LoadedChat
from chatd.domain.chat.user_transitions import sort_queue
from chatd.domain.errors import NotFound, QueuedMessageGone
from chatd.domain.ids import MessageId, QueueId
from chatd.domain.list_page import ListQuery
from chatd.store.chat import chats
from chatd.store.chat.operation import AppliedChange, OperationOutcome

_EDIT: Final = BodySpec(EditMessageBody, LARGE_BODY_BYTES)
_MOVE: Final = BodySpec(MoveQueuedBody)


class QueueRoutes:
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
        whole = _public(found)
        # A queue is short, and read whole.
        shown, cursor = cut_whole(paging, whole.items, lambda item: UUID(int=item.id))
        page = msgspec.structs.replace(
            whole, items=tuple(shown), has_more=cursor is not None, next_cursor=cursor
        )
        return reply(page)

    async def edit_queued(self, request: ApiRequest) -> ApiReply:
        body = await request.body(_EDIT)
        user_input = await build_user_input(self._deps, request.caller, request.chat_id, body)
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
        return reply(_public(await self._load(request, "chats.write")))

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
        found = await self._deps.retry(
            lambda: chats.load_for_transition(
                self._deps.pool,
                request.caller.actor,
                request.chat_id,
                permission,
                with_queue=True,
            ),
        )
        if found is None:
            raise NotFound("There is no such chat.")
        return found


def _public(found: LoadedChat) -> QueueReply:
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
