"""The pipe between a decoder and a socket: one session, errors as facts, closing at once.

Owns time-outs, what a refused, cut or unreadable reply is called, and that no
key leaves by way of an error. Knows no vendor: a wire hands over an address,
headers, a body and a decoder. Never retries and never follows a redirect,
which would carry the key to another host.
"""

import asyncio
import io
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Final, Protocol

import aiohttp
from msgspec import Struct, structs

from chatd.domain.model.protocol import ModelEvent, ProviderError, ProviderFault, StreamFailed
from chatd.domain.model.retry import retry_after_s
from chatd.providers.faults import error_word, host_of, told_status, transport_fault
from chatd.providers.pace import Beat, Pace, joined
from chatd.providers.secret import Secret, redacted

MAX_ERROR_BODY: Final = 16 * 1024
# A connection whose reply has been read to its end can be used again; this long we wait for that.
_DRAIN_S: Final = 0.25
_WHOLE_BODY: Final = 512 * 1024
_HEADER_LIMIT: Final = 64 * 1024


class Decoder(Protocol):
    """The pure half of a wire that reads. It never raises: what is wrong is a `StreamFailed`."""

    @property
    def done(self) -> bool:
        """The provider's own last word has been seen; nothing more needs to be read."""
        ...

    def feed(self, chunk: bytes) -> list[ModelEvent]: ...

    def close(self) -> list[ModelEvent]:
        """The stream has ended: `StreamFailed`, incomplete, unless it had ended well."""
        ...


class HttpConfig(Struct, frozen=True, kw_only=True):
    """`read_timeout_s` is the last resort: whoever reads the stream watches for silence sooner.

    The proxy is an address that may hold a password.
    """

    connect_timeout_s: float = 10.0
    read_timeout_s: float = 900.0
    error_body_s: float = 5.0
    proxy: Secret | None = None


