"""The HTTP session of a provider: one streaming POST per model call; errors become faults.

`ProviderSession` owns the timeouts, the faults of refused, cut and unreadable replies, and the
removal of keys from errors. It never retries a request that a server may have received, and never
follows a redirect, which would send the key to another host.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Final, TypeVar

import aiohttp
import msgspec
from msgspec import Raw, structs

from chatd.aio import REQUEST_MARK, RequestMark
from chatd.domain.model.protocol import (
    ModelEvent,
    ModelRequest,
    ProviderError,
    ProviderFault,
)
from chatd.domain.model.retry import retry_after_s
from chatd.domain.prompt.repair import is_prompt_larger
from chatd.providers.connections import ConnectionPool, StreamedReply, request_bytes
from chatd.providers.faults import (
    read_error_status,
    transport_fault,
    vendor_error_type,
)
from chatd.providers.provider_config import (
    UNSUPPORTED_PROXY_TEXT,
    HttpConfig,
    Secret,
    build_tls_context,
    is_http_proxy,
    redact_secrets,
)
from chatd.providers.reply_events import AiohttpBody, Beat, ReplyBody, ReplyEvents
from chatd.providers.sse import FramedDecoder

# Large request bodies: built, signed and sent without blocking other chats.
#
# A thread builds the body. One call of the JSON encoder blocks all threads until it returns, so
# each message is encoded separately.

MAX_ENCODED_AT_ONCE_CHARS: Final = 256 * 1024
"""A larger prompt is encoded in a thread."""

SENT_SLICE_BYTES: Final = 64 * 1024

T = TypeVar("T")
ReplyHead = aiohttp.ClientResponse | StreamedReply
_ENCODER: Final = msgspec.json.Encoder()


def encode_list(items: Iterable[object], encoder: msgspec.json.Encoder = _ENCODER) -> Raw:
    """The same bytes as those of the list encoded at once."""
    pieces: list[bytes] = []
    for item in items:
        pieces += (b"," if pieces else b"[", encoder.encode(item))
    # Joined once, because a copy of a large body takes long too.
    return Raw(b"".join((*pieces, b"]"))) if pieces else Raw(b"[]")


async def encode_off_loop(request: ModelRequest, encode: Callable[[], T]) -> T:
    if is_prompt_larger(request.messages, MAX_ENCODED_AT_ONCE_CHARS):
        return await asyncio.to_thread(encode)
    return encode()


async def digest_off_loop(body: bytes, digest: Callable[[bytes], T]) -> T:
    """Compute a hash or a signature of all bytes of a body."""
    if len(body) > MAX_ENCODED_AT_ONCE_CHARS:
        return await asyncio.to_thread(lambda: digest(body))
    return digest(body)


async def body_slices(body: bytes) -> AsyncGenerator[memoryview]:
    """Slices of a large body: the HTTP client would copy it, or write it in one go."""
    view = memoryview(body)
    for start in range(0, len(body), SENT_SLICE_BYTES):
        yield view[start : start + SENT_SLICE_BYTES]


# The session

MAX_ERROR_BODY_BYTES: Final = 16 * 1024
MAX_READ_BODY_BYTES: Final = 8 * 1024 * 1024
"""Limit of a reply that is not streamed. A gateway's list of hundreds of models takes 1 MB."""
READ_TIMEOUT_S: Final = 20.0
_MAX_UNSTREAMED_BODY_BYTES: Final = 512 * 1024
_MAX_HEADER_BYTES: Final = 64 * 1024


