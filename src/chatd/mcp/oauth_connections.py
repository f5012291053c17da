"""Connects users to MCP servers: to the authorization server, back with a code, and disconnect.

What must survive the visit there is in a sealed cookie of the browser for ten minutes, so any
replica can finish what another has begun. It names the user and the server; an answer is used once
over all replicas.
"""

import hmac
import secrets
from collections.abc import Mapping
from typing import Final
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import UserActor
from chatd.domain.access.secret_text import SECRET_BYTES, digest, secret_text
from chatd.domain.errors import Conflict, NotFound
from chatd.domain.ids import McpServerId, UserId
from chatd.domain.mcp.oauth import (
    GrantRefused,
    OauthFailed,
    TokenError,
    TokenReply,
    refusal_reason,
    require_same_issuer,
)
from chatd.domain.mcp.servers import (
    CONNECT_LIFETIME,
    ConnectAnswer,
    Disconnected,
    StartedConnection,
)
from chatd.domain.ports import Env
from chatd.mcp.directory import ServerDirectory
from chatd.mcp.oauth_clients import CHANGED, OauthClients, UsableClient
from chatd.mcp.oauth_http import (
    OauthGrants,
    OauthHttp,
    OpenTokens,
    UnknownClient,
    authorization_url,
)
from chatd.mcp.oauth_tokens import NEEDS_CONNECT, current_client, open_tokens, seal_tokens
from chatd.sealed_secrets import KeyRing, SecretUnreadable
from chatd.store.account import audit, users
from chatd.store.account.audit import ChangeAuthor
from chatd.store.database.conn import DatabaseSession
from chatd.store.database.pool import Pool
from chatd.store.deployment import mcp_tokens
from chatd.store.deployment.mcp_servers import ServerConnection, StoredMcpServer
from chatd.store.deployment.mcp_tokens import NewToken, StoredToken

_CONTEXT: Final = "cookie of a connection to an MCP server"
BEGIN_AGAIN: Final = (
    "This connection was not begun by you in this browser, or is too old. Connect again."
)


class ConnectState(Struct, frozen=True, kw_only=True):
    """The content of the cookie. `expires_at` in seconds since 1970."""

    state: str
    verifier: str
    user_id: UserId
    server_id: McpServerId
    server_version: int
    registration_id: UUID | None
    redirect_uri: str
    expires_at: float


