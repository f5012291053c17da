"""The requests of OAuth for MCP servers. A server names most of their addresses, so each connection
goes to a public address, or to a host that the operator named.

Every request has a time limit, every reply a size limit. A redirect is followed only within the
same origin, and only for reads: a secret is never sent to an address that a reply named.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import quote, urlencode, urljoin

import aiohttp
import msgspec
from msgspec import Struct

from chatd.domain.access.secret_text import secret_text
from chatd.domain.mcp.oauth import (
    PERMANENT_ERRORS,
    GrantRefused,
    OauthClient,
    OauthFailed,
    TokenError,
    TokenReply,
    find_token_fault,
    is_same_origin,
    refusal_reason,
    split_url,
)
from chatd.guarded_dial import guarded_session, read_bounded

S = TypeVar("S", bound=Struct)

OAUTH_TIMEOUT_S: Final = 10.0
"""Limit for one request to an authorization server."""
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
        """None for a body of another form. A field that is null counts as missing, and a number may
        be sent as text."""
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
        """Read only the head of the reply, because a stream would not end. Raises OauthFailed."""
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
    """Describe the error without the address, which may contain a secret."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "its certificate is not valid"
    inner = getattr(error, "os_error", error)
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return str(error) if isinstance(error, ValueError) else type(error).__name__


# Asks an authorization server for tokens, for new ones, and to revoke them.

_UNKNOWN_CLIENT: Final = frozenset({"invalid_client", "unauthorized_client"})


class OpenTokens(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens as they are sealed, with the secret of the client that chatd registered itself."""

    access_token: str
    token_type: str = "Bearer"
    refresh_token: str | None = None
    client_secret: str | None = None

    def __repr__(self) -> str:
        return "OpenTokens(...)"


class UnknownClient(OauthFailed):
    """The authorization server does not know the client: it must be registered again."""


class OauthGrants:
    def __init__(self, http: OauthHttp) -> None:
        self._http = http

    async def exchange(
        self,
        client: OauthClient,
        secret: str | None,
        *,
        code: str,
        verifier: str,
        redirect_uri: str,
    ) -> TokenReply:
        """The tokens for a code. Raises OauthFailed, GrantRefused and UnknownClient."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": redirect_uri,
            "resource": client.resource,
        }
        return await self._ask(client, secret, form)

    async def refresh(
        self, client: OauthClient, secret: str | None, refresh_token: str
    ) -> TokenReply:
        """Raises OauthFailed, GrantRefused and UnknownClient."""
        form = {
            "grant_type": "refresh_token",
            "refresh_token": refresh_token,
            "resource": client.resource,
        }
        return await self._ask(client, secret, form)

    async def revoke(self, client: OauthClient, secret: str | None, tokens: OpenTokens) -> None:
        """RFC 7009: the refresh token, with which the server ends the access token too. If it
        cannot revoke that kind, the access token. Raises OauthFailed."""
        kinds = (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token))
        given = [(kind, token) for kind, token in kinds if token is not None]
        for kind, token in given:
            reply = await self._revoke(client, secret, kind, token)
            if reply.status in (200, 204):
                return
            said = reply.read(TokenError) or TokenError()
            if said.error != "unsupported_token_type":
                raise OauthFailed(refusal_reason(said, reply.status, (token, secret or token)))
        raise OauthFailed("The authorization server revokes neither kind of token.")

    async def _revoke(
        self, client: OauthClient, secret: str | None, kind: str, token: str
    ) -> OauthReply:
        if client.revocation_endpoint is None:
            raise OauthFailed("The authorization server has no way to revoke tokens.")
        form, headers = _authenticated(client, secret, {"token": token, "token_type_hint": kind})
        return await self._http.post_form(client.revocation_endpoint, form, headers)

    async def _ask(
        self, client: OauthClient, secret: str | None, form: dict[str, str]
    ) -> TokenReply:
        sent, headers = _authenticated(client, secret, form)
        reply = await self._http.post_form(client.token_endpoint, sent, headers)
        said = reply.read(TokenError)
        # Some servers report an error with the status 200.
        if reply.status != 200 or (said is not None and said.error):
            error = said or TokenError()
            reason = refusal_reason(error, reply.status, _secrets(secret, form))
            if error.error in PERMANENT_ERRORS:
                raise GrantRefused(reason)
            raise UnknownClient(reason) if error.error in _UNKNOWN_CLIENT else OauthFailed(reason)
        tokens = reply.read(TokenReply)
        fault = "it has no access token" if tokens is None else find_token_fault(tokens)
        if tokens is None or fault is not None:
            raise OauthFailed(f"The answer of the authorization server cannot be used: {fault}.")
        return tokens


def _secrets(secret: str | None, form: dict[str, str]) -> list[str]:
    named = (form.get(name) for name in ("code", "code_verifier", "refresh_token"))
    return [one for one in (secret, *named) if one]


def _authenticated(
    client: OauthClient, secret: str | None, form: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The form and the headers that name the client."""
    if client.token_auth == "client_secret_basic" and secret is not None:
        user, word = quote(client.client_id, safe=""), quote(secret, safe="")
        return form, {"authorization": aiohttp.encode_basic_auth(user, word)}
    named = {**form, "client_id": client.client_id}
    if client.token_auth == "client_secret_post" and secret is not None:
        named["client_secret"] = secret
    return named, {}


def authorization_url(client: OauthClient, *, redirect_uri: str, state: str, verifier: str) -> str:
    """Where the browser goes to ask the user."""
    query = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": secret_text(hashlib.sha256(verifier.encode()).digest()),
        "code_challenge_method": "S256",
        "resource": client.resource,
    }
    if client.scopes:
        query["scope"] = client.scopes
    separator = "&" if "?" in client.authorization_endpoint else "?"
    return f"{client.authorization_endpoint}{separator}{urlencode(query)}"
