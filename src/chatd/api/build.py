"""The application: requests, event streams and sockets, built onto the rest of the house.

Requests go by way of the router; event streams do not, they speak ASGI themselves. Owns what is
counted of all of them, and the headers that every answer has.
"""

from typing import Final
from uuid import UUID

from chatd.api.asgi import Message, Receive, Scope, Send, header, respond
from chatd.api.auth import Caller
from chatd.api.doors import Doors
from chatd.api.errors import ErrorBody, Refusal
from chatd.api.events import Events
from chatd.api.following import Followed
from chatd.api.health import Health
from chatd.api.metrics import Metrics
from chatd.api.openapi import PREFIX
from chatd.api.reading import read_query, read_uuid
from chatd.api.routing import answer_to, reply_of, router
from chatd.api.socket import Sockets
from chatd.api.streams import Streams
from chatd.api.workspace_wire import LogsQuery
from chatd.domain.errors import ChatdError, InvalidInput, NotFound
from chatd.domain.ids import ChatId
from chatd.domain.workspace import BuildId

CHAT_EVENTS: Final = f"{PREFIX}/chats/{{chat_id}}/events"
CHAT_GIT: Final = f"{PREFIX}/chats/{{chat_id}}/git"
BUILD_LOGS: Final = f"{PREFIX}/builds/{{build_id}}/logs"
ALL_EVENTS: Final = f"{PREFIX}/events"
SOCKET: Final = f"{PREFIX}/ws"

ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_NO_STORE: Final = (b"cache-control", b"no-store")
_ONLY_GET: Final = Refusal(
    status=405,
    body=ErrorBody(code="method_not_allowed", message="Method Not Allowed."),
    headers={"allow": "GET"},
)
_UNMATCHED: Final = "unmatched"


def build(doors: Doors) -> "Api":
    return Api(doors)


class Api:
    """An ASGI application. `close` ends all streams, so that the server can stop."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        self._metrics = Metrics(doors.registry)
        self._streams = Streams(doors.env.clock, doors.limits, self._metrics)
        self._events = Events(doors, self._streams)
        self._followed = Followed(doors, self._streams)
        self._sockets = Sockets(doors, self._streams)
        self._router = router(doors)

    async def close(self) -> None:
        await self._streams.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "websocket":
                await self._websocket(scope, receive, send)
            case _:
                await self._router(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        observed = _Observed(send)
        clock = self._doors.env.clock
        began = clock.monotonic()
        stream = _stream_of(scope)
        try:
            if stream is None:
                await self._router(scope, receive, observed)
            else:
                await self._follow(scope, receive, observed, stream)
        finally:
            route = stream or str(scope.get("path_template") or _UNMATCHED)
            self._metrics.answered(scope["method"], route, observed.status)
            if stream is None:
                self._metrics.took(scope["method"], route, clock.monotonic() - began)

    async def _follow(self, scope: Scope, receive: Receive, send: "_Observed", to: str) -> None:
        try:
            if scope["method"] != "GET":
                await respond(send, reply_of(_ONLY_GET))
                return
            await self._stream(scope, receive, send, to)
        except Exception as error:
            if send.status:
                raise
            await respond(send, answer_to(error))

    async def _stream(self, scope: Scope, receive: Receive, send: Send, to: str) -> None:
        caller = self._caller(scope)
        if to == ALL_EVENTS:
            await self._events.of_user(receive, send, caller=caller)
        elif to == BUILD_LOGS:
            build = BuildId(_id(scope, "build_id"))
            await self._followed.build(scope, receive, send, caller=caller, build_id=build)
        elif to == CHAT_GIT:
            chat = ChatId(_id(scope, "chat_id"))
            await self._followed.git(receive, send, caller=caller, chat_id=chat)
        else:
            chat = ChatId(_id(scope, "chat_id"))
            await self._events.of_chat(scope, receive, send, caller=caller, chat_id=chat)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        observed = _Observed(send)
        try:
            if scope["path"] != SOCKET:
                raise NotFound("There is no such socket.")
            await self._sockets.serve(receive, observed, caller=self._caller(scope))
        except ChatdError as error:
            if observed.status:
                raise
            await respond(send, answer_to(error), prefix="websocket.")

    def _caller(self, scope: Scope) -> Caller:
        return self._doors.tokens.caller(header(scope, b"authorization"))


class HealthOnly:
    """An ASGI application for a process that serves nobody: is it alive, what has it counted."""

    def __init__(self, health: Health) -> None:
        self._pages = health.pages

    async def close(self) -> None:
        """Nothing here stays open."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        page = self._pages.get(scope["path"]) if scope["type"] == "http" else None
        if scope["type"] == "websocket" or page is None:
            prefix = "websocket." if scope["type"] == "websocket" else ""
            answer = answer_to(NotFound("Only /healthz, /readyz and /metrics are served here."))
            await respond(send, answer, prefix=prefix)
            return
        answer = await page() if scope["method"] == "GET" else reply_of(_ONLY_GET)
        await respond(_Observed(send), answer)


def _stream_of(scope: Scope) -> str | None:
    path: str = scope["path"]
    if path == ALL_EVENTS:
        return ALL_EVENTS
    pieces = path.split("/")
    if len(pieces) != 6 or not path.startswith(f"{PREFIX}/"):
        return None
    match pieces[3], pieces[5]:
        case "chats", "events":
            return CHAT_EVENTS
        case "chats", "git":
            return CHAT_GIT
        case "builds", "logs" if scope["method"] == "GET" and _wants_stream(scope):
            return BUILD_LOGS
        case _:
            return None


def _wants_stream(scope: Scope) -> bool:
    """A query that is wrong is left to the route, which says so."""
    if "text/event-stream" in (header(scope, b"accept") or ""):
        return True
    try:
        return read_query(LogsQuery, scope["query_string"]).follow
    except InvalidInput:
        return False


def _id(scope: Scope, name: str) -> UUID:
    return read_uuid(name, scope["path"].split("/")[4])


class _Observed:
    """Sees what is answered, and adds what every answer has."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if self.status == 0:
            message = self._first(message)
        await self._send(message)

    def _first(self, message: Message) -> Message:
        match message["type"]:
            case "http.response.start":
                self.status = message["status"]
                headers = [*message["headers"], *ALWAYS]
                if all(name != b"cache-control" for name, _ in headers):
                    headers.append(_NO_STORE)
                return {**message, "headers": headers}
            case "websocket.accept":
                self.status = 101
                return message
            case _:
                return message
