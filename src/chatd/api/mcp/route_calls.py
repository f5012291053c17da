"""Calls routes of the API for the tools, so that both have one behaviour: permissions, validation,
idempotency keys and errors are those of the route."""

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from chatd.api.errors import STOPPING_TEXT, Draining
from chatd.api.mcp.resources import Requester
from chatd.api.request import KEY_HEADER, ApiReply, ApiRequest, Message, Receive, Scope
from chatd.api.route import PREFIX, ApiRoute
from chatd.domain.access.permissions import Permission, require_permission

T = TypeVar("T")

_KEPT_HEADERS: Final = frozenset({b"host", b"x-forwarded-for", b"x-forwarded-proto", b"user-agent"})
"""They say where the request comes from, which audit and limits need."""


class RouteCall(Struct, frozen=True, kw_only=True):
    """`endpoint` is that of the route, such as `GET /chats/{chat_id}`. Fields of `query` and `body`
    that are None are left out."""

    endpoint: str
    path: Mapping[str, str] = {}
    query: Mapping[str, object] = {}
    body: Mapping[str, object] | None = None
    key: str | None = None


class RouteCalls:
    def __init__(self, routes: Iterable[ApiRoute], draining: Callable[[], bool]) -> None:
        self._routes = {route.endpoint: route for route in routes}
        self._draining = draining

    def permission(self, endpoint: str) -> Permission:
        found = self._routes[endpoint].permission
        assert found not in ("public", "signed_in"), endpoint
        return found

    async def fetch(self, by: Requester, wanted: RouteCall, kind: type[T]) -> T:
        """Raises what the route raises."""
        return msgspec.json.decode((await self.send(by, wanted)).body, type=kind)

    async def send(self, by: Requester, wanted: RouteCall) -> ApiReply:
        route = self._routes[wanted.endpoint]
        if route.starts_work and self._draining():
            raise Draining(STOPPING_TEXT)
        require_permission(by.caller.actor, self.permission(wanted.endpoint))
        body = b"" if wanted.body is None else msgspec.json.encode(_filled(wanted.body))
        request = ApiRequest(
            caller=by.caller,
            path=wanted.path,
            scope=_scope(by.scope, route, wanted),
            receive=_receive(body),
        )
        return await route.handle(request)


def _scope(outer: Scope, route: ApiRoute, wanted: RouteCall) -> Scope:
    headers = [pair for pair in outer["headers"] if pair[0] in _KEPT_HEADERS]
    if wanted.key is not None:
        headers.append((KEY_HEADER.encode(), _header_text(wanted.key)))
    path = route.path
    for name, value in wanted.path.items():
        path = path.replace(f"{{{name}}}", value)
    return {
        "type": "http",
        "method": route.method,
        "path": PREFIX + path,
        "headers": headers,
        "query_string": urlencode(_filled(wanted.query)).encode(),
        "client": outer.get("client"),
        "scheme": outer.get("scheme"),
    }


def _filled(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _header_text(key: str) -> bytes:
    """A header holds no text beyond ASCII; two keys stay two."""
    return key.encode() if key.isascii() else b"mcp:" + sha256(key.encode()).hexdigest().encode()


def _receive(body: bytes) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
