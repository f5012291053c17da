"""The orders that a replica process reads from its input, and their execution: what the API does
for HTTP requests, over lines of JSON."""

import asyncio
import os
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.app.replica import Replica
from chatd.domain.chat.change import IdempotencyKey
from chatd.domain.chat.commands import (
    AnswerCalls,
    CallAnswer,
    CreateChat,
    DeleteQueued,
    EditMessage,
    EditQueued,
    InterruptChat,
    MoveQueued,
    PromoteQueued,
    SendMessage,
    UserCommand,
    WhenBusy,
)
from chatd.domain.chat.messages import UserInput
from chatd.domain.chat.parts import TextPart
from chatd.domain.chat.transitions import ReservedSlots
from chatd.domain.chat_views.events import Cursor
from chatd.domain.errors import ChatdError
from chatd.domain.ids import (
    ChatId,
    MessageId,
    QueueId,
    RequestId,
    ToolCallId,
    UserId,
)
from chatd.store.chat.operation import Operation
from chatd.stream.fanout import encode_sse
from chatd.stream.feed_registry import FeedRegistry
from tests.support.chaos.replica_resources import measure_resources
from tests.support.engine_rig import change_id
from tests.support.factories import HARNESS, member

OWNER = UserId(UUID(int=4711))


OrderKind = Literal[
    "create",
    "send",
    "interrupt",
    "edit",
    "promote_queued",
    "move_queued",
    "delete_queued",
    "edit_queued",
    "approve",
    "watch",
    "unwatch",
    "remains",
]


class Order(Struct, frozen=True, kw_only=True):
    """`target` is a message, a queued message, or the order that opened a stream; `after` is the
    viewer's cursor. The `text` of an approval is the id of the call."""

    id: int
    do: OrderKind
    chat: UUID
    text: str = ""
    key: UUID | None = None
    when_busy: WhenBusy = "queue"
    target: int = 0
    after: str | None = None


class OrderReply(Struct, frozen=True, kw_only=True):
    """`state` is the chat's state, or the resources as JSON."""

    reply: int
    state: str | None = None
    error: str | None = None


class StreamFrame(Struct, frozen=True, kw_only=True):
    """A frame of the stream that this order opened, or why the stream ended."""

    frame: int
    sse: str | None = None
    ended: str | None = None


def write_line(line: object) -> None:
    """Write the whole line, even if a signal interrupts the write."""
    left = memoryview(msgspec.json.encode(line) + b"\n")
    while left:
        left = left[os.write(1, left) :]


class OrderExecutor:
    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def execute(self, order: Order) -> OrderReply:
        try:
            state = await self._do(order)
        except ChatdError as error:
            return OrderReply(reply=order.id, error=error.code)
        return OrderReply(reply=order.id, state=state)

    async def _do(self, order: Order) -> str:
        if order.do == "remains":
            return msgspec.json.encode(measure_resources(self._replica)).decode()
        with self._replica.worker.reserve_slot(root=True) as free:
            if order.do == "create":
                command = CreateChat(
                    id=ChatId(order.chat), owner_id=OWNER, title="chaos", prompt=prompt(order)
                )
                request = key_of(order, OWNER)
            else:
                command, request = command_of(order), key_of(order, order.chat)
            outcome = await self._replica.transactor.run(
                Operation(
                    chat_id=ChatId(order.chat),
                    command=command,
                    actor=member(OWNER),
                    change_id=change_id(),
                    slots=ReservedSlots(root=free),
                    request=request,
                )
            )
            return outcome.chat.state


def command_of(order: Order) -> UserCommand:
    item = QueueId(order.target)
    match order.do:
        case "send":
            return SendMessage(prompt=prompt(order), when_busy=order.when_busy)
        case "approve":
            answer = CallAnswer(tool_call_id=ToolCallId(order.text), decision="approve")
            return AnswerCalls(answered_by=OWNER, answers=(answer,))
        case "interrupt":
            return InterruptChat()
        case "edit":
            return EditMessage(message_id=MessageId(order.target), prompt=prompt(order))
        case "promote_queued":
            return PromoteQueued(id=item)
        case "move_queued":
            return MoveQueued(id=item, before=None)
        case "delete_queued":
            return DeleteQueued(id=item)
        case "edit_queued":
            return EditQueued(id=item, prompt=prompt(order))
        case "create" | "watch" | "unwatch" | "remains":
            raise AssertionError(order.do)


class OrderedViewers:
    """The streams that this replica's orders have opened."""

    def __init__(self, feeds: FeedRegistry) -> None:
        self._feeds = feeds
        self._watching: dict[int, asyncio.Task[None]] = {}

    def start(self, order: Order) -> None:
        task = asyncio.get_running_loop().create_task(self._watch(order))
        self._watching[order.id] = task
        task.add_done_callback(lambda _task: self._watching.pop(order.id, None))

    def stop(self, order: Order) -> None:
        if (task := self._watching.get(order.target)) is not None:
            task.cancel()

    def close(self) -> None:
        for task in self._watching.values():
            task.cancel()

    async def _watch(self, order: Order) -> None:
        try:
            after = None if order.after is None else Cursor.parse(order.after)
            async with self._feeds.open_viewer(HARNESS, ChatId(order.chat), after) as viewer:
                async for frame in viewer.frames():
                    write_line(StreamFrame(frame=order.id, sse=encode_sse(frame).decode()))
        except ChatdError as error:
            write_line(StreamFrame(frame=order.id, ended=error.code))


def prompt(order: Order) -> UserInput:
    return UserInput(content=(TextPart(text=order.text),), created_by=OWNER)


def key_of(order: Order, scope: UUID) -> IdempotencyKey | None:
    if order.key is None:
        return None
    return IdempotencyKey(
        scope=scope, id=RequestId(order.key), op=order.do, fingerprint=f"{order.do} {order.text}"
    )
