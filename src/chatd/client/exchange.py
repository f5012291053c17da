"""Where a server is, and one request to it with its reply, within limits of time and size."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import aiohttp
from msgspec import Struct

from chatd.client.errors import ApiError, ServerUnreachable, read_error
from chatd.domain.errors import ChatdError, InvalidInput

API_PATH: Final = "/api/v1"


class ServerAddress(Struct, frozen=True, kw_only=True):
    """`url` is without `/api/v1`. The token is left out wherever the address is printed; it is
    empty for a caller that has signed in by a cookie."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"ServerAddress(url={self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("url", self.url)]

    @property
    def api_url(self) -> str:
        return f"{self.url.rstrip('/')}{API_PATH}"

    @property
    def mcp_url(self) -> str:
        """Where chatd is an MCP server."""
        return f"{self.url.rstrip('/')}/mcp"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def file_url(server_url: str, file_id: str) -> str:
    """Where a browser shows the file."""
    return f"{server_url.rstrip('/')}{API_PATH}/files/{file_id}/content"


def clean_url(text: str) -> str:
    """The URL as a `ServerAddress` has it. Raises InvalidInput."""
    url = text.strip()
    if "://" not in url:
        raise InvalidInput("url", f"{url!r} must begin with http:// or https://")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput("url", "is no valid URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("url", f"{parts.scheme}://... must be http:// or https:// and a host")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("url", "must not contain a user or a password")
    del port
    path = parts.path.rstrip("/").removesuffix(API_PATH).rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


CONNECT_TIMEOUT_S: Final = 10.0
SILENCE_TIMEOUT_S: Final = 60.0
REQUEST_TIMEOUT_S: Final = 90.0
MAX_REPLY_BYTES: Final = 64 * 1024 * 1024
MAX_ERROR_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_NO_ANSWER_STATUSES: Final = frozenset({408, 502, 503, 504})


class Outgoing(Struct, frozen=True, kw_only=True):
    """A request. `chunks` is called for the body of each try."""

    method: str
    path: str
    body: bytes | None = None
    chunks: Callable[[], AsyncIterator[bytes]] | None = None
    headers: Mapping[str, str] = {}
    accept: str = "application/json"
    timeout_s: float | None = REQUEST_TIMEOUT_S
    max_bytes: int = MAX_REPLY_BYTES
    is_once: bool = False
    """The body cannot be read a second time."""


class NoAnswer(Exception):
    """The server was not reached, its reply was lost, or it asks for a later retry. `refusal` is
    what it said, if it said something; `says` is what people read after the address, if the usual
    advice to start a server would not help."""

    def __init__(
        self,
        reason: str,
        *,
        refusal: ApiError | None = None,
        says: str | None = None,
        was_not_sent: bool = False,
        is_temporary: bool = True,
    ) -> None:
        super().__init__(reason)
        self.refusal = refusal
        self.says = says
        self.was_not_sent = was_not_sent
        self.is_temporary = is_temporary

    @property
    def wait_s(self) -> float:
        return (self.refusal.retry_after_s or 0.0) if self.refusal is not None else 0.0

    def as_error(self, url: str) -> ChatdError:
        """What the caller gets when nothing better came."""
        refusal = self.refusal
        if refusal is not None and refusal.code != "not_chatd":
            return refusal
        text = None if self.says is None else f"{url} {self.says}"
        return ServerUnreachable(url, str(self), text)


class Exchange:
    """Sends requests to one server. Raises ApiError and NoAnswer."""

    def __init__(self, server: ServerAddress, http: aiohttp.ClientSession) -> None:
        self._server = server
        self._http = http

    async def send(self, sent: Outgoing, *, is_repeat: bool = False) -> bytes:
        """`is_repeat`: an earlier try may have reached the server."""
        collected = bytearray()
        tries = _Tries()
        try:
            await self.stream(sent, collected.extend, tries)
        except ApiError as error:
            was_sent_before = is_repeat or tries.count > 1
            is_gone = error.status == HTTPStatus.NOT_FOUND and error.code != "not_chatd"
            if not (sent.method == "DELETE" and was_sent_before and is_gone):
                raise
            # That try has deleted it, and its reply was lost.
            return b""
        return bytes(collected)

    async def stream(
        self,
        sent: Outgoing,
        write: Callable[[bytes], object],
        tries: "_Tries | None" = None,
        on_headers: "Callable[[Mapping[str, str]], object] | None" = None,
    ) -> int:
        """Hands over the body of the reply as it comes, and returns its length."""
        try:
            async with self._open(sent, tries or _Tries()) as reply:
                await self._check(sent, reply)
                if on_headers is not None:
                    on_headers(reply.headers)
                return await _copy(reply, write, sent.max_bytes)
        except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            raise explain_failure(error) from error

    def _open(
        self, sent: Outgoing, tries: "_Tries"
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {**self._server.headers, "Accept": sent.accept, **sent.headers}
        if sent.body is not None:
            headers["Content-Type"] = "application/json"
        return self._http.request(
            sent.method,
            f"{self._server.api_url}{sent.path}",
            data=sent.body if sent.chunks is None else sent.chunks(),
            headers=headers,
            allow_redirects=False,
            middlewares=(tries,),
            timeout=aiohttp.ClientTimeout(
                total=sent.timeout_s,
                sock_connect=CONNECT_TIMEOUT_S,
                sock_read=SILENCE_TIMEOUT_S,
            ),
        )

    async def _check(self, sent: Outgoing, reply: aiohttp.ClientResponse) -> None:
        """Raises unless the reply is what the caller wants."""
        if HTTPStatus.MULTIPLE_CHOICES <= reply.status < HTTPStatus.BAD_REQUEST:
            raise _redirected(self._server.url, reply)
        if reply.status >= HTTPStatus.BAD_REQUEST:
            body = bytearray()
            await _copy(reply, body.extend, MAX_ERROR_BYTES, is_cut=True)
            wait = reply.headers.get("Retry-After")
            error = read_error(self._server.url, reply.status, bytes(body), wait)
            if reply.status in _NO_ANSWER_STATUSES or error.code == "rate_limited":
                says = (
                    f"replies {reply.status} and not as chatd does: it is a proxy that does not"
                    " reach the server. Check that chatd serve runs behind it."
                )
                raise NoAnswer(f"it replies {reply.status}", refusal=error, says=says)
            raise error
        is_empty = reply.status in (HTTPStatus.NO_CONTENT, HTTPStatus.ACCEPTED)
        wants_json = sent.accept == "application/json" and not is_empty
        if wants_json and reply.content_type != "application/json":
            text = (
                f"{self._server.url} answered, but not as a chatd server does. Check the address:"
                " it is the one that chatd serve prints."
            )
            raise ApiError(reply.status, "not_chatd", text)


class _Tries:
    """Counts how often aiohttp sends a request: it repeats some by itself."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        self.count += 1
        return await send(request)


async def _copy(
    reply: aiohttp.ClientResponse,
    write: Callable[[bytes], object],
    max_bytes: int,
    *,
    is_cut: bool = False,
) -> int:
    size = 0
    async for chunk in reply.content.iter_chunked(_CHUNK_BYTES):
        size += len(chunk)
        if size > max_bytes:
            if is_cut:
                return size
            text = f"The reply is larger than the {max_bytes} bytes that this client reads."
            raise ApiError(reply.status, "reply_too_large", text)
        write(chunk)
    return size


def explain_failure(error: Exception) -> NoAnswer:
    match error:
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            fault = _certificate_fault(error)
            says = (
                f"cannot be used: its certificate is not trusted here ({fault})."
                " If an authority of your own has signed it, SSL_CERT_FILE names a file with that."
            )
            text = "its certificate is not trusted here"
            return NoAnswer(text, says=says, was_not_sent=True, is_temporary=False)
        case aiohttp.ClientSSLError():
            says = (
                "does not speak TLS. Check the port, or name the server with http:// if no proxy"
                " stands before it."
            )
            text = "it does not speak TLS there"
            return NoAnswer(text, says=says, was_not_sent=True, is_temporary=False)
        case aiohttp.ClientConnectorDNSError():
            return NoAnswer("its name is not known", was_not_sent=True)
        case aiohttp.ClientConnectorError(os_error=OSError(errno=int(number))):
            return NoAnswer(os.strerror(number).lower(), was_not_sent=True)
        case aiohttp.ClientConnectorError():
            return NoAnswer("it cannot be connected to", was_not_sent=True)
        case aiohttp.ConnectionTimeoutError():
            return NoAnswer("it did not answer in time", was_not_sent=True)
        case aiohttp.InvalidURL():
            return NoAnswer("this is no valid URL", is_temporary=False)
        case TimeoutError():
            return NoAnswer("it did not answer in time")
        case aiohttp.ServerDisconnectedError():
            return NoAnswer("it closed the connection")
        case _:
            return NoAnswer(f"the connection was lost ({type(error).__name__})")


def _certificate_fault(error: Exception) -> str:
    """The reason in the words of OpenSSL, such as `certificate has expired`."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    is_told = isinstance(error, ssl.SSLCertVerificationError)
    return error.verify_message.rstrip(".") if is_told else type(error).__name__


def _redirected(url: str, reply: aiohttp.ClientResponse) -> ApiError:
    """The error of a redirect: the token is not sent there."""
    place = _place_of(str(reply.url), reply.headers.get("Location", ""))
    text = f"{url} sends clients on to {place}. Name that address instead, if it is your server."
    return ApiError(reply.status, "redirected", text)


def _place_of(url: str, location: str) -> str:
    """The redirect's target, cleaned for people: the answering server may put anything there."""
    try:
        target = urlsplit(urljoin(url, location))
        port = "" if target.port is None else f":{target.port}"
    except ValueError:
        return "an address that is not valid"
    return f"{target.scheme}://{target.hostname or ''}{port}{target.path.partition(API_PATH)[0]}"
