"""The HTTP of MCP connections: guarded addresses, limits, bounded replies, and faults per call.

The SDK reads a JSON reply whole, and one failed request ends its connection with all calls on it.
So this transport bounds what the SDK can read, answers a failed request with a reply that fails
only that call, and notes in the call's `Exchange` what happened.

Importing this module loads the HTTP client of the SDK.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import ContextVar
from typing import Final, cast

import httpcore2
import httpx2
from msgspec import Struct

from chatd.domain.addresses import is_public
from chatd.domain.mcp.results import FaultKind, McpFault, error_text, redact_url
from chatd.guarded_dial import (
    AddressRefused,
    Resolve,
    find_allowed_addresses,
    is_any_address,
    is_own_host,
    refusal,
    resolve_host,
)

# Which hosts MCP connections may reach, and how long they may take.

CONNECT_TIMEOUT_S: Final = 10.0
"""Limit for the connection to an MCP server, its handshake and the list of tools together."""
CALL_TIMEOUT_S: Final = 60.0
"""Limit for one call of a tool of an MCP server."""


class McpLimits(Struct, frozen=True, kw_only=True):
    connect_s: float = CONNECT_TIMEOUT_S
    call_s: float = CALL_TIMEOUT_S


class DialPolicy(Struct, frozen=True, kw_only=True):
    """`private_hosts` may have private addresses, in lower case; `allow_private`: all may."""

    private_hosts: frozenset[str] = frozenset()
    allow_private: bool = False
    resolve: Resolve = resolve_host

    def allows_private(self, host: str) -> bool:
        return self.allow_private or host.lower() in self.private_hosts


DEFAULT_LIMITS: Final = McpLimits()
PUBLIC_HOSTS: Final = DialPolicy()


MAX_REPLY_BYTES: Final = 16 * 1024 * 1024
"""Limit for one reply, or for one event of a stream."""
MAX_CALL_STREAM_BYTES: Final = 4 * MAX_REPLY_BYTES
"""Limit for all events that answer one request."""
SESSION_END_TIMEOUT_S: Final = 2.0
"""Limit for telling a server that a session ends: a server that hangs does not delay the end."""
KEEP_ALIVE_S: Final = 2.0
"""Short: a request on a connection that the server closes at that moment has an unknown outcome."""
MAX_CONNECTIONS_PER_SESSION: Final = 40

_GATEWAY_STATUSES: Final = frozenset({502, 503, 504})
"""Statuses of a gateway, even with JSON, which is then the gateway's own."""
_NO_REPLY: Final = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no reply"}}'

SocketOptions = Iterable[
    tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
]


class Exchange(Struct, kw_only=True):
    """What happened to the requests of one call. `is_sent`: one was handed to the network. `stop`
    ends the call's wait."""

    fault: McpFault | None = None
    is_sent: bool = False
    stop: Callable[[], None] = lambda: None

    def fail(self, fault: McpFault) -> None:
        if self.fault is None:
            self.fault = fault


EXCHANGE: Final[ContextVar[Exchange | None]] = ContextVar("mcp_exchange", default=None)
"""The SDK sends a request in the context of the task that made the call."""


