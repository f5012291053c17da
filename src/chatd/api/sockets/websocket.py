"""The WebSocket: one connection that follows several topics.

The client sends one object per frame: `subscribe` and `unsubscribe` with a `topic` (`chats`, or
`chat:` and an id), or `ping`. The server sends arrays of events. Events of a chat contain its id;
events about subscriptions are defined here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Annotated, Final

import msgspec
from msgspec import Struct

from chatd.api.deps import ApiDeps
from chatd.api.errors import error_reply
from chatd.api.operations import audit_read
from chatd.api.request import ApiCaller, Message, Receive, Send, read_cursor, read_json, read_uuid
from chatd.api.schemas.messages import CursorText, Version
from chatd.api.streams import ClientStream, StreamRegistry, end_for_error
from chatd.domain.description import STREAM_CURSOR, describe
from chatd.domain.errors import ChatdError, InvalidInput
from chatd.domain.ids import ChatId
from chatd.stream.fanout import Frame, Lagged, encode_json_array

CHAT_LIST_TOPIC: Final = "chats"
CHAT_TOPIC_PREFIX: Final = "chat:"

NextFrame = Callable[[], Awaitable[Frame]]


class _Tagged(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


class Subscribe(_Tagged, frozen=True, kw_only=True, tag="subscribe"):
    """Send the events of a topic, from now on or from a cursor."""

    topic: Annotated[
        str,
        describe(
            "`chats` for the chat list, or `chat:` and a chat's id.",
            "chat:0193c5a0-7d1e-7b2f-9a64-2f4e9b7c6d12",
        ),
    ]
    after: Annotated[
        Version | CursorText | None,
        describe(
            "The last cursor of the chat that the client has, or the last version alone.",
            STREAM_CURSOR,
        ),
    ] = None


class Unsubscribe(_Tagged, frozen=True, kw_only=True, tag="unsubscribe"):
    """Send no more events of a topic."""

    topic: Annotated[str, describe("The topic.", "chats")]


class Ping(_Tagged, frozen=True, kw_only=True, tag="ping"):
    """Ask for a `pong`."""


class Subscribed(_Tagged, frozen=True, kw_only=True, tag="subscribed"):
    """Events of the topic follow."""

    topic: Annotated[str, describe("The topic.", "chats")]


class Unsubscribed(_Tagged, frozen=True, kw_only=True, tag="unsubscribed"):
    """No more events of the topic follow. It has a code if the server ended the subscription."""

    topic: Annotated[str, describe("The topic.", "chats")]
    code: Annotated[
        str | None, describe("Why the server ended the subscription.", "unavailable")
    ] = None
    message: Annotated[
        str | None,
        describe(
            "The reason, for people.", "The database is not reachable; connect again in a moment."
        ),
    ] = None


class SubscribeRefused(_Tagged, frozen=True, kw_only=True, tag="refused"):
    """A frame of the client was refused; the connection stays open."""

    code: Annotated[str, describe("Why, for programs.", "not_found")]
    message: Annotated[str, describe("Why, for people.", "There is no such chat.")]
    topic: Annotated[
        str | None,
        describe("The topic, if the frame had one.", "chat:0193c5a0-7d1e-7b2f-9a64-2f4e9b7c6d12"),
    ] = None


class Pong(_Tagged, frozen=True, kw_only=True, tag="pong"):
    """The answer to `ping`."""


ClientFrame = Subscribe | Unsubscribe | Ping
ServerFrame = Subscribed | Unsubscribed | SubscribeRefused | Pong
_DECODER: Final = msgspec.json.Decoder(ClientFrame)
_ENCODER: Final = msgspec.json.Encoder()


class WebSockets:
    def __init__(self, deps: ApiDeps, streams: StreamRegistry) -> None:
        self._deps = deps
        self._streams = streams

    async def serve(self, receive: Receive, send: Send, *, caller: ApiCaller) -> None:
        with self._streams.open(caller, "websocket", send) as stream:
            await receive()
            await stream.write({"type": "websocket.accept"})
            socket = _Socket(self._deps, caller, stream, receive)
            end = await stream.run(socket.run, stream.watch)
            close = {"code": end.close_code, "reason": end.code}
            await stream.send_end({"type": "websocket.close", **close})


class _Socket:
    def __init__(
        self, deps: ApiDeps, caller: ApiCaller, stream: ClientStream, receive: Receive
    ) -> None:
        self._deps = deps
        self._caller = caller
        self._stream = stream
        self._receive = receive
        self._topics: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while (event := await self._receive())["type"] == "websocket.receive":
                await self._handle(group, event)
            for task in self._topics.values():
                task.cancel()

    async def _handle(self, group: asyncio.TaskGroup, event: Message) -> None:
        try:
            frame = _read_frame(event)
        except ChatdError as error:
            await self._refuse(error)
            return
        match frame:
            case Subscribe():
                await self._subscribe(group, frame)
            case Unsubscribe():
                await self._unsubscribe(frame.topic)
            case Ping():
                await self._send(Pong())

    async def _subscribe(self, group: asyncio.TaskGroup, frame: Subscribe) -> None:
        topic, limit = frame.topic, self._deps.limits.topics_per_socket
        if topic in self._topics:
            text = "This socket is already subscribed to the topic."
            await self._send(SubscribeRefused(code="already_subscribed", message=text, topic=topic))
        elif len(self._topics) >= limit:
            text = f"A socket can have {limit} topics. Unsubscribe from one first."
            await self._send(SubscribeRefused(code="too_many_topics", message=text, topic=topic))
        else:
            self._topics[topic] = group.create_task(self._follow(frame), name="topic")

    async def _unsubscribe(self, topic: str) -> None:
        """Waits for the topic's task, so that no event follows the confirmation."""
        task = self._topics.get(topic)
        if task is None:
            text = "This socket is not subscribed to the topic."
            await self._send(SubscribeRefused(code="not_subscribed", message=text, topic=topic))
            return
        task.cancel()
        await asyncio.wait((task,))
        # A task that is cancelled before it starts does not remove itself.
        self._topics.pop(topic, None)
        await self._send(Unsubscribed(topic=topic))

    async def _follow(self, frame: Subscribe) -> None:
        """Send the events of one topic until it is cancelled or fails."""
        is_subscribed = False
        try:
            async with AsyncExitStack() as held:
                next_frame = await self._open(held, frame)
                await self._send(Subscribed(topic=frame.topic))
                is_subscribed = True
                while True:
                    text = encode_json_array(await next_frame()).decode()
                    await self._stream.write({"type": "websocket.send", "text": text})
        except Lagged as error:
            # All topics share one connection: a client too slow for one is too slow for all.
            self._stream.end(end_for_error(error))
        except ChatdError as error:
            # Remove the topic before the client is notified: it may subscribe again at once.
            self._topics.pop(frame.topic, None)
            if is_subscribed:
                end = end_for_error(error)
                await self._send(
                    Unsubscribed(topic=frame.topic, code=end.code, message=end.message)
                )
            else:
                await self._refuse(error, frame.topic)
        except asyncio.CancelledError:
            self._topics.pop(frame.topic, None)
            raise

    async def _open(self, held: AsyncExitStack, frame: Subscribe) -> NextFrame:
        deps, feeds = self._deps, self._deps.feeds
        if frame.topic == CHAT_LIST_TOPIC:
            caller = self._caller
            return held.enter_context(deps.chat_lists.watch(caller.user_id, caller.username)).next
        chat_id = _chat_id(frame.topic)
        after = None if frame.after is None else read_cursor("after", str(frame.after))
        access = self._stream.access
        read = held.enter_context(access.read(chat_id))
        viewer = await deps.retry(
            lambda: held.enter_async_context(feeds.open_viewer(access.actor, chat_id, after))
        )
        read.lost = viewer.revoke
        viewer.write_now = lambda frame: self._stream.write_now(encode_json_array(frame))
        if (chat := feeds.known(chat_id)) is not None:
            access.on_read(read, chat)
            await audit_read(deps, self._caller, chat)
        return viewer.next

    async def _refuse(self, error: ChatdError, topic: str | None = None) -> None:
        body = error_reply(error).body
        await self._send(SubscribeRefused(code=body.code, message=body.message, topic=topic))

    async def _send(self, event: Struct) -> None:
        text = _ENCODER.encode((event,)).decode()
        await self._stream.write({"type": "websocket.send", "text": text})


def _read_frame(event: Message) -> ClientFrame:
    text = event.get("text")
    if not isinstance(text, str):
        raise InvalidInput("message", "must be text")
    return read_json(_DECODER, text.encode())


def _chat_id(topic: str) -> ChatId:
    if not topic.startswith(CHAT_TOPIC_PREFIX):
        raise InvalidInput("topic", "must be chats, or chat: and an id")
    return ChatId(read_uuid("topic", topic.removeprefix(CHAT_TOPIC_PREFIX)))
