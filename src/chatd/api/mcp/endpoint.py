"""`/mcp`: streamable HTTP of the Model Context Protocol, without sessions in memory.

A POST carries one message and gets JSON, or server-sent events if the tool takes long. A GET with
`Last-Event-ID` continues the events of a call that was cut. Any replica answers any request: the
id of a session only distinguishes the requests of one client from those of others.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import msgspec

from chatd.api.accounts.authenticator import Accounts
from chatd.api.deps import ApiDeps
from chatd.api.errors import MethodNotAllowed, Unauthorized, error_reply
from chatd.api.mcp.call_streams import CallPoint, CallStreams, LongCall, read_point
from chatd.api.mcp.chat_tools import ChatToolSet
from chatd.api.mcp.protocol import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    SERVER_INFO,
    SESSION_HEADER,
    STATELESS_VERSIONS,
    VERSIONS,
    Exchange,
    Json,
    ProtocolError,
    RequestId,
    RpcMessage,
    accepts_events,
    complete_result,
    encode_error,
    encode_result,
    negotiate_version,
    progress_token,
    read_call,
    read_message,
    request_key,
    request_version,
    routing_headers,
    session_version,
)
from chatd.api.mcp.resources import ChatResources, ResourceSet
from chatd.api.mcp.toolset import (
    Progress,
    Requester,
    RouteCalls,
    ToolCall,
    ToolSet,
    run_tool,
    tool_result,
)
from chatd.api.request import (
    LARGE_BODY_BYTES,
    ApiCaller,
    ApiReply,
    Receive,
    Scope,
    Send,
    header,
    read_body,
    send_reply,
)
from chatd.api.route import ApiRoute, MountedRoute
from chatd.api.streams import StreamRegistry
from chatd.domain.errors import ChatdError, NotFound
from chatd.domain.ports import Env

RESOURCE_NOT_FOUND: Final = -32002
"""Up to 2025-11-25; later versions have INVALID_PARAMS for it."""

_CAPABILITIES: Final[Json] = {"tools": {}, "resources": {}}
_NOT_CACHED: Final[Json] = {"ttlMs": 0, "cacheScope": "private"}
"""What is listed depends on the caller's rights, which can change."""

Method = Callable[[RpcMessage, Requester], Awaitable[Json]]


MCP_PATH: Final = "/mcp"
MAX_MESSAGE_BYTES: Final = LARGE_BODY_BYTES
ALLOWED_METHODS: Final = "GET, HEAD, OPTIONS, POST"

_NO_TOKEN: Final = (
    "Send a token: Authorization: Bearer <token>. Create one on the page, under Settings, Tokens."
)
_NO_STREAM: Final = (
    "This server sends nothing by itself: a GET only continues a call, with Last-Event-ID."
)
_STATUSES: Final[Mapping[int, int]] = {METHOD_NOT_FOUND: 404, INTERNAL_ERROR: 200}
"""Of errors in versions that name it per request; other codes are 400."""
_ANSWERED: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR, RESOURCE_NOT_FOUND})
"""Errors that older versions take as replies, with the status 200."""


def build_mcp_route(
    deps: ApiDeps, routes: Iterable[ApiRoute], registry: StreamRegistry
) -> MountedRoute:
    calls = RouteCalls(routes, deps.draining)
    resources = ChatResources(calls)
    return mount_mcp(deps, ChatToolSet(deps, calls), resources, registry)


def mount_mcp(
    deps: ApiDeps, tools: ToolSet, resources: ResourceSet, registry: StreamRegistry
) -> MountedRoute:
    """The protocol with these tools and resources."""
    methods = McpMethods(tools, resources)
    streams = CallStreams(registry, tools)
    endpoint = McpEndpoint(deps.accounts, deps.env, tools, streams, methods)
    return MountedRoute(path=MCP_PATH, methods=("GET", "POST"), serve=endpoint.serve)


