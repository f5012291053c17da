"""The queue: messages that wait for their turn. Look, change, move, promote, take out."""

from typing import Final

import msgspec

from chatd.aio.backoff import retry_unavailable
from chatd.api import checks
from chatd.api.call import LARGE_BODY, NOTHING, Call, Reply, Route, Takes, reply
from chatd.api.doors import Doors
from chatd.api.models import chosen
from chatd.api.operations import appended_result, queued_result, run_operation
from chatd.api.wire import EditBody, MoveBody, QueueReply, SentReply
from chatd.domain.chat.commands import DeleteQueued, EditQueued, MoveQueued, PromoteQueued
from chatd.domain.chat.events import PublicQueuedMessage, public_queued
from chatd.domain.chat.messages import QueuedMessage, UserInput
from chatd.domain.chat.queue_transitions import in_order
from chatd.domain.chat.transitions import LoadedChat
from chatd.domain.errors import NotFound, QueuedMessageGone
from chatd.domain.ids import MessageId, QueueId
from chatd.store.chat import chats
from chatd.store.chat.transactor import AppliedChange, OperationOutcome

_EDIT: Final = Takes(EditBody, LARGE_BODY)
_MOVE: Final = Takes(MoveBody)


class QueueRoutes:
    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def routes(self) -> tuple[Route, ...]:
        one = "/chats/{chat_id}/queue/{queue_id}"
        return (
            Route(
                method="GET",
                path="/chats/{chat_id}/queue",
                name="list_queue",
                summary="What waits, in the order in which it will be sent",
                handle=self.list,
                gives={200: QueueReply},
            ),
            Route(
                method="PATCH",
                path=one,
                name="edit_queued",
                summary="Change a message that waits",
                handle=self.edit,
                takes=_EDIT,
                gives={200: PublicQueuedMessage},
                refuses=(409,),
            ),
            Route(
                method="POST",
                path=f"{one}/move",
                name="move_queued",
                summary="Put a message ahead of another one, or last",
                handle=self.move,
                takes=_MOVE,
                gives={200: QueueReply},
                refuses=(409,),
            ),
            Route(
                method="POST",
                path=f"{one}/promote",
                name="promote_queued",
                summary="Send it now: 200 if it was, 202 if an answer has to be stopped first",
                handle=self.promote,
                gives={200: SentReply, 202: SentReply},
                refuses=(409,),
                starts_work=True,
            ),
            Route(
                method="DELETE",
                path=one,
                name="delete_queued",
                summary="Take a message out of the queue, if it is still there",
                handle=self.delete,
                gives={204: None},
                refuses=(409,),
            ),
        )

    async def list(self, call: Call) -> Reply:
        return reply(_public(await self._load(call)))

    async def edit(self, call: Call) -> Reply:
        body = await call.body(_EDIT)
        prompt = UserInput(
            content=checks.content(body.content),
            created_by=call.caller.user_id,
            model_config_id=await chosen(self._doors.models, body),
            reasoning_effort=body.reasoning_effort,
        )
        command = EditQueued(id=call.queue_id, prompt=prompt)
        outcome = await run_operation(self._doors, call.caller, call.chat_id, command)
        seen = _rewritten(outcome) or _find(await self._load(call), call.queue_id)
        if seen is None:
            raise QueuedMessageGone("The message has left the queue, in its new words.")
        return reply(public_queued(call.chat_id, seen))

    async def move(self, call: Call) -> Reply:
        body = await call.body(_MOVE)
        before = None if body.before is None else QueueId(body.before)
        command = MoveQueued(id=call.queue_id, before=before)
        await run_operation(self._doors, call.caller, call.chat_id, command)
        return reply(_public(await self._load(call)))

    async def promote(self, call: Call) -> Reply:
        item = call.queue_id
        command = PromoteQueued(id=item)
        outcome = await run_operation(self._doors, call.caller, call.chat_id, command)
        change = outcome.change if isinstance(outcome, AppliedChange) else None
        if change is None or change.promote > 0:
            first = None if change is None else change.after.next_message_id - change.promote
            return reply(appended_result(outcome, None if first is None else MessageId(first)))
        return reply(queued_result(outcome, item, _steering(outcome, item)), 202)

    async def delete(self, call: Call) -> Reply:
        command = DeleteQueued(id=call.queue_id)
        await run_operation(self._doors, call.caller, call.chat_id, command)
        return NOTHING

    async def _load(self, call: Call) -> LoadedChat:
        found = await retry_unavailable(
            self._doors.env.clock,
            lambda: chats.load_for_transition(
                self._doors.pool, call.chat_id, call.caller.user_id, with_queue=True
            ),
        )
        if found is None:
            raise NotFound("There is no such chat.")
        return found


def _public(found: LoadedChat) -> QueueReply:
    return QueueReply(
        queued_messages=tuple(public_queued(found.chat.id, row) for row in in_order(found.queue)),
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
    )


def _steering(outcome: OperationOutcome, item: QueueId) -> PublicQueuedMessage | None:
    row = _find(outcome.loaded, item) if isinstance(outcome, AppliedChange) else None
    if row is None:
        return None
    return public_queued(outcome.chat.id, msgspec.structs.replace(row, steer=True))
