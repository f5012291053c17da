"""Workspace agents: who they are, and when they were last heard of, by the database's clock."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString

import msgspec

from chatd.domain.workspace.entities import AgentHealth, AgentId, AgentRow
from chatd.store.conn import Conn
from chatd.store.rows import json_text, strip_unstorable

_AGENT: Final = msgspec.json.Decoder(AgentRow)

GET_WITH_TIME: Final[LiteralString] = (
    "SELECT row_to_json(a) AS agent, now() AS now FROM workspace_agents a WHERE a.id = $1"
)

# From the host to its workspaces to their agents: joined, all agents there ever were would be
# walked through in the order of their ids.
LIST_ON_HOST: Final[LiteralString] = """
    SELECT row_to_json(a) AS agent FROM workspace_agents a
    WHERE a.workspace_id = ANY (ARRAY(
        SELECT id FROM workspaces WHERE host_id = ANY ($1::text[]) AND NOT deleted))
      AND a.lifecycle <> 'off'
    ORDER BY a.id LIMIT $2"""

# Locked in the order of ids, as all who touch many. One that is off stays off. That the ids are few
# is said to the planner by arrays: it takes a list in JSON for long enough to scan for.
RECORD_HEALTHY: Final[LiteralString] = """
    WITH pulses AS MATERIALIZED (
        SELECT * FROM json_to_recordset($1)
            AS p (id uuid, boot_id text, lifecycle text, directory text)),
    said AS MATERIALIZED (
        SELECT a.id, p.boot_id, p.lifecycle, p.directory
        FROM pulses p JOIN workspace_agents a ON a.id = p.id
        WHERE a.id = ANY (ARRAY(SELECT id FROM pulses)) AND a.lifecycle <> 'off'
        ORDER BY a.id FOR NO KEY UPDATE OF a)
    UPDATE workspace_agents a SET
        first_connected_at = coalesce(a.first_connected_at, now()), last_connected_at = now(),
        disconnected_at = NULL, boot_id = said.boot_id, lifecycle = said.lifecycle,
        expanded_directory = CASE said.directory WHEN '' THEN a.expanded_directory
                                                 ELSE said.directory END
    FROM said WHERE a.id = ANY (ARRAY(SELECT id FROM said)) AND a.id = said.id"""

# Somebody else may have heard of it in the meantime: then it was this replica that was deaf.
RECORD_MISSED: Final[LiteralString] = """
    UPDATE workspace_agents a SET disconnected_at = now()
    WHERE a.id = ANY (ARRAY(
        SELECT x.id FROM workspace_agents x WHERE x.id = ANY ($1::uuid[])
          AND x.last_connected_at < now() - $2::float8 * interval '1 s'
          AND x.disconnected_at IS NULL AND x.lifecycle <> 'off'
        ORDER BY x.id FOR NO KEY UPDATE)) RETURNING a.id"""

MARK_GONE: Final[LiteralString] = """
    UPDATE workspace_agents a SET disconnected_at = now(), lifecycle = 'off'
    WHERE a.id = ANY (ARRAY(
        SELECT x.id FROM workspace_agents x
        WHERE x.id = ANY ($1::uuid[]) AND x.lifecycle <> 'off'
        ORDER BY x.id FOR NO KEY UPDATE))"""


async def get_with_time(conn: Conn, agent_id: AgentId) -> tuple[AgentRow, datetime] | None:
    """The agent, and the database's time at which it stood like this."""
    row = await conn.fetchrow(GET_WITH_TIME, agent_id)
    return None if row is None else (_AGENT.decode(row["agent"]), row["now"])


async def list_on_host(conn: Conn, hosts: Sequence[str], *, limit: int = 1000) -> list[AgentRow]:
    """Those that should be alive there."""
    return [
        _AGENT.decode(row["agent"]) for row in await conn.fetch(LIST_ON_HOST, list(hosts), limit)
    ]


async def record_healthy(conn: Conn, health: Mapping[AgentId, AgentHealth]) -> None:
    said = [
        {
            "id": agent_id,
            "boot_id": strip_unstorable(pulse.boot_id),
            "lifecycle": pulse.lifecycle,
            "directory": strip_unstorable(pulse.directory),
        }
        for agent_id, pulse in health.items()
    ]
    await conn.execute(RECORD_HEALTHY, json_text(said))


async def record_missed(
    conn: Conn, agent_ids: Iterable[AgentId], *, missed_after_s: float
) -> list[AgentId]:
    """They did not answer. One that never has is still on its way. Those that count as gone from
    now on."""
    return [row["id"] for row in await conn.fetch(RECORD_MISSED, list(agent_ids), missed_after_s)]


async def mark_gone(conn: Conn, agent_ids: Iterable[AgentId]) -> None:
    """Nothing is left of them."""
    await conn.execute(MARK_GONE, list(agent_ids))
