"""The application: routes, streams and what surrounds them, built onto the rest of the house.

Requests are routed by Litestar; event streams are not, they speak ASGI themselves. Owns the last
resort for errors, and that nobody gets past it without a token but for what is public.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Final, cast

import msgspec
from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.plugins import PluginProtocol

from chatd.api.asgi import App, Message, Receive, Scope, Send, header, respond
from chatd.api.auth import Caller
from chatd.api.call import Call, Reply, Route
from chatd.api.chats import ChatRoutes
from chatd.api.docs import docs_page
from chatd.api.doors import Doors
from chatd.api.errors import ErrorBody, Refusal, refusal_of
from chatd.api.events import Events
from chatd.api.health import Health
from chatd.api.messages import MessageRoutes
from chatd.api.metrics import Metrics
from chatd.api.models import ModelRoutes
from chatd.api.openapi import PREFIX, describe
from chatd.api.queue import QueueRoutes
from chatd.api.reading import read_uuid
from chatd.api.socket import Sockets
from chatd.api.streams import Streams
from chatd.domain.errors import ChatdError, NotFound
from chatd.domain.ids import ChatId

log = logging.getLogger(__name__)

Asked = Request[None, None, State]
Given = Response[bytes]

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
        self._sockets = Sockets(doors, self._streams)
        self._router = _router(doors, all_routes(doors))

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
        stream = _stream_of(scope["path"])
        try:
            if stream is None:
                await self._router(scope, receive, observed)
            else:
                await self._follow(scope, receive, observed, stream)
        finally:
            route = stream or str(scope.get("path_template") or _UNMATCHED)
            seconds = clock.monotonic() - began
            self._metrics.answered(scope["method"], route, observed.status, seconds)

    async def _follow(self, scope: Scope, receive: Receive, send: "_Observed", to: str) -> None:
        try:
            if scope["method"] != "GET":
                await respond(send, _reply(_ONLY_GET))
                return
            caller = self._caller(scope)
            if to == ALL_EVENTS:
                await self._events.of_user(receive, send, caller=caller)
                return
            chat_id = ChatId(read_uuid("chat_id", scope["path"].split("/")[4]))
            await self._events.of_chat(scope, receive, send, caller=caller, chat_id=chat_id)
        except Exception as error:
            if send.status:
                raise
            await respond(send, _answer(error))

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        observed = _Observed(send)
        try:
            if scope["path"] != f"{PREFIX}/ws":
                raise NotFound("There is no such socket.")
            await self._sockets.serve(receive, observed, caller=self._caller(scope))
        except ChatdError as error:
            if observed.status:
                raise
            await respond(send, _answer(error), prefix="websocket.")

    def _caller(self, scope: Scope) -> Caller:
        return self._doors.tokens.caller(header(scope, b"authorization"))


CHAT_EVENTS: Final = f"{PREFIX}/chats/{{chat_id}}/events"
ALL_EVENTS: Final = f"{PREFIX}/events"


def _stream_of(path: str) -> str | None:
    if path == ALL_EVENTS:
        return ALL_EVENTS
    pieces = path.split("/")
    is_chat = len(pieces) == 6 and path.startswith(f"{PREFIX}/chats/") and pieces[5] == "events"
    return CHAT_EVENTS if is_chat else None


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


# Routes


def all_routes(doors: Doors) -> tuple[Route, ...]:
    return (
        *ModelRoutes(doors).routes(),
        *ChatRoutes(doors).routes(),
        *MessageRoutes(doors).routes(),
        *QueueRoutes(doors).routes(),
    )


class _Described:
    """Made when somebody first asks: a server should not start later for it."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._routes = routes

    @cached_property
    def _description(self) -> bytes:
        return describe(self._routes)

    @cached_property
    def _page(self) -> Reply:
        return docs_page(self._description)

    async def for_machines(self) -> Reply:
        return Reply(body=self._description)

    async def for_people(self) -> Reply:
        return self._page


class _Litestar(Litestar):
    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        """Plugins for types that we do not use: to load them takes a fifth of a second."""
        return plugins


def _router(doors: Doors, routes: tuple[Route, ...]) -> App:
    health, described = Health(doors), _Described(routes)
    litestar = _Litestar(
        route_handlers=[
            *(_known_only(doors, route) for route in routes),
            _public("/healthz", health.alive),
            _public("/readyz", health.ready),
            _public("/metrics", health.metrics),
            _public("/docs", described.for_people),
            _public(f"{PREFIX}/openapi.json", described.for_machines),
        ],
        # Ours is made of the types by the library that also checks them.
        openapi_config=None,
        logging_config=None,
        exception_handlers={Exception: _on_error},
    )
    return cast("App", litestar)


def _known_only(doors: Doors, route: Route) -> HTTPRouteHandler:
    async def endpoint(request: Asked) -> Given:
        call = Call(
            caller=doors.tokens.caller(request.headers.get("authorization")),
            path=request.path_params,
            query=request.scope["query_string"],
            headers=request.headers,
            receive=request.receive,
        )
        return _given(await route.handle(call))

    path = PREFIX + route.path.replace("_id}", "_id:str}")
    return HTTPRouteHandler(path, http_method=[route.method], status_code=200, name=route.name)(
        endpoint
    )


def _public(path: str, handle: Callable[[], Awaitable[Reply]]) -> HTTPRouteHandler:
    async def endpoint() -> Given:
        return _given(await handle())

    return HTTPRouteHandler(path, http_method=["GET"], name=path)(endpoint)


def _given(answer: Reply) -> Given:
    return Response(
        content=answer.body,
        status_code=answer.status,
        media_type=answer.media_type,
        headers=answer.headers,
    )


def _on_error(_request: Asked, error: Exception) -> Given:
    return _given(_answer(error))


def _answer(error: Exception) -> Reply:
    """The last resort: whatever it was, the client gets an answer of the usual shape."""
    refusal = refusal_of(error)
    if refusal.status == 500:
        log.error("a request failed", exc_info=error)
    return _reply(refusal)


def _reply(refusal: Refusal) -> Reply:
    content = msgspec.json.encode(refusal.body)
    return Reply(status=refusal.status, body=content, headers=refusal.headers)
