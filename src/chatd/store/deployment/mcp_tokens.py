"""Tokens of users for MCP servers, and chatd's own clients there, sealed. A row without tokens says
why the user must connect again.

One process at a time refreshes a row: it claims it for a bounded time, and the others read the
result. A result is written only if the row still has the version that was claimed.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import UserActor, require_permission
from chatd.domain.ids import McpServerId, UserId
from chatd.domain.mcp.oauth import OauthClient
from chatd.store.database.conn import Conn, DatabaseSession, Row, json_text
from chatd.store.database.sealed_columns import SealedColumn

TOKENS: Final = SealedColumn(table="mcp_tokens", column="sealed_tokens")

_COLUMNS: Final[LiteralString] = """id, server_id, user_id, client, sealed_tokens, failure, version,
    expires_at, created_at, updated_at"""
FIND: Final[LiteralString] = f"""
    SELECT {_COLUMNS}, extract(epoch FROM expires_at - now())::float8 AS valid_for_s
    FROM mcp_tokens WHERE user_id = $1 AND server_id = $2"""
LIST_OWN: Final[LiteralString] = f"""
    SELECT {_COLUMNS}, extract(epoch FROM expires_at - now())::float8 AS valid_for_s
    FROM mcp_tokens WHERE user_id = $1 ORDER BY server_id LIMIT 1000"""
# Only for the configuration for which the user gave consent.
SAVE: Final[LiteralString] = """
    INSERT INTO mcp_tokens AS t (id, server_id, user_id, client, sealed_tokens, expires_at)
    SELECT $1, m.id, $4, $5::json, $6, now() + $7::float8 * interval '1 s' FROM mcp_servers m
    WHERE m.id = $2 AND m.version = $3 AND m.enabled AND m.deleted_at IS NULL FOR SHARE
    ON CONFLICT ON CONSTRAINT one_mcp_token DO UPDATE SET
        id = excluded.id, client = excluded.client, sealed_tokens = excluded.sealed_tokens,
        expires_at = excluded.expires_at, failure = NULL, refreshing_until = NULL,
        version = t.version + 1, created_at = clock_timestamp(), updated_at = clock_timestamp()
    RETURNING t.version"""
DELETE_OWN: Final[LiteralString] = """
    DELETE FROM mcp_tokens WHERE user_id = $1 AND server_id = $2
    RETURNING *, NULL::float8 AS valid_for_s"""

CLAIM: Final[LiteralString] = """
    UPDATE mcp_tokens SET refreshing_until = now() + $3::float8 * interval '1 s'
    WHERE id = $1 AND version = $2 AND sealed_tokens IS NOT NULL
      AND (refreshing_until IS NULL OR refreshing_until < now())
    RETURNING version"""
RELEASE: Final[LiteralString] = """
    UPDATE mcp_tokens SET refreshing_until = NULL WHERE id = $1 AND version = $2"""
REPLACE: Final[LiteralString] = """
    UPDATE mcp_tokens SET sealed_tokens = $3,
        expires_at = now() + $4::float8 * interval '1 s', refreshing_until = NULL,
        version = version + 1, updated_at = clock_timestamp()
    WHERE id = $1 AND version = $2 RETURNING version"""
FAIL: Final[LiteralString] = """
    UPDATE mcp_tokens SET sealed_tokens = NULL, expires_at = NULL, failure = $3,
        refreshing_until = NULL, version = version + 1, updated_at = clock_timestamp()
    WHERE id = $1 AND version = $2 RETURNING version"""

_CLIENT: Final = msgspec.json.Decoder(OauthClient)


class StoredToken(Struct, frozen=True, kw_only=True):
    """`valid_for_s` by the database's clock; None: it does not expire. `failure`: the user must
    connect again."""

    id: UUID
    server_id: McpServerId
    user_id: UserId
    client: OauthClient
    sealed_tokens: str | None
    failure: str | None
    version: int
    expires_at: datetime | None
    valid_for_s: float | None
    created_at: datetime
    updated_at: datetime


class NewToken(Struct, frozen=True, kw_only=True):
    """`server_version`: the configuration that the user consented to."""

    id: UUID
    server_id: McpServerId
    server_version: int
    client: OauthClient
    sealed_tokens: str
    expires_in_s: float | None


def _token(row: Row) -> StoredToken:
    columns = dict(row)
    columns.update(client=_CLIENT.decode(columns["client"]))
    return StoredToken(**{name: columns[name] for name in StoredToken.__struct_fields__})


# By users


async def list_own(conn: Conn, actor: UserActor) -> Sequence[StoredToken]:
    require_permission(actor, "catalog.read")
    return [_token(row) for row in await conn.fetch(LIST_OWN, actor.user_id)]


async def save(session: DatabaseSession, actor: UserActor, new: NewToken) -> bool:
    """Replaces earlier ones. False if the server is not at that version any more."""
    require_permission(actor, "account.write")
    saved = await session.fetchval(
        SAVE,
        new.id,
        new.server_id,
        new.server_version,
        actor.user_id,
        json_text(new.client),
        new.sealed_tokens,
        new.expires_in_s,
    )
    return saved is not None


async def delete_own(
    session: DatabaseSession, actor: UserActor, server_id: McpServerId
) -> StoredToken | None:
    """Delete the user's tokens; returns them, so that they can be revoked."""
    require_permission(actor, "account.write")
    row = await session.fetchrow(DELETE_OWN, actor.user_id, server_id)
    return None if row is None else _token(row)


