"""chatd as a client of the authorization server of an MCP server: found by discovery; set up by
hand, or registered when the first user connects.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar
from uuid import UUID

from msgspec import Struct

from chatd.domain.ids import McpServerId
from chatd.domain.mcp.oauth import (
    IssuerMetadata,
    OauthClient,
    OauthFailed,
    RegistrationReply,
    ResourceMetadata,
    TokenError,
    choose_scopes,
    document_url,
    issuer_metadata_urls,
    metadata_hint,
    published_client,
    refusal_reason,
    registered_client,
    registration_request,
    require_endpoint,
    require_issuer,
    require_own_resource,
    resource_metadata_urls,
    split_url,
)
from chatd.domain.mcp.servers import McpSecrets
from chatd.domain.ports import Env
from chatd.mcp.directory import ServerDirectory
from chatd.mcp.oauth_http import OauthHttp, OauthReply
from chatd.sealed_secrets import KeyRing
from chatd.store.database.pool import Pool
from chatd.store.deployment import mcp_tokens
from chatd.store.deployment.mcp_servers import StoredMcpServer
from chatd.store.deployment.mcp_tokens import CLIENT_SECRET, Registration

# Finds the authorization server of an MCP server and registers chatd there.
#
# The server is asked first (RFC 9728), then its authorization server (RFC 8414, OpenID discovery),
# which registers a client (RFC 7591) or, if it registers none, reads the description that chatd
# publishes of itself. A server without a description of its own is taken to be its
# own authorization server, as the first version of the specification says.

S = TypeVar("S", bound=Struct)

DISCOVERY_TIMEOUT_S: Final = 30.0
"""Limit for all requests that find an authorization server and register chatd."""


class RegisteredClient(Struct, frozen=True, kw_only=True):
    client: OauthClient
    secret: str | None = None

    def __repr__(self) -> str:
        return f"RegisteredClient(client={self.client!r})"


class _Found(Struct, frozen=True, kw_only=True):
    issuer: IssuerMetadata
    resource: str
    scopes: str


class OauthDiscovery:
    def __init__(self, http: OauthHttp) -> None:
        self._http = http

    async def register(self, server_url: str, redirect_uri: str, scopes: str) -> RegisteredClient:
        """`scopes` are those that an administrator set. Raises OauthFailed."""
        try:
            async with asyncio.timeout(DISCOVERY_TIMEOUT_S):
                found = await self._find(server_url, scopes)
                return await self._register(found, redirect_uri)
        except TimeoutError:
            text = f"The authorization server took longer than {DISCOVERY_TIMEOUT_S:.0f} s."
            raise OauthFailed(f"{text} Try again.") from None

    async def _find(self, server_url: str, scopes: str) -> _Found:
        pieces = split_url(server_url)
        if pieces is None:
            raise OauthFailed("The address of the MCP server is not an http address.")
        hint, challenged = metadata_hint((await self._http.probe(server_url)).challenge)
        urls = resource_metadata_urls(server_url, hint)
        described = await self._first(urls, ResourceMetadata)
        if described is None:
            resource, issuer, known = server_url, pieces.origin, ()
        else:
            resource = require_own_resource(described, server_url)
            known = described.scopes_supported
            issuer = next(iter(described.authorization_servers), pieces.origin)
        require_endpoint(issuer, "address", tuple(self._http.private_hosts))
        metadata = await self._first(issuer_metadata_urls(issuer), IssuerMetadata)
        if metadata is None:
            raise OauthFailed(
                f"{issuer} does not describe itself as an authorization server. Enter the client id"
                " and the addresses of its authorization server by hand."
            )
        require_issuer(metadata, issuer, tuple(self._http.private_hosts))
        chosen = choose_scopes(scopes, challenged, known, metadata.scopes_supported)
        return _Found(issuer=metadata, resource=resource, scopes=chosen)

    async def _first(self, urls: Sequence[str], kind: type[S]) -> S | None:
        """The first document at one of the addresses. Raises OauthFailed if one did not answer."""
        failure: OauthFailed | None = None
        for url in urls:
            try:
                reply = await self._http.get(url)
            except OauthFailed as error:
                failure = error
                continue
            if reply.status == 200 and (found := reply.read(kind)) is not None:
                return found
        if failure is not None:
            raise failure
        return None

    async def _register(self, found: _Found, redirect_uri: str) -> RegisteredClient:
        url = found.issuer.registration_endpoint
        if url is None and found.issuer.client_id_metadata_document_supported:
            hosts = tuple(self._http.private_hosts)
            require_endpoint(document_url(redirect_uri), "description of chatd for", hosts)
            client = published_client(found.issuer, redirect_uri, found.resource, found.scopes)
            return RegisteredClient(client=client)
        if url is None:
            raise OauthFailed(
                f"The authorization server {found.issuer.issuer} does not register clients by"
                " itself. Register chatd there and enter its client id and the addresses by hand."
            )
        asked = registration_request(found.issuer, redirect_uri, found.scopes)
        reply = await self._http.post_json(url, asked)
        made = reply.read(RegistrationReply) if reply.status in (200, 201) else None
        if made is None or not made.client_id:
            raise OauthFailed(f"chatd could not be registered. {_said(reply)}")
        client = registered_client(found.issuer, made, found.resource, found.scopes)
        return RegisteredClient(client=client, secret=made.client_secret or None)


def _said(reply: OauthReply) -> str:
    return refusal_reason(reply.read(TokenError) or TokenError(), reply.status)


CHANGED: Final = "The configuration of the server has changed meanwhile. Connect again."


class UsableClient(Struct, frozen=True, kw_only=True):
    """A client without a `registration_id` was set up by hand. Its secret is hidden in repr."""

    client: OauthClient
    secret: str | None
    registration_id: UUID | None = None

    def __repr__(self) -> str:
        return f"UsableClient(client={self.client!r})"


class OauthClients:
    def __init__(
        self, pool: Pool, ring: KeyRing, env: Env, http: OauthHttp, directory: ServerDirectory
    ) -> None:
        self._pool = pool
        self._ring = ring
        self._env = env
        self._directory = directory
        self._discovery = OauthDiscovery(http)
        self._registering: dict[McpServerId, asyncio.Lock] = {}

    async def for_server(self, stored: StoredMcpServer, redirect_uri: str) -> UsableClient:
        """The client that was set up by hand, else the registered one, else a newly registered
        one."""
        if (made := self._manual_client(stored)) is not None:
            return made
        found = await mcp_tokens.find_registration(self._pool, stored.id, redirect_uri)
        if found is None:
            found = await self._register_once(stored, redirect_uri)
        return self._opened(found)

    async def _register_once(self, stored: StoredMcpServer, redirect_uri: str) -> Registration:
        """Users of this process who connect at the same moment wait for one registration."""
        lock = self._registering.setdefault(stored.id, asyncio.Lock())
        try:
            async with lock:
                found = await mcp_tokens.find_registration(self._pool, stored.id, redirect_uri)
                return found or await self._register(stored, redirect_uri)
        finally:
            if not lock.locked():
                self._registering.pop(stored.id, None)

    async def registered(
        self, stored: StoredMcpServer, redirect_uri: str, registration_id: UUID | None
    ) -> UsableClient:
        """The client with which the connection was begun."""
        if (made := self._manual_client(stored)) is not None:
            return made
        found = await mcp_tokens.find_registration(self._pool, stored.id, redirect_uri)
        if found is None or found.id != registration_id:
            raise OauthFailed(CHANGED)
        return self._opened(found)

    def _manual_client(self, stored: StoredMcpServer) -> UsableClient | None:
        setup = stored.credentials.oauth
        if setup is None:
            return None
        kept: McpSecrets = self._directory.open_secrets(stored)
        client = setup.client(stored.server.url, stored.credentials.scopes)
        return UsableClient(client=client, secret=kept.client_secret)

    async def _register(self, stored: StoredMcpServer, redirect_uri: str) -> Registration:
        server, scopes = stored.server, stored.credentials.scopes
        made = await self._discovery.register(server.url, redirect_uri, scopes)
        new_id, sealed = self._env.new_id(), None
        if made.secret is not None:
            sealed = self._ring.seal(made.secret, CLIENT_SECRET.context(new_id))
        new = Registration(id=new_id, client=made.client, sealed_secret=sealed)
        found = await mcp_tokens.add_registration(
            self._pool, server.id, server.version, redirect_uri, new
        )
        if found is None:
            raise OauthFailed(CHANGED)
        return found

    def _opened(self, found: Registration) -> UsableClient:
        secret = None
        if found.sealed_secret is not None:
            secret = self._ring.open(found.sealed_secret, CLIENT_SECRET.context(found.id))
        return UsableClient(client=found.client, secret=secret, registration_id=found.id)

    async def forget(self, registration_id: UUID) -> None:
        """The authorization server does not know this client any more."""
        await mcp_tokens.delete_registration(self._pool, registration_id)
