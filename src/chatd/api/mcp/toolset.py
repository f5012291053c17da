"""Tools as the protocol sees them: what is listed, what a call gets, and what it returns.

An error of a tool is a result: the client's model reads what happened and what to call next. A tool
calls the routes of the API, so that both have one behaviour: permissions, validation, idempotency
keys and errors are those of the route.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, Protocol, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, Struct, UnsetType

from chatd.api.errors import STOPPING_TEXT, Draining, error_reply
from chatd.api.mcp.protocol import Json, complete_result
from chatd.api.request import KEY_HEADER, ApiCaller, ApiReply, ApiRequest, Message, Receive, Scope
from chatd.api.route import PREFIX, ApiRoute
from chatd.api.streams import StreamAccess
from chatd.domain.access.permissions import Permission, require_permission
from chatd.domain.errors import ChatdError
from chatd.log_event import LogEvent


class Requester(Protocol):
    """Who asks: a call of a tool, or another request."""

    @property
    def caller(self) -> ApiCaller: ...

    @property
    def scope(self) -> Scope: ...


class ToolHints(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a client may assume of a call before it asks its user."""

    title: str
    read_only_hint: bool
    destructive_hint: bool = False
    idempotent_hint: bool = False
    open_world_hint: bool = False


class ListedTool(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A tool in the reply to `tools/list`."""

    name: str
    description: str
    input_schema: Json
    title: str | UnsetType = UNSET
    output_schema: Json | UnsetType = UNSET
    annotations: ToolHints | UnsetType = UNSET


class ToolReply(Struct, frozen=True, kw_only=True):
    """The result of a call. `retryable`: nothing was done, and the same call may succeed in a
    moment."""

    content: Sequence[Json]
    structured: object = UNSET
    is_error: bool = False
    retryable: bool = False


class Progress(Struct, frozen=True, kw_only=True):
    """How far a call is. `done` grows with every report."""

    done: float
    total: float
    message: str


Report = Callable[[Progress], Awaitable[None]]


class StreamCut(Exception):
    """Raised by a tool to close the stream of its call: the client connects again for the rest."""


class ToolCall(Struct, frozen=True, kw_only=True):
    """One call. `key` is its idempotency key, if the client gave one. `started_ms` is the wall time
    at which the call began, also if this is its continuation after a cut (`is_resumed`). A tool
    that streams has an `access`, which notices that the caller may no longer read a chat."""

    caller: ApiCaller
    scope: Scope
    arguments: Json
    report: Report
    started_ms: int
    key: str | None = None
    is_resumed: bool = False
    access: StreamAccess | None = None


class ToolSet(Protocol):
    """The tools that a server offers."""

    @property
    def instructions(self) -> str:
        """How to use them together, for the client's model."""
        ...

    def listed(self, caller: ApiCaller) -> Sequence[ListedTool]:
        """What the caller may call."""
        ...

    def streams(self, name: str) -> bool | None:
        """Whether calls of this tool take long, report progress and can be resumed: such a tool
        changes nothing, so that it may run again. None if there is no such tool."""
        ...

    async def call(self, name: str, call: ToolCall) -> ToolReply:
        """Raises ChatdError, which the client gets as a result that says what to do."""
        ...


log = logging.getLogger(__name__)

_REMEDIES: Final[Mapping[str, str]] = {
    "not_found": "list_chats lists the chats that you can use.",
    "chat_busy": "Wait with wait_for_chat, or send it with when_busy=queue.",
    "queue_full": "Wait with wait_for_chat until the chat has worked off its queue.",
    "idempotency_key_reused": "Use a new key for a new message.",
    "chat_archived": "Start another chat with start_chat.",
    "internal": "Nothing is known to have changed; look with read_chat before you repeat the call.",
}


async def run_tool(tools: ToolSet, name: str, call: ToolCall) -> ToolReply:
    try:
        return await tools.call(name, call)
    except ChatdError as error:
        return tool_error(error)


def tool_error(error: ChatdError) -> ToolReply:
    found = error_reply(error)
    if found.status == 500:
        log.error(LogEvent(event="request_failed", explanation="a bug"), exc_info=error)
    remedy = _REMEDIES.get(found.body.code, "")
    fields = "".join(f" {one.field}: {one.detail}." for one in found.body.validations[1:])
    text = f"{found.body.message}{fields} {remedy}".strip()
    return ToolReply(
        content=[{"type": "text", "text": f"{found.body.code}: {text}"}],
        is_error=True,
        retryable=found.status == 503,
    )


def tool_result(reply: ToolReply, version: str) -> Json:
    """The reply as the result of `tools/call`."""
    result: Json = {"content": list(reply.content), "isError": reply.is_error}
    if reply.structured is not UNSET:
        result["structuredContent"] = reply.structured
    return complete_result(result, version)


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