class ProviderSession:
    """Opened by the first call, because aiohttp needs a running event loop.

    `wrong_path_hint` is what to check if the server does not know the path of the API.
    """

    def __init__(
        self,
        provider: str,
        secrets: tuple[Secret, ...] = (),
        config: HttpConfig | None = None,
        *,
        wrong_path_hint: str | None = None,
    ) -> None:
        self._provider = provider
        self._secrets = secrets
        self._config = config or HttpConfig()
        self._silence_s = max(self._config.read_timeout_s, (self._config.silence_s or 0.0) * 1.1)
        # By whether connections are kept for the next request.
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._pool: ConnectionPool | None = None
        self._beat = Beat()
        self._is_closed = False
        self._has_answered = False
        self._wrong_path_hint = wrong_path_hint
        try:
            self._tls = build_tls_context(self._config.tls)
        except ProviderError as failed:
            raise self.build_failure(failed.fault) from None

    async def close(self) -> None:
        self._is_closed = True
        sessions, self._sessions = self._sessions, {}
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
        for session in sessions.values():
            await session.close()

    @asynccontextmanager
    async def stream(
        self, *, url: str, headers: Mapping[str, str], body: bytes, decoder: FramedDecoder
    ) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """POST and decode the reply. Leaving the context closes the socket first."""
        response = await self._open(url, headers, body)
        try:
            arriving = response if isinstance(response, StreamedReply) else AiohttpBody(response)
            first = await self._check(response, arriving)
            yield ReplyEvents(
                arriving,
                decoder,
                self._beat,
                self.build_failure,
                first=first,
                silence_s=self._silence_s,
            )
        finally:
            response.close()

    async def read(self, url: str, headers: Mapping[str, str]) -> bytes:
        """GET a JSON reply of bounded size, in bounded time."""
        fault: ProviderFault
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                response = await self._request("GET", url, headers, None, keep=False)
                assert response is not None  # None only for a reused connection
                async with response:
                    return await self._read_reply(response)
        except TimeoutError as error:
            fault = transport_fault(error, url)
        except (aiohttp.ClientError, OSError) as error:
            fault = transport_fault(error, url)
        raise self.build_failure(fault)

    async def _read_reply(self, response: aiohttp.ClientResponse) -> bytes:
        self._has_answered = True
        body = bytearray()
        while chunk := await response.content.readany():
            body += chunk
            if len(body) > MAX_READ_BODY_BYTES:
                raise self.build_failure(
                    ProviderFault(message="the reply is too large: check the base URL")
                )
        if response.status == 200 and bytes(body[:64]).lstrip()[:1] in (b"{", b"["):
            return bytes(body)
        fault = _reply_fault(response, bytes(body[:MAX_ERROR_BODY_BYTES]))
        if fault.status_code in (200, 404, 405):
            fault = structs.replace(fault, hint=self._wrong_path_hint)
        raise self.build_failure(fault)

    def build_failure(self, fault: ProviderFault) -> ProviderError:
        """The exception for a fault, with the provider's name and without secrets."""
        return ProviderError(
            structs.replace(
                fault,
                provider=self._provider,
                never_answered=not self._has_answered,
                message=redact_secrets(fault.message, self._secrets),
                body=None if fault.body is None else redact_secrets(fault.body, self._secrets),
            )
        )

    async def _open(self, url: str, headers: Mapping[str, str], body: bytes) -> ReplyHead:
        """Send the request, and once more on a new connection if a reused one was closed.

        A server may close a kept connection at the moment of its reuse, and llama.cpp always
        does. The server has then not read the request. A cut new connection is not retried.
        """
        proxy = self._choose_proxy(url)
        is_plain = proxy is None and len(body) <= _MAX_UNSTREAMED_BODY_BYTES
        opened: ReplyHead | None
        for keep in (True, False):
            if is_plain:
                opened = await self._post(url, headers, body, keep=keep)
            else:
                opened = await self._request("POST", url, headers, body, keep=keep)
            if opened is not None:
                return opened
        raise AssertionError("a new connection gives a reply or an error")

    async def _post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, keep: bool
    ) -> StreamedReply | None:
        """Without a proxy, and of a body that is sent in one piece. None if the server had closed
        a kept connection; without `keep` it gets a new one."""
        self._require_open()
        mark = REQUEST_MARK.get()
        if mark is not None:
            mark.is_sent = False
        try:
            pool = self._open_pool()
            target = pool.target(url)
            return await pool.post(
                target,
                request_bytes(target, headers, body),
                mark=mark,
                silence_s=self._silence_s,
                reuse=keep,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            fault = transport_fault(error, url)
        raise self.build_failure(fault)

    def _open_pool(self) -> ConnectionPool:
        if self._pool is None:
            self._pool = ConnectionPool(self._tls, self._timeout())
        return self._pool

    def _require_open(self) -> None:
        if self._is_closed:
            raise self.build_failure(
                ProviderFault(message="the provider is closed", transport="reset")
            )

    def _choose_proxy(self, url: str) -> str | None:
        found = self._config.proxies.choose(url)
        proxy = None if found is None else found.reveal()
        if proxy is not None and not is_http_proxy(proxy):
            raise self.build_failure(ProviderFault(message=UNSUPPORTED_PROXY_TEXT, type="config"))
        return proxy

    async def _request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        keep: bool,
    ) -> aiohttp.ClientResponse | None:
        """None if the server had closed a reused connection."""
        # aiohttp's errors contain the request's headers. The fault is raised outside the handler,
        # so that it does not keep such an error as its context.
        self._require_open()
        proxy = self._choose_proxy(url)
        connection = _Connection(REQUEST_MARK.get())
        try:
            is_large = body is not None and len(body) > _MAX_UNSTREAMED_BODY_BYTES
            size = {} if body is None else {"Content-Length": str(len(body))}
            return await self._session(keep=keep).request(
                method,
                url,
                data=body_slices(body) if body is not None and is_large else body,
                headers={"Accept-Encoding": "identity", **size, **headers},
                allow_redirects=False,
                proxy=proxy,
                trace_request_ctx=connection,
            )
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if connection.is_reused:
                return None
            fault = transport_fault(error, url, proxy)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            fault = transport_fault(error, url, proxy)
        raise self.build_failure(fault)

    def _session(self, *, keep: bool) -> aiohttp.ClientSession:
        if keep not in self._sessions:
            self._sessions[keep] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, force_close=not keep, ssl=self._tls or True
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout(),
                max_line_size=_MAX_HEADER_BYTES,
                max_field_size=_MAX_HEADER_BYTES,
                trust_env=False,
                trace_configs=[_trace_connection()],
            )
        return self._sessions[keep]

    def _timeout(self) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(
            total=None,
            # Includes the DNS look-up and the TLS handshake.
            connect=self._config.connect_timeout_s * 1.5,
            sock_connect=self._config.connect_timeout_s,
            sock_read=self._silence_s,
        )

    async def _check(self, response: ReplyHead, arriving: ReplyBody) -> bytes:
        """Raises unless the reply is a stream. Returns bytes that the check has read."""
        self._has_answered = True
        first = b""
        if response.status == 200:
            if response.content_type not in ("text/html", "application/json"):
                return b""
            # Some gateways send a wrong content type; the first byte decides.
            first = await self._body(arriving, 1)
            if first.lstrip()[:1] not in (b"<", b"{", b"["):
                return first
        body = first + await self._body(arriving, MAX_ERROR_BODY_BYTES - len(first))
        fault = _reply_fault(response, body)
        if fault.status_code in (200, 404, 405):
            fault = structs.replace(fault, hint=self._wrong_path_hint)
        raise self.build_failure(fault)

    async def _body(self, arriving: ReplyBody, enough: int) -> bytes:
        """The first `enough` bytes of a reply, or what arrives before the timeout."""
        body = bytearray()
        with suppress(aiohttp.ClientError, OSError):
            async with asyncio.timeout(self._config.error_body_timeout_s):
                while len(body) < enough and (chunk := await arriving.readany()):
                    body += chunk
        return bytes(body[:MAX_ERROR_BODY_BYTES])


