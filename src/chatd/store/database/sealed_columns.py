"""Sealed secrets: the columns that hold them, sealing them again with the current key, the keys
that the database knows, and the processes that hold these.

A table with a sealed column has a uuid `id`, and for the column `x` a generated column `x_key_id`
that references `secret_keys`. The value's context is `seal_context(table, x, id)`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from chatd.domain.deployment.diagnosis import ReplicaReport
from chatd.domain.errors import NotFound
from chatd.sealed_secrets import seal_context
from chatd.store.database.conn import Conn, DatabaseSession, json_text

RESEAL_BATCH: Final = 100
_FIRST_ID: Final = UUID(int=0)


class SealedColumn(Struct, frozen=True, kw_only=True):
    table: LiteralString
    column: LiteralString

    def context(self, row_id: UUID) -> str:
        return seal_context(self.table, self.column, row_id)


PROVIDER_CONFIG: Final = SealedColumn(table="provider_details", column="sealed_config")
PROVIDER_KEY: Final = SealedColumn(table="provider_keys", column="sealed_key")
SEALED_COLUMNS: Final[tuple[SealedColumn, ...]] = (
    SealedColumn(table="git_credentials", column="sealed_token"),
    SealedColumn(table="hooks", column="secret"),
    SealedColumn(table="host_credentials", column="sealed_secret"),
    SealedColumn(table="mcp_registrations", column="sealed_secret"),
    SealedColumn(table="mcp_servers", column="sealed_secrets"),
    SealedColumn(table="mcp_tokens", column="sealed_tokens"),
    PROVIDER_CONFIG,
    PROVIDER_KEY,
    SealedColumn(table="push_keys", column="private_key"),
    SealedColumn(table="repository_connections", column="private_key"),
    SealedColumn(table="repository_connections", column="secret"),
    SealedColumn(table="repository_connections", column="token"),
    SealedColumn(table="slack_connections", column="app_token"),
    SealedColumn(table="slack_connections", column="bot_token"),
    SealedColumn(table="webhooks", column="secret"),
)
"""A test compares this list with the schema."""


class ResealedBatch(Struct, frozen=True, kw_only=True):
    """`last_id`: where the next batch begins; None after the last one."""

    resealed: int
    unreadable: int
    last_id: UUID | None


async def count_by_key(conn: Conn, columns: Sequence[SealedColumn]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for at in columns:
        query: LiteralString = (
            f"SELECT {at.column}_key_id AS key_id, count(*) AS count FROM {at.table}"
            f" WHERE {at.column} IS NOT NULL GROUP BY 1"
        )
        for row in await conn.fetch(query):
            counts[row["key_id"]] = counts.get(row["key_id"], 0) + row["count"]
    return counts


async def read_sealed(conn: Conn, at: SealedColumn, limit: int) -> Sequence[tuple[str, str]]:
    """Sealed values, each with its context."""
    query: LiteralString = (
        f"SELECT id, {at.column} AS sealed FROM {at.table} WHERE {at.column} IS NOT NULL LIMIT $1"
    )
    return [(row["sealed"], at.context(row["id"])) for row in await conn.fetch(query, limit)]


async def reseal_batch(
    conn: Conn,
    at: SealedColumn,
    current: str,
    reseal: Callable[[str, str], str | None],
    after: UUID | None = None,
) -> ResealedBatch:
    """Seal the next values that another key has sealed. `reseal(sealed, context)` returns None for
    a value that cannot be opened. A value that has changed stays as it is."""
    select: LiteralString = (
        f"SELECT id, {at.column} AS sealed FROM {at.table}"
        f" WHERE {at.column}_key_id <> $1 AND id > $2 ORDER BY id LIMIT $3"
    )
    update: LiteralString = (
        f"UPDATE {at.table} SET {at.column} = n.sealed"
        " FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n (id, old, sealed)"
        f" WHERE {at.table}.id = n.id AND {at.table}.{at.column} = n.old"
    )
    rows = await conn.fetch(select, current, after or _FIRST_ID, RESEAL_BATCH)
    opened = [(row, reseal(row["sealed"], at.context(row["id"]))) for row in rows]
    changed = [(row["id"], row["sealed"], sealed) for row, sealed in opened if sealed is not None]
    if changed:
        ids, old, new = (list(values) for values in zip(*changed, strict=True))
        await conn.execute(update, ids, old, new)
    return ResealedBatch(
        resealed=len(changed),
        unreadable=len(rows) - len(changed),
        last_id=rows[-1]["id"] if len(rows) == RESEAL_BATCH else None,
    )


# The keys of sealed secrets that the database knows, and the running processes that hold them.

KeyState = Literal["staged", "current", "retired"]

LOCK_KEY: Final = 0x6368_6174_6B65_7973  # "chatkeys": an arbitrary key for the advisory lock
LOCK: Final[LiteralString] = "SELECT pg_advisory_xact_lock($1)"
LIST: Final[LiteralString] = """
    SELECT id, check_value, state FROM secret_keys ORDER BY created_at, id"""
INSERT: Final[LiteralString] = """
    INSERT INTO secret_keys (id, check_value, state) VALUES ($1, $2, $3)
    ON CONFLICT (id) DO NOTHING"""
# Two statements: a unique index refuses two current keys even for a moment. Only a staged key: a
# late repetition must not make a retired key current again.
RETIRE: Final[LiteralString] = """
    UPDATE secret_keys SET state = 'retired'
    WHERE state = 'current' AND EXISTS (
        SELECT FROM secret_keys WHERE id = $1 AND state = 'staged')"""
MAKE_CURRENT: Final[LiteralString] = """
    UPDATE secret_keys SET state = 'current' WHERE id = $1 AND state = 'staged'"""
DELETE_RETIRED: Final[LiteralString] = """
    DELETE FROM secret_keys WHERE id = $1 AND state = 'retired'"""

# Processes that died are removed after a while; `LIST_WITHOUT` ignores them earlier. Requests for
# secrets are looked for here, because every process sends this statement at intervals anyway.
RENEW_HOLDER: Final[LiteralString] = """
    WITH dead AS (
        DELETE FROM secret_key_holders WHERE renewed_at < now() - interval '1 hour'),
    expired AS (DELETE FROM secret_requests WHERE expires_at < now())
    INSERT INTO secret_key_holders (process_id, name, key_ids, version, settings)
    VALUES ($1, $2, $3, $4, $5::jsonb)
    ON CONFLICT (process_id) DO UPDATE SET key_ids = excluded.key_ids, renewed_at = now()
    RETURNING EXISTS (
        SELECT FROM secret_requests WHERE reply IS NULL AND expires_at > now()) AS is_asked"""
REMOVE_HOLDER: Final[LiteralString] = "DELETE FROM secret_key_holders WHERE process_id = $1"
LIST_WITHOUT: Final[LiteralString] = """
    SELECT name FROM secret_key_holders
    WHERE $1 <> ALL (key_ids) AND renewed_at > now() - $2::float8 * interval '1 s' ORDER BY name"""
LIST_PROCESSES: Final[LiteralString] = """
    SELECT name, version, key_ids, settings::text AS settings FROM secret_key_holders
    WHERE renewed_at > now() - $1::float8 * interval '1 s' ORDER BY name, process_id LIMIT 1000"""


class KeyRecord(Struct, frozen=True, kw_only=True):
    id: str
    check_value: str
    state: KeyState


async def lock(session: DatabaseSession) -> None:
    """Hold the lock until the end of the transaction: one process registers or rotates keys at a
    time."""
    await session.execute(LOCK, LOCK_KEY)


async def list_keys(conn: Conn) -> Sequence[KeyRecord]:
    """The oldest first."""
    return [KeyRecord(**dict(row)) for row in await conn.fetch(LIST)]


async def insert_key(conn: Conn, record: KeyRecord) -> None:
    await conn.execute(INSERT, record.id, record.check_value, record.state)


async def make_current(session: DatabaseSession, key_id: str) -> None:
    await session.execute(RETIRE, key_id)
    await session.execute(MAKE_CURRENT, key_id)


async def delete_retired(conn: Conn, key_id: str) -> None:
    """Raises InvariantBroken while a sealed value uses the key: a foreign key refuses it."""
    await conn.execute(DELETE_RETIRED, key_id)


async def renew_holder(conn: Conn, process_id: UUID, report: ReplicaReport) -> bool:
    """Returns whether a host asks for secrets."""
    settings = json_text(dict(report.settings))
    is_asked: bool = await conn.fetchval(
        RENEW_HOLDER, process_id, report.name, list(report.key_ids), report.version, settings
    )
    return is_asked


async def list_processes(conn: Conn, lease_s: float) -> Sequence[ReplicaReport]:
    """The processes that have renewed their keys within `lease_s`."""
    return [
        ReplicaReport(
            name=row["name"],
            version=row["version"],
            key_ids=tuple(row["key_ids"]),
            settings=msgspec.json.decode(row["settings"], type=dict[str, str]),
        )
        for row in await conn.fetch(LIST_PROCESSES, lease_s)
    ]


async def remove_holder(conn: Conn, process_id: UUID) -> None:
    await conn.execute(REMOVE_HOLDER, process_id)


async def list_without(conn: Conn, key_id: str, lease_s: float) -> Sequence[str]:
    """The names of the running processes that do not hold the key. One that has not renewed its
    keys for `lease_s` is dead."""
    return [row["name"] for row in await conn.fetch(LIST_WITHOUT, key_id, lease_s)]


# Hosts that ask the running processes for secrets. A request is answered once.

MAX_REQUESTS: Final = 10
"""How many requests are answered in one round; the others wait for the next one."""
INSERT_REQUEST: Final[LiteralString] = """
    INSERT INTO secret_requests (id, host_id, name, key_id, with_workspaces, public_key)
    VALUES ($1, $2, $3, $4, $5, $6)"""
LIST_REQUESTS: Final[LiteralString] = """
    SELECT id, host_id, name, key_id, with_workspaces, public_key FROM secret_requests
    WHERE reply IS NULL AND expires_at > now() ORDER BY created_at, id LIMIT $1"""
ANSWER_REQUEST: Final[LiteralString] = """
    UPDATE secret_requests SET answered_by = $2, reply_key = $3, reply = $4
    WHERE id = $1 AND reply IS NULL AND expires_at > now() RETURNING true"""
READ_REPLY: Final[LiteralString] = """
    SELECT answered_by, reply_key, reply FROM secret_requests
    WHERE id = $1 AND reply IS NOT NULL"""
DELETE_REQUEST: Final[LiteralString] = "DELETE FROM secret_requests WHERE id = $1"


class SecretRequest(Struct, frozen=True, kw_only=True):
    """`key_id` is the key that the host needs; `with_workspaces` if it also needs the secret of
    workspaces. The reply is sealed to `public_key`."""

    id: UUID
    host_id: str
    name: str
    key_id: str
    with_workspaces: bool
    public_key: bytes


class SecretReply(Struct, frozen=True, kw_only=True):
    answered_by: str
    reply_key: bytes
    reply: bytes


async def insert_request(conn: Conn, request: SecretRequest) -> None:
    await conn.execute(INSERT_REQUEST, *structs.astuple(request))


async def list_requests(conn: Conn) -> Sequence[SecretRequest]:
    """Requests without a reply, the oldest first."""
    return [SecretRequest(**dict(row)) for row in await conn.fetch(LIST_REQUESTS, MAX_REQUESTS)]


async def answer_request(conn: Conn, request_id: UUID, reply: SecretReply) -> bool:
    """False if another process was faster, or the request has expired or is gone."""
    return bool(await conn.fetchval(ANSWER_REQUEST, request_id, *structs.astuple(reply)))


async def read_reply(conn: Conn, request_id: UUID) -> SecretReply | None:
    row = await conn.fetchrow(READ_REPLY, request_id)
    return None if row is None else SecretReply(**dict(row))


async def delete_request(conn: Conn, request_id: UUID) -> None:
    await conn.execute(DELETE_REQUEST, request_id)


# Keys that all replicas share: each is made with its first use and never changes.

KEY_BYTES: Final = 32
FIND: Final[LiteralString] = "SELECT secret FROM shared_keys WHERE name = $1"
# Replicas that start together agree on the first key. Two random UUIDs are 244 random bits.
CREATE: Final[LiteralString] = """
    INSERT INTO shared_keys (name, secret)
    VALUES ($1, sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())))
    ON CONFLICT (name) DO NOTHING"""

DOWNLOAD_LINKS: Final = "download_links"
DEVICE_COOKIES: Final = "device_cookies"
PREVIEW_COOKIES: Final = "preview_cookies"


async def shared_key(conn: Conn, name: str) -> bytes:
    """The server's own key: no actor."""
    found: bytes | None = await conn.fetchval(FIND, name)
    if found is None:
        await conn.execute(CREATE, name)
        found = await conn.fetchval(FIND, name)
    if found is None or len(found) != KEY_BYTES:
        raise NotFound(f"The shared key {name} is missing.")
    return found
