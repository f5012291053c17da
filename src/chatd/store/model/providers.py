"""Providers as stored, with their keys sealed. Rows of the settings and of the environment have
neither keys nor details here."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString, cast
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.errors import Conflict
from chatd.domain.ids import UserId
from chatd.domain.model.config import key_destination
from chatd.store.database.conn import Conn, DatabaseSession, Row, json_text

LIST: Final[LiteralString] = """
    SELECT p.id, p.name, p.kind, p.base_url, p.has_api_key, p.enabled, p.source, p.created_at,
        p.updated_at, coalesce(d.display_name, p.name) AS display_name, d.config, d.sealed_config,
        coalesce(d.user_keys, false) AS user_keys, d.deleted_at IS NOT NULL AS is_deleted
    FROM providers p LEFT JOIN provider_details d ON d.id = p.id
    ORDER BY p.enabled DESC, p.name"""
FIND_NAME: Final[LiteralString] = "SELECT id, source, enabled FROM providers WHERE name = $1"
UPSERT: Final[LiteralString] = """
    INSERT INTO providers AS p (id, name, kind, base_url, has_api_key, enabled, source)
    VALUES ($1, $2, $3, $4, false, $5, 'database')
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, kind = excluded.kind,
        base_url = excluded.base_url, enabled = excluded.enabled, source = 'database',
        has_api_key = EXISTS (SELECT FROM provider_keys k
            WHERE k.provider_id = p.id AND k.user_id IS NULL),
        updated_at = now()"""
UPSERT_DETAILS: Final[LiteralString] = """
    INSERT INTO provider_details (id, display_name, config, sealed_config, user_keys)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (id) DO UPDATE SET display_name = excluded.display_name, config = excluded.config,
        sealed_config = excluded.sealed_config, user_keys = excluded.user_keys"""
LIST_USERS: Final[LiteralString] = """
    SELECT name FROM model_configs WHERE provider_id = $1 AND deleted_at IS NULL ORDER BY name"""
# The row stays for the deleted models that name it; its name can be used again.
DELETE: Final[LiteralString] = """
    UPDATE providers SET enabled = false, has_api_key = false,
        name = left(name, 150) || ' (deleted ' || id || ')', updated_at = now()
    WHERE id = $1 AND source = 'database'"""
DELETE_DETAILS: Final[LiteralString] = """
    UPDATE provider_details SET deleted_at = now(), sealed_config = NULL, user_keys = false
    WHERE id = $1"""
DELETE_KEYS: Final[LiteralString] = "DELETE FROM provider_keys WHERE provider_id = $1"

LIST_KEYS: Final[LiteralString] = """
    SELECT id, provider_id, name, masked, sealed_key, destination, created_at
    FROM provider_keys
    WHERE user_id IS NULL ORDER BY provider_id, created_at, id"""
INSERT_KEY: Final[LiteralString] = """
    INSERT INTO provider_keys (id, provider_id, user_id, name, masked, sealed_key, destination)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (user_id, provider_id) WHERE user_id IS NOT NULL DO UPDATE SET
        id = excluded.id, name = excluded.name, masked = excluded.masked,
        sealed_key = excluded.sealed_key, destination = excluded.destination,
        created_at = clock_timestamp()"""
UPDATE_KEY: Final[LiteralString] = """
    UPDATE provider_keys SET name = coalesce($3, name), masked = coalesce($4, masked),
        sealed_key = coalesce($5, sealed_key), destination = coalesce($6, destination)
    WHERE provider_id = $1 AND id = $2 AND user_id IS NULL"""
DELETE_KEY: Final[LiteralString] = """
    DELETE FROM provider_keys WHERE provider_id = $1 AND id = $2 AND user_id IS NULL"""
DELETE_SHARED_KEYS: Final[LiteralString] = """
    DELETE FROM provider_keys WHERE provider_id = $1 AND user_id IS NULL"""
COUNT_USER_KEYS: Final[LiteralString] = """
    SELECT count(*) FROM provider_keys
    WHERE provider_id = $1 AND user_id IS NOT NULL AND destination <> $2"""
TOUCH: Final[LiteralString] = """
    UPDATE providers p SET updated_at = now(), has_api_key = EXISTS (
        SELECT FROM provider_keys k WHERE k.provider_id = p.id AND k.user_id IS NULL)
    WHERE id = $1"""

FIND_USER_KEY: Final[LiteralString] = """
    SELECT id, provider_id, name, masked, sealed_key, destination, created_at
    FROM provider_keys
    WHERE user_id = $1 AND provider_id = $2"""
LIST_USER_KEYS: Final[LiteralString] = """
    SELECT id, provider_id, name, masked, sealed_key, destination, created_at
    FROM provider_keys
    WHERE user_id = $1 ORDER BY created_at, id"""
DELETE_USER_KEY: Final[LiteralString] = """
    DELETE FROM provider_keys WHERE user_id = $1 AND id = $2 RETURNING provider_id"""


class ProviderParameters(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to reach a provider, without secrets. Headers and the proxy are sealed; here are the
    headers' names."""

    region: str | None = None
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    connect_timeout_s: float | None = None
    silence_timeout_s: float | None = None
    answer_timeout_s: float | None = None
    header_names: tuple[str, ...] = ()
    has_proxy: bool = False
    proxy_origin: str | None = None
    has_aws_credentials: bool = False


class StoredKey(Struct, frozen=True, kw_only=True):
    """`destination`: where it may be sent (`domain.model.config`)."""

    id: UUID
    provider_id: UUID
    name: str
    masked: str
    sealed_key: str
    destination: str
    created_at: datetime


