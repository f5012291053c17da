"""Run a caller's command on a chat, build the reply to a message that was sent, and record reads.

Owns what happens before the write: the spend check and the reservation of a slot. An administrator
or a viewer who reads another user's chat, file or workspace by the role is recorded in the audit
log. A read that the owner or a share allows is not.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from chatd.aio import retry_unavailable
from chatd.api.deps import ApiDeps
from chatd.api.request import ApiCaller
from chatd.api.schemas.messages import SentReply
from chatd.domain.access.permissions import is_allowed, needs_audit
from chatd.domain.chat.change import EnqueuedMessage, IdempotencyKey
from chatd.domain.chat.commands import (
    Command,
    CreateChat,
    DeleteTree,
    InterruptTree,
    MessageCommand,
    SendMessage,
    StartingCommand,
    UpdateChat,
    UserCommand,
    command_permission,
)
from chatd.domain.chat.messages import (
    PublicMessage,
    PublicQueuedMessage,
    QueuedMessage,
    public_message,
    public_queued,
)
from chatd.domain.chat.row import Chat
from chatd.domain.chat.transitions import NO_SLOTS, ReservedSlots
from chatd.domain.chat.user_transitions import create
from chatd.domain.errors import NotFound, UsageLimit
from chatd.domain.files import StoredFile
from chatd.domain.ids import ChatId, MessageId, QueueId, UserId
from chatd.store import files
from chatd.store.account import audit
from chatd.store.chat import chats
from chatd.store.chat.operation import AppliedChange, Operation, OperationOutcome, find_replay
from chatd.store.idempotency import RecordedRequest

REPLAYED: Final = {"idempotency-replayed": "true"}


async def create_chat(
    deps: ApiDeps, caller: ApiCaller, command: CreateChat, request: IdempotencyKey | None = None
) -> OperationOutcome:
    """Raises UsageLimit, Conflict, and Unavailable when the time is over."""
    row = None if deps.budget is None else create(command, None).after
    replay = await _check_spend(deps, caller, row, request)
    if replay is not None:
        return replay
    with deps.reserve_slot(root=command.parent_chat_id is None) as worker:
        slots = ReservedSlots(root=worker, child=worker)
        operation = Operation(
            chat_id=command.id,
            command=command,
            actor=caller.actor,
            change_id=deps.env.new_change_id(),
            slots=slots,
            request=request,
        )
        return await retry_unavailable(deps.env.clock, deps.transactor.start(operation).attempt)


async def run_operation(
    deps: ApiDeps,
    caller: ApiCaller,
    chat_id: ChatId,
    command: UserCommand | UpdateChat | InterruptTree | DeleteTree,
    request: IdempotencyKey | None = None,
) -> OperationOutcome:
    """Raises what the command's transition raises, NotFound for a chat that the caller may not
    read, Forbidden for one that the caller may not change, UsageLimit, and Unavailable when the
    time is over."""
    known, actor, permission = deps.known(chat_id), caller.actor, command_permission(command)
    is_usable = known is not None and is_allowed(actor, permission, known.owner_id)
    if isinstance(command, StartingCommand) and not is_usable:
        # The row says which kind of slot to reserve. The transactor decides from it, so this is
        # not one more read.
        known = await retry_unavailable(
            deps.env.clock, lambda: chats.get_for_command(deps.pool, actor, chat_id, permission)
        )
    if isinstance(command, SendMessage | MessageCommand):
        replay = await _check_spend(deps, caller, known, request)
        if replay is not None:
            return replay
    with _reserved(deps, command, known) as slots:
        operation = Operation(
            chat_id=chat_id,
            command=command,
            actor=caller.actor,
            change_id=deps.env.new_change_id(),
            slots=slots,
            request=request,
            known=known,
        )
        return await retry_unavailable(deps.env.clock, deps.transactor.start(operation).attempt)


async def _check_spend(
    deps: ApiDeps, caller: ApiCaller, row: Chat | None, request: IdempotencyKey | None
) -> AppliedChange | None:
    """Raises UsageLimit. The engine checks the limit again before every model call; this check
    lets the user know at once, before anything is written. A request that was granted before the
    limit was reached gets its first reply, which is returned. Without a row there is nothing to
    check: the operation fails with NotFound."""
    if deps.budget is None or row is None:
        return None
    reason = await deps.budget.check(row)
    if reason is None:
        return None
    replay = await retry_unavailable(
        deps.env.clock, lambda: find_replay(deps.pool, caller.actor, request)
    )
    if replay is None:
        raise UsageLimit(
            reason.message,
            spent_micros=reason.spent_micros,
            limit_micros=reason.limit_micros,
            resets_at=reason.resets_at,
        )
    return replay


@contextmanager
def _reserved(deps: ApiDeps, command: Command, known: Chat | None) -> Generator[ReservedSlots]:
    """A slot of the chat's kind, held until the write has ended. None without a row: the operation
    fails with NotFound."""
    if known is None or not isinstance(command, StartingCommand):
        yield NO_SLOTS
        return
    with deps.reserve_slot(root=known.is_root) as worker:
        yield ReservedSlots(root=worker, child=worker)


# Replies to a message that was sent, edited or promoted. The applied change says what happened to
# it. The rows are read again only after a lost reply of the database or a repeated request: other
# operations may have written since.


async def send_result(deps: ApiDeps, caller: ApiCaller, outcome: OperationOutcome) -> SentReply:
    change = outcome.change if isinstance(outcome, AppliedChange) else None
    if change is None or not change.enqueue:
        return appended_result(outcome)
    item, chat = change.enqueue[-1], outcome.chat
    if isinstance(outcome, AppliedChange) and outcome.replayed:
        loaded = await retry_unavailable(
            deps.env.clock,
            lambda: chats.load_for_transition(
                deps.pool, caller.actor, chat.id, "chats.write", with_queue=True
            ),
        )
        queued = None if loaded is None else _find(chat.id, loaded.queue, item.id)
    else:
        queued = _enqueued(chat, item)
    return queued_result(outcome, item.id, queued)


def queued_result(
    outcome: OperationOutcome, item: QueueId, queued: PublicQueuedMessage | None
) -> SentReply:
    """The message is in the queue."""
    return SentReply(
        queued=True,
        queued_message=queued,
        queue_id=item,
        messages=_messages(outcome),
        deleted_message_ids=_deleted(outcome),
        chat_id=outcome.chat.id,
        version=outcome.chat.snapshot_version,
    )


def appended_result(outcome: OperationOutcome, message_id: MessageId | None = None) -> SentReply:
    """The message is in history: `message_id`, or else the last one that was appended."""
    messages = _messages(outcome)
    change = outcome.change if isinstance(outcome, AppliedChange) else None
    if message_id is None and change is not None and change.messages:
        message_id = change.messages[-1].id
    return SentReply(
        queued=False,
        message=next((message for message in messages if message.id == message_id), None),
        message_id=message_id,
        messages=messages,
        deleted_message_ids=_deleted(outcome),
        chat_id=outcome.chat.id,
        version=outcome.chat.snapshot_version,
    )


async def replayed_result(
    deps: ApiDeps, caller: ApiCaller, chat: Chat, record: RecordedRequest
) -> SentReply:
    """The reply to a repeated request: as the first one, with the rows as they are now."""
    loaded = await retry_unavailable(
        deps.env.clock,
        lambda: chats.load_for_transition(
            deps.pool,
            caller.actor,
            chat.id,
            "chats.write",
            with_queue=True,
            message_id=record.message_id,
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


def _find(
    chat_id: ChatId, queue: tuple[QueuedMessage, ...], item: QueueId | None
) -> PublicQueuedMessage | None:
    return next((public_queued(chat_id, row) for row in queue if row.id == item), None)


def _enqueued(chat: Chat, item: EnqueuedMessage) -> PublicQueuedMessage:
    """To enqueue a message touches the chat: both have the same time."""
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
            mode=item.prompt.mode,
        ),
    )


def _messages(outcome: OperationOutcome) -> tuple[PublicMessage, ...]:
    rows = outcome.messages if isinstance(outcome, AppliedChange) else ()
    seen = (public_message(outcome.chat.id, row) for row in rows)
    return tuple(message for message in seen if message is not None)


def _deleted(outcome: OperationOutcome) -> tuple[MessageId, ...]:
    return outcome.deleted_ids if isinstance(outcome, AppliedChange) else ()


async def audit_read(deps: ApiDeps, caller: ApiCaller, chat: Chat) -> None:
    """Before the content is sent: a read that cannot be recorded fails. Once for each stream. An
    owner costs no statement."""
    if not needs_audit(caller.actor, chat.owner_id):
        return
    by_share = replace(caller.actor, role="member")
    if await deps.read(chats.get, by_share, chat.id) is not None:
        return
    await _record(deps, caller, "chat", chat.id, chat.owner_id)


async def audit_file_read(deps: ApiDeps, caller: ApiCaller, file: StoredFile) -> None:
    """Before the content is sent. An owner costs no statement."""
    if not needs_audit(caller.actor, file.owner_id):
        return
    by_share = replace(caller.actor, role="member")
    try:
        await deps.read(files.get, file.id, by_share)
    except NotFound:
        await _record(deps, caller, "file", file.id, file.owner_id)


async def audit_workspace_read(deps: ApiDeps, caller: ApiCaller, chat: Chat) -> None:
    """Before files of the chat's workspace are sent. No share allows that, only the role."""
    if needs_audit(caller.actor, chat.owner_id):
        await _record(deps, caller, "workspace", chat.workspace_id or chat.id, chat.owner_id)


async def _record(
    deps: ApiDeps, caller: ApiCaller, kind: str, object_id: object, owner_id: UserId
) -> None:
    await deps.retry(
        lambda: audit.record(
            deps.pool,
            caller.actor,
            action=f"{kind}.read",
            object_type=kind,
            object_id=object_id,
            detail={"owner_id": str(owner_id)},
        )
    )
