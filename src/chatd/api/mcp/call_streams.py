"""Calls that take long: their events, their progress, how they end, and how a client resumes one.

A stream that is cut loses nothing: the id of every event holds the whole call (`CallPoint`), and
the client continues with it anywhere, also after a restart, because nothing is stored. Only tools
that change nothing are resumed, and with the rights of the caller who asks for it: an id that
somebody made up is no more than a call of such a tool.
"""

import base64
import binascii
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from chatd.api.errors import STOPPING_TEXT, Draining
from chatd.api.mcp.protocol import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    Json,
    ProtocolError,
    RequestId,
    encode_error,
    encode_notification,
    encode_result,
)
from chatd.api.mcp.toolset import (
    Progress,
    StreamCut,
    ToolCall,
    ToolReply,
    ToolSet,
    run_tool,
    tool_result,
)
from chatd.api.request import (
    ApiCaller,
    ApiReply,
    Receive,
    Send,
    response_body,
    response_start,
    send_reply,
)
from chatd.api.schemas.messages import MAX_INT64
from chatd.api.sse import SSE_HEADERS
from chatd.api.streams import (
    CLIENT_GONE_END,
    NOT_READING_END,
    SERVER_STOPPING_END,
    ClientStream,
    StreamEnd,
    StreamRegistry,
)
from chatd.domain.ids import UserId
from chatd.stream.fanout import PING

MAX_EVENT_ID_CHARS: Final = 4096
"""A call with longer arguments cannot be resumed: servers and proxies limit headers."""


class CallPoint(Struct, frozen=True, kw_only=True, array_like=True):
    """A call in progress. `started_ms` is the wall time at which it began."""

    request_id: RequestId
    progress_token: RequestId | None
    tool: str
    arguments: Json
    started_ms: Annotated[int, Meta(ge=0, le=MAX_INT64)]
    version: str


_DECODER: Final = msgspec.json.Decoder(CallPoint)


def encode_point(point: CallPoint) -> str | None:
    """None for a call that cannot be resumed."""
    try:
        encoded = msgspec.json.encode(point)
    except RecursionError:
        return None
    text = base64.urlsafe_b64encode(encoded).decode().rstrip("=")
    return text if len(text) <= MAX_EVENT_ID_CHARS else None


def event_id(point: str, number: int) -> str:
    """Every event of a stream has its own."""
    return f"{point}.{number}"


def read_point(last_event_id: str) -> CallPoint:
    """Raises ProtocolError."""
    text = last_event_id.partition(".")[0]
    try:
        if len(last_event_id) > MAX_EVENT_ID_CHARS + 20:
            raise ValueError
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return _DECODER.decode(decoded)
    except (ValueError, binascii.Error, msgspec.DecodeError, RecursionError):
        raise ProtocolError(
            INVALID_PARAMS,
            "Last-Event-ID is not the id of an event of this server. Call the tool again.",
        ) from None


RETRY_MS: Final = 3000
"""How long a client waits before it continues a call after a cut. A client that tries twice bridges
the start of a server."""
RESTART_RETRY_MS: Final = 5000
"""The same, if this server stops."""
PRIMED_SINCE: Final = "2025-11-25"
"""Clients of older versions may not understand an event without data."""

_ANSWERED_END: Final = StreamEnd("answered", "The call is answered.", 1000)
_CUT_END: Final = StreamEnd("cut", "The client continues the call.", 1000)
_CANCELLED_END: Final = StreamEnd("cancelled", "The client cancelled the call.", 1000)

CallKey = tuple[UserId, str | None, RequestId]


class LongCall(Struct, frozen=True, kw_only=True):
    """`is_sse`: the client accepts events; else it gets one JSON reply in the end."""

    point: CallPoint
    call: ToolCall
    session: str | None
    is_sse: bool

    @property
    def key(self) -> CallKey:
        return self.call.caller.user_id, self.session, self.point.request_id