class McpMethods:
    """The methods that are answered at once."""

    def __init__(self, tools: ToolSet, resources: ResourceSet) -> None:
        self._tools = tools
        self._resources = resources
        both: Mapping[str, Method] = {
            "tools/list": self._list_tools,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
        }
        self._handshake = {**both, "initialize": self._initialize, "ping": self._ping}
        self._stateless = {**both, "server/discover": self._discover}

    async def answer(self, message: RpcMessage, version: str, by: Requester) -> Json:
        """Raises ProtocolError, ChatdError."""
        is_stateless = version in STATELESS_VERSIONS
        method = (self._stateless if is_stateless else self._handshake).get(message.method)
        if method is None:
            raise ProtocolError(
                METHOD_NOT_FOUND,
                "This server has no such method; it has tools and resources.",
                data=message.method,
            )
        try:
            result = await method(message, by)
        except NotFound as error:
            code = INVALID_PARAMS if is_stateless else RESOURCE_NOT_FOUND
            raise ProtocolError(code, error.message) from None
        return complete_result(result | _NOT_CACHED, version) if is_stateless else result

    async def _initialize(self, message: RpcMessage, by: Requester) -> Json:
        del by
        return {
            "protocolVersion": negotiate_version(message.params.get("protocolVersion")),
            "capabilities": _CAPABILITIES,
            "serverInfo": SERVER_INFO,
            "instructions": self._tools.instructions,
        }

    async def _discover(self, message: RpcMessage, by: Requester) -> Json:
        del message, by
        return {
            "supportedVersions": list(VERSIONS),
            "capabilities": _CAPABILITIES,
            "instructions": self._tools.instructions,
        }

    async def _ping(self, message: RpcMessage, by: Requester) -> Json:
        del message, by
        return {}

    async def _list_tools(self, message: RpcMessage, by: Requester) -> Json:
        del message
        return {"tools": msgspec.to_builtins(self._tools.listed(by.caller))}

    async def _list_resources(self, message: RpcMessage, by: Requester) -> Json:
        page = await self._resources.list_page(by, _text(message, "cursor", optional=True))
        return msgspec.to_builtins(page)

    async def _list_templates(self, message: RpcMessage, by: Requester) -> Json:
        del message, by
        return {"resourceTemplates": msgspec.to_builtins(self._resources.templates)}

    async def _read_resource(self, message: RpcMessage, by: Requester) -> Json:
        uri = _text(message, "uri") or ""
        return {"contents": list(await self._resources.read(by, uri))}


def _text(message: RpcMessage, name: str, *, optional: bool = False) -> str | None:
    value = message.params.get(name)
    if isinstance(value, str) or (optional and value is None):
        return value
    raise ProtocolError(INVALID_PARAMS, f"params.{name} must be a text.")


