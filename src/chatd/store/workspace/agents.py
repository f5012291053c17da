"""Workspace agents, and when they were last connected, by the database's clock."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString

import msgspec

from chatd.domain.workspace.entities import AgentHealth, AgentId, AgentRow
from chatd.store.conn import Conn, json_text, strip_unstorable

_AGENT: Final = msgspec.json.Decoder(AgentRow)

GET_WITH_TIME: Final[LiteralString] = (
    "SELECT row_to_json(a) AS agent, now() AS now FROM workspace_agents a WHERE a.id = $1"
)

# An array of the host's workspaces: with a join the planner walks all agents that ever existed in
# the order of their ids.
LIST_ON_HOST: Final[LiteralString] = """
    SELECT row_to_json(a) AS agent FROM workspace_agents a
    WHERE a.workspace_id = ANY (ARRAY(
        SELECT id FROM workspaces WHERE host_id = ANY ($1::text[]) AND NOT deleted))
      AND a.lifecycle <> 'off'
    ORDER BY a.id LIMIT $2"""

# Locked in the order of ids, like all statements on many agents. An agent that is off stays off.
# Arrays show the planner that the ids are few: for a JSON list it would choose a scan.
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

# Another replica may have reached the agent since: then only this replica cannot reach it.
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
    """The agent, and the database's time of this read."""
    row = await conn.fetchrow(GET_WITH_TIME, agent_id)
    return None if row is None else (_AGENT.decode(row["agent"]), row["now"])


async def list_on_host(conn: Conn, hosts: Sequence[str], *, limit: int = 1000) -> list[AgentRow]:
    """The agents that should be running there."""
    return [
        _AGENT.decode(row["agent"]) for row in await conn.fetch(LIST_ON_HOST, list(hosts), limit)
    ]


async def record_healthy(conn: Conn, health: Mapping[AgentId, AgentHealth]) -> None:
    rows = [
        {
            "id": agent_id,
            "boot_id": strip_unstorable(report.boot_id),
            "lifecycle": report.lifecycle,
            "directory": strip_unstorable(report.directory),
        }
        for agent_id, report in health.items()
    ]
    await conn.execute(RECORD_HEALTHY, json_text(rows))


async def record_missed(
    conn: Conn, agent_ids: Iterable[AgentId], *, missed_after_s: float
) -> list[AgentId]:
    """Mark as disconnected those of these agents that no replica has reached for `missed_after_s`,
    and return them. An agent that never connected is still starting and stays as it is."""
    return [row["id"] for row in await conn.fetch(RECORD_MISSED, list(agent_ids), missed_after_s)]


async def mark_gone(conn: Conn, agent_ids: Iterable[AgentId]) -> None:
    """The agents no longer exist: disconnected and off."""
    await conn.execute(MARK_GONE, list(agent_ids))
