"""The tokens of a user for an MCP server, refreshed before they expire.

Many chats on many replicas may need one token at the same moment. In this process they share one
refresh; among processes a claim in the row lets one ask while the others wait for its result. The
refresh does not belong to the chat that asked first: it goes on when that chat is interrupted,
because the authorization server may accept a refresh token only once.
"""

import asyncio
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.aio import BackgroundTasks, retry_unavailable
from chatd.domain.ids import UserId
from chatd.domain.mcp.oauth import (
    REFRESH_AHEAD_S,
    GrantRefused,
    OauthClient,
    OauthFailed,
    TokenReply,
    is_same_origin,
)
from chatd.domain.mcp.servers import McpSecrets
from chatd.domain.ports import Env
from chatd.mcp.oauth_http import OauthGrants, OauthHttp, OpenTokens, UnknownClient
from chatd.sealed_secrets import KeyRing, SecretUnreadable
from chatd.store.database.conn import Conn
from chatd.store.deployment import mcp_tokens
from chatd.store.deployment.mcp_servers import StoredMcpServer
from chatd.store.deployment.mcp_tokens import TOKENS, StoredToken

REFRESH_TIMEOUT_S: Final = 10.0
"""How long a chat waits for a refresh before it continues with the token that it has."""
REFRESH_CLAIM_S: Final = 15.0
"""How long other processes leave a refresh to the one that claimed it: longer than it may take."""
REFRESH_POLL_S: Final = 0.25
MAX_REFRESHES: Final = 64
"""Limit for concurrent refreshes of this process."""

NEEDS_CONNECT: Final = "You are not connected to this server. Connect to it in the settings."
CANNOT_REFRESH: Final = (
    "The server does not accept the token, and it cannot be refreshed. Connect again."
)
CLIENT_UNKNOWN: Final = (
    "The authorization server of this server does not know chatd any more. Connect again."
)


class UserToken(Struct, frozen=True, kw_only=True):
    """Tokens to use, or the problem."""

    tokens: OpenTokens | None = None
    version: str = ""
    problem: str = ""


