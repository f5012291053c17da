"""`/mcp`: streamable HTTP of the Model Context Protocol, without sessions in memory.

A POST carries one message and gets JSON, or server-sent events if the tool takes long. A GET with
`Last-Event-ID` continues the events of a call that was cut. Any replica answers any request: the
id of a session only distinguishes the requests of one client from those of others.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from importlib import metadata
from typing import Final, cast

from msgspec import Struct

from chatd.api.accounts.accounts import Accounts
from chatd.api.auth import ApiCaller
from chatd.api.deps import ApiDeps
from chatd.api.errors import MethodNotAllowed, Unauthorized, error_reply
from chatd.api.mcp.call_points import CallPoint, read_point
from chatd.api.mcp.call_streams import CallStreams, LongCall
from chatd.api.mcp.chat_tools import ChatToolSet
from chatd.api.mcp.messages import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Json,
    ProtocolError,
    RequestId,
    RpcMessage,
    encode_error,
    encode_result,
    read_message,
)
from chatd.api.mcp.methods import McpMethods
from chatd.api.mcp.route_calls import RouteCalls
from chatd.api.mcp.tool_errors import run_tool
from chatd.api.mcp.toolset import Progress, ToolCall, ToolSet
from chatd.api.mcp.versions import (
    HANDSHAKE_VERSIONS,
    METHOD_HEADER,
    NAME_HEADER,
    STATELESS_VERSIONS,
    VERSION_HEADER,
    request_version,
)
from chatd.api.request import (
    LARGE_BODY_BYTES,
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
from chatd.domain.errors import ChatdError
from chatd.domain.ports import Env

MCP_PATH: Final = "/mcp"
SESSION_HEADER: Final = "mcp-session-id"
MAX_MESSAGE_BYTES: Final = LARGE_BODY_BYTES
ALLOWED_METHODS: Final = "GET, HEAD, OPTIONS, POST"

_NO_TOKEN: Final = (
    "Send a token: Authorization: Bearer <token>. Create one on the page, under Settings, Tokens."
)
_NO_STREAM: Final = (
    "This server sends nothing by itself: a GET only continues a call, with Last-Event-ID."
)
_ROUTING_HEADERS: Final = frozenset({VERSION_HEADER, METHOD_HEADER, NAME_HEADER})
_STATUSES: Final[Mapping[int, int]] = {METHOD_NOT_FOUND: 404, INTERNAL_ERROR: 200}
"""Of errors in versions that name it per request; other codes are 400."""
_ANSWERED: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR})
"""Errors that older versions take as replies, with the status 200."""


def build_mcp_route(
    deps: ApiDeps, routes: Iterable[ApiRoute], registry: StreamRegistry
) -> MountedRoute:
    tools = ChatToolSet(deps, RouteCalls(routes, deps.draining))
    return mount_tools(deps, tools, registry)


def mount_tools(deps: ApiDeps, tools: ToolSet, registry: StreamRegistry) -> MountedRoute:
    """The protocol with these tools."""
    methods = McpMethods(tools, metadata.version("chatd"))
    streams = CallStreams(registry, tools, methods)
    endpoint = McpEndpoint(deps.accounts, deps.env, tools, streams, methods)
    return MountedRoute(path=MCP_PATH, methods=("GET", "POST"), serve=endpoint.serve)


class Exchange(Struct, frozen=True, kw_only=True):
    """One HTTP request of a caller, and how to answer it."""

    caller: ApiCaller
    scope: Scope
    receive: Receive
    send: Send

    @property
    def session(self) -> str | None:
        return header(self.scope, SESSION_HEADER.encode())


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
        version = request_version(message, _routing_headers(exchange.scope))
        try:
            if message.method == "tools/call":
                await self._call_tool(message, message.id, version, exchange)
                return
            self._accounts.limits.take(exchange.caller, "requests")
            result = self._methods.answer(message, version, exchange.caller)
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
        name, arguments = _read_call(message)
        streams, session = self._tools.streams(name), exchange.session
        if streams is None:
            raise ProtocolError(INVALID_PARAMS, f"There is no tool {name!r}. tools/list has all.")
        point = CallPoint(
            request_id=request_id,
            progress_token=_progress_token(message),
            tool=name,
            arguments=arguments,
            started_ms=int(self._env.clock.now().timestamp() * 1000),
            version=_session_version(session) or version,
        )
        key = _request_key(exchange.scope, session, request_id)
        call = _begin(point, exchange, key=key)
        if streams:
            is_sse = _accepts_events(exchange.scope)
            long = LongCall(point=point, call=call, session=session, is_sse=is_sse)
            await self._streams.serve(long, exchange.receive, exchange.send)
            return
        reply = await run_tool(self._tools, name, call)
        body = encode_result(request_id, self._methods.tool_result(reply, version))
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


async def _report_nothing(progress: Progress) -> None:
    """For calls without a stream."""


def _routing_headers(scope: Scope) -> Mapping[str, str]:
    """Raises ProtocolError for one that comes twice: a proxy may have judged by the other."""
    found: dict[str, str] = {}
    for key, value in scope["headers"]:
        name = bytes(key).decode("latin-1")
        if name in _ROUTING_HEADERS:
            if name in found:
                raise ProtocolError(HEADER_MISMATCH, f"The header {name} comes twice.")
            found[name] = bytes(value).decode("latin-1")
    return found


def _read_call(message: RpcMessage) -> tuple[str, Json]:
    name, arguments = message.params.get("name"), message.params.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        raise ProtocolError(
            INVALID_PARAMS, "params must have the name of a tool, and arguments as an object."
        )
    return name, cast("Json", arguments or {})


def _progress_token(message: RpcMessage) -> RequestId | None:
    meta = message.params.get("_meta")
    token = cast("Json", meta).get("progressToken") if isinstance(meta, dict) else None
    return token if isinstance(token, str | int) else None


def _accepts_events(scope: Scope) -> bool:
    return "text/event-stream" in (header(scope, b"accept") or "")


def _session_version(session: str | None) -> str | None:
    """The version that the session's `initialize` agreed on: some clients name another later."""
    version = (session or "").partition(".")[0]
    return version if version in HANDSHAKE_VERSIONS else None


def _request_key(scope: Scope, session: str | None, request_id: RequestId) -> str | None:
    """A request that is repeated after a lost reply has the same key: the header, or the id of the
    request within its session, which a client uses once."""
    if (given := header(scope, b"idempotency-key")) is not None:
        return given
    if session is None:
        return None
    return "mcp:" + sha256(f"{session} {request_id!r}".encode()).hexdigest()


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
