"""Builders of domain values, with defaults for what a test does not care about.

They also build rows that the domain would never write: the code under test must refuse those.
"""

from datetime import UTC, datetime
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw

from chatd.domain.access.permissions import SystemActor, UserActor
from chatd.domain.chat.messages import Draft, Message, PendingCall, QueuedMessage, Role, UserInput
from chatd.domain.chat.parts import Part, TextPart, ToolCallPart, ToolResultPart
from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, MessageId, QueueId, ToolCallId, UserId, WorkerId
from chatd.store.chat.workers import HeartbeatResult

CHAT = ChatId(UUID(int=1))
OWNER = UserId(UUID(int=2))
WORKER = WorkerId(UUID(int=3))
HARNESS = SystemActor(reason="a test prepares or checks rows")


def member(user_id: UserId = OWNER) -> UserActor:
    return UserActor(user_id=user_id, role="member")


OTHER_WORKER = WorkerId(UUID(int=4))
AT = datetime(2026, 3, 27, 9, 0, tzinfo=UTC)


def chat(**columns: object) -> Chat:
    """An idle chat at version 1, with these columns instead of the defaults."""
    row = Chat(
        id=CHAT,
        owner_id=OWNER,
        root_chat_id=CHAT,
        title="A chat",
        created_at=AT,
        updated_at=AT,
        status="waiting",
        snapshot_version=1,
        history_version=1,
    )
    return msgspec.structs.replace(row, **columns)


def message(message_id: int, role: Role, *parts: Part, **columns: object) -> Message:
    """A committed row. Its revision is its id by default."""
    row = Message(
        id=MessageId(message_id), role=role, content=parts, revision=message_id, created_at=AT
    )
    return msgspec.structs.replace(row, **columns)


def draft(role: Role, *parts: Part, **columns: object) -> Draft:
    return msgspec.structs.replace(Draft(role=role, content=parts), **columns)


def prompt(words: str = "hello", **columns: object) -> UserInput:
    return msgspec.structs.replace(UserInput(content=(text(words),), created_by=OWNER), **columns)


def queued(queue_id: int, words: str = "later", **columns: object) -> QueuedMessage:
    """A plain message in the queue, by default at the position of its id."""
    row = QueuedMessage(
        id=QueueId(queue_id),
        content=(text(words),),
        created_by=OWNER,
        position=queue_id,
        steer=False,
        created_at=AT,
    )
    return msgspec.structs.replace(row, **columns)


def text(words: str = "hello") -> TextPart:
    return TextPart(text=words)


def call(
    call_id: str, name: str = "execute", args: str | None = "{}", **columns: object
) -> ToolCallPart:
    """`args` is JSON text; None leaves them out, as for arguments that were not JSON."""
    part = ToolCallPart(
        tool_call_id=ToolCallId(call_id),
        tool_name=name,
        args=UNSET if args is None else Raw(args.encode()),
    )
    return msgspec.structs.replace(part, **columns)


def result(
    call_id: str, name: str = "execute", output: str = '{"output":"done"}', **columns: object
) -> ToolResultPart:
    part = ToolResultPart(
        tool_call_id=ToolCallId(call_id), tool_name=name, result=Raw(output.encode())
    )
    return msgspec.structs.replace(part, **columns)


def pending(call_id: str, name: str = "execute", **columns: object) -> PendingCall:
    return msgspec.structs.replace(PendingCall(id=ToolCallId(call_id), name=name), **columns)


QUIET_HEARTBEAT = HeartbeatResult(
    dead=frozenset(), orphaned=(), expired=(), unknown=(), lost=(), runnable=False, at=AT
)
"""The result of a heartbeat that found nothing to do."""