class StoredProvider(Struct, frozen=True, kw_only=True):
    """`keys` are for all users, in the order of their use."""

    id: UUID
    name: str
    kind: str
    base_url: str | None
    has_api_key: bool
    enabled: bool
    source: str
    created_at: datetime
    updated_at: datetime
    display_name: str = ""
    parameters: ProviderParameters = ProviderParameters()
    sealed_config: str | None = None
    user_keys: bool = False
    is_deleted: bool = False
    keys: tuple[StoredKey, ...] = ()

    @property
    def destination(self) -> str:
        told = self.parameters
        return key_destination(self.base_url, told.proxy_origin, told.ca_file)


class ProviderWrite(Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    kind: str
    base_url: str | None
    enabled: bool
    display_name: str
    parameters: ProviderParameters
    sealed_config: str | None
    user_keys: bool

    @property
    def destination(self) -> str:
        told = self.parameters
        return key_destination(self.base_url, told.proxy_origin, told.ca_file)


_PARAMETERS: Final = msgspec.json.Decoder(ProviderParameters)


async def list_providers(conn: Conn) -> Sequence[StoredProvider]:
    keys: dict[UUID, list[StoredKey]] = {}
    for row in await conn.fetch(LIST_KEYS):
        key = StoredKey(**dict(row))
        keys.setdefault(key.provider_id, []).append(key)
    return [_provider(row, keys) for row in await conn.fetch(LIST)]


def _provider(row: Row, keys: Mapping[UUID, Sequence[StoredKey]]) -> StoredProvider:
    fields = dict(row)
    config = cast("str | None", fields.pop("config"))
    return StoredProvider(
        **fields,
        parameters=ProviderParameters() if config is None else _PARAMETERS.decode(config),
        keys=tuple(keys.get(fields["id"], ())),
    )


async def find_free_name(session: DatabaseSession, name: str, own: UUID | None) -> UUID | None:
    """The id of a row that no process declares any more, to be taken over by a provider of this
    name. Raises Conflict if the name is taken."""
    row = await session.fetchrow(FIND_NAME, name)
    if row is None or row["id"] == own:
        return None
    if row["source"] == "database":
        raise Conflict(f"There is a provider {name}. Choose another name.", code="name_taken")
    if row["enabled"]:
        raise managed_elsewhere("provider", name, row["source"])
    return row["id"]


def managed_elsewhere(what: str, name: str, source: str) -> Conflict:
    where = "the environment" if source == "environment" else "chatd.toml or CHATD_ variables"
    return Conflict(
        f"The {what} {name} is declared in {where} of a running server. Change it there and restart"
        " chatd, or choose another name.",
        code="managed_by_settings",
    )


async def write(session: DatabaseSession, row: ProviderWrite) -> None:
    await session.execute(UPSERT, row.id, row.name, row.kind, row.base_url, row.enabled)
    await session.execute(
        UPSERT_DETAILS,
        row.id,
        row.display_name,
        json_text(row.parameters),
        row.sealed_config,
        row.user_keys,
    )


async def list_models_using(conn: Conn, provider_id: UUID) -> Sequence[str]:
    return [row["name"] for row in await conn.fetch(LIST_USERS, provider_id)]


async def delete(session: DatabaseSession, provider_id: UUID) -> None:
    """Delete it with its keys. The row stays, because deleted models name it."""
    for statement in (DELETE_KEYS, DELETE_DETAILS, DELETE):
        await session.execute(statement, provider_id)


async def insert_key(session: DatabaseSession, key: StoredKey, user: UserId | None) -> None:
    """A user has one key per provider; a second one replaces it."""
    await session.execute(
        INSERT_KEY,
        key.id,
        key.provider_id,
        user,
        key.name,
        key.masked,
        key.sealed_key,
        key.destination,
    )
    if user is None:
        await session.execute(TOUCH, key.provider_id)


async def update_key(
    session: DatabaseSession,
    provider_id: UUID,
    key_id: UUID,
    *,
    name: str | None = None,
    masked: str | None = None,
    sealed_key: str | None = None,
    destination: str | None = None,
) -> bool:
    values = (name, masked, sealed_key, destination)
    done = await session.execute(UPDATE_KEY, provider_id, key_id, *values)
    await session.execute(TOUCH, provider_id)
    return done == "UPDATE 1"


async def delete_key(session: DatabaseSession, provider_id: UUID, key_id: UUID) -> bool:
    done = await session.execute(DELETE_KEY, provider_id, key_id)
    await session.execute(TOUCH, provider_id)
    return done == "DELETE 1"


async def delete_shared_keys(session: DatabaseSession, provider_id: UUID) -> None:
    await session.execute(DELETE_SHARED_KEYS, provider_id)
    await session.execute(TOUCH, provider_id)


async def count_other_user_keys(conn: Conn, provider_id: UUID, destination: str) -> int:
    """Keys of users that were given for another destination."""
    return await conn.fetchval(COUNT_USER_KEYS, provider_id, destination)


async def find_user_key(conn: Conn, user: UserId, provider_id: UUID) -> StoredKey | None:
    row = await conn.fetchrow(FIND_USER_KEY, user, provider_id)
    return None if row is None else StoredKey(**dict(row))


async def list_user_keys(conn: Conn, user: UserId) -> Sequence[StoredKey]:
    return [StoredKey(**dict(row)) for row in await conn.fetch(LIST_USER_KEYS, user)]


async def delete_user_key(session: DatabaseSession, user: UserId, key_id: UUID) -> bool:
    """The caller's own keys only."""
    return await session.fetchval(DELETE_USER_KEY, user, key_id) is not None