class OauthConnections:
    def __init__(
        self, pool: Pool, ring: KeyRing, env: Env, http: OauthHttp, directory: ServerDirectory
    ) -> None:
        self._pool = pool
        self._ring = ring
        self._env = env
        self._directory = directory
        self._clients = OauthClients(pool, ring, env, http, directory)
        self._grants = OauthGrants(http)

    async def list_connections(self, actor: UserActor) -> list[ServerConnection]:
        """The servers that the user can use."""
        found = {one.server_id: one for one in await mcp_tokens.list_own(self._pool, actor)}
        known = await self._directory.all()
        return [_connection(one, found) for one in known if one.server.enabled]

    async def start(
        self, actor: UserActor, server_id: McpServerId, redirect_uri: str
    ) -> StartedConnection:
        """Raises NotFound, OauthFailed and SecretUnreadable."""
        stored = await self._find(server_id)
        used = await self._clients.for_server(stored, redirect_uri)
        state = ConnectState(
            state=_random(),
            verifier=_random(),
            user_id=actor.user_id,
            server_id=server_id,
            server_version=stored.server.version,
            registration_id=used.registration_id,
            redirect_uri=redirect_uri,
            expires_at=self._now() + CONNECT_LIFETIME.total_seconds(),
        )
        address = authorization_url(
            used.client, redirect_uri=redirect_uri, state=state.state, verifier=state.verifier
        )
        cookie = self._ring.seal(msgspec.json.encode(state).decode(), _CONTEXT)
        return StartedConnection(authorization_url=address, cookie=cookie)

    async def finish(
        self, by: ChangeAuthor, server_id: McpServerId, answer: ConnectAnswer, cookie: str | None
    ) -> StoredMcpServer:
        """Raises OauthFailed, GrantRefused and NotFound."""
        actor = _user(by)
        state = self._read_state(cookie)
        given = (answer.state or "").encode()
        if state is None or not hmac.compare_digest(state.state.encode(), given):
            raise OauthFailed(BEGIN_AGAIN)
        if (state.user_id, state.server_id) != (actor.user_id, server_id):
            raise OauthFailed(BEGIN_AGAIN)
        stored = await self._find(server_id)
        if stored.server.version != state.server_version:
            raise OauthFailed(CHANGED)
        used = await self._clients.registered(stored, state.redirect_uri, state.registration_id)
        require_same_issuer(used.client, answer.iss)
        if not await users.use_answer(self._pool, digest(state.state)):
            raise OauthFailed(BEGIN_AGAIN)
        if answer.code is None:
            raise GrantRefused(_refusal(answer))
        reply = await self._exchange(used, state, answer.code)
        await self._save(by, actor, stored, used, reply)
        return stored

    async def disconnect(self, by: ChangeAuthor, server_id: McpServerId) -> Disconnected:
        """The tokens are deleted here first, whatever the authorization server says. Raises
        NotFound."""
        actor = _user(by)
        stored = await self._find(server_id, must_be_enabled=False)
        async with self._pool.transaction() as session:
            deleted = await mcp_tokens.delete_own(session, actor, server_id)
            if deleted is None:
                raise NotFound("You are not connected to this server.")
            await _record(session, by, "disconnect", server_id)
        return await self._revoke(stored, deleted)

    async def _revoke(self, stored: StoredMcpServer, deleted: StoredToken) -> Disconnected:
        if deleted.sealed_tokens is None:
            return Disconnected(revoked=False, failure="The tokens were not valid any more.")
        try:
            opened = open_tokens(self._ring, deleted)
            kept = self._directory.open_secrets(stored)
            client, secret = current_client(stored, kept, deleted.client, opened)
            await self._grants.revoke(client, secret, opened)
        except (OauthFailed, SecretUnreadable) as error:
            return Disconnected(revoked=False, failure=error.message)
        return Disconnected(revoked=True)

    # Tokens

    async def _exchange(self, used: UsableClient, state: ConnectState, code: str) -> TokenReply:
        try:
            return await self._grants.exchange(
                used.client,
                used.secret,
                code=code,
                verifier=state.verifier,
                redirect_uri=state.redirect_uri,
            )
        except UnknownClient:
            if used.registration_id is not None:
                await self._clients.forget(used.registration_id)
            raise

    async def _save(
        self,
        by: ChangeAuthor,
        actor: UserActor,
        stored: StoredMcpServer,
        used: UsableClient,
        reply: TokenReply,
    ) -> None:
        is_registered = used.registration_id is not None
        opened = OpenTokens(
            access_token=reply.access_token,
            token_type=reply.token_type,
            refresh_token=reply.refresh_token,
            client_secret=used.secret if is_registered else None,
        )
        token_id = self._env.new_id()
        new = NewToken(
            id=token_id,
            server_id=stored.id,
            server_version=stored.server.version,
            client=used.client,
            sealed_tokens=seal_tokens(self._ring, token_id, opened),
            expires_in_s=reply.lifetime_s,
        )
        async with self._pool.transaction() as session:
            if not await mcp_tokens.save(session, actor, new):
                raise OauthFailed(CHANGED)
            await _record(session, by, "connect", stored.id)

    async def _find(
        self, server_id: McpServerId, *, must_be_enabled: bool = True
    ) -> StoredMcpServer:
        stored = await self._directory.find(server_id)
        if stored is None or (must_be_enabled and not stored.server.enabled):
            raise NotFound("There is no such MCP server.")
        if stored.server.auth != "oauth2":
            raise NotFound("This MCP server needs no connection of users.")
        return stored

    def _read_state(self, cookie: str | None) -> ConnectState | None:
        try:
            text = self._ring.open(cookie or "", _CONTEXT)
            state = msgspec.json.decode(text, type=ConnectState)
        except (SecretUnreadable, Conflict, msgspec.MsgspecError):
            return None
        return state if state.expires_at > self._now() else None

    def _now(self) -> float:
        return self._env.clock.now().timestamp()


def _connection(
    stored: StoredMcpServer, found: Mapping[McpServerId, StoredToken]
) -> ServerConnection:
    if stored.server.auth != "oauth2":
        return ServerConnection(stored=stored, state="ready")
    token = found.get(stored.id)
    if token is None:
        return ServerConnection(stored=stored, state="needs_connect", reason=NEEDS_CONNECT)
    if token.failure is not None:
        return ServerConnection(stored=stored, state="failed", reason=token.failure, token=token)
    return ServerConnection(stored=stored, state="connected", token=token)


def _refusal(answer: ConnectAnswer) -> str:
    said = TokenError(error=answer.error or "", error_description=answer.error_description or "")
    return refusal_reason(said, 0) if said.error else "The authorization server sent no code."


def _user(by: ChangeAuthor) -> UserActor:
    if not isinstance(by.actor, UserActor):
        raise NotFound("Only users connect to MCP servers.")
    return by.actor


async def _record(session: DatabaseSession, by: ChangeAuthor, verb: str, server_id: UUID) -> None:
    await audit.record(
        session,
        by.actor,
        action=f"mcp_server.{verb}",
        object_type="mcp_server",
        object_id=server_id,
        ip=by.ip,
    )


def _random() -> str:
    return secret_text(secrets.token_bytes(SECRET_BYTES))
