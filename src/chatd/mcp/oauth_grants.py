"""Asks an authorization server for tokens, for new ones, and to revoke them."""

import hashlib
from typing import Final
from urllib.parse import quote, urlencode

import aiohttp
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
    refusal_reason,
)
from chatd.mcp.oauth_http import OauthHttp, OauthReply

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
        # Some servers tell of an error with the status 200.
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
