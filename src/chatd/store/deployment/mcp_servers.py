"""MCP servers as stored: those that administrators made, and the rows of those that settings
declare; their lists of tools; and which of them a chat uses. A declared server has no secret here:
each process has its own settings."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.errors import Conflict, InvalidInput
from chatd.domain.ids import ChatId, McpServerId, UserId
from chatd.domain.mcp.oauth import split_url
from chatd.domain.mcp.servers import ConnectionState, McpCredentials, McpServer, McpSource
from chatd.domain.mcp.tools import ListedTool
from chatd.store.database.conn import Conn, DatabaseSession, DuplicateRow, Row, json_text
from chatd.store.database.sealed_columns import SealedColumn
from chatd.store.deployment.mcp_tokens import StoredToken
from chatd.store.model.providers import managed_elsewhere

SECRETS: Final = SealedColumn(table="mcp_servers", column="sealed_secrets")

_TOOL_LIST: Final = msgspec.json.Decoder(tuple[ListedTool, ...])

LIST: Final[LiteralString] = """
    SELECT * FROM mcp_servers WHERE deleted_at IS NULL ORDER BY slug, id LIMIT 1000"""
FIND: Final[LiteralString] = """
    SELECT * FROM mcp_servers WHERE id = $1 AND deleted_at IS NULL FOR UPDATE"""
FIND_SLUG: Final[LiteralString] = """
    SELECT id, source FROM mcp_servers WHERE slug = $1 AND deleted_at IS NULL"""
COUNT: Final[LiteralString] = "SELECT count(*) FROM mcp_servers WHERE deleted_at IS NULL"
INSERT: Final[LiteralString] = """
    INSERT INTO mcp_servers AS m (id, slug, display_name, description, url, transport, auth,
        enabled, availability, allow, deny, model_intent, allow_in_plan_mode, config,
        sealed_secrets, source)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14::json, $15, $16)"""
UPDATE: Final[LiteralString] = """
    UPDATE mcp_servers SET slug = $2, display_name = $3, description = $4, url = $5,
        transport = $6, auth = $7, enabled = $8, availability = $9, allow = $10, deny = $11,
        model_intent = $12, allow_in_plan_mode = $13, config = $14::json, sealed_secrets = $15,
        version = version + 1, updated_at = clock_timestamp()
    WHERE id = $1 AND source = $16 AND deleted_at IS NULL"""
# A row whose server a process declares again is used again. An unchanged one keeps its version.
DECLARE: Final[LiteralString] = f"""{INSERT}
    ON CONFLICT (id) DO UPDATE SET slug = excluded.slug, display_name = excluded.display_name,
        description = excluded.description, url = excluded.url, transport = excluded.transport,
        auth = excluded.auth, enabled = excluded.enabled, availability = excluded.availability,
        allow = excluded.allow, deny = excluded.deny, model_intent = excluded.model_intent,
        allow_in_plan_mode = excluded.allow_in_plan_mode, config = excluded.config,
        version = m.version + 1, updated_at = clock_timestamp(), deleted_at = NULL
    WHERE (m.slug, m.display_name, m.description, m.url, m.transport, m.auth, m.enabled,
           m.availability, m.allow, m.deny, m.model_intent, m.allow_in_plan_mode, m.config::text,
           m.deleted_at) IS DISTINCT FROM
          (excluded.slug, excluded.display_name, excluded.description, excluded.url,
           excluded.transport, excluded.auth, excluded.enabled, excluded.availability,
           excluded.allow, excluded.deny, excluded.model_intent, excluded.allow_in_plan_mode,
           excluded.config::text, NULL)
    RETURNING m.version"""
# The row stays for the chats and tool calls that name it; its slug can be used again.
DELETE: Final[LiteralString] = """
    UPDATE mcp_servers SET deleted_at = clock_timestamp(), updated_at = clock_timestamp(),
        enabled = false, sealed_secrets = NULL, version = version + 1
    WHERE id = $1 AND deleted_at IS NULL"""
RELEASE_SLUG: Final[LiteralString] = """
    UPDATE mcp_servers SET deleted_at = clock_timestamp(), enabled = false, version = version + 1
    WHERE slug = $1 AND source = 'settings' AND deleted_at IS NULL AND id <> ALL ($2::uuid[])"""
FORGET_TOKENS: Final[LiteralString] = "DELETE FROM mcp_tokens WHERE server_id = $1"
FORGET_CLIENTS: Final[LiteralString] = "DELETE FROM mcp_registrations WHERE server_id = $1"
KEEP_TOOLS: Final[LiteralString] = """
    INSERT INTO mcp_tool_lists AS l (server_id, user_id, server_version, tools)
    SELECT id, $2, $3, $4 FROM mcp_servers WHERE id = $1
    ON CONFLICT (server_id, user_id) DO UPDATE SET server_version = excluded.server_version,
        tools = excluded.tools, updated_at = clock_timestamp()
    WHERE (l.server_version, l.tools) IS DISTINCT FROM (excluded.server_version, excluded.tools)"""
KNOWN_TOOLS: Final[LiteralString] = """
    SELECT tools FROM mcp_tool_lists
    WHERE server_id = $1 AND user_id IS NOT DISTINCT FROM $2 AND server_version = $3"""

MAX_MCP_SERVERS: Final = 500


class McpServerWrite(Struct, frozen=True, kw_only=True):
    """The values of a row. The version of `server` is not written: the database counts it."""

    server: McpServer
    description: str = ""
    credentials: McpCredentials = McpCredentials()
    sealed_secrets: str | None = None
    source: McpSource = "database"


class StoredMcpServer(McpServerWrite, frozen=True, kw_only=True):
    created_at: datetime
    updated_at: datetime

    @property
    def id(self) -> McpServerId:
        return self.server.id

    @property
    def origin(self) -> str:
        """Where its secrets are sent, and nowhere else."""
        return server_origin(self.server.url)


_CREDENTIALS: Final = msgspec.json.Decoder(McpCredentials)


def server_origin(url: str) -> str:
    pieces = split_url(url)
    return url if pieces is None else pieces.origin


def _stored(row: Row) -> StoredMcpServer:
    return StoredMcpServer(
        server=msgspec.convert(dict(row), McpServer),
        description=row["description"],
        credentials=_CREDENTIALS.decode(row["config"]),
        sealed_secrets=row["sealed_secrets"],
        source=row["source"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _values(row: McpServerWrite) -> tuple[object, ...]:
    server = row.server
    return (
        server.id,
        server.slug,
        server.display_name,
        row.description,
        server.url,
        server.transport,
        server.auth,
        server.enabled,
        server.availability,
        server.allow,
        server.deny,
        server.model_intent,
        server.allow_in_plan_mode,
        json_text(row.credentials),
        row.sealed_secrets,
        row.source,
    )


async def list_servers(conn: Conn) -> Sequence[StoredMcpServer]:
    return [_stored(row) for row in await conn.fetch(LIST)]


async def find_to_change(
    session: DatabaseSession, server_id: McpServerId
) -> StoredMcpServer | None:
    """Lock the row. None for a deleted one. Raises Conflict for one that settings declare."""
    row = await session.fetchrow(FIND, server_id)
    if row is None:
        return None
    if row["source"] != "database":
        raise managed_elsewhere("MCP server", row["slug"], row["source"])
    return _stored(row)


async def insert(session: DatabaseSession, row: McpServerWrite) -> None:
    """Raises Conflict for a taken slug, and if there are too many."""
    if await session.fetchval(COUNT) >= MAX_MCP_SERVERS:
        text = f"There are {MAX_MCP_SERVERS} MCP servers. Delete one first."
        raise Conflict(text, code="too_many_mcp_servers")
    await _require_free_slug(session, row.server)
    try:
        await session.execute(INSERT, *_values(row))
    except DuplicateRow:
        raise _taken(row.server.slug) from None


async def update(session: DatabaseSession, row: McpServerWrite) -> None:
    """The caller holds the row's lock. Raises Conflict for a taken slug."""
    await _require_free_slug(session, row.server)
    try:
        await session.execute(UPDATE, *_values(row))
    except DuplicateRow:
        raise _taken(row.server.slug) from None


