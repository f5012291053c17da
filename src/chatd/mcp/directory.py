"""The MCP servers that a chat uses, the headers with which its owner reaches each, their tools, and
tests of a server.

Each replica has a copy of the list of servers, and renews it when any replica changes the list.
Tokens are read for each access and never kept.
"""

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from chatd.domain.answer.tool_output import ToolOutput, error_output
from chatd.domain.chat.row import Chat
from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChatId, McpServerId, UserId
from chatd.domain.mcp.oauth import authorization_header
from chatd.domain.mcp.results import OUTCOME_UNKNOWN_TEXT, McpFault, error_text
from chatd.domain.mcp.servers import (
    NO_SECRETS,
    McpAccess,
    McpDirectory,
    McpSecrets,
    McpServer,
    ServerToolKey,
    ServerTrial,
    assign_names,
    is_allowed,
    is_used,
    secret_headers,
)
from chatd.domain.mcp.tools import ListedTool, McpOrigin, unwrap_intent, wrap_with_intent
from chatd.domain.model.protocol import ToolSpec
from chatd.domain.ports import Env, ToolContext, ToolEffect
from chatd.domain.text import parse_json
from chatd.domain.tool_modes import ToolOrigin
from chatd.mcp.http_transport import DEFAULT_LIMITS, DialPolicy, McpLimits
from chatd.mcp.oauth_tokens import OauthTokens, UserToken
from chatd.mcp.sessions import McpSessions
from chatd.sealed_secrets import KeyRing, SecretUnreadable
from chatd.store.database.notifications import ConfigChanges
from chatd.store.database.pool import Pool
from chatd.store.deployment import mcp_servers
from chatd.store.deployment.mcp_servers import SECRETS, StoredMcpServer

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
        """Drop the copy after this process has changed the list."""
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
        """A declared server as this process's settings have it, whatever another process has
        written; None if they do not declare it."""
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
"""How long closing a test connection may take."""


class ServerTrials:
    """Tests the server as stored, even if it is disabled."""

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


# The tools of the MCP servers of a chat.

MCP_TOOL_TIMEOUT_S: Final = 90.0
"""Limit for a call and what precedes it: a connection, or a refreshed credential."""
MAX_KEPT_LISTS: Final = 256

NOT_AN_OBJECT_TEXT: Final = "The arguments must be a JSON object. Send the call again with one."

_Offered = tuple[McpServer, tuple[ListedTool, ...]]


class McpTool(Struct, frozen=True, kw_only=True):
    """Satisfies `ports.Tool`."""

    spec: ToolSpec
    effect: ToolEffect
    server: McpServer
    routing_name: str
    sessions: McpSessions
    mcp_origin: McpOrigin
    origin: ToolOrigin
    serial: bool = False
    exclusive: bool = False
    stops_turn: bool = False
    timeout_s: float = MCP_TOOL_TIMEOUT_S

    async def run(self, context: ToolContext, args: Raw) -> ToolOutput:
        value = parse_json(unwrap_intent(args) if self.server.model_intent else args)
        if not isinstance(value, dict):
            return error_output(NOT_AN_OBJECT_TEXT)
        given = cast("dict[str, object]", value)
        try:
            return await self.sessions.call(
                self.server, context.chat, self.routing_name, given, context.show
            )
        except McpFault as fault:
            is_unknown = fault.may_have_run and self.effect != "read"
            note = f" {OUTCOME_UNKNOWN_TEXT}" if is_unknown else ""
            return error_output(f"{self.server.display_name}: {fault.message}{note}")

    async def recover(self, context: ToolContext) -> ToolOutput | None:
        del context
        return None


class _KeptList(Struct, frozen=True, kw_only=True):
    offered: tuple[_Offered, ...]
    tools: tuple[McpTool, ...]


