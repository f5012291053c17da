"""Contexts of workspaces: the latest word of each agent, and what each chat has pinned of it."""

from collections.abc import Sequence
from typing import Final, LiteralString

import msgspec

from chatd.domain.hands import Context, Resource
from chatd.domain.ids import ChatId
from chatd.domain.workspace import AgentId
from chatd.domain.workspace_context import Pinned
from chatd.store.conn import Conn, Row
from chatd.store.faults import MissingReference
from chatd.store.rows import json_text, plain
from chatd.store.statement import named

_RESOURCES: Final = msgspec.json.Decoder(tuple[Resource, ...])

# Rows are overwritten in place and what is over is cut off: one statement cannot delete a key
# and insert it again.
PUT: Final = named("""
    WITH put AS (
        INSERT INTO agent_context_snapshots AS s (agent_id, version, hash, directory, os)
        VALUES (:agent_id, :version, :hash, :directory, :os)
        ON CONFLICT (agent_id) DO UPDATE SET
            version = excluded.version, hash = excluded.hash, directory = excluded.directory,
            os = excluded.os, received_at = now()
        WHERE :initial OR s.version < excluded.version
        RETURNING agent_id),
    resources AS (
        INSERT INTO agent_context_resources AS r (agent_id, position, kind, source, status,
            content, hash, size, error, name, description)
        SELECT put.agent_id, p.* FROM put, json_to_recordset(:resources) AS p (
            position integer, kind text, source text, status text, content text, hash text,
            size bigint, error text, name text, description text)
        ON CONFLICT (agent_id, position) DO UPDATE SET
            kind = excluded.kind, source = excluded.source, status = excluded.status,
            content = excluded.content, hash = excluded.hash, size = excluded.size,
            error = excluded.error, name = excluded.name, description = excluded.description),
    cut AS (
        DELETE FROM agent_context_resources r USING put
        WHERE r.agent_id = put.agent_id AND r.position >= :count)
    SELECT EXISTS (SELECT FROM put)""")

# A copy: what the agent says later is not what the chat has read.
PIN: Final[LiteralString] = """
    WITH pinned AS (
        UPDATE chat_bindings b SET
            context_agent = s.agent_id, context_version = s.version, context_hash = s.hash,
            directory = s.directory, os = s.os, pinned_at = now()
        FROM agent_context_snapshots s
        WHERE b.chat_id = $1 AND s.agent_id = $2
          AND ($3 OR b.context_agent IS DISTINCT FROM s.agent_id)
        RETURNING b.chat_id),
    copied AS (
        INSERT INTO chat_context_resources AS c (chat_id, position, kind, source, status,
            content, hash, size, error, name, description)
        SELECT pinned.chat_id, r.position, r.kind, r.source, r.status, r.content, r.hash, r.size,
            r.error, r.name, r.description
        FROM pinned, agent_context_resources r WHERE r.agent_id = $2
        ON CONFLICT (chat_id, position) DO UPDATE SET
            kind = excluded.kind, source = excluded.source, status = excluded.status,
            content = excluded.content, hash = excluded.hash, size = excluded.size,
            error = excluded.error, name = excluded.name, description = excluded.description),
    cut AS (
        DELETE FROM chat_context_resources c USING pinned
        WHERE c.chat_id = pinned.chat_id AND c.position >= (
            SELECT count(*) FROM agent_context_resources r WHERE r.agent_id = $2))
    SELECT EXISTS (SELECT FROM pinned)"""

_LISTED: Final[LiteralString] = """
    (SELECT coalesce(json_agg(r ORDER BY r.position), '[]')"""
READ: Final[LiteralString] = f"""
    SELECT b.context_agent, b.context_version AS version, b.context_hash AS hash, b.directory,
        b.os, b.pinned_at, coalesce(s.hash <> b.context_hash, false) AS dirty, {_LISTED}
         FROM chat_context_resources r WHERE r.chat_id = b.chat_id) AS resources
    FROM chat_bindings b
    LEFT JOIN agent_context_snapshots s ON s.agent_id = coalesce(b.agent_id, b.context_agent)
    WHERE b.chat_id = $1 AND b.pinned_at IS NOT NULL"""

LATEST: Final[LiteralString] = f"""
    SELECT s.version, s.hash, s.directory, s.os, {_LISTED}
         FROM agent_context_resources r WHERE r.agent_id = s.agent_id) AS resources
    FROM agent_context_snapshots s WHERE s.agent_id = $1"""


async def put(conn: Conn, agent_id: AgentId, context: Context, *, initial: bool) -> bool:
    """Its latest word. `initial`: the agent has begun to count anew. False if a newer one is
    there, or if there is no such agent."""
    values: dict[str, object] = {
        "agent_id": agent_id,
        "version": context.version,
        "hash": plain(context.hash),
        "directory": plain(context.directory),
        "os": plain(context.os),
        "initial": initial,
        "count": len(context.resources),
        "resources": json_text(_columns(context.resources)),
    }
    try:
        return bool(await conn.fetchval(PUT.text, *PUT.args(values)))
    except MissingReference:
        return False


def _columns(resources: Sequence[Resource]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for position, resource in enumerate(resources):
        row: dict[str, object] = {"position": position}
        for name in Resource.__struct_fields__:
            value = getattr(resource, name)
            row[name] = plain(value) if isinstance(value, str) else value
        rows.append(row)
    return rows


async def pin(conn: Conn, chat_id: ChatId, agent_id: AgentId, *, anew: bool = False) -> bool:
    """Let the chat go by what this agent has said last. Unless `anew`, a chat that goes by an
    earlier word of the same agent keeps it. False if nothing was pinned."""
    return bool(await conn.fetchval(PIN, chat_id, agent_id, anew))


async def pinned(conn: Conn, chat_id: ChatId) -> Pinned | None:
    row = await conn.fetchrow(READ, chat_id)
    if row is None:
        return None
    return Pinned(
        agent_id=AgentId(row["context_agent"]),
        context=_context(row),
        pinned_at=row["pinned_at"],
        dirty=row["dirty"],
    )


async def latest(conn: Conn, agent_id: AgentId) -> Context | None:
    row = await conn.fetchrow(LATEST, agent_id)
    return None if row is None else _context(row)


def _context(row: Row) -> Context:
    return Context(
        version=row["version"],
        hash=row["hash"],
        directory=row["directory"],
        os=row["os"],
        resources=_RESOURCES.decode(row["resources"]),
    )
