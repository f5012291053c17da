"""An authorization server on loopback: metadata, registration, consent, tokens, revocation.

It checks what a strict server checks: PKCE, the redirect address, the client, the resource. A
refresh token works once; a second use ends the whole grant, as OAuth 2.1 asks for public clients.
"""

import asyncio
import base64
import hashlib
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
from aiohttp import web


class Grant:
    """What a user granted to a client: one family of tokens."""

    def __init__(self, user: str, client_id: str, resource: str) -> None:
        self.user = user
        self.client_id = client_id
        self.resource = resource
        self.is_active = True


class AuthorizationServer:
    """Tests set the fields. `user` gives the next consent; `denies` refuses it; `lifetime_s` is
    that of new access tokens; `token_error` answers all requests for tokens; `gate`, if set, holds
    them; `metadata` replaces parts of the description."""

    def __init__(self) -> None:
        self.issuer = ""
        self.user = "ada"
        self.denies = False
        self.lifetime_s: float | str | None = 3600.0
        self.rotates = True
        self.gives_refresh_token = True
        self.confidential = False
        self.token_error: tuple[int, Mapping[str, str]] | None = None
        self.revocation_status = 200
        self.unsupported: set[str] = set()
        self.gate: asyncio.Event | None = None
        self.metadata: dict[str, object] = {}
        self.redirects_metadata_to: str | None = None
        self.calls: Counter[str] = Counter()
        self.forms: list[Mapping[str, str]] = []
        self.clients: dict[str, dict[str, Any]] = {}
        self.asked = asyncio.Event()
        self.secrets: set[str] = set()
        """All tokens, codes and client secrets that were ever made."""
        self._codes: dict[str, tuple[Grant, Mapping[str, str]]] = {}
        self._access: dict[str, Grant] = {}
        self._refresh: dict[str, tuple[Grant, bool]] = {}

    # What a test does as the user and as the operator

    async def consent(self, authorization_url: str) -> str:
        """Follow the URL as a browser does; where it sends the browser back."""
        async with (
            aiohttp.ClientSession() as http,
            http.get(authorization_url, allow_redirects=False) as reply,
        ):
            assert reply.status == 302, await reply.text()
            return reply.headers["location"]

    def expire(self) -> None:
        """No access token is accepted any more."""
        self._access.clear()

    def end_grants(self) -> None:
        for grant, _ in self._refresh.values():
            grant.is_active = False
        self._access.clear()

    def active_refresh_tokens(self) -> list[str]:
        return [
            token
            for token, (grant, is_used) in self._refresh.items()
            if grant.is_active and not is_used
        ]

    def _secret(self, kind: str) -> str:
        made = f"{kind}-{secrets.token_hex(8)}"
        self.secrets.add(made)
        return made

    # Its HTTP

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/.well-known/oauth-authorization-server", self._describe),
            web.post("/register", self._register),
            web.get("/authorize", self._authorize),
            web.post("/token", self._token),
            web.post("/revoke", self._revoke),
            web.post("/introspect", self._introspect),
        ]

    async def _describe(self, _: web.Request) -> web.Response:
        self.calls["metadata"] += 1
        if self.redirects_metadata_to is not None:
            raise web.HTTPFound(self.redirects_metadata_to)
        described: dict[str, object] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"]
            if self.confidential
            else ["none", "client_secret_basic"],
            "authorization_response_iss_parameter_supported": True,
            "scopes_supported": ["tools", "offline_access"],
        }
        return web.json_response({**described, **self.metadata})

    async def _register(self, request: web.Request) -> web.Response:
        self.calls["register"] += 1
        asked = await request.json()
        client = {**asked, "client_id": f"client-{len(self.clients) + 1}"}
        if asked["token_endpoint_auth_method"] != "none":
            client["client_secret"] = self._secret("client-secret")
        self.clients[client["client_id"]] = client
        return web.json_response(client, status=201)

    async def _authorize(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        if query["client_id"] not in self.clients:
            self.clients[query["client_id"]] = await self._read_client(query["client_id"])
        client = self.clients[query["client_id"]]
        assert query["redirect_uri"] in client["redirect_uris"]
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        answer = {"state": query["state"], "iss": self.issuer}
        if self.denies:
            answer |= {"error": "access_denied", "error_description": "<b>No</b>, said the user."}
        else:
            code = self._secret("code")
            grant = Grant(self.user, query["client_id"], query["resource"])
            self._codes[code] = (grant, query)
            answer["code"] = code
        raise web.HTTPFound(f"{query['redirect_uri']}?{urlencode(answer)}")

    async def _read_client(self, url: str) -> dict[str, Any]:
        """A client that publishes a description of itself."""
        self.calls["client document"] += 1
        async with aiohttp.ClientSession() as http, http.get(url) as reply:
            described = await reply.json()
        assert described["client_id"] == url
        assert described["token_endpoint_auth_method"] == "none"
        return described

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.calls["token"] += 1
        self.forms.append(form)
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.token_error is not None:
            status, body = self.token_error
            return web.json_response(dict(body), status=status)
        if not self._is_client(request, form):
            return web.json_response({"error": "invalid_client"}, status=401)
        if form["grant_type"] == "authorization_code":
            return self._exchange(form)
        return self._renew(form)

    def _is_client(self, request: web.Request, form: Mapping[str, str]) -> bool:
        header = request.headers.get("authorization")
        if header is None:
            client = self.clients.get(form.get("client_id", ""))
            return client is not None and "client_secret" not in client
        name, _, word = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
        client = self.clients.get(name)
        return client is not None and client.get("client_secret") == word

    def _exchange(self, form: Mapping[str, str]) -> web.Response:
        found = self._codes.pop(form["code"], None)
        if found is None:
            return web.json_response({"error": "invalid_grant"}, status=400)
        grant, asked = found
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        assert challenge == asked["code_challenge"]
        assert form["redirect_uri"] == asked["redirect_uri"]
        assert form["resource"] == grant.resource
        return self._issue(grant)

    def _renew(self, form: Mapping[str, str]) -> web.Response:
        found = self._refresh.get(form["refresh_token"])
        if found is None:
            return web.json_response({"error": "invalid_grant"}, status=400)
        grant, is_used = found
        if is_used:
            grant.is_active = False  # stolen, as far as the server can know
        if not grant.is_active:
            body = {"error": "invalid_grant", "error_description": "The grant has ended."}
            return web.json_response(body, status=400)
        if self.rotates:
            self._refresh[form["refresh_token"]] = (grant, True)
        return self._issue(grant)

    def _issue(self, grant: Grant) -> web.Response:
        access = self._secret(f"access-{grant.user}")
        self._access[access] = grant
        reply: dict[str, object] = {"access_token": access, "token_type": "bearer"}
        if self.lifetime_s is not None:
            reply["expires_in"] = self.lifetime_s
        has_one = any(one is grant and not used for one, used in self._refresh.values())
        if self.gives_refresh_token and (self.rotates or not has_one):
            refresh = self._secret(f"refresh-{grant.user}")
            self._refresh[refresh] = (grant, False)
            reply["refresh_token"] = refresh
        return web.json_response(reply)

    async def _revoke(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.calls["revoke"] += 1
        self.forms.append(form)
        if form["token_type_hint"] in self.unsupported:
            return web.json_response({"error": "unsupported_token_type"}, status=400)
        if self.revocation_status != 200:
            return web.json_response({"error": "server_error"}, status=self.revocation_status)
        for held in (self._refresh.get(form["token"], (None,))[0], self._access.get(form["token"])):
            if held is not None:
                held.is_active = False
        return web.Response(status=200)

    async def _introspect(self, request: web.Request) -> web.Response:
        form = await request.post()
        grant = self._access.get(str(form["token"]))
        if grant is None or not grant.is_active:
            return web.json_response({"active": False})
        return web.json_response(
            {"active": True, "sub": grant.user, "aud": grant.resource, "client_id": grant.client_id}
        )


@asynccontextmanager
async def authorization_server() -> AsyncGenerator[AuthorizationServer]:
    server = AuthorizationServer()
    app = web.Application()
    app.add_routes(server.routes())
    async with _served(app) as base:
        server.issuer = base
        yield server


@asynccontextmanager
async def plain_resource(
    authorization: AuthorizationServer, **described: object
) -> AsyncGenerator[str]:
    """A server that only refuses, and describes itself. Yields its URL."""
    base = ""

    async def refuse(_: web.Request) -> web.Response:
        hint = f'Bearer resource_metadata="{base}/.well-known/oauth-protected-resource/mcp"'
        return web.Response(status=401, headers={"www-authenticate": hint})

    async def describe(_: web.Request) -> web.Response:
        document = {"resource": f"{base}/mcp", "authorization_servers": [authorization.issuer]}
        return web.json_response({**document, "scopes_supported": ["tools"], **described})

    app = web.Application()
    app.add_routes(
        [
            web.get("/mcp", refuse),
            web.get("/.well-known/oauth-protected-resource/mcp", describe),
        ]
    )
    async with _served(app) as found:
        base = found
        yield f"{base}/mcp"


@asynccontextmanager
async def _served(app: web.Application) -> AsyncGenerator[str]:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