# By the process that uses them for a chat of the user


async def find(conn: Conn, user: UserId, server_id: McpServerId) -> StoredToken | None:
    row = await conn.fetchrow(FIND, user, server_id)
    return None if row is None else _token(row)


async def claim(conn: Conn, token: StoredToken, claim_s: float) -> bool:
    """False if another process refreshes it now, or has done so."""
    return await conn.fetchval(CLAIM, token.id, token.version, claim_s) is not None


async def release(conn: Conn, token: StoredToken) -> None:
    """Give the claim back after a failure that may pass."""
    await conn.execute(RELEASE, token.id, token.version)


async def replace(
    conn: Conn, token: StoredToken, sealed_tokens: str, expires_in_s: float | None
) -> bool:
    """False if the row has been deleted or replaced."""
    values = (token.id, token.version, sealed_tokens, expires_in_s)
    return await conn.fetchval(REPLACE, *values) is not None


async def fail(conn: Conn, token: StoredToken, reason: str) -> bool:
    """Record a final failure and clear the tokens. False if the row has been deleted or
    replaced."""
    return await conn.fetchval(FAIL, token.id, token.version, reason) is not None


# Clients that chatd registered at authorization servers of MCP servers. The first registration of
# a server counts for all replicas.

CLIENT_SECRET: Final = SealedColumn(table="mcp_registrations", column="sealed_secret")

FIND_REGISTRATION: Final[LiteralString] = """
    SELECT id, client, sealed_secret FROM mcp_registrations
    WHERE server_id = $1 AND redirect_uri = $2"""
# Only for the configuration that was asked about: an administrator may have changed it since.
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


class Registration(Struct, frozen=True, kw_only=True):
    id: UUID
    client: OauthClient
    sealed_secret: str | None = None


def _registration(row: Row) -> Registration:
    return Registration(
        id=row["id"], client=_CLIENT.decode(row["client"]), sealed_secret=row["sealed_secret"]
    )


async def find_registration(
    conn: Conn, server_id: McpServerId, redirect_uri: str
) -> Registration | None:
    row = await conn.fetchrow(FIND_REGISTRATION, server_id, redirect_uri)
    return None if row is None else _registration(row)


async def add_registration(
    conn: Conn, server_id: McpServerId, version: int, redirect_uri: str, made: Registration
) -> Registration | None:
    """The registration that counts: another replica may have been first. None if the server is
    not at this version any more."""
    values = (redirect_uri, json_text(made.client), made.sealed_secret)
    await conn.execute(INSERT, made.id, server_id, version, *values)
    await conn.execute(DELETE_OLD, server_id, MAX_REGISTRATIONS_PER_SERVER)
    return await find_registration(conn, server_id, redirect_uri)


async def delete_registration(conn: Conn, registration_id: UUID) -> None:
    """The authorization server does not know this client any more."""
    await conn.execute(DELETE, registration_id)


async def delete_client(conn: Conn, server_id: McpServerId, client_id: str) -> None:
    """As `delete`, by the id that the authorization server gave to the client."""
    await conn.execute(DELETE_CLIENT, server_id, client_id)
