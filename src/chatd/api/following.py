"""Event streams of workspaces: what a build says, and what changes in a chat's repositories.

Everything that can be refused is refused before the stream begins, as any other request.
"""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from chatd.aio.backoff import retry_unavailable
from chatd.api.auth import Caller, own
from chatd.api.building import rooms_of
from chatd.api.builds import log_lines, own_build
from chatd.api.call import Call, Scope, Send, StreamRoute, header, response_body
from chatd.api.doors import Doors
from chatd.api.events import last_event_id, serve_events
from chatd.api.reading import read_query
from chatd.api.streams import End, Stream, Streams
from chatd.api.workspace_shapes import build_reply, log_line
from chatd.api.workspace_wire import LogLine, LogsQuery
from chatd.domain.errors import Conflict, InvalidInput, RequestError
from chatd.domain.workspace.agent_api import AgentRefused, AgentUnreachable, GitChanges
from chatd.domain.workspace.entities import Build
from chatd.store.chat import chats

LOOK_S: Final = 0.5
FOLLOW_S: Final = 3600.0
"""Longer than any build may take; whoever still wants to know asks again."""
PAGE: Final = 500

BUILD_ENDED: Final = End(code="build_ended", message="The build has ended.", close_code=1000)
OVER: Final = End(
    code="over", message="That was long enough; connect again to go on.", close_code=1012
)


class Followed:
    def __init__(self, doors: Doors, streams: Streams) -> None:
        self._doors = doors
        self._streams = streams

    def routes(self) -> tuple[StreamRoute, ...]:
        return (
            StreamRoute(
                path="/chats/{chat_id}/git",
                name="chat_git",
                summary="Follow what changes in the chat's repositories",
                serve=self.git,
                events=GitChanges,
            ),
            StreamRoute(
                path="/builds/{build_id}/logs",
                name="build_logs",
                summary="Follow a build's log",
                serve=self.build,
                events=LogLine,
                query=LogsQuery,
                resumable=True,
                is_requested=_wants_stream,
            ),
        )

    async def build(self, call: Call, send: Send) -> None:
        caller, build_id = call.caller, call.build_id
        after = last_event_id(call, call.query(LogsQuery).after) or 0
        build = await own_build(self._doors, caller, build_id)
        with self._streams.open(caller, "sse", send) as stream:
            following = _Following(self._doors, caller, stream, build, after)
            await serve_events(stream, call.receive, following.next)

    async def git(self, call: Call, send: Send) -> None:
        doors, caller, chat_id = self._doors, call.caller, call.chat_id
        chat = own(
            caller, await retry_unavailable(doors.env.clock, lambda: chats.get(doors.pool, chat_id))
        )
        rooms = rooms_of(doors)
        async with AsyncExitStack() as held:
            stream = held.enter_context(self._streams.open(caller, "sse", send))
            try:
                changes = await held.enter_async_context(rooms.git(chat))
            except (Conflict, AgentUnreachable, AgentRefused) as error:
                # Not a state of the chat that stands in the way: there is nothing to follow.
                raise RequestError(error.message, code=error.code) from error
            await serve_events(stream, call.receive, lambda: _change(stream, changes))


def _wants_stream(scope: Scope) -> bool:
    """An invalid query is left to the route, which reports it."""
    if "text/event-stream" in (header(scope, b"accept") or ""):
        return True
    try:
        return read_query(LogsQuery, scope["query_string"]).follow
    except InvalidInput:
        return False


class _Following:
    """Looks again and again: what others have written is not told to us."""

    def __init__(
        self, doors: Doors, caller: Caller, stream: Stream, build: Build, after: int
    ) -> None:
        self._doors = doors
        self._caller = caller
        self._stream = stream
        self._build = build
        self._after = after
        self._until = doors.env.clock.monotonic() + FOLLOW_S
        self._said: deque[bytes] = deque()

    async def next(self) -> bytes:
        while not self._said:
            # In this order: once it has ended, all it has said is there.
            ended = not self._build.active
            await self._read()
            if self._said:
                break
            if ended:
                await self._end()
            await self._doors.env.clock.sleep(LOOK_S, "build_logs")
            if self._doors.env.clock.monotonic() > self._until:
                self._stream.end(OVER)
            self._build = await own_build(self._doors, self._caller, self._build.id)
        return self._said.popleft()

    async def _read(self) -> None:
        for line in await log_lines(self._doors, self._build.id, self._after, PAGE):
            self._after = line.id
            data = msgspec.json.encode(log_line(line))
            self._said.append(b"data: " + data + b"\nid: %d\n\n" % line.id)

    async def _end(self) -> None:
        """How it ended is named, so that it is not taken for a line."""
        data = msgspec.json.encode(build_reply(self._build))
        await self._stream.write(response_body(b"event: build\ndata: " + data + b"\n\n", more=True))
        self._stream.end(BUILD_ENDED)


async def _change(stream: Stream, changes: AsyncGenerator[GitChanges]) -> bytes:
    async for change in changes:
        return b"data: " + msgspec.json.encode(change) + b"\n\n"
    stream.end(OVER)
    return b""