class McpTools:
    """Satisfies `ports.ToolFamily`. A server that does not answer keeps the tools that it listed
    last, even on another replica: a changed list of tools costs the whole prompt cache, and calls
    say what is wrong."""

    def __init__(self, directory: McpDirectory, sessions: McpSessions, env: Env) -> None:
        self._directory = directory
        self._sessions = sessions
        self._env = env
        self._kept: dict[ChatId, _KeptList] = {}
        self._listed: dict[tuple[UserId, McpServerId], tuple[int, tuple[ListedTool, ...]]] = {}

    async def tools(self, chat: Chat) -> Sequence[McpTool]:
        servers = await self._servers(chat)
        if not servers:
            return ()
        found = await asyncio.gather(*(self._offered(server, chat) for server in servers))
        offered = tuple(each for each in found if each[1])
        kept = self._kept.pop(chat.id, None)
        if kept is None or not _is_same(kept.offered, offered):
            tools = _make_tools(offered, self._sessions)
            kept = _KeptList(offered=offered, tools=tools)
        self._kept[chat.id] = kept
        while len(self._kept) > MAX_KEPT_LISTS:
            del self._kept[next(iter(self._kept))]
        return kept.tools

    async def _servers(self, chat: Chat) -> list[McpServer]:
        if chat.mode == "plan" and not chat.is_root:  # it may use none of them
            return []
        try:
            found = await self._directory.servers(chat)
        except Exception as error:  # noqa: BLE001 - without the list a chat has its other tools
            self._env.emit(
                "mcp_directory_failed",
                chat_id=chat.id,
                error_kind=type(error).__name__,
                reason=error_text(error),
            )
            return []
        return [each for each in found if each.enabled]

    async def _offered(self, server: McpServer, chat: Chat) -> _Offered:
        """Written to the database when the list is new here, read from it when it is not known
        here. Without the database the step has what this process knows. A server without a
        credential, such as one that the user disconnected, has no tools."""
        connection = await self._sessions.for_step(server, chat)
        version, tools = self._listed.pop((chat.owner_id, server.id), (0, ()))
        is_known = version == server.version
        try:
            if connection is None and (await self._directory.access(server, chat)).problem:
                tools = ()
            elif connection is None:
                tools = tools if is_known else await self._directory.known_tools(server, chat)
            elif not is_known or tools != connection.tools:
                tools = connection.tools
                await self._directory.keep_tools(server, chat, tools)
        except Unavailable as error:
            self._env.emit("mcp_tools_not_kept", server=server.slug, error_kind=error.code)
        if connection is not None or tools:
            self._listed[chat.owner_id, server.id] = server.version, tools
        while len(self._listed) > MAX_KEPT_LISTS:
            del self._listed[next(iter(self._listed))]
        return server, tools


def _is_same(one: Sequence[_Offered], other: Sequence[_Offered]) -> bool:
    return len(one) == len(other) and all(
        a[0] == b[0] and a[1] is b[1] for a, b in zip(one, other, strict=True)
    )


def _make_tools(offered: Sequence[_Offered], sessions: McpSessions) -> tuple[McpTool, ...]:
    by_key = {
        ServerToolKey(slug=server.slug, server_id=str(server.id), tool=tool.name): (server, tool)
        for server, tools in offered
        for tool in tools
        if is_allowed(tool.name, server.allow, server.deny)
    }
    return tuple(_make_tool(name, *by_key[key], sessions) for name, key in assign_names(by_key))


def _make_tool(name: str, server: McpServer, tool: ListedTool, sessions: McpSessions) -> McpTool:
    schema = wrap_with_intent(tool.schema) if server.model_intent else tool.schema
    description = tool.description or f"A tool of {server.display_name}."
    return McpTool(
        spec=ToolSpec(name=name, description=description, input_schema=schema),
        effect=tool.effect,
        server=server,
        routing_name=tool.name,
        sessions=sessions,
        mcp_origin=McpOrigin(name=server.slug, config_id=str(server.id)),
        origin="mcp_in_plans" if server.allow_in_plan_mode else "mcp",
    )
