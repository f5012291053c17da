"""The MCP servers that a chat uses, the headers with which its owner reaches each, and tests of a
server.

The list of servers is a copy that all replicas renew when one changes it. Tokens are read for each
access and kept nowhere.
"""

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.ids import McpServerId, UserId
from chatd.domain.mcp.oauth import authorization_header
from chatd.domain.mcp.results import McpFault
from chatd.domain.mcp.servers import (
    NO_SECRETS,
    McpAccess,
    McpSecrets,
    McpServer,
    ServerTrial,
    is_used,
    secret_headers,
)
from chatd.domain.mcp.tools import ListedTool
from chatd.domain.ports import Env
from chatd.mcp.http_transport import DEFAULT_LIMITS, DialPolicy, McpLimits
from chatd.mcp.oauth_tokens import OauthTokens, UserToken
from chatd.sealed_secrets import KeyRing, SecretUnreadable
from chatd.store import mcp_servers
from chatd.store.mcp_servers import SECRETS, StoredMcpServer
from chatd.store.notifications import ConfigChanges
from chatd.store.pool import Pool

if TYPE_CHECKING:
    from chatd.mcp.connection import McpConnection


GONE: Final = "This server was deleted or its configuration has changed."
_CHANGE_KINDS: Final = frozenset({"mcp_server", "secret_key"})


class DeclaredServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server of this process's settings, with its secrets."""

    row: mcp_servers.McpServerWrite
    secrets: McpSecrets = NO_SECRETS


class ServerDirectory:
    """Satisfies `domain.mcp.servers.McpDirectory`. `declared` are the servers of the settings; a
    row of another declared server belongs to another process and is not used here."""

    def __init__(
        self,
        pool: Pool,
        changes: ConfigChanges,
        ring: KeyRing,
        oauth: OauthTokens,
        declared: Sequence[DeclaredServer] = (),
    ) -> None:
        self._pool = pool
        self._changes = changes
        self._ring = ring
        self._oauth = oauth
        self._declared = {one.row.server.id: one for one in declared}
        self._known: Mapping[McpServerId, StoredMcpServer] = {}
        self._lock = asyncio.Lock()
        self._changed = 1
        self._read_at = 0
        changes.subscribe(self._on_change)

    @property
    def declared_ids(self) -> Sequence[McpServerId]:
        return tuple(self._declared)

    # What chats use

    async def servers(self, chat: Chat) -> Sequence[McpServer]:
        known = await self.all()
        return [one.server for one in known if is_used(one.server, chat.mcp_server_ids)]

    async def access(self, server: McpServer, chat: Chat) -> McpAccess:
        return await self.access_of(server, chat.owner_id)

    async def access_of(self, server: McpServer, user: UserId) -> McpAccess:
        stored = await self.find(server.id)
        if stored is None or stored.server.url != server.url:
            return McpAccess(server=server, problem=GONE)
        try:
            secrets = self.open_secrets(stored)
        except SecretUnreadable as error:
            return McpAccess(server=server, problem=error.message)
        if server.auth == "oauth2":
            return _with_token(server, await self._oauth.current(stored, secrets, user))
        headers = secret_headers(stored.server.auth, stored.credentials, secrets)
        version = str(stored.server.version)
        return McpAccess(server=server, headers=headers, credential_version=version)

    async def refused(self, server: McpServer, chat: Chat, access: McpAccess) -> McpAccess | None:
        stored = await self.find(server.id)
        if stored is None or stored.server.url != server.url or server.auth != "oauth2":
            return None
        try:
            secrets = self.open_secrets(stored)
        except SecretUnreadable:
            return None
        version = access.credential_version
        token = await self._oauth.refused(stored, secrets, chat.owner_id, version)
        if token.tokens is None or token.version == version:
            return None
        return _with_token(server, token)

    async def known_tools(self, server: McpServer, chat: Chat) -> tuple[ListedTool, ...]:
        return await mcp_servers.known_tools(self._pool, server, _list_user(server, chat))

    async def keep_tools(
        self, server: McpServer, chat: Chat, tools: tuple[ListedTool, ...]
    ) -> None:
        await mcp_servers.keep_tools(self._pool, server, _list_user(server, chat), tools)

    # The list

    async def all(self) -> Sequence[StoredMcpServer]:
        """Live servers, by slug; disabled ones too."""
        if self._needs_read:
            async with self._lock:
                if self._needs_read:
                    await self._read()
        return tuple(self._known.values())

    async def find(self, server_id: McpServerId) -> StoredMcpServer | None:
        await self.all()
        return self._known.get(server_id)

    def open_secrets(self, stored: StoredMcpServer) -> McpSecrets:
        """Raises SecretUnreadable."""
        if (declared := self._declared.get(stored.id)) is not None:
            return declared.secrets
        if stored.sealed_secrets is None:
            return NO_SECRETS
        text = self._ring.open(stored.sealed_secrets, SECRETS.context(stored.id))
        return msgspec.json.decode(text, type=McpSecrets)

    def forget(self) -> None:
        """After a change of this process."""
        self._changed += 1

    def _on_change(self, change: ConfigChange | None) -> None:
        if change is None or change.kind in _CHANGE_KINDS:
            self._changed += 1

    @property
    def _needs_read(self) -> bool:
        """The copy is used only while this replica hears of changes."""
        return self._read_at != self._changed or not self._changes.is_current

    async def _read(self) -> None:
        changed = self._changed  # before the read: a change during it must be read too
        shown = (self._as_declared(one) for one in await mcp_servers.list_servers(self._pool))
        self._known = {one.id: one for one in shown if one is not None}
        self._read_at = changed

    def _as_declared(self, stored: StoredMcpServer) -> StoredMcpServer | None:
        """This process's own settings count for it, whatever another process has written."""
        if stored.source == "database":
            return stored
        declared = self._declared.get(stored.id)
        if declared is None:
            return None
        row = declared.row
        return replace(
            stored,
            server=replace(row.server, version=stored.server.version),
            description=row.description,
            credentials=row.credentials,
        )