class Http:
    """One provider's session. Opened at the first call, because it needs a running loop."""

    def __init__(
        self, provider: str, secrets: tuple[Secret, ...] = (), config: HttpConfig | None = None
    ) -> None:
        self._provider = provider
        self._secrets = secrets
        self._config = config or HttpConfig()
        # One that keeps connections for the next request, and one that never does.
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._beat = Beat()
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    @asynccontextmanager
    async def stream(
        self, *, url: str, headers: Mapping[str, str], body: bytes, decoder: Decoder
    ) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """POST, and the decoded reply. Leaving closes the socket before anything else happens."""
        response = await self._open(url, headers, body)
        try:
            first = await self._check(response)
            async with aclosing(self._events(response, decoder, first)) as events:
                yield events
        finally:
            response.close()

    def failed(self, fault: ProviderFault) -> ProviderError:
        """The exception for a fault: says who failed, says no secrets."""
        return ProviderError(
            structs.replace(
                fault,
                provider=self._provider,
                message=redacted(fault.message, self._secrets),
                body=None if fault.body is None else redacted(fault.body, self._secrets),
            )
        )

    async def _open(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> aiohttp.ClientResponse:
        """A server may close a connection that it has kept at the very moment we use it again,
        and llama.cpp's always does. That says nothing of the request, so it is sent once more, on
        a connection of its own; a new connection that is cut is never tried again."""
        opened = await self._post(url, headers, body, keep=True)
        if opened is None:
            opened = await self._post(url, headers, body, keep=False)
        assert opened is not None
        return opened

    async def _post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, keep: bool
    ) -> aiohttp.ClientResponse | None:
        """None if the server had closed the connection that was to be used again."""
        # aiohttp's errors carry the request's headers. Ours are raised outside the handler, so
        # that they do not hang on to them as their context.
        if self._is_closed:
            raise self.failed(ProviderFault(message="the provider is closed", transport="reset"))
        proxy = None if self._config.proxy is None else self._config.proxy.reveal()
        line = _Line()
        try:
            return await self._session(keep=keep).post(
                url,
                data=io.BytesIO(body) if len(body) > _WHOLE_BODY else body,
                headers={"Accept-Encoding": "identity", **headers},
                allow_redirects=False,
                proxy=proxy,
                trace_request_ctx=line,
            )
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if line.is_old:
                return None
            fault = transport_fault(error, host_of(url))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            fault = transport_fault(error, host_of(url))
        raise self.failed(fault)

    def _session(self, *, keep: bool) -> aiohttp.ClientSession:
        if keep not in self._sessions:
            config = self._config
            self._sessions[keep] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=not keep),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    sock_connect=config.connect_timeout_s,
                    sock_read=config.read_timeout_s,
                ),
                max_line_size=_HEADER_LIMIT,
                max_field_size=_HEADER_LIMIT,
                trust_env=False,
                trace_configs=[_watching_lines()],
            )
        return self._sessions[keep]

    async def _check(self, response: aiohttp.ClientResponse) -> bytes:
        """The first bytes, if they had to be looked at. Raises unless this is a stream."""
        first = b""
        if response.status == 200:
            if response.content_type not in ("text/html", "application/json"):
                return b""
            # Some gateways name their streams wrongly; the bytes themselves tell.
            first = await self._body(response, 1)
            if first.lstrip()[:1] not in (b"<", b"{", b"["):
                return first
        body = first + await self._body(response, MAX_ERROR_BODY - len(first))
        raise self.failed(_reply_fault(response, body))

    async def _body(self, response: aiohttp.ClientResponse, enough: int) -> bytes:
        """The beginning of a reply, or as much of it as comes."""
        body = bytearray()
        with suppress(aiohttp.ClientError, OSError):
            async with asyncio.timeout(self._config.error_body_s):
                while len(body) < enough and (chunk := await response.content.readany()):
                    body += chunk
        return bytes(body[:MAX_ERROR_BODY])

    async def _events(
        self, response: aiohttp.ClientResponse, decoder: Decoder, first: bytes
    ) -> AsyncGenerator[ModelEvent]:
        content = response.content
        fault: ProviderFault | None = None
        chunk, pace = first, Pace(self._beat)
        while not decoder.done:
            if not chunk:
                await pace.rest()
                try:
                    chunk = await content.readany()
                except (aiohttp.ClientError, OSError) as error:
                    fault = transport_fault(error, host_of(str(response.url)))
                    break
                if not chunk:
                    break
            for event in joined(decoder.feed(chunk)):
                if isinstance(event, StreamFailed):
                    raise self.failed(event.fault)
                yield event
            chunk = b""
        for event in self._ending(decoder, fault):
            yield event
        await _drain(response)

    def _ending(self, decoder: Decoder, fault: ProviderFault | None) -> list[ModelEvent]:
        """A connection cut after the last word costs nothing; before it, the cut is the news."""
        events = decoder.close()
        for event in events:
            if isinstance(event, StreamFailed):
                raise self.failed(event.fault if fault is None else fault)
        return events


async def _drain(response: aiohttp.ClientResponse) -> None:
    with suppress(aiohttp.ClientError, OSError):
        async with asyncio.timeout(_DRAIN_S):
            while await response.content.readany():
                pass


def _reply_fault(response: aiohttp.ClientResponse, body: bytes) -> ProviderFault:
    headers = {name.lower(): value for name, value in response.headers.items()}
    text = body.decode("utf-8", "replace")
    is_page = text.lstrip()[:1] == "<"
    word = None if is_page else error_word(body, headers)
    # Gateways put errors of others into good replies, with the status inside.
    told = told_status(body) if response.status == 200 else None
    message = f"status {told or response.status}"
    if is_page:
        message += ", with a web page where an API should be"
    if response.status == 200 and told is None:
        # Whatever answers like that will do so again.
        message = "the reply is a web page" if is_page else "the reply is not a stream"
        message += ": check the base URL"
        word = word or "config"
    elif 300 <= response.status < 400:
        message += ", a redirect, which is not followed: check the base URL"
        word = word or "config"
    return ProviderFault(
        message=message,
        status_code=told or response.status,
        type=word,
        body=text or None,
        retry_after_s=retry_after_s(headers),
    )


class _Line:
    """What is known of the connection that a request went out on."""

    def __init__(self) -> None:
        self.is_old = False


def _watching_lines() -> aiohttp.TraceConfig:
    async def reused(
        _session: aiohttp.ClientSession,
        context: SimpleNamespace,
        _params: aiohttp.TraceConnectionReuseconnParams,
    ) -> None:
        line = context.trace_request_ctx
        if isinstance(line, _Line):
            line.is_old = True

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(reused)
    return trace
