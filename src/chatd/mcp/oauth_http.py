"""The requests of OAuth for MCP servers. A server names most of their addresses, so each connection
goes to a public address, or to a host that the operator named.

Every request has a time limit, every reply a size limit. A redirect is followed only within the
same origin, and only for reads: a secret is never sent to an address that a reply named.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import urljoin

import aiohttp
import msgspec
from msgspec import Struct

from chatd.domain.mcp.oauth import OauthFailed, is_same_origin, split_url
from chatd.guarded_dial import guarded_session, read_bounded

S = TypeVar("S", bound=Struct)

OAUTH_TIMEOUT_S: Final = 10.0
"""For one request to an authorization server."""
MAX_OAUTH_REPLY_BYTES: Final = 1024 * 1024
MAX_OAUTH_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_REFUSED_TEXT: Final = (
    "its address is not public, or that of chatd's own host; mcp.private_hosts names hosts that may"
    " be private"
)

_INITIALIZE: Final = msgspec.json.encode(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "chatd", "version": "1"},
        },
    }
)


class OauthReply(Struct, frozen=True, kw_only=True):
    """`challenge` is the header WWW-Authenticate."""

    status: int
    body: bytes = b""
    challenge: str | None = None

    def read(self, kind: type[S]) -> S | None:
        """None for a body of another form. A field that is null counts as missing, and a number
        may be a text."""
        try:
            found = msgspec.json.decode(self.body, type=dict[str, object])
            given = {name: value for name, value in found.items() if value is not None}
            return msgspec.convert(given, kind, strict=False)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


class OauthHttp:
    """`private_hosts`: names and addresses, in lower case, that may be private and without TLS."""

    def __init__(self, private_hosts: frozenset[str] = frozenset()) -> None:
        self.private_hosts = private_hosts

    async def get(self, url: str) -> OauthReply:
        """Raises OauthFailed."""
        start = url
        for _ in range(MAX_OAUTH_REDIRECTS + 1):
            reply, location = await self._request("GET", url)
            if reply.status not in _REDIRECTS or location is None:
                return reply
            url = urljoin(url, location)
            if not is_same_origin(url, start):
                raise OauthFailed(f"{_host(start)} sends chatd to another host, which is refused.")
        raise OauthFailed(f"{_host(start)} redirects too often.")

    async def probe(self, url: str) -> OauthReply:
        """Only the head of the reply: a stream would not end. Raises OauthFailed."""
        accept = {"accept": "application/json, text/event-stream"}
        reply, _ = await self._request("GET", url, headers=accept, reads=False)
        if reply.challenge is None:
            # Some servers ask for a token only where a session begins.
            reply, _ = await self._request(
                "POST", url, document=_INITIALIZE, headers=accept, reads=False
            )
        return reply

    async def post_form(
        self, url: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> OauthReply:
        """Raises OauthFailed."""
        return (await self._request("POST", url, form=form, headers=headers))[0]

    async def post_json(self, url: str, document: object) -> OauthReply:
        """Raises OauthFailed."""
        return (await self._request("POST", url, document=msgspec.json.encode(document)))[0]

    async def _request(
        self,
        method: str,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        document: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        reads: bool = True,
    ) -> tuple[OauthReply, str | None]:
        sent = {"accept": "application/json", **(headers or {})}
        if document is not None:
            sent["content-type"] = "application/json"
        try:
            async with (
                asyncio.timeout(OAUTH_TIMEOUT_S),
                self._session(url) as session,
                session.request(
                    method, url, data=document or form, headers=sent, allow_redirects=False
                ) as reply,
            ):
                body = await read_bounded(reply, MAX_OAUTH_REPLY_BYTES) if reads else b""
        except TimeoutError:
            text = f"{_host(url)} did not answer within {OAUTH_TIMEOUT_S:.0f} s. Try again."
            raise OauthFailed(text) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise OauthFailed(f"{_host(url)} cannot be reached: {_reason(error)}.") from None
        challenge = reply.headers.get("www-authenticate")
        answer = OauthReply(status=reply.status, body=body, challenge=challenge)
        return answer, reply.headers.get("location")

    def _session(self, url: str) -> aiohttp.ClientSession:
        pieces = split_url(url)
        allow_private = pieces is not None and pieces.host in self.private_hosts
        return guarded_session(allow_private=allow_private, refusal_text=_REFUSED_TEXT)


def _host(url: str) -> str:
    pieces = split_url(url)
    return "The authorization server" if pieces is None else pieces.origin


def _reason(error: Exception) -> str:
    """Without the address, which may contain a secret."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "its certificate is not valid"
    inner = getattr(error, "os_error", error)
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return str(error) if isinstance(error, ValueError) else type(error).__name__
