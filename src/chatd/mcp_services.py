"""Builds what MCP servers need in this process: the directory, connections of chats and of users,
and the servers that the settings declare."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID, uuid5

from msgspec import structs

from chatd.api.mcp_ports import McpServices
from chatd.domain.config_change import ConfigChange
from chatd.domain.errors import InvalidInput
from chatd.domain.ids import McpServerId
from chatd.domain.mcp.configuration import (
    McpCredentials,
    McpSecrets,
    check_credentials,
    check_server_url,
    check_slug,
)
from chatd.domain.mcp.oauth import OauthSetup
from chatd.domain.mcp.oauth_addresses import OauthFailed, require_endpoint
from chatd.domain.mcp.servers import McpServer
from chatd.domain.ports import Env
from chatd.mcp.directory import DeclaredServer, ServerDirectory
from chatd.mcp.limits import DialPolicy
from chatd.mcp.oauth_connections import OauthConnections
from chatd.mcp.oauth_http import OauthHttp
from chatd.mcp.oauth_tokens import OauthTokens
from chatd.mcp.server_tools import McpTools
from chatd.mcp.sessions import McpSessions
from chatd.mcp.trials import ServerTrials
from chatd.mcp_administration import McpAdministration
from chatd.sealed_secrets import KeyRing
from chatd.settings.schema import McpOauthEntry, McpServerEntry, Settings, SettingsError
from chatd.store.config_changes import ConfigChanges, publish
from chatd.store.mcp import servers
from chatd.store.mcp.servers import McpServerWrite
from chatd.store.pool import Pool

_SERVERS: Final = UUID("7d0f7b52-5f0e-4f3c-9a38-0f8b0c6f6a11")
_SERVER_FIELDS: Final = (
    *("slug", "url", "transport", "auth", "enabled", "availability"),
    *("allow", "deny", "model_intent", "allow_in_plan_mode"),
)


class McpRuntime:
    """`declare` comes before chats run; `run` lasts as long as the process."""

    def __init__(
        self,
        pool: Pool,
        changes: ConfigChanges,
        env: Env,
        ring: KeyRing,
        *,
        hosts: frozenset[str] = frozenset(),
        declared: Sequence[DeclaredServer] = (),
    ) -> None:
        """`hosts` may be private, `declared` are the servers of the settings."""
        self._declared = declared
        self._pool, self._env = pool, env
        policy, http = DialPolicy(private_hosts=hosts), OauthHttp(hosts)
        self._tokens = OauthTokens(self._pool, ring, self._env, http)
        directory = ServerDirectory(self._pool, changes, ring, self._tokens, declared)
        self.directory = directory
        self._sessions = McpSessions(directory, self._env, policy)
        self.tools = McpTools(directory, self._sessions, self._env)
        self.services = McpServices(
            directory=directory,
            control=McpAdministration(self._pool, directory, ring, self._env, hosts),
            connections=OauthConnections(self._pool, ring, self._env, http, directory),
            trials=ServerTrials(directory, self._env, policy),
        )

    async def declare(self) -> None:
        """Write the servers of the settings, so that tokens can refer to them."""
        for one in self._declared:
            async with self._pool.transaction() as session:
                changed = await servers.declare(session, one.row)
                if changed:
                    change = ConfigChange(kind="mcp_server", id=str(one.row.server.id))
                    await publish(session, change)
            if changed is None:
                self._env.emit("mcp_server_shadowed", server=one.row.server.slug)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tokens.run(), name="mcp tokens")
            group.create_task(self._sessions.run(), name="mcp sessions")

    async def wait_started(self) -> None:
        """The tasks of `run` begin in their order."""
        await self._sessions.wait_started()


def private_hosts(settings: Settings) -> frozenset[str]:
    return frozenset(host.lower().strip("[]") for host in settings.mcp.private_hosts)


def declared_servers(settings: Settings, env: Mapping[str, str]) -> tuple[DeclaredServer, ...]:
    """Raises SettingsError."""
    found: dict[str, DeclaredServer] = {}
    for entry in settings.mcp_servers:
        if entry.slug in found:
            raise SettingsError(f"mcp_servers {entry.slug!r}: there are two with this slug")
        try:
            found[entry.slug] = _declared(entry, env, tuple(private_hosts(settings)))
        except (InvalidInput, OauthFailed) as error:
            raise SettingsError(f"mcp_servers {entry.slug!r}: {error.message}") from None
    return tuple(found.values())


def _declared(
    entry: McpServerEntry, env: Mapping[str, str], hosts: tuple[str, ...]
) -> DeclaredServer:
    server = McpServer(
        id=McpServerId(uuid5(_SERVERS, entry.slug)),
        display_name=entry.display_name or entry.slug,
        **{name: getattr(entry, name) for name in _SERVER_FIELDS},
    )
    check_slug(server.slug)
    check_server_url(server.url)
    client_secret = None
    if entry.oauth is not None:
        client_secret = _secret(entry.oauth.client_secret, entry.oauth.client_secret_env, env)
    secrets = McpSecrets(
        api_key=_secret(entry.api_key, entry.api_key_env, env),
        headers=entry.headers,
        client_secret=client_secret,
    )
    shown = McpCredentials(
        api_key_header=entry.api_key_header,
        has_api_key=secrets.api_key is not None,
        header_names=tuple(sorted(entry.headers)),
        oauth=None if entry.oauth is None else _setup(entry.oauth, client_secret, hosts),
        has_client_secret=client_secret is not None,
        scopes=entry.scopes,
    )
    check_credentials(server.auth, shown, secrets)
    row = McpServerWrite(
        server=server, description=entry.description, credentials=shown, source="settings"
    )
    return DeclaredServer(row=row, secrets=secrets)


def _setup(entry: McpOauthEntry, secret: str | None, hosts: tuple[str, ...]) -> OauthSetup:
    fields = structs.asdict(entry)
    for name in ("authorization_url", "token_url", "revocation_url"):
        if fields[name] is not None:
            require_endpoint(fields[name], name, hosts)
    method = entry.token_auth or ("none" if secret is None else "client_secret_basic")
    return OauthSetup(
        client_id=entry.client_id,
        authorization_url=entry.authorization_url,
        token_url=entry.token_url,
        revocation_url=entry.revocation_url,
        token_auth=method,
    )


def _secret(value: str | None, variable: str | None, env: Mapping[str, str]) -> str | None:
    """Raises InvalidInput for a variable that is not set."""
    if variable is None:
        return value
    if not env.get(variable):
        raise InvalidInput(variable, "this environment variable is not set")
    return env[variable]
