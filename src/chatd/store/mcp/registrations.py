"""Clients that chatd registered at authorization servers of MCP servers. The first registration of
a server counts for all replicas."""

from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.ids import McpServerId
from chatd.domain.mcp.oauth import OauthClient
from chatd.store.conn import Conn, Row, json_text
from chatd.store.sealed_columns import SealedColumn

CLIENT_SECRET: Final = SealedColumn(table="mcp_registrations", column="sealed_secret")

FIND: Final[LiteralString] = """
    SELECT id, client, sealed_secret FROM mcp_registrations
    WHERE server_id = $1 AND redirect_uri = $2"""
# Only for the configuration that was asked about: an administrator may have changed it meanwhile.
INSERT: Final[LiteralString] = """
    INSERT INTO mcp_registrations (id, server_id, redirect_uri, client, sealed_secret)
    SELECT $1, m.id, $4, $5::json, $6 FROM mcp_servers m
    WHERE m.id = $2 AND m.version = $3 AND m.deleted_at IS NULL FOR SHARE
    ON CONFLICT ON CONSTRAINT one_mcp_registration DO NOTHING"""
# Without a public address in the settings, each host name that users take has its own.
DELETE_OLD: Final[LiteralString] = """
    DELETE FROM mcp_registrations WHERE id IN (
        SELECT id FROM mcp_registrations WHERE server_id = $1 ORDER BY created_at DESC OFFSET $2)"""
DELETE: Final[LiteralString] = "DELETE FROM mcp_registrations WHERE id = $1"
DELETE_CLIENT: Final[LiteralString] = """
    DELETE FROM mcp_registrations WHERE server_id = $1 AND client ->> 'client_id' = $2"""

MAX_REGISTRATIONS_PER_SERVER: Final = 20

_CLIENT: Final = msgspec.json.Decoder(OauthClient)


class Registration(Struct, frozen=True, kw_only=True):
    id: UUID
    client: OauthClient
    sealed_secret: str | None = None


def _registration(row: Row) -> Registration:
    return Registration(
        id=row["id"], client=_CLIENT.decode(row["client"]), sealed_secret=row["sealed_secret"]
    )


async def find(conn: Conn, server_id: McpServerId, redirect_uri: str) -> Registration | None:
    row = await conn.fetchrow(FIND, server_id, redirect_uri)
    return None if row is None else _registration(row)


async def add(
    conn: Conn, server_id: McpServerId, version: int, redirect_uri: str, made: Registration
) -> Registration | None:
    """The registration that counts: another replica may have been first. None if the server is
    not at this version any more."""
    values = (redirect_uri, json_text(made.client), made.sealed_secret)
    await conn.execute(INSERT, made.id, server_id, version, *values)
    await conn.execute(DELETE_OLD, server_id, MAX_REGISTRATIONS_PER_SERVER)
    return await find(conn, server_id, redirect_uri)


async def delete(conn: Conn, registration_id: UUID) -> None:
    """The authorization server does not know this client any more."""
    await conn.execute(DELETE, registration_id)


async def delete_client(conn: Conn, server_id: McpServerId, client_id: str) -> None:
    """As `delete`, by the id that the authorization server gave to the client."""
    await conn.execute(DELETE_CLIENT, server_id, client_id)