async def declare(session: DatabaseSession, row: McpServerWrite) -> bool | None:
    """Write a server of the settings. Whether the row changed; None if an administrator made one
    with the same slug, which counts instead."""
    found = await session.fetchrow(FIND_SLUG, row.server.slug)
    if found is not None and found["id"] != row.server.id:
        return None
    before = await session.fetchrow(FIND, row.server.id)
    changed = await session.fetchval(DECLARE, *_values(row)) is not None
    if before is not None and ends_connections(_stored(before), row):
        await forget_credentials(session, row.server.id)
    return changed


async def release_slug(
    session: DatabaseSession, slug: str, declared: Sequence[McpServerId]
) -> None:
    """A server that settings declared once, and these do not, does not keep its slug."""
    await session.execute(RELEASE_SLUG, slug, list(declared))


def ends_connections(before: McpServerWrite, after: McpServerWrite) -> bool:
    """Whether what users granted was for another address, client or scope."""
    return _granted(before) != _granted(after)


def _granted(row: McpServerWrite) -> tuple[object, ...]:
    return row.server.url, row.server.auth, row.credentials.oauth, row.credentials.scopes


async def delete(session: DatabaseSession, server_id: McpServerId) -> None:
    """Delete it with the tokens of all users and the registered clients."""
    await session.execute(DELETE, server_id)
    await forget_credentials(session, server_id)


