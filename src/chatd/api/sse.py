"""Server-sent events: of a chat, of a user's chat list, of a build's log and of a chat's git state.

A request that cannot be served gets an ordinary error reply, before the stream starts.
"""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import msgspec

from chatd.api.deps import ApiDeps
from chatd.api.error_codes import AGENT_CODES
from chatd.api.operations import audit_read
from chatd.api.request import (
    ApiCaller,
    ApiRequest,
    Receive,
    Scope,
    Send,
    header,
    read_cursor,
    read_query,
    response_body,
    response_start,
)
from chatd.api.route import StreamRoute
from chatd.api.routes.workspace.builds import load_log, require_build, require_workspaces
from chatd.api.routes.workspace.chat_workspaces import require_chat
from chatd.api.schemas.chats import AfterQuery
from chatd.api.schemas.messages import MAX_INT64, StreamEnded
from chatd.api.schemas.workspaces import (
    BuildLogReply,
    BuildReply,
    LogsQuery,
    build_log_reply,
    build_reply,
)
from chatd.api.server import watch_disconnect
from chatd.api.streams import (
    CLIENT_GONE_END,
    NOT_FOUND_END,
    ClientStream,
    StreamEnd,
    StreamRegistry,
)
from chatd.domain.chat_views.events import Cursor, Event
from chatd.domain.chat_views.public_chat import (
    ChatListEvent,
    ChatListReady,
    ChatListRemoved,
    ProjectsChanged,
)
from chatd.domain.deployment.spend import SpendWarningEvent
from chatd.domain.errors import Conflict, InvalidInput
from chatd.domain.workspace.agent_api import AgentRefused, GitChanges
from chatd.domain.workspace.entities import Build
from chatd.store.chat import chats
from chatd.stream.fanout import PING, Frame, encode_sse

LOG_POLL_INTERVAL_S: Final = 0.5
MAX_LOG_FOLLOW_S: Final = 3600.0
"""How long a client may follow a build log; longer than any build takes."""
LOG_PAGE_SIZE: Final = 500
SSE_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    # A proxy that buffers the response would hold the events back.
    "x-accel-buffering": "no",
}
SSE_RETRY_LINE: Final = b"retry: 1000\n\n"
BUILD_ENDED: Final = StreamEnd("build_ended", "The build has ended.", 1000)
FOLLOW_LIMIT_END: Final = StreamEnd(
    "over", "The stream reached its time limit; connect again.", 1012
)

NextEvent = Callable[[], Awaitable[bytes]]


_CHAT_TEXT: Final = (
    "Durable events come in groups that end with `version`, and its `id:` is a cursor. Connect"
    " again with it as `Last-Event-ID`: the stream continues with exactly what changed since."
    " `: ping` comes every 15 seconds without an event."
)


class ChatEventStreams:
    def __init__(self, deps: ApiDeps, streams: StreamRegistry) -> None:
        self._deps = deps
        self._streams = streams

    def routes(self) -> tuple[StreamRoute, ...]:
        return (
            StreamRoute(
                path="/chats/{chat_id}/events",
                permission="chats.read",
                name="chat_events",
                summary="Stream the events of a chat",
                description=_CHAT_TEXT,
                serve=self.serve_chat,
                events=Event,
                query=AfterQuery,
                resumable=True,
            ),
            StreamRoute(
                path="/events",
                permission="chats.read",
                name="events",
                summary="Stream the events of the caller's chat list",
                description=(
                    "Own chats and those that are shared with the caller. List the chats at every"
                    " `ready` event."
                ),
                serve=self.serve_user,
                events=ChatListReady
                | ChatListEvent
                | ChatListRemoved
                | ProjectsChanged
                | SpendWarningEvent,
            ),
        )

    async def serve_chat(self, request: ApiRequest, send: Send) -> None:
        chat_id, feeds = request.chat_id, self._deps.feeds
        after = _last_cursor(request)
        async with AsyncExitStack() as held:
            stream = held.enter_context(self._streams.open(request.caller, "sse", send))
            actor, access = request.caller.actor, stream.access
            read = held.enter_context(access.read(chat_id))
            read.lost = partial(stream.end, NOT_FOUND_END)
            viewer = await self._deps.retry(
                lambda: held.enter_async_context(feeds.open_viewer(actor, chat_id, after))
            )
            if (chat := feeds.known(chat_id)) is not None:
                access.on_read(read, chat)
                await audit_read(self._deps, request.caller, chat)
            viewer.write_now = lambda frame: stream.write_now(encode_sse(frame))
            # The viewer has joined: its first frame is there.
            first = encode_sse(await viewer.next())
            await serve_events(stream, request.receive, _encoded(viewer.next), first)

    async def serve_user(self, request: ApiRequest, send: Send) -> None:
        with (
            self._streams.open(request.caller, "sse", send) as stream,
            self._deps.chat_lists.watch(request.caller.user_id, request.caller.username) as watcher,
        ):
            await serve_events(stream, request.receive, _encoded(watcher.next))