def _reply_fault(response: ReplyHead, body: bytes) -> ProviderFault:
    headers = {name.lower(): value for name, value in response.headers.items()}
    text = body.decode("utf-8", "replace")
    is_page = text.lstrip()[:1] == "<"
    error_type = None if is_page else vendor_error_type(body, headers)
    # Gateways wrap errors of other providers in replies of status 200.
    inner_status = read_error_status(body) if response.status == 200 else None
    message = f"status {inner_status or response.status}"
    if is_page:
        message += ", with a web page where an API should be"
    if response.status == 200 and inner_status is None:
        message = "the reply is a web page" if is_page else "the reply is not a stream"
        message += ": check the base URL"
        error_type = error_type or "config"
    elif 300 <= response.status < 400:
        message += ", a redirect, which is not followed: check the base URL"
        error_type = error_type or "config"
    return ProviderFault(
        message=message,
        status_code=inner_status or response.status,
        type=error_type,
        body=text or None,
        retry_after_s=retry_after_s(headers),
    )


class _Connection:
    """The connection of one request. `is_reused`: an earlier request has used it."""

    def __init__(self, mark: RequestMark | None = None) -> None:
        self.is_reused = False
        self.mark = mark
        if mark is not None:
            mark.is_sent = False


def _trace_connection() -> aiohttp.TraceConfig:
    async def reused(
        _session: aiohttp.ClientSession,
        context: SimpleNamespace,
        _params: aiohttp.TraceConnectionReuseconnParams,
    ) -> None:
        line = context.trace_request_ctx
        if isinstance(line, _Connection):
            line.is_reused = True

    async def sending(
        _session: aiohttp.ClientSession,
        context: SimpleNamespace,
        _params: aiohttp.TraceRequestHeadersSentParams,
    ) -> None:
        # aiohttp calls this before it writes the first byte, and waits for it.
        line = context.trace_request_ctx
        if isinstance(line, _Connection) and line.mark is not None:
            await line.mark.send()

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(reused)
    trace.on_request_headers_sent.append(sending)
    return trace