async def forget_credentials(session: DatabaseSession, server_id: McpServerId) -> None:
    """Delete what was granted for another address or another client."""
    await session.execute(FORGET_TOKENS, server_id)
    await session.execute(FORGET_CLIENTS, server_id)


async def keep_tools(
    conn: Conn, server: McpServer, user: UserId | None, tools: Sequence[ListedTool]
) -> None:
    """Store what the server listed. `user` is set if the list is for this user only."""
    content = msgspec.json.encode(tools)
    await conn.execute(KEEP_TOOLS, server.id, user, server.version, content)


async def known_tools(conn: Conn, server: McpServer, user: UserId | None) -> tuple[ListedTool, ...]:
    """What this version of the server listed last; nothing if that is not known."""
    content: bytes | None = await conn.fetchval(KNOWN_TOOLS, server.id, user, server.version)
    return () if content is None else _TOOL_LIST.decode(content)


async def _require_free_slug(session: DatabaseSession, server: McpServer) -> None:
    found = await session.fetchrow(FIND_SLUG, server.slug)
    if found is None or found["id"] == server.id:
        return
    if found["source"] != "database":
        raise managed_elsewhere("MCP server", server.slug, found["source"])
    raise _taken(server.slug)


def _taken(slug: str) -> Conflict:
    return Conflict(f"There is an MCP server {slug}. Choose another slug.", code="name_taken")


# The MCP servers of a chat, in its row: what a copy of a chat keeps of them; and the order of
# their tools.

FIND_SELECTED: Final[LiteralString] = """
    SELECT id, deleted_at IS NOT NULL AS is_deleted FROM mcp_servers WHERE id = ANY ($1::uuid[])"""

KEEP_ORDER: Final[LiteralString] = """
    WITH kept AS (
        INSERT INTO chat_tool_orders AS o (chat_id, servers)
        SELECT id, $2::text[] FROM chats WHERE id = $1
        ON CONFLICT (chat_id) DO UPDATE SET servers = o.servers || ARRAY(
            SELECT u.server FROM unnest(excluded.servers) WITH ORDINALITY AS u (server, at)
            WHERE u.server <> ALL (o.servers) ORDER BY u.at)
            WHERE NOT excluded.servers <@ o.servers AND cardinality(o.servers) < $3
        RETURNING o.servers)
    SELECT servers FROM kept
    UNION ALL SELECT servers FROM chat_tool_orders WHERE chat_id = $1 LIMIT 1"""
MAX_ORDERED_SERVERS: Final = 1_000
"""How many servers a chat's order remembers. Later ones follow by name."""


def keep_usable(ids: LiteralString) -> LiteralString:
    """The ids of this array whose servers can still be used, in their order. NULL stays NULL."""
    return f"""(SELECT coalesce(array_agg(m.id ORDER BY u.at), '{{}}')
        FROM unnest({ids}) WITH ORDINALITY AS u (id, at)
        JOIN mcp_servers m ON m.id = u.id AND m.enabled AND m.deleted_at IS NULL
        HAVING {ids} IS NOT NULL)"""


async def choose(conn: Conn, ids: Sequence[UUID]) -> tuple[McpServerId, ...]:
    """The servers to store for a chat, each once. A deleted one is left out, so that a client may
    send back what it was told earlier. Raises InvalidInput that names all unknown ones."""
    rows = await conn.fetch(FIND_SELECTED, list(ids))
    known = {row["id"]: row["is_deleted"] for row in rows}
    missing = [str(one) for one in ids if one not in known]
    if missing:
        raise InvalidInput("mcp_server_ids", f"there are no such servers: {', '.join(missing)}")
    return tuple(McpServerId(one) for one in dict.fromkeys(ids) if not known[one])


async def keep_order(conn: Conn, chat_id: ChatId, servers: Sequence[str]) -> tuple[str, ...]:
    """The order in which the chat got its servers, after new ones were added at the end."""
    row = await conn.fetchrow(KEEP_ORDER, chat_id, list(servers), MAX_ORDERED_SERVERS)
    return tuple(servers) if row is None else tuple(row["servers"])


# A stored MCP server together with one user's token for it.


class ServerConnection(Struct, frozen=True, kw_only=True):
    """One server as one user sees it. A server without OAuth is `ready` for every user."""

    stored: StoredMcpServer
    state: ConnectionState
    reason: str = ""
    token: StoredToken | None = None
