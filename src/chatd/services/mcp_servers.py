"""The MCP servers of a deployment: what administrators do with them (`McpAdministration`), and what
this process needs of them (`McpServers`).

Every write is one transaction, which also publishes the change to all replicas. Secrets are sealed
before they reach a statement.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID, uuid5

import msgspec
from msgspec import UNSET, structs

from chatd.domain.deployment.config_change import ConfigChange
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.ids import McpServerId
from chatd.domain.mcp.oauth import OauthFailed, OauthSetup, is_same_origin, require_endpoint
from chatd.domain.mcp.servers import (
    NO_SECRETS,
    McpCredentials,
    McpSecrets,
    McpServer,
    check_credentials,
    check_server_url,
    check_slug,
)
from chatd.domain.ports import Env
from chatd.mcp.directory import DeclaredServer, McpTools, ServerDirectory, ServerTrials
from chatd.mcp.http_transport import DialPolicy
from chatd.mcp.oauth_connections import OauthConnections
from chatd.mcp.oauth_http import OauthHttp
from chatd.mcp.oauth_tokens import OauthTokens
from chatd.mcp.sessions import McpSessions
from chatd.sealed_secrets import KeyRing
from chatd.services.mcp_bodies import CreateMcpServerBody, McpOauthBody, UpdateMcpServerBody
from chatd.services.models.provider_administration import check_storable
from chatd.settings.schema import McpOauthEntry, McpServerEntry, Settings, SettingsError
from chatd.store.account import audit
from chatd.store.account.audit import ChangeAuthor
from chatd.store.database.conn import DatabaseSession
from chatd.store.database.notifications import ConfigChanges, publish
from chatd.store.database.pool import Pool
from chatd.store.deployment import mcp_servers
from chatd.store.deployment.mcp_servers import SECRETS, McpServerWrite, StoredMcpServer

_SERVER_FIELDS = (
    *("slug", "display_name", "url", "transport", "auth", "enabled", "availability"),
    *("allow", "deny", "model_intent", "allow_in_plan_mode"),
)


class McpAdministration:
    def __init__(
        self,
        pool: Pool,
        directory: ServerDirectory,
        ring: KeyRing,
        env: Env,
        private_hosts: frozenset[str],
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._ring = ring
        self._env = env
        self._private_hosts = tuple(private_hosts)

    async def create_server(self, by: ChangeAuthor, body: CreateMcpServerBody) -> StoredMcpServer:
        """Raises Conflict for a taken slug and InvalidInput for an invalid field."""
        server_id = McpServerId(self._env.new_id())
        given = structs.asdict(body)
        given["display_name"] = body.display_name or body.slug
        row = self._write(server_id, given, McpCredentials(), NO_SECRETS)
        async with self._change(by, server_id, "create", given) as session:
            await mcp_servers.release_slug(session, body.slug, self._directory.declared_ids)
            await mcp_servers.insert(session, row)
        return await self.get_server(server_id)

    async def update_server(
        self, by: ChangeAuthor, server_id: McpServerId, body: UpdateMcpServerBody
    ) -> StoredMcpServer:
        """Raises Conflict for a taken slug and for a server of the settings, InvalidInput."""
        given = {name: value for name, value in structs.asdict(body).items() if value is not UNSET}
        async with self._change(by, server_id, "update", given) as session:
            known = await _find(session, server_id)
            kept = self._kept_secrets(known, given)
            fields = {**_fields(known), **given}
            row = self._write(server_id, fields, known.credentials, kept)
            await mcp_servers.update(session, row)
            registers_again = "oauth" in given and given["oauth"] is None
            if registers_again or mcp_servers.ends_connections(known, row):
                await mcp_servers.forget_credentials(session, server_id)
        return await self.get_server(server_id)

    async def delete_server(self, by: ChangeAuthor, server_id: McpServerId) -> None:
        async with self._change(by, server_id, "delete") as session:
            await _find(session, server_id)
            await mcp_servers.delete(session, server_id)

    async def get_server(self, server_id: McpServerId) -> StoredMcpServer:
        found = await self._directory.find(server_id)
        if found is None:
            raise NotFound("There is no such MCP server.")
        return found

    @asynccontextmanager
    async def _change(
        self, by: ChangeAuthor, server_id: UUID, verb: str, fields: Iterable[str] = ()
    ) -> AsyncGenerator[DatabaseSession]:
        """The audit log gets the names of the changed fields, not their values."""
        async with self._pool.transaction() as session:
            yield session
            await audit.record(
                session,
                by.actor,
                action=f"mcp_server.{verb}",
                object_type="mcp_server",
                object_id=server_id,
                ip=by.ip,
                detail={"fields": sorted(fields)},
            )
            await publish(session, ConfigChange(kind="mcp_server", id=str(server_id)))
        self._directory.forget()

    def _kept_secrets(self, known: StoredMcpServer, given: Mapping[str, Any]) -> McpSecrets:
        """A key and headers stay with the host that they were given for."""
        if known.sealed_secrets is None:
            return NO_SECRETS
        kept = self._directory.open_secrets(known)
        if not is_same_origin(given.get("url", known.server.url), known.server.url):
            return McpSecrets(client_secret=kept.client_secret)
        return kept

    def _write(
        self,
        server_id: McpServerId,
        fields: Mapping[str, Any],
        known: McpCredentials,
        kept: McpSecrets,
    ) -> McpServerWrite:
        """Raises InvalidInput."""
        server = McpServer(id=server_id, **{name: fields[name] for name in _SERVER_FIELDS})
        _check_texts(server, fields)
        secrets = McpSecrets()
        shown = McpCredentials()
        match server.auth:
            case "api_key":
                secrets = McpSecrets(api_key=fields.get("api_key") or kept.api_key)
                shown = McpCredentials(
                    api_key_header=fields.get("api_key_header"), has_api_key=True
                )
            case "custom_headers":
                given = fields.get("headers")
                secrets = McpSecrets(headers=kept.headers if given is None else given)
                shown = McpCredentials(header_names=tuple(sorted(secrets.headers)))
            case "oauth2":
                shown, secrets = self._oauth(fields, known, kept)
            case "none":
                pass
        check_credentials(server.auth, shown, secrets)
        sealed = None
        if secrets != NO_SECRETS:
            text = msgspec.json.encode(secrets).decode()
            sealed = self._ring.seal(text, SECRETS.context(server_id))
        return McpServerWrite(
            server=server,
            description=fields["description"],
            credentials=shown,
            sealed_secrets=sealed,
        )

    def _oauth(
        self, fields: Mapping[str, Any], known: McpCredentials, kept: McpSecrets
    ) -> tuple[McpCredentials, McpSecrets]:
        scopes, given = fields["scopes"], fields["oauth"]
        if isinstance(given, OauthSetup):  # unchanged
            shown = McpCredentials(
                oauth=given, has_client_secret=known.has_client_secret, scopes=scopes
            )
            return shown, McpSecrets(client_secret=kept.client_secret)
        if not isinstance(given, McpOauthBody):
            return McpCredentials(scopes=scopes), NO_SECRETS
        secret = _client_secret(given, known, kept)
        method = given.token_auth or ("none" if secret is None else "client_secret_basic")
        setup = OauthSetup(
            client_id=given.client_id,
            authorization_url=self._endpoint("authorization_url", given.authorization_url),
            token_url=self._endpoint("token_url", given.token_url),
            revocation_url=given.revocation_url
            and self._endpoint("revocation_url", given.revocation_url),
            token_auth=method,
        )
        shown = McpCredentials(oauth=setup, has_client_secret=secret is not None, scopes=scopes)
        return shown, McpSecrets(client_secret=secret)

    def _endpoint(self, field: str, url: str) -> str:
        try:
            return require_endpoint(url, field, self._private_hosts)
        except OauthFailed as error:
            raise InvalidInput(f"oauth.{field}", error.message) from None


def _check_texts(server: McpServer, fields: Mapping[str, Any]) -> None:
    check_server_url(server.url)
    check_storable("slug", server.slug)
    check_slug(server.slug)
    check_storable("display_name", server.display_name)
    check_storable("description", fields["description"].replace("\n", " "))
    check_storable("scopes", fields["scopes"])
    for name in ("allow", "deny"):
        for tool in fields[name]:
            check_storable(name, tool)


def _client_secret(given: McpOauthBody, known: McpCredentials, kept: McpSecrets) -> str | None:
    """The stored one is sent to no other address than it was given for."""
    if given.client_secret is not UNSET:
        return given.client_secret
    before = known.oauth
    if before is None:
        return None
    is_same = (before.client_id, before.token_url) == (given.client_id, given.token_url)
    return kept.client_secret if is_same else None


def _fields(known: StoredMcpServer) -> dict[str, Any]:
    """A stored server in the fields of a body. Secrets are not among them."""
    server = {name: getattr(known.server, name) for name in _SERVER_FIELDS}
    return server | {
        "description": known.description,
        "api_key_header": known.credentials.api_key_header,
        "oauth": known.credentials.oauth,
        "scopes": known.credentials.scopes,
    }


async def _find(session: DatabaseSession, server_id: McpServerId) -> StoredMcpServer:
    """Raises Conflict for a server that settings declare."""
    known = await mcp_servers.find_to_change(session, server_id)
    if known is None:
        raise NotFound("There is no such MCP server.")
    return known


# Builds what MCP servers need in this process: the directory, connections of chats and of users,
# and the servers that the settings declare.

_SERVERS: Final = UUID("7d0f7b52-5f0e-4f3c-9a38-0f8b0c6f6a11")
_ENTRY_FIELDS: Final = (
    *("slug", "url", "transport", "auth", "enabled", "availability"),
    *("allow", "deny", "model_intent", "allow_in_plan_mode"),
)


class McpServers:
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
        self.control = McpAdministration(self._pool, directory, ring, self._env, hosts)
        self.connections = OauthConnections(self._pool, ring, self._env, http, directory)
        self.trials = ServerTrials(directory, self._env, policy)

    async def declare(self) -> None:
        """Write the servers of the settings, so that tokens can refer to them."""
        for one in self._declared:
            async with self._pool.transaction() as session:
                changed = await mcp_servers.declare(session, one.row)
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
        **{name: getattr(entry, name) for name in _ENTRY_FIELDS},
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