class ReplyRefused(httpx2.StreamError):
    """The SDK turns errors of this kind into an error of the one request."""


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that were checked. TLS still verifies the host's name."""

    def __init__(self, policy: DialPolicy) -> None:
        self._policy = policy
        self._inner = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: SocketOptions | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        is_private = self._policy.allows_private(host)
        try:
            addresses = await find_allowed_addresses(
                host,
                port,
                is_allowed=is_any_address if is_private else is_public,
                resolve=self._policy.resolve,
            )
        except AddressRefused as error:
            raise _refused(error) from None
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(f"{host} cannot be resolved: {error}") from None
        last: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                stream = await self._inner.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                last = error
                continue
            own, peer = stream.get_extra_info("client_addr"), stream.get_extra_info("server_addr")
            if not is_private and is_own_host(own, peer):
                await stream.aclose()
                raise _refused(refusal(host))
            return stream
        raise last


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """`needs_stop`: the SDK does not learn that a request failed, so the call is ended here."""

    def __init__(
        self, policy: DialPolicy, context: ssl.SSLContext, *, needs_stop: bool = False
    ) -> None:
        super().__init__(verify=context, trust_env=False)
        self._needs_stop = needs_stop
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=MAX_CONNECTIONS_PER_SESSION,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=GuardedBackend(policy),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # A compressed reply of a few bytes can hold gigabytes.
        request.headers["accept-encoding"] = "identity"
        if request.method == "DELETE":
            request.extensions = {
                **request.extensions,
                "timeout": httpx2.Timeout(SESSION_END_TIMEOUT_S).as_dict(),
            }
        exchange = EXCHANGE.get()
        if exchange is not None and request.method == "POST":
            exchange.is_sent = True
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as error:
            if request.method != "POST":
                raise
            self._fail(_request_fault(request, error))
            return _no_reply(request)
        return await self._checked(request, response)

    async def _checked(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        where, status = redact_url(str(request.url)), response.status_code
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            self._fail(McpFault("lost", f"{where} sent a compressed reply, unasked."))
            return _no_reply(request)
        if request.method == "POST" and status == 401:
            self._fail(McpFault("refused", f"{where} refused the credential (401)."))
        elif request.method == "POST" and status == 404:
            self._fail(McpFault("gone", f"{where} has no such session or endpoint (404)."))
        elif request.method == "POST" and (status in _GATEWAY_STATUSES or _is_bare(response)):
            # A gateway gives up a call that may still run.
            kind = "lost" if status >= 500 else "failed"
            self._fail(McpFault(kind, f"{where} replied with status {status}."))
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        limit = None
        if not is_stream:
            limit = MAX_REPLY_BYTES
        elif request.method == "POST":
            limit = MAX_CALL_STREAM_BYTES
        stream = _BoundedStream(response, limit, where)
        return httpx2.Response(
            status_code=status,
            headers=response.headers,
            stream=stream,
            extensions=response.extensions,
            request=request,
        )

    def _fail(self, fault: McpFault) -> None:
        exchange = EXCHANGE.get()
        if exchange is None:
            return
        exchange.fail(fault)
        if self._needs_stop:
            exchange.stop()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response, limit: int | None, where: str) -> None:
        self._response = response
        self._limit = limit
        self._where = where

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        try:
            async for chunk in self._response.aiter_raw():
                if left is not None:
                    left -= len(chunk)
                    if left < 0:
                        raise self._refuse("too_large", f"more than {self._limit} bytes")
                yield chunk
        except httpx2.TransportError as error:
            raise self._refuse("lost", error_text(error) or type(error).__name__) from None

    def _refuse(self, kind: FaultKind, reason: str) -> ReplyRefused:
        text = f"The reply of {self._where} broke off: {reason}."
        exchange = EXCHANGE.get()
        if exchange is not None:
            exchange.fail(McpFault(kind, text))
        return ReplyRefused(text)

    async def aclose(self) -> None:
        await self._response.aclose()


def _refused(error: AddressRefused) -> httpcore2.ConnectError:
    advice = "If the host may be used, name it in the setting mcp.private_hosts"
    return httpcore2.ConnectError(f"{error.message} {advice}")


def _is_bare(response: httpx2.Response) -> bool:
    """Whether it is an error without a message of the protocol."""
    return response.status_code >= 400 and not _is_json(response)


def _is_json(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("application/json")


def _request_fault(request: httpx2.Request, error: httpx2.TransportError) -> McpFault:
    where, reason = redact_url(str(request.url)), error_text(error) or type(error).__name__
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return McpFault("unreachable", f"{where} cannot be reached: {reason}.")
    return McpFault("lost", f"The connection to {where} broke before the reply: {reason}.")


def _no_reply(request: httpx2.Request) -> httpx2.Response:
    """The SDK reads it as the error of this request alone."""
    headers = {"content-type": "application/json"}
    return httpx2.Response(502, headers=headers, content=_NO_REPLY, request=request)
