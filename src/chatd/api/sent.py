"""What became of a message that was sent, edited or promoted, as its sender is told.

Known from the change itself. Only where a reply of the database was lost, or the request is a
repeated one, are the rows read again: others may have moved the message on by then.
"""

from typing import Final

from chatd.aio.backoff import retry_unavailable
from chatd.api.doors import Doors
from chatd.api.moves import Made
from chatd.api.wire import SentReply
from chatd.domain.chat.change import EnqueuedMessage
from chatd.domain.chat.events import (
    PublicMessage,
    PublicQueuedMessage,
    public_message,
    public_queued,
)
from chatd.domain.chat.messages import QueuedMessage
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, MessageId, QueueId
from chatd.store.chat import chats
from chatd.store.chat.idempotency import RecordedRequest
from chatd.store.chat.transactor import AppliedChange

REPLAYED: Final = {"idempotency-replayed": "true"}


async def sent(doors: Doors, made: Made) -> SentReply:
    if made.change is None or not made.change.enqueue:
        return appended(made)
    item = made.change.enqueue[-1]
    replayed = isinstance(made.outcome, AppliedChange) and made.outcome.replayed
    found = (
        await _read_queued(doors, made.chat.id, item.id) if replayed else _enqueued(made.chat, item)
    )
    return waiting(made, item.id, found)


def waiting(made: Made, item: QueueId, queued: PublicQueuedMessage | None) -> SentReply:
    """The message is in the queue."""
    return SentReply(
        queued=True,
        queued_message=queued,
        queue_id=item,
        messages=_messages(made),
        deleted_message_ids=_deleted(made),
        chat_id=made.chat.id,
        version=made.chat.snapshot_version,
    )


def appended(made: Made, message_id: MessageId | None = None) -> SentReply:
    """The message is in history: the last that was appended, unless it is named."""
    messages = _messages(made)
    if message_id is None and made.change is not None and made.change.messages:
        message_id = made.change.messages[-1].id
    return SentReply(
        queued=False,
        message=next((message for message in messages if message.id == message_id), None),
        message_id=message_id,
        messages=messages,
        deleted_message_ids=_deleted(made),
        chat_id=made.chat.id,
        version=made.chat.snapshot_version,
    )


async def recorded(doors: Doors, chat: Chat, record: RecordedRequest) -> SentReply:
    """The answer to a request that came again: as the first time, but for what has changed."""
    loaded = await retry_unavailable(
        doors.env.clock,
        lambda: chats.load_for_transition(
            doors.pool, chat.id, with_queue=True, message_id=record.message_id
        ),
    )
    row = None if loaded is None or loaded.target is None else loaded.target
    message = None if row is None or row.deleted else public_message(chat.id, row)
    queue = () if loaded is None else loaded.queue
    return SentReply(
        queued=record.queue_id is not None,
        message=message,
        message_id=record.message_id,
        queued_message=_find(chat.id, queue, record.queue_id),
        queue_id=record.queue_id,
        messages=() if message is None else (message,),
        deleted_message_ids=(),
        chat_id=chat.id,
        version=record.version,
    )


async def _read_queued(doors: Doors, chat_id: ChatId, item: QueueId) -> PublicQueuedMessage | None:
    loaded = await retry_unavailable(
        doors.env.clock, lambda: chats.load_for_transition(doors.pool, chat_id, with_queue=True)
    )
    return None if loaded is None else _find(chat_id, loaded.queue, item)


def _find(
    chat_id: ChatId, queue: tuple[QueuedMessage, ...], item: QueueId | None
) -> PublicQueuedMessage | None:
    return next((public_queued(chat_id, row) for row in queue if row.id == item), None)


def _enqueued(chat: Chat, item: EnqueuedMessage) -> PublicQueuedMessage:
    """Whatever is put into the queue touches the chat: it has the same time."""
    return public_queued(
        chat.id,
        QueuedMessage(
            id=item.id,
            position=item.id,
            steer=item.steer,
            created_at=chat.updated_at,
            content=item.prompt.content,
            created_by=item.prompt.created_by,
            model_config_id=item.prompt.model_config_id,
            reasoning_effort=item.prompt.reasoning_effort,
        ),
    )


def _messages(made: Made) -> tuple[PublicMessage, ...]:
    rows = made.outcome.messages if isinstance(made.outcome, AppliedChange) else ()
    seen = (public_message(made.chat.id, row) for row in rows)
    return tuple(message for message in seen if message is not None)


def _deleted(made: Made) -> tuple[MessageId, ...]:
    return made.outcome.deleted_ids if isinstance(made.outcome, AppliedChange) else ()