class OauthTokens:
    """`run` keeps refreshes going that outlive the chat that asked for them."""

    def __init__(self, conn: Conn, ring: KeyRing, env: Env, http: OauthHttp) -> None:
        self._conn = conn
        self._ring = ring
        self._env = env
        self._grants = OauthGrants(http)
        self._tasks = BackgroundTasks(env, max_submitted=MAX_REFRESHES)
        self._refreshing: dict[UUID, asyncio.Event] = {}

    async def run(self) -> None:
        await self._tasks.run()

    async def current(
        self, server: StoredMcpServer, secrets: McpSecrets, user: UserId
    ) -> UserToken:
        """Refreshes a token that is about to expire, within `REFRESH_TIMEOUT_S`."""
        stored = await self._find(server, user)
        if stored is None or not _is_expiring(stored):
            return self._opened(server, stored)
        return await self._refreshed(server, secrets, stored)

    async def refused(
        self, server: StoredMcpServer, secrets: McpSecrets, user: UserId, version: str
    ) -> UserToken:
        """The token to use after the server refused the one of this version."""
        stored = await self._find(server, user)
        if stored is None or _version(stored) != version:
            return self._opened(server, stored)  # replaced since then
        opened = self._opened(server, stored)
        if opened.tokens is not None and opened.tokens.refresh_token is None:
            await mcp_tokens.fail(self._conn, stored, CANNOT_REFRESH)
            return UserToken(problem=CANNOT_REFRESH)
        return await self._refreshed(server, secrets, stored)

    async def _refreshed(
        self, server: StoredMcpServer, secrets: McpSecrets, stored: StoredToken
    ) -> UserToken:
        """A token that cannot be refreshed is sent although it has expired: the server's clock
        decides."""
        opened = self._opened(server, stored)
        if opened.tokens is None or opened.tokens.refresh_token is None:
            return opened
        done = self._refreshing.get(stored.id)
        if done is None:
            done = self._begin(server, secrets, stored, opened.tokens)
        try:
            async with asyncio.timeout(REFRESH_TIMEOUT_S):
                await done.wait()
        except TimeoutError:
            self._env.emit("mcp_refresh_slow", server_id=server.id)
            return opened
        return self._opened(server, await self._find(server, stored.user_id))

    def _begin(
        self,
        server: StoredMcpServer,
        secrets: McpSecrets,
        stored: StoredToken,
        opened: OpenTokens,
    ) -> asyncio.Event:
        done = asyncio.Event()

        async def refresh() -> None:
            try:
                await self._refresh_once(server, secrets, stored, opened)
            finally:
                self._refreshing.pop(stored.id, None)
                done.set()

        self._refreshing[stored.id] = done
        if not self._tasks.submit("mcp_refresh", refresh):
            self._refreshing.pop(stored.id, None)
            done.set()
        return done

    async def _refresh_once(
        self,
        server: StoredMcpServer,
        secrets: McpSecrets,
        stored: StoredToken,
        opened: OpenTokens,
    ) -> None:
        if not await mcp_tokens.claim(self._conn, stored, REFRESH_CLAIM_S):
            await self._wait_for_other(server, stored)
            return
        client, secret = current_client(server, secrets, stored.client, opened)
        try:
            reply = await self._grants.refresh(client, secret, opened.refresh_token or "")
        except UnknownClient as unknown:
            await self._forget_client(server, stored, unknown)
        except GrantRefused as refused:
            await mcp_tokens.fail(self._conn, stored, refused.message)
            self._env.emit("mcp_grant_refused", server_id=server.id)
        except OauthFailed as failed:
            await mcp_tokens.release(self._conn, stored)
            self._env.emit("mcp_refresh_failed", server_id=server.id, reason=failed.message)
        else:
            await self._store(stored, opened, reply)

    async def _forget_client(
        self, server: StoredMcpServer, stored: StoredToken, unknown: UnknownClient
    ) -> None:
        """Users who connect again need a new registration: the authorization server redirects no
        browser back for a client that it does not know. A client that was set up by hand is
        corrected by an administrator, and its tokens stay."""
        self._env.emit("mcp_refresh_failed", server_id=server.id, reason=unknown.message)
        if server.credentials.oauth is not None:
            await mcp_tokens.release(self._conn, stored)
            return
        await mcp_tokens.delete_client(self._conn, server.id, stored.client.client_id)
        await mcp_tokens.fail(self._conn, stored, CLIENT_UNKNOWN)

    async def _store(self, stored: StoredToken, old: OpenTokens, reply: TokenReply) -> None:
        """Store the new tokens. The old refresh token may be used up, so retry while the database
        is down."""
        new = OpenTokens(
            access_token=reply.access_token,
            token_type=reply.token_type,
            refresh_token=reply.refresh_token or old.refresh_token,
            client_secret=old.client_secret,
        )
        sealed = seal_tokens(self._ring, stored.id, new)
        lifetime = reply.lifetime_s
        await retry_unavailable(
            self._env.clock,
            lambda: mcp_tokens.replace(self._conn, stored, sealed, lifetime),
            budget_s=REFRESH_TIMEOUT_S,
        )

    async def _wait_for_other(self, server: StoredMcpServer, stored: StoredToken) -> None:
        """Wait until another process has refreshed the row, at most `REFRESH_TIMEOUT_S`."""
        started = self._env.clock.monotonic()
        while self._env.clock.monotonic() - started < REFRESH_TIMEOUT_S:
            found = await self._find(server, stored.user_id)
            if found is None or (found.id, found.version) != (stored.id, stored.version):
                return
            await self._env.clock.sleep(REFRESH_POLL_S, "mcp_refresh")

    async def _find(self, server: StoredMcpServer, user: UserId) -> StoredToken | None:
        return await mcp_tokens.find(self._conn, user, server.id)

    def _opened(self, server: StoredMcpServer, stored: StoredToken | None) -> UserToken:
        if stored is None or not is_same_origin(stored.client.resource, server.server.url):
            return UserToken(problem=NEEDS_CONNECT)
        if stored.sealed_tokens is None:
            return UserToken(problem=stored.failure or NEEDS_CONNECT)
        try:
            opened = open_tokens(self._ring, stored)
        except SecretUnreadable as error:
            return UserToken(problem=error.message)
        return UserToken(tokens=opened, version=_version(stored))


def _version(stored: StoredToken) -> str:
    return f"{stored.id.hex}.{stored.version}"


def _is_expiring(stored: StoredToken) -> bool:
    return stored.valid_for_s is not None and stored.valid_for_s <= REFRESH_AHEAD_S


def seal_tokens(ring: KeyRing, token_id: UUID, opened: OpenTokens) -> str:
    return ring.seal(msgspec.json.encode(opened).decode(), TOKENS.context(token_id))


def open_tokens(ring: KeyRing, stored: StoredToken) -> OpenTokens:
    """Raises SecretUnreadable."""
    text = ring.open(stored.sealed_tokens or "", TOKENS.context(stored.id))
    return msgspec.json.decode(text, type=OpenTokens)


def current_client(
    server: StoredMcpServer, secrets: McpSecrets, granted: OauthClient, opened: OpenTokens
) -> tuple[OauthClient, str | None]:
    """The client that the tokens belong to. Of one that was set up by hand the secret may have
    been replaced since; its addresses cannot: then the tokens are deleted."""
    if server.credentials.oauth is None:
        return granted, opened.client_secret
    method = server.credentials.oauth.token_auth
    return msgspec.structs.replace(granted, token_auth=method), secrets.client_secret
