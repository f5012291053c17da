"""Transitions of queued messages. They read the whole queue at the row's version."""

from collections.abc import Sequence

import msgspec

from chatd.domain.chat.change import (
    Change,
    MovedQueuedMessage,
    require_allowed,
    require_mode_choice,
)
from chatd.domain.chat.commands import EditQueued, MoveQueued
from chatd.domain.chat.messages import QueuedMessage
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import ARCHIVED_STATES, State, Transition
from chatd.domain.errors import InvalidInput, NotFound, QueuedMessageGone, RequestError
from chatd.domain.ids import QueueId, WorkerId


def sort_queue(queue: Sequence[QueuedMessage]) -> list[QueuedMessage]:
    return sorted(queue, key=lambda item: (not item.steer, item.position))


def edit_queued(chat: Chat, queue: Sequence[QueuedMessage], command: EditQueued) -> Change:
    """*1 -> same. Raises QueuedMessageGone if the message was promoted, with its old text. The
    author stays; so do model, effort and mode unless the edit sets them."""
    item = _find(chat, queue, command.id, Transition.EDIT_QUEUED)
    require_allowed(chat, Transition.EDIT_QUEUED)
    require_mode_choice(chat, command.prompt.mode)
    prompt = msgspec.structs.replace(
        command.prompt,
        created_by=item.created_by,
        model_config_id=command.prompt.model_config_id or item.model_config_id,
        reasoning_effort=command.prompt.reasoning_effort or item.reasoning_effort,
        mode=command.prompt.mode or item.mode,
    )
    return Change.of(chat).edit_queued(item.id, prompt)


def move_queued(chat: Chat, queue: Sequence[QueuedMessage], command: MoveQueued) -> Change | None:
    """*1 -> same. Steering messages stay ahead of the others. None if the order does not change."""
    item = _find(chat, queue, command.id, Transition.MOVE_QUEUED)
    require_allowed(chat, Transition.MOVE_QUEUED)
    peers = [other for other in sort_queue(queue) if other.steer == item.steer]
    rest = [other for other in peers if other.id != item.id]
    rest.insert(_index(chat, queue, rest, item, command.before), item)
    positions = sorted(other.position for other in peers)
    places = tuple(
        MovedQueuedMessage(id=other.id, position=position, steer=other.steer)
        for other, position in zip(rest, positions, strict=True)
        if other.position != position
    )
    if not places:
        return None
    return Change.of(chat).move_queued(places, steering=chat.steer_len)


def _index(
    chat: Chat,
    queue: Sequence[QueuedMessage],
    rest: Sequence[QueuedMessage],
    item: QueuedMessage,
    before: QueueId | None,
) -> int:
    if before is None:
        return len(rest)
    if before == item.id:
        raise InvalidInput("before", "a message cannot be put ahead of itself")
    target = _find(chat, queue, before, Transition.MOVE_QUEUED)
    if target.steer != item.steer:
        raise InvalidInput("before", "steering messages always stand ahead of the others")
    return [other.id for other in rest].index(target.id)


def promote_queued(
    chat: Chat, queue: Sequence[QueuedMessage], item_id: QueueId, worker: WorkerId | None
) -> Change:
    """P1|E1|A1 -> R|P with the message in history. R1|I1, P1 with a step in progress -> I1: the
    partial answer is saved first."""
    found = next((item for item in queue if item.id == item_id), None)
    if found is None and chat.state not in ARCHIVED_STATES:
        raise NotFound("There is no such queued message.")
    state = require_allowed(chat, Transition.PROMOTE_QUEUED)
    assert found is not None  # the table allows no state with an empty queue
    steering = [item for item in sort_queue(queue) if item.steer and item.id != item_id]
    change = Change.of(chat)
    if chat.has_step_in_progress or state is State.I1:
        first = min(item.position for item in queue) - 1
        place = MovedQueuedMessage(id=item_id, position=first, steer=True)
        change = change.move_queued((place,), steering=len(steering) + 1).mark_touched()
        change = change.release_queue()
        return change.interrupt(worker) if chat.has_step_in_progress else change
    joining = (item_id, *(item.id for item in steering))
    return change.promote_named(joining, steering=0).run(worker)


def delete_queued(chat: Chat, queue: Sequence[QueuedMessage], item_id: QueueId) -> Change | None:
    """*1 -> *0|*1. None if the message is not queued."""
    require_allowed(chat, Transition.DELETE_QUEUED)
    found = next((item for item in queue if item.id == item_id), None)
    if found is None:
        return None
    return Change.of(chat).dequeue_message(item_id, steer=found.steer)


def _find(
    chat: Chat, queue: Sequence[QueuedMessage], item_id: QueueId, transition: Transition
) -> QueuedMessage:
    for item in queue:
        if item.id == item_id:
            return item
    if chat.state in ARCHIVED_STATES:
        require_allowed(chat, transition)
    raise _missing_error(chat, item_id)


def _missing_error(chat: Chat, item_id: QueueId) -> RequestError:
    if 0 < item_id < chat.next_queue_id:
        return QueuedMessageGone("The message has already left the queue.")
    return NotFound("There is no such queued message.")
