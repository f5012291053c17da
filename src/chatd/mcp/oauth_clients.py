"""chatd as a client of the authorization server of an MCP server: set up by hand, or registered
when the first user connects."""

import asyncio
from typing import Final
from uuid import UUID

from msgspec import Struct

from chatd.domain.ids import McpServerId
from chatd.domain.mcp.oauth import OauthClient, OauthFailed
from chatd.domain.mcp.servers import McpSecrets
from chatd.domain.ports import Env
from chatd.mcp.directory import ServerDirectory
from chatd.mcp.oauth_discovery import OauthDiscovery
from chatd.mcp.oauth_http import OauthHttp
from chatd.sealed_secrets import KeyRing
from chatd.store import mcp_tokens
from chatd.store.mcp_servers import StoredMcpServer
from chatd.store.mcp_tokens import CLIENT_SECRET, Registration
from chatd.store.pool import Pool

CHANGED: Final = "The configuration of the server has changed meanwhile. Connect again."


class UsableClient(Struct, frozen=True, kw_only=True):
    """Without a `registration_id` it was set up by hand. Its secret is hidden in repr."""

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
        """The one that was set up by hand, or the registered one, or a new one."""
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
        """The one with which the connection was begun."""
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