class CallStreams:
    def __init__(self, registry: StreamRegistry, tools: ToolSet) -> None:
        self._registry = registry
        self._tools = tools
        self._open: dict[CallKey, ClientStream] = {}

    def cancel(self, caller: ApiCaller, session: str | None, request_id: RequestId) -> None:
        """End a call of this caller, if it runs here. Without a session ids are ambiguous."""
        stream = self._open.get((caller.user_id, session, request_id))
        if stream is not None and session is not None:
            stream.end(_CANCELLED_END)

    async def serve(self, long: LongCall, receive: Receive, send: Send) -> None:
        """Until the call is answered, the client has gone or the server stops."""
        with self._registry.open(long.call.caller, "mcp", send) as stream:
            self._open[long.key] = stream
            try:
                await self._run(long, stream, receive, send)
            finally:
                if self._open.get(long.key) is stream:
                    del self._open[long.key]

    async def _run(
        self, long: LongCall, stream: ClientStream, receive: Receive, send: Send
    ) -> None:
        events = CallEvents(stream, long.point)
        answered: list[ToolReply] = []

        async def work() -> None:
            report = events.report if long.is_sse else long.call.report
            call = replace(long.call, report=report, access=stream.access)
            try:
                answered.append(await run_tool(self._tools, long.point.tool, call))
            except StreamCut:
                stream.end(_CUT_END)
                return
            if long.is_sse:
                await events.write(self._encoded(long.point, answered[0]))
            stream.end(_ANSWERED_END)

        async def wait_for_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        if long.is_sse:
            await events.start()
        ping = response_body(PING, more=True) if long.is_sse else None
        end = await stream.run(work, wait_for_disconnect, partial(stream.watch, ping))
        if long.is_sse:
            await stream.send_end(response_body(events.last(end)))
        elif answered:
            await send_reply(send, ApiReply(body=self._encoded(long.point, answered[0])))
        elif end not in (CLIENT_GONE_END, NOT_READING_END):
            raise Draining(STOPPING_TEXT if end is SERVER_STOPPING_END else end.message)

    def _encoded(self, point: CallPoint, reply: ToolReply) -> bytes:
        return encode_result(point.request_id, tool_result(reply, point.version))


class CallEvents:
    """The events of one stream. A later one has a higher number."""

    def __init__(self, stream: ClientStream, point: CallPoint) -> None:
        self._stream = stream
        self._point = point
        self._id = encode_point(point)
        self._number = 0

    async def start(self) -> None:
        await self._stream.write(response_start(200, SSE_HEADERS))
        first = self._empty(RETRY_MS) or b": call\n\n"
        await self._stream.write(response_body(first, more=True))

    async def report(self, progress: Progress) -> None:
        if self._point.progress_token is None:
            return
        params = {
            "progressToken": self._point.progress_token,
            "progress": progress.done,
            "total": progress.total,
            "message": progress.message,
        }
        await self.write(encode_notification("notifications/progress", params), has_id=True)

    async def write(self, message: bytes, *, has_id: bool = False) -> None:
        head = self._next_id() if has_id else b""
        # Raw arguments of a call may hold line breaks, which inside JSON equal spaces.
        line = message.replace(b"\n", b" ").replace(b"\r", b" ")
        event = head + b"event: message\ndata: " + line + b"\n\n"
        await self._stream.write(response_body(event, more=True))

    def last(self, end: StreamEnd) -> bytes:
        """What the client still needs when the stream ends without an answer."""
        if end is SERVER_STOPPING_END:
            return self._empty(RESTART_RETRY_MS)
        if end in (_ANSWERED_END, _CUT_END, _CANCELLED_END):
            return b""
        error = ProtocolError(INTERNAL_ERROR, f"{end.message} Call the tool again.")
        return b"event: message\ndata: " + encode_error(error, self._point.request_id) + b"\n\n"

    def _empty(self, retry_ms: int) -> bytes:
        """Gives the client an id to continue with, and the time to wait before."""
        if self._id is None or self._point.version < PRIMED_SINCE:
            return b""
        return self._next_id() + b"retry: %d\ndata:\n\n" % retry_ms

    def _next_id(self) -> bytes:
        if self._id is None:
            return b""
        self._number += 1
        return b"id: " + event_id(self._id, self._number).encode() + b"\n"
