"""The WebSocket: one connection for a whole page, which subscribes to what it shows.

A client sends one object at a time: `subscribe` and `unsubscribe` with a `topic`, which is
`chats` or `chat:` and an id, and `ping`. It gets arrays of events. Those of a chat name it; those
about the subscriptions themselves are here. Plain ASGI, for speed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

import msgspec
from msgspec import Struct

from chatd.aio.backoff import retry_unavailable
from chatd.api.auth import Caller, own
from chatd.api.call import Message, Send
from chatd.api.doors import Doors
from chatd.api.errors import refusal_of
from chatd.api.reading import Receive, read_json, read_uuid
from chatd.api.streams import Stream, Streams, end_of
from chatd.api.wire import Version
from chatd.domain.errors import ChatdError, InvalidInput
from chatd.domain.ids import ChatId
from chatd.stream.fanout import Lagged
from chatd.stream.frames import Frame, encode_json_array

CHATS: Final = "chats"
CHAT: Final = "chat:"

Next = Callable[[], Awaitable[Frame]]


class _Tagged(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


class Subscribe(_Tagged, frozen=True, kw_only=True, tag="subscribe"):
    """`after` is the last version of the chat that the client has."""

    topic: str
    after: Version | None = None


class Unsubscribe(_Tagged, frozen=True, kw_only=True, tag="unsubscribe"):
    topic: str


class Ping(_Tagged, frozen=True, kw_only=True, tag="ping"):
    pass


class Subscribed(_Tagged, frozen=True, kw_only=True, tag="subscribed"):
    """Events of the topic follow."""

    topic: str


class Unsubscribed(_Tagged, frozen=True, kw_only=True, tag="unsubscribed"):
    """No more events of the topic follow. With a code: not by the client's wish."""

    topic: str
    code: str | None = None
    message: str | None = None


class Refused(_Tagged, frozen=True, kw_only=True, tag="refused"):
    code: str
    message: str
    topic: str | None = None


class Pong(_Tagged, frozen=True, kw_only=True, tag="pong"):
    pass


Said = Subscribe | Unsubscribe | Ping
_SAID: Final = msgspec.json.Decoder(Said)
_ENCODER: Final = msgspec.json.Encoder()


class Sockets:
    def __init__(self, doors: Doors, streams: Streams) -> None:
        self._doors = doors
        self._streams = streams

    async def serve(self, receive: Receive, send: Send, *, caller: Caller) -> None:
        with self._streams.open(caller, "websocket", send) as stream:
            await receive()
            await stream.write({"type": "websocket.accept"})
            socket = _Socket(self._doors, caller, stream, receive)
            why = await stream.run(socket.run, stream.watch)
            close = {"code": why.close_code, "reason": why.code}
            await stream.farewell({"type": "websocket.close", **close})


class _Socket:
    def __init__(self, doors: Doors, caller: Caller, stream: Stream, receive: Receive) -> None:
        self._doors = doors
        self._caller = caller
        self._stream = stream
        self._receive = receive
        self._topics: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while (event := await self._receive())["type"] == "websocket.receive":
                await self._obey(group, event)
            for topic in self._topics.values():
                topic.cancel()

    async def _obey(self, group: asyncio.TaskGroup, event: Message) -> None:
        try:
            said = _read(event)
        except ChatdError as error:
            await self._refuse(error)
            return
        match said:
            case Subscribe():
                await self._subscribe(group, said)
            case Unsubscribe():
                await self._unsubscribe(said.topic)
            case Ping():
                await self._say(Pong())

    async def _subscribe(self, group: asyncio.TaskGroup, said: Subscribe) -> None:
        topic, most = said.topic, self._doors.limits.topics_per_socket
        if topic in self._topics:
            text = "This socket has that topic already."
            await self._say(Refused(code="already_subscribed", message=text, topic=topic))
        elif len(self._topics) >= most:
            text = f"At most {most} topics on one socket."
            await self._say(Refused(code="too_many_topics", message=text, topic=topic))
        else:
            self._topics[topic] = group.create_task(self._follow(said), name="topic")

    async def _unsubscribe(self, topic: str) -> None:
        """Waits for the last event of it: after the answer there are none."""
        task = self._topics.get(topic)
        if task is None:
            text = "This socket does not have that topic."
            await self._say(Refused(code="not_subscribed", message=text, topic=topic))
            return
        task.cancel()
        await asyncio.wait((task,))
        # One that has not begun yet when it is cancelled does not get to do this itself.
        self._topics.pop(topic, None)
        await self._say(Unsubscribed(topic=topic))

    async def _follow(self, said: Subscribe) -> None:
        """One topic, until it is cancelled or cannot go on."""
        told = False
        try:
            async with AsyncExitStack() as held:
                next_frame = await self._open(held, said)
                await self._say(Subscribed(topic=said.topic))
                told = True
                while True:
                    text = encode_json_array(await next_frame()).decode()
                    await self._stream.write({"type": "websocket.send", "text": text})
        except Lagged as error:
            # Whoever cannot keep up with one topic cannot keep up with any.
            self._stream.end(end_of(error))
        except ChatdError as error:
            # Free before the client hears of it: it may subscribe again at once.
            self._topics.pop(said.topic, None)
            if told:
                await self._end(said.topic, error)
            else:
                await self._refuse(error, said.topic)
        except asyncio.CancelledError:
            self._topics.pop(said.topic, None)
            raise

    async def _open(self, held: AsyncExitStack, said: Subscribe) -> Next:
        doors, feeds = self._doors, self._doors.feeds
        if said.topic == CHATS:
            return held.enter_context(doors.watches.watch(self._caller.user_id)).next
        chat_id = _chat_in(said.topic)
        viewer = await retry_unavailable(
            doors.env.clock,
            lambda: held.enter_async_context(feeds.open_viewer(chat_id, said.after)),
        )
        # Only now, so that a crowd costs no more reads than what it has come for.
        own(self._caller, feeds.known(chat_id))
        return viewer.next

    async def _end(self, topic: str, error: ChatdError) -> None:
        why = end_of(error)
        await self._say(Unsubscribed(topic=topic, code=why.code, message=why.message))

    async def _refuse(self, error: ChatdError, topic: str | None = None) -> None:
        body = refusal_of(error).body
        await self._say(Refused(code=body.code, message=body.message, topic=topic))

    async def _say(self, event: Struct) -> None:
        text = _ENCODER.encode((event,)).decode()
        await self._stream.write({"type": "websocket.send", "text": text})


def _read(event: Message) -> Said:
    text = event.get("text")
    if not isinstance(text, str):
        raise InvalidInput("message", "must be text")
    return read_json(_SAID, text.encode())


def _chat_in(topic: str) -> ChatId:
    if not topic.startswith(CHAT):
        raise InvalidInput("topic", "must be chats, or chat: and an id")
    return ChatId(read_uuid("topic", topic.removeprefix(CHAT)))
