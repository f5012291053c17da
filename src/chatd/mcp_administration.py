"""What administrators do with MCP servers.

Every write is one transaction, which also publishes the change to all replicas. Secrets are sealed
before they reach a statement.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET, structs

from chatd.api.schemas.mcp_servers import CreateMcpServerBody, McpOauthBody, UpdateMcpServerBody
from chatd.domain.config_change import ConfigChange
from chatd.domain.errors import InvalidInput, NotFound
from chatd.domain.ids import McpServerId
from chatd.domain.mcp.configuration import (
    NO_SECRETS,
    McpCredentials,
    McpSecrets,
    check_credentials,
    check_server_url,
    check_slug,
)
from chatd.domain.mcp.oauth import OauthSetup
from chatd.domain.mcp.oauth_addresses import OauthFailed, is_same_origin, require_endpoint
from chatd.domain.mcp.servers import McpServer
from chatd.domain.ports import Env
from chatd.mcp.directory import ServerDirectory
from chatd.models.provider_checks import check_storable
from chatd.sealed_secrets import KeyRing
from chatd.store.account import audit
from chatd.store.account.audit import ChangeAuthor
from chatd.store.config_changes import publish
from chatd.store.conn import DatabaseSession
from chatd.store.mcp import servers
from chatd.store.mcp.servers import SECRETS, McpServerWrite, StoredMcpServer
from chatd.store.pool import Pool

_SERVER_FIELDS = (
    *("slug", "display_name", "url", "transport", "auth", "enabled", "availability"),
    *("allow", "deny", "model_intent", "allow_in_plan_mode"),
)


class McpAdministration:
    """Satisfies `api.mcp_ports.McpServerControl`."""

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
            await servers.release_slug(session, body.slug, self._directory.declared_ids)
            await servers.insert(session, row)
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
            await servers.update(session, row)
            registers_again = "oauth" in given and given["oauth"] is None
            if registers_again or servers.ends_connections(known, row):
                await servers.forget_credentials(session, server_id)
        return await self.get_server(server_id)

    async def delete_server(self, by: ChangeAuthor, server_id: McpServerId) -> None:
        async with self._change(by, server_id, "delete") as session:
            await _find(session, server_id)
            await servers.delete(session, server_id)

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
    known = await servers.find_to_change(session, server_id)
    if known is None:
        raise NotFound("There is no such MCP server.")
    return known
