"""Server-sent events: of one chat, and of all chats of a person. Plain ASGI, for speed.

Everything that can be refused is refused before the stream begins, as any other request.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from chatd.aio.backoff import retry_unavailable
from chatd.api.auth import own
from chatd.api.call import Call, Send, StreamRoute, response_body, response_start
from chatd.api.doors import Doors
from chatd.api.reading import Receive
from chatd.api.streams import End, Stream, Streams
from chatd.api.wire import MAX_INT64, AfterQuery
from chatd.domain.chat.events import Event
from chatd.domain.chat.public_chat import ChatListEvent, ChatListReady
from chatd.domain.errors import InvalidInput
from chatd.stream.frames import PING, Frame, encode_sse

HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    # Proxies that collect an answer before they hand it on would make a stream useless.
    "x-accel-buffering": "no",
}
GREETING: Final = b"retry: 1000\n\n"

Next = Callable[[], Awaitable[bytes]]


class Events:
    def __init__(self, doors: Doors, streams: Streams) -> None:
        self._doors = doors
        self._streams = streams

    def routes(self) -> tuple[StreamRoute, ...]:
        return (
            StreamRoute(
                path="/chats/{chat_id}/events",
                name="chat_events",
                summary="Follow a chat",
                serve=self.of_chat,
                events=Event,
                query=AfterQuery,
                resumable=True,
            ),
            StreamRoute(
                path="/events",
                name="events",
                summary="Follow all my chats",
                serve=self.of_user,
                events=ChatListReady | ChatListEvent,
            ),
        )

    async def of_chat(self, call: Call, send: Send) -> None:
        caller, chat_id = call.caller, call.chat_id
        after = last_event_id(call, call.query(AfterQuery).after)
        clock, feeds = self._doors.env.clock, self._doors.feeds
        async with AsyncExitStack() as held:
            stream = held.enter_context(self._streams.open(caller, "sse", send))
            viewer = await retry_unavailable(
                clock, lambda: held.enter_async_context(feeds.open_viewer(chat_id, after))
            )
            # Only now, so that a crowd costs no more reads than what it has come for.
            own(caller, feeds.known(chat_id))
            await serve_events(stream, call.receive, _written(viewer.next))

    async def of_user(self, call: Call, send: Send) -> None:
        caller = call.caller
        with (
            self._streams.open(caller, "sse", send) as stream,
            self._doors.watches.watch(caller.user_id) as watcher,
        ):
            await serve_events(stream, call.receive, _written(watcher.next))


def _written(next_frame: Callable[[], Awaitable[Frame]]) -> Next:
    async def written() -> bytes:
        return encode_sse(await next_frame())

    return written


async def serve_events(stream: Stream, receive: Receive, next_piece: Next) -> None:
    """Until either side leaves or somebody ends the stream."""

    async def pump() -> None:
        while True:
            await stream.write(response_body(await next_piece(), more=True))

    async def listen() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    await stream.write(response_start(200, HEADERS))
    await stream.write(response_body(GREETING, more=True))
    why = await stream.run(pump, listen, lambda: stream.watch(response_body(PING, more=True)))
    await stream.farewell(response_body(_farewell(why)))


def _farewell(why: End) -> bytes:
    """Named, so that it is not taken for an event of the chat."""
    said = msgspec.json.encode({"code": why.code, "message": why.message})
    return b"event: end\ndata: " + said + b"\n\n"


def last_event_id(call: Call, otherwise: int | None) -> int | None:
    """A browser that reconnects keeps the query and adds the header: the header is newer."""
    last = call.header("last-event-id")
    if last is None or last == "":
        return otherwise
    if not (last.isascii() and last.isdecimal()) or len(last) > 19 or int(last) > MAX_INT64:
        raise InvalidInput("Last-Event-ID", "must be a version, as the stream has told it")
    return int(last)