class WorkspaceEventStreams:
    def __init__(self, deps: ApiDeps, streams: StreamRegistry) -> None:
        self._deps = deps
        self._streams = streams

    def routes(self) -> tuple[StreamRoute, ...]:
        return (
            StreamRoute(
                path="/chats/{chat_id}/git",
                permission="chats.read",
                name="chat_git",
                summary="Stream the changes in a chat's git repositories",
                errors=(*AGENT_CODES, "workspaces_off"),
                serve=self.serve_git,
                events=GitChanges,
            ),
            StreamRoute(
                path="/builds/{build_id}/logs",
                permission="workspaces.read",
                name="build_logs",
                summary="Stream a build's log",
                serve=self.serve_log,
                events=BuildLogReply,
                named_events={"build": BuildReply},
                query=LogsQuery,
                resumable=True,
                is_requested=_wants_stream,
            ),
        )

    async def serve_log(self, request: ApiRequest, send: Send) -> None:
        after = last_event_id(request, request.query(LogsQuery).after_id) or 0
        build = await require_build(self._deps, request.caller, request.build_id)
        with self._streams.open(request.caller, "sse", send) as stream:
            log = _BuildLog(self._deps, request.caller, stream, build, after)
            await serve_events(stream, request.receive, log.next)

    async def serve_git(self, request: ApiRequest, send: Send) -> None:
        deps = self._deps
        actor, chat_id = request.caller.actor, request.chat_id
        async with AsyncExitStack() as held:
            stream = held.enter_context(self._streams.open(request.caller, "sse", send))
            read = held.enter_context(stream.access.read(chat_id))
            read.lost = partial(stream.end, NOT_FOUND_END)
            chat = require_chat(await deps.read(chats.get, actor, chat_id))
            stream.access.on_read(read, chat)
            control = require_workspaces(deps)
            await audit_read(deps, request.caller, chat)
            try:
                changes = await held.enter_async_context(control.git(chat))
            except AgentRefused as error:
                raise Conflict(error.message, code="agent_refused") from error
            await serve_events(stream, request.receive, lambda: _next_change(stream, changes))


def _wants_stream(scope: Scope) -> bool:
    """An invalid query is left to the route, which reports it."""
    if "text/event-stream" in (header(scope, b"accept") or ""):
        return True
    try:
        return read_query(LogsQuery, scope["query_string"]).follow
    except InvalidInput:
        return False


class _BuildLog:
    """Polls the log: another replica may write it, and there is no hint for its lines."""

    def __init__(
        self, deps: ApiDeps, caller: ApiCaller, stream: ClientStream, build: Build, after: int
    ) -> None:
        self._deps = deps
        self._caller = caller
        self._stream = stream
        self._build = build
        self._after = after
        self._until = deps.env.clock.monotonic() + MAX_LOG_FOLLOW_S
        self._events: deque[bytes] = deque()

    async def next(self) -> bytes:
        clock = self._deps.env.clock
        while not self._events:
            # Read the status before the log: the log of an ended build is complete.
            has_ended = not self._build.active
            await self._read()
            if self._events:
                break
            if has_ended:
                await self._end()
            await clock.sleep(LOG_POLL_INTERVAL_S, "build_logs")
            if clock.monotonic() > self._until:
                self._stream.end(FOLLOW_LIMIT_END)
            self._build = await require_build(self._deps, self._caller, self._build.id)
        return self._events.popleft()

    async def _read(self) -> None:
        build_id, after = self._build.id, self._after
        for line in await load_log(self._deps, self._caller, build_id, after, LOG_PAGE_SIZE):
            self._after = line.id
            data = msgspec.json.encode(build_log_reply(line))
            self._events.append(b"data: " + data + b"\nid: %d\n\n" % line.id)

    async def _end(self) -> None:
        """The ended build is sent as a named event, so that clients can tell it from a line."""
        data = msgspec.json.encode(build_reply(self._build))
        event = b"event: build\ndata: " + data + b"\n\n"
        await self._stream.write(response_body(event, more=True))
        self._stream.end(BUILD_ENDED)


async def _next_change(stream: ClientStream, changes: AsyncGenerator[GitChanges]) -> bytes:
    async for change in changes:
        return b"data: " + msgspec.json.encode(change) + b"\n\n"
    stream.end(FOLLOW_LIMIT_END)
    return b""


def _encoded(next_frame: Callable[[], Awaitable[Frame]]) -> NextEvent:
    async def encoded() -> bytes:
        return encode_sse(await next_frame())

    return encoded


async def serve_events(
    stream: ClientStream, receive: Receive, next_event: NextEvent, first: bytes = b""
) -> None:
    """Until the client disconnects or the stream is ended. `first` is sent with the head."""

    async def pump() -> None:
        while True:
            await stream.write(response_body(await next_event(), more=True))

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    await stream.write(
        response_start(200, SSE_HEADERS), response_body(SSE_RETRY_LINE + first, more=True)
    )
    ping = response_body(PING, more=True)
    others = [lambda: stream.watch(ping)]
    with watch_disconnect(receive, lambda: stream.end(CLIENT_GONE_END)) as is_watched:
        if not is_watched:
            others.append(wait_for_disconnect)
        end = await stream.run(pump, *others)
    # A named event, so that clients can tell it from an event of the chat.
    data = msgspec.json.encode(StreamEnded(code=end.code, message=end.message))
    await stream.send_end(response_body(b"event: end\ndata: " + data + b"\n\n"))


def _last_cursor(request: ApiRequest) -> Cursor | None:
    """A reconnecting browser repeats the query and adds the header: the header is newer."""
    after = request.query(AfterQuery).after
    if last := request.header("last-event-id"):
        return read_cursor("Last-Event-ID", last)
    return None if after is None else read_cursor("after", after)


def last_event_id(request: ApiRequest, otherwise: int | None) -> int | None:
    """A reconnecting browser repeats the query and adds the header: the header is newer."""
    last = request.header("last-event-id")
    if last is None or last == "":
        return otherwise
    if not (last.isascii() and last.isdecimal()) or len(last) > 19 or int(last) > MAX_INT64:
        raise InvalidInput("Last-Event-ID", "must be the id of an event of this stream")
    return int(last)