class McpEndpoint:
    def __init__(
        self,
        accounts: Accounts,
        env: Env,
        tools: ToolSet,
        streams: CallStreams,
        methods: McpMethods,
    ) -> None:
        self._accounts = accounts
        self._env = env
        self._tools = tools
        self._streams = streams
        self._methods = methods

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = await self._authenticate(scope)
            exchange = Exchange(caller=caller, scope=scope, receive=receive, send=send)
            await (self._resume if scope["method"] == "GET" else self._post)(exchange)
        except ProtocolError as error:
            status = _STATUSES.get(error.code, 400)
            await send_reply(send, ApiReply(status=status, body=encode_error(error)))
        except ChatdError as error:
            await send_reply(send, _refusal(error))

    async def _authenticate(self, scope: Scope) -> ApiCaller:
        """A cookie does not count: only a program that was given a token is a client."""
        site = self._accounts.site
        if any(header(scope, name) is not None for name in (b"origin", b"sec-fetch-site")):
            site.require_same_site(scope, needs_proof=False)
        if not (header(scope, b"authorization") or "").lower().startswith("bearer "):
            raise Unauthorized(_NO_TOKEN)
        return await self._accounts.authenticator.caller(scope)

    async def _post(self, exchange: Exchange) -> None:
        length = header(exchange.scope, b"content-length")
        message = read_message(await read_body(exchange.receive, length, MAX_MESSAGE_BYTES))
        if message is None or message.id is None:
            await self._take_notification(message, exchange)
            return
        version = request_version(message, routing_headers(exchange.scope))
        try:
            if message.method == "tools/call":
                await self._call_tool(message, message.id, version, exchange)
                return
            self._accounts.limits.take(exchange.caller, "requests")
            result = await self._methods.answer(message, version, exchange)
        except ProtocolError as error:
            await send_reply(exchange.send, _error_answer(error, message.id, version))
            return
        more: dict[str, str] = {}
        if message.method == "initialize":
            more = {SESSION_HEADER: f"{result['protocolVersion']}.{self._env.new_id().hex}"}
        body = encode_result(message.id, result)
        await send_reply(exchange.send, ApiReply(body=body, headers=more))

    async def _take_notification(self, message: RpcMessage | None, exchange: Exchange) -> None:
        """A cancelled call ends on the replica that runs it. What the chat does goes on."""
        if message is not None and message.method == "notifications/cancelled":
            found = message.params.get("requestId")
            if isinstance(found, int | str):
                self._streams.cancel(exchange.caller, exchange.session, found)
        await send_reply(exchange.send, ApiReply(status=202))

    async def _call_tool(
        self, message: RpcMessage, request_id: RequestId, version: str, exchange: Exchange
    ) -> None:
        name, arguments = read_call(message)
        streams, session = self._tools.streams(name), exchange.session
        if streams is None:
            raise ProtocolError(INVALID_PARAMS, f"There is no tool {name!r}. tools/list has all.")
        point = CallPoint(
            request_id=request_id,
            progress_token=progress_token(message),
            tool=name,
            arguments=arguments,
            started_ms=int(self._env.clock.now().timestamp() * 1000),
            version=session_version(session) or version,
        )
        key = request_key(exchange.scope, session, request_id)
        call = _begin(point, exchange, key=key)
        if streams:
            is_sse = accepts_events(exchange.scope)
            long = LongCall(point=point, call=call, session=session, is_sse=is_sse)
            await self._streams.serve(long, exchange.receive, exchange.send)
            return
        reply = await run_tool(self._tools, name, call)
        body = encode_result(request_id, tool_result(reply, version))
        more = {"retry-after": "1"} if reply.retryable else {}
        await send_reply(exchange.send, ApiReply(body=body, headers=more))

    async def _resume(self, exchange: Exchange) -> None:
        last = header(exchange.scope, b"last-event-id")
        if not last:
            raise MethodNotAllowed(_NO_STREAM, ALLOWED_METHODS)
        point = read_point(last)
        if not self._tools.streams(point.tool):
            raise ProtocolError(INVALID_PARAMS, "This call cannot be resumed. Call it again.")
        call = _begin(point, exchange, is_resumed=True)
        long = LongCall(point=point, call=call, session=exchange.session, is_sse=True)
        await self._streams.serve(long, exchange.receive, exchange.send)


async def _report_nothing(progress: Progress) -> None:
    """For calls without a stream."""


def _begin(
    point: CallPoint, exchange: Exchange, *, key: str | None = None, is_resumed: bool = False
) -> ToolCall:
    return ToolCall(
        caller=exchange.caller,
        scope=exchange.scope,
        arguments=point.arguments,
        report=_report_nothing,
        started_ms=point.started_ms,
        key=key,
        is_resumed=is_resumed,
    )


def _error_answer(error: ProtocolError, request_id: RequestId, version: str) -> ApiReply:
    is_answer = version not in STATELESS_VERSIONS and error.code in _ANSWERED
    status = 200 if is_answer else _STATUSES.get(error.code, 400)
    return ApiReply(status=status, body=encode_error(error, request_id))


def _refusal(error: ChatdError) -> ApiReply:
    """As the API refuses a request, with a body that clients of MCP can read."""
    found = error_reply(error)
    code = INTERNAL_ERROR if found.status >= 500 else INVALID_REQUEST
    body = ProtocolError(code, found.body.message, data={"code": found.body.code})
    return ApiReply(status=found.status, body=encode_error(body), headers=found.headers)
