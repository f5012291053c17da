"""Requests by their routes: Litestar finds the route, and all that is refused is answered here.

Owns the last resort for errors, and that nobody gets past it without a token but for what is
public.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Final, cast

import msgspec
from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.exceptions import MethodNotAllowedException
from litestar.handlers import HTTPRouteHandler
from litestar.plugins import PluginProtocol

from chatd.api.asgi import App
from chatd.api.bindings import BindingRoutes
from chatd.api.builds import BuildRoutes
from chatd.api.call import Call, Reply, Route
from chatd.api.chats import ChatRoutes
from chatd.api.docs import docs_page, signpost
from chatd.api.doors import Doors
from chatd.api.errors import GOING, Draining, Refusal, read_only, refusal_of
from chatd.api.health import Health
from chatd.api.messages import MessageRoutes
from chatd.api.models import ModelRoutes
from chatd.api.openapi import PREFIX, describe
from chatd.api.queue import QueueRoutes
from chatd.api.templates import TemplateRoutes
from chatd.api.workspaces import WorkspaceRoutes

log = logging.getLogger(__name__)

_DECLARED: Final = (f"{PREFIX}/models", f"{PREFIX}/providers")

Asked = Request[None, None, State]
Given = Response[bytes]


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

    async def signpost(self) -> Reply:
        return signpost()


class _Litestar(Litestar):
    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        """Plugins for types that we do not use: to load them takes a fifth of a second."""
        return plugins


def router(doors: Doors) -> App:
    routes = all_routes(doors)
    health = Health(doors.pool, doors.registry, doors.draining)
    described = _Described(routes)
    litestar = _Litestar(
        route_handlers=[
            *(_known_only(doors, route) for route in routes),
            *(_public(path, page) for path, page in health.pages.items()),
            _public("/", described.signpost),
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
        if route.starts_work and doors.draining():
            raise Draining(GOING)
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
    """Left to itself, the library adds a charset to every text, also to one that names its own."""
    kind = {"content-type": answer.media_type} if answer.body else {}
    return Response(
        content=answer.body,
        status_code=answer.status,
        media_type=answer.media_type,
        headers={**kind, **answer.headers},
    )


def _on_error(request: Asked, error: Exception) -> Given:
    if isinstance(error, MethodNotAllowedException) and request.url.path.startswith(_DECLARED):
        return _given(reply_of(read_only(error)))
    return _given(answer_to(error))


def answer_to(error: Exception) -> Reply:
    """The last resort: whatever it was, the client gets an answer of the usual shape."""
    refusal = refusal_of(error)
    if refusal.status == 500:
        log.error("a request failed", exc_info=error)
    return reply_of(refusal)


def reply_of(refusal: Refusal) -> Reply:
    content = msgspec.json.encode(refusal.body)
    return Reply(status=refusal.status, body=content, headers=refusal.headers)