def _list_user(server: McpServer, chat: Chat) -> UserId | None:
    """Users with tokens of their own may see different tools."""
    return chat.owner_id if server.auth == "oauth2" else None


def _with_token(server: McpServer, token: UserToken) -> McpAccess:
    if token.tokens is None:
        return McpAccess(server=server, problem=token.problem)
    value = authorization_header(token.tokens.token_type, token.tokens.access_token)
    headers = {"Authorization": value}
    return McpAccess(server=server, headers=headers, credential_version=token.version)


# A connection to an MCP server that an administrator asks for, as a test.

TRIAL_CLOSE_S: Final = 5.0
"""How long the end of a test connection may take."""


class ServerTrials:
    """Uses the server as it is stored, also if it is disabled."""

    def __init__(
        self,
        directory: ServerDirectory,
        env: Env,
        policy: DialPolicy,
        *,
        limits: McpLimits = DEFAULT_LIMITS,
    ) -> None:
        self._directory = directory
        self._env = env
        self._policy = policy
        self._limits = limits

    async def test(self, stored: StoredMcpServer, user: UserId) -> ServerTrial:
        """Connect and list the tools, as this user."""
        started = self._env.clock.monotonic()
        tools: tuple[ListedTool, ...] = ()
        access = await self._directory.access_of(stored.server, user)
        problem = access.problem
        if not problem:
            problem, tools = await self._list(access)
        took_s = self._env.clock.monotonic() - started
        return ServerTrial(duration_ms=int(took_s * 1000), problem=problem, tools=tools)

    async def _list(self, access: McpAccess) -> tuple[str, tuple[ListedTool, ...]]:
        """The problem, or the tools."""
        # In a thread: the import takes most of a second, once.
        module = await asyncio.to_thread(import_module, "chatd.mcp.connection")
        connection: McpConnection = module.McpConnection(
            access, self._policy, self._limits, self._env
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(connection.run(), name="mcp test")
            try:
                await asyncio.shield(connection.ready)
                return "", connection.tools
            except McpFault as fault:
                return fault.message, ()
            finally:
                connection.retire()
                _, running = await asyncio.wait({task}, timeout=TRIAL_CLOSE_S)
                for late in running:
                    late.cancel()
