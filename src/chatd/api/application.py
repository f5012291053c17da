"""The ASGI application: requests, event streams and WebSockets.

Dispatches each request by the route table, turns errors into replies, counts requests, and adds
the headers that every response has. Only pages are served without a token.
"""

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from chatd.api.auth import Caller
from chatd.api.bindings import BindingRoutes
from chatd.api.builds import BuildRoutes
from chatd.api.call import (
    PREFIX,
    Call,
    Message,
    Reply,
    Route,
    Scope,
    Send,
    StreamRoute,
    header,
    send_reply,
)
from chatd.api.chats import ChatRoutes
from chatd.api.docs import Docs
from chatd.api.doors import Doors
from chatd.api.errors import GOING, Draining, MethodNotAllowed, refusal_of
from chatd.api.events import Events
from chatd.api.following import Followed
from chatd.api.health import Health
from chatd.api.messages import MessageRoutes
from chatd.api.metrics import Metrics
from chatd.api.models import ModelRoutes
from chatd.api.queue import QueueRoutes
from chatd.api.reading import Receive
from chatd.api.router import RouteTable
from chatd.api.socket import Sockets
from chatd.api.streams import Streams
from chatd.api.templates import TemplateRoutes
from chatd.api.workspaces import WorkspaceRoutes
from chatd.domain.errors import ChatdError, NotFound

log = logging.getLogger(__name__)

SOCKET: Final = f"{PREFIX}/ws"
ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_NO_STORE: Final = (b"cache-control", b"no-store")
_UNMATCHED: Final = "unmatched"
_NO_ROUTE_TEXT: Final = "There is no such path. The API is described at /docs."


def all_routes(doors: Doors) -> tuple[Route, ...]:
    return (
        *ModelRoutes(doors).routes(),
        *ChatRoutes(doors).routes(),
        *MessageRoutes(doors).routes(),
        *QueueRoutes(doors).routes(),
        *BindingRoutes(doors).routes(),
        *TemplateRoutes(doors).routes(),
        *WorkspaceRoutes(doors).routes(),
        *BuildRoutes(doors).routes(),
    )


def build(doors: Doors) -> "Api":
    return Api(doors)


class Api:
    """An ASGI application. `close` ends all streams, so that the server can stop."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        self._metrics = Metrics(doors.registry)
        self._streams = Streams(doors.env.clock, doors.limits, self._metrics)
        self._sockets = Sockets(doors, self._streams)
        routes = all_routes(doors)
        streams = (
            *Events(doors, self._streams).routes(),
            *Followed(doors, self._streams).routes(),
        )
        health = Health(doors.pool, doors.registry, doors.draining)
        self._table = RouteTable({**health.pages, **Docs(routes, streams).pages}, routes, streams)

    async def close(self) -> None:
        await self._streams.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        observed = _ObservedSend(send)
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, observed)
        else:
            await self._http(scope, receive, observed)

    async def _http(self, scope: Scope, receive: Receive, send: "_ObservedSend") -> None:
        clock = self._doors.env.clock
        began = clock.monotonic()
        label, handler = _UNMATCHED, None
        try:
            if (found := self._table.find(scope["path"])) is None:
                raise NotFound(_NO_ROUTE_TEXT)
            endpoint, path = found
            handler = endpoint.select(scope)
            label = endpoint.template
            if handler is None:
                await send_reply(send, Reply(status=204, headers={"allow": endpoint.allow}))
            elif isinstance(handler, StreamRoute):
                await handler.serve(self._call(scope, path, receive), send)
            elif isinstance(handler, Route):
                if handler.starts_work and self._doors.draining():
                    raise Draining(GOING)
                await send_reply(send, await handler.handle(self._call(scope, path, receive)))
            else:
                await send_reply(send, await handler())
        except Exception as error:
            if send.status:
                raise
            await send_reply(send, handle_error(error))
        finally:
            self._metrics.answered(scope["method"], label, send.status)
            if not isinstance(handler, StreamRoute):
                self._metrics.took(scope["method"], label, clock.monotonic() - began)

    def _call(self, scope: Scope, path: Mapping[str, str], receive: Receive) -> Call:
        return Call(caller=self._caller(scope), path=path, scope=scope, receive=receive)

    async def _websocket(self, scope: Scope, receive: Receive, send: "_ObservedSend") -> None:
        try:
            if scope["path"] != SOCKET:
                raise NotFound(_NO_ROUTE_TEXT)
            await self._sockets.serve(receive, send, caller=self._caller(scope))
        except ChatdError as error:
            if send.status:
                raise
            await send_reply(send, handle_error(error), prefix="websocket.")

    def _caller(self, scope: Scope) -> Caller:
        return self._doors.tokens.caller(header(scope, b"authorization"))


class HealthOnly:
    """An ASGI application for a process that serves no API: health pages and metrics."""

    def __init__(self, health: Health) -> None:
        self._pages = health.pages

    async def close(self) -> None:
        """Nothing here stays open."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        if scope["type"] == "websocket":
            await send_reply(send, _not_served(), prefix="websocket.")
        elif (page := self._pages.get(scope["path"])) is None:
            await send_reply(send, _not_served())
        elif scope["method"] != "GET":
            await send_reply(
                _ObservedSend(send),
                handle_error(MethodNotAllowed("Only GET is allowed here.", "GET")),
            )
        else:
            await send_reply(_ObservedSend(send), await page())


def _not_served() -> Reply:
    return handle_error(NotFound("Only /healthz, /readyz and /metrics are served here."))


def handle_error(error: Exception) -> Reply:
    """The reply for any error. Logs those that are not the caller's."""
    refusal = refusal_of(error)
    if refusal.status == 500:
        log.error("a request failed", exc_info=error)
    content = msgspec.json.encode(refusal.body)
    return Reply(status=refusal.status, body=content, headers=refusal.headers)


class _ObservedSend:
    """Records the status of the response and adds the headers that every response has."""

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
