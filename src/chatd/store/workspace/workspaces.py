"""Workspaces, created together with their first build and read together with their latest; and
their agents.

The row stores the number of the latest build, and a new build is inserted only against that number:
of two concurrent decisions to start or stop, one writes nothing and is decided again.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import (
    Actor,
    Permission,
    UserActor,
    require_allowed,
    require_permission,
)
from chatd.domain.chat.row import Fence
from chatd.domain.errors import StaleFence
from chatd.domain.ids import ChatId, UserId, WorkspaceId
from chatd.domain.workspace.entities import (
    AgentHealth,
    AgentId,
    AgentRow,
    Build,
    BuildId,
    BuildReason,
    TemplateId,
    VersionId,
    Workspace,
)
from chatd.domain.workspace.rules import WorkspaceSnapshot
from chatd.store.database.conn import (
    Conn,
    DuplicateRow,
    Row,
    json_text,
    named_statement,
    strip_unstorable,
)
from chatd.store.database.row_access import visible_workspaces, workspace_condition, workspace_reach

_WORKSPACE: Final = msgspec.json.Decoder(Workspace)
_BUILD: Final = msgspec.json.Decoder(Build)
_AGENTS: Final = msgspec.json.Decoder(tuple[AgentRow, ...])

_INSERT_WORKSPACE: Final[LiteralString] = """
    INSERT INTO workspaces (id, owner_id, template_id, name, host_id, ttl_s, latest_build,
        made_by)
    SELECT :id::uuid, :owner_id::uuid, :template_id::uuid, :name::text, :host_id::text,
        :ttl_s::integer, 1, :made_by::text"""
_INSERT_BUILD: Final[LiteralString] = """
    ON CONFLICT (made_by) WHERE made_by IS NOT NULL DO NOTHING RETURNING *),
    built AS (
        INSERT INTO workspace_builds (id, workspace_id, build_number, transition,
            template_version_id, params, initiator_id, reason, copied_from)
        SELECT :build_id::uuid, made.id, 1, 'start', :version_id::uuid, :params::json,
            :owner_id::uuid, :reason::text, :copied_from::uuid
        FROM made RETURNING *)"""
_CREATED: Final[LiteralString] = """
        (SELECT row_to_json(made) FROM made) AS workspace,
        (SELECT row_to_json(built) FROM built) AS build"""

CREATE: Final = named_statement(
    "WITH made AS (", _INSERT_WORKSPACE, _INSERT_BUILD, " SELECT true AS held,", _CREATED
)

# Fenced like every write of a worker, and bound to the chat by the same statement, so that no
# workspace exists without its chat.
CREATE_FOR_CHAT: Final = named_statement(
    """
    WITH mine AS MATERIALIZED (
        SELECT id FROM chats
        WHERE id = :chat_id AND worker_id = :worker_id AND epoch = :epoch
          AND status = 'running' AND snapshot_version >= :seen_version::bigint
          AND (:seen_change::bigint = 0 OR coalesce(
                  recent_changes[(snapshot_version - :seen_version + 1)::int], 0
              ) IN (:seen_change, 0))
        FOR NO KEY UPDATE),
    made AS (""",
    _INSERT_WORKSPACE,
    " FROM mine",
    _INSERT_BUILD,
    """,
    bound AS (
        INSERT INTO chat_bindings (chat_id, workspace_id, build_id)
        SELECT :chat_id, built.workspace_id, built.id FROM built
        ON CONFLICT (chat_id) DO UPDATE SET
            workspace_id = excluded.workspace_id, build_id = excluded.build_id,
            agent_id = NULL, bound_at = now()),
    chat AS (
        UPDATE chats SET workspace_id = :id
        WHERE id = :chat_id AND EXISTS (SELECT FROM made))
    SELECT EXISTS (SELECT FROM mine) AS held,""",
    _CREATED,
)

FIND_BY_REQUEST_KEY: Final[LiteralString] = f"""
    SELECT true AS held, row_to_json(w) AS workspace, row_to_json(b) AS build
    FROM workspaces w JOIN workspace_builds b ON b.workspace_id = w.id AND b.build_number = 1
    WHERE w.made_by = $1 AND {workspace_condition("$2")}"""

GET: Final[LiteralString] = f"""
    SELECT row_to_json(w) FROM workspaces w WHERE w.id = $1 AND {workspace_condition("$2")}"""

_SNAPSHOT: Final[LiteralString] = """
    SELECT now() AS now, row_to_json(w) AS workspace, row_to_json(b) AS build,
        (SELECT json_agg(a ORDER BY a.id) FROM workspace_agents a WHERE a.build_id = b.id)
            AS agents
    FROM workspaces w
    LEFT JOIN workspace_builds b ON b.workspace_id = w.id AND b.build_number = w.latest_build"""
GET_SNAPSHOT: Final[LiteralString] = f"""{_SNAPSHOT}
    WHERE w.id = $1 AND {workspace_condition("$2")}"""
LIST_ON_HOST: Final[LiteralString] = f"""{_SNAPSHOT}
    JOIN templates t ON t.id = w.template_id
    WHERE NOT w.deleted AND w.host_id = ANY ($1::text[]) AND t.backend = $2 AND w.id > $3
    ORDER BY w.id LIMIT $4"""
LIST_PAGE: Final[LiteralString] = f"""{_SNAPSHOT}
    WHERE w.owner_id = $1 AND NOT w.deleted
      AND ($2::timestamptz IS NULL OR (w.created_at, w.id) < ($2, $3::uuid))
    ORDER BY w.created_at DESC, w.id DESC LIMIT $4"""

# Of the workspaces that a backend has found, those with a deleted row. Not one with a build in
# progress, which deletes it, and not one without a row.
LIST_DELETED: Final[LiteralString] = """
    SELECT w.id FROM workspaces w
    WHERE w.id = ANY ($1::uuid[]) AND w.deleted AND w.host_id = ANY ($2::text[])
      AND NOT EXISTS (SELECT FROM workspace_builds b
                      WHERE b.workspace_id = w.id AND b.completed_at IS NULL)"""

# Locks rows in the order of their ids, like all statements on many workspaces. The same rule as
# `domain.workspace.rules.bumped_deadline`.
RECORD_ACTIVITY: Final[LiteralString] = """
    WITH used AS MATERIALIZED (
        SELECT w.id, t.activity_bump_s * interval '1 s' AS bump
        FROM workspaces w JOIN templates t ON t.id = w.template_id
        WHERE w.id = ANY ($1::uuid[]) AND NOT w.deleted
        ORDER BY w.id FOR NO KEY UPDATE OF w),
    touched AS (
        UPDATE workspaces w SET last_used_at = now()
        WHERE w.id = ANY (ARRAY(SELECT id FROM used)))
    UPDATE workspace_builds b
    SET deadline = least(now() + used.bump, b.max_deadline)
    FROM used
    WHERE b.workspace_id = used.id AND b.transition = 'start' AND b.status = 'succeeded'
      AND used.bump > interval '0' AND b.deadline IS NOT NULL
      AND b.deadline <= now() + used.bump * 0.95
      AND least(now() + used.bump, b.max_deadline) > b.deadline
      AND b.build_number = (
          SELECT max(x.build_number) FROM workspace_builds x
          WHERE x.workspace_id = used.id AND x.status = 'succeeded')"""


class WorkspaceNameTaken(DuplicateRow):
    """The owner has another workspace of this name."""

    code = "name_taken"


class NewWorkspace(Struct, frozen=True, kw_only=True):
    """`made_by` is the request's idempotency key. The caller chooses the ids."""

    id: WorkspaceId
    build_id: BuildId
    owner_id: UserId
    template_id: TemplateId
    version_id: VersionId
    name: str
    host_id: str | None
    ttl_s: int = 0
    params: Mapping[str, str] = {}
    reason: BuildReason = "initiator"
    made_by: str | None = None
    copied_from: WorkspaceId | None = None
    """The workspace whose files it copies."""


class CreatedWorkspace(Struct, frozen=True, kw_only=True):
    """`replayed`: an earlier try of the same request created it."""

    workspace: Workspace
    build: Build
    replayed: bool = False


async def create(
    conn: Conn,
    actor: Actor,
    new: NewWorkspace,
    *,
    chat_id: ChatId | None = None,
    fence: Fence | None = None,
) -> CreatedWorkspace:
    """Create a workspace and its first build, pending; for a chat also its binding. Raises
    WorkspaceNameTaken, Forbidden, and StaleFence if the worker no longer owns the chat."""
    require_allowed(actor, "workspaces.write", new.owner_id)
    reach = workspace_reach(actor, "workspaces.write")
    values: dict[str, object] = {name: getattr(new, name) for name in new.__struct_fields__}
    values["params"] = json_text(new.params)
    statement = CREATE
    if chat_id is not None and fence is not None:
        values.update(chat_id=chat_id, worker_id=fence.worker_id, epoch=fence.epoch)
        values.update(seen_version=fence.snapshot_version, seen_change=fence.change_id)
        statement = CREATE_FOR_CHAT
    try:
        row = await conn.fetchrow(statement.text, *statement.args(values))
    except DuplicateRow as error:
        row = await conn.fetchrow(FIND_BY_REQUEST_KEY, new.made_by, reach)
        if row is None:
            if error.constraint == "workspaces_name":
                raise WorkspaceNameTaken(error.constraint) from error
            raise
        return _created(row, replayed=True)
    if row is None or not row["held"]:
        raise StaleFence(f"Chat {chat_id} is no longer owned under this fence.")
    if row["workspace"] is not None:
        return _created(row, replayed=False)
    if (row := await conn.fetchrow(FIND_BY_REQUEST_KEY, new.made_by, reach)) is None:
        # The key that conflicted has expired and was cleared in between.
        return await create(conn, actor, new, chat_id=chat_id, fence=fence)
    return _created(row, replayed=True)


async def find_by_request_key(conn: Conn, actor: Actor, key: str) -> CreatedWorkspace | None:
    reach = workspace_reach(actor, "workspaces.write")
    row = await conn.fetchrow(FIND_BY_REQUEST_KEY, key, reach)
    return None if row is None else _created(row, replayed=True)


def _created(row: Row, *, replayed: bool) -> CreatedWorkspace:
    return CreatedWorkspace(
        workspace=_WORKSPACE.decode(row["workspace"]),
        build=_BUILD.decode(row["build"]),
        replayed=replayed,
    )


async def get(
    conn: Conn, actor: Actor, workspace_id: WorkspaceId, permission: Permission = "workspaces.read"
) -> Workspace | None:
    """None also for a workspace on which the actor lacks the permission."""
    found = await conn.fetchval(GET, workspace_id, workspace_reach(actor, permission))
    return None if found is None else _WORKSPACE.decode(found)


async def load_snapshot(
    conn: Conn, actor: Actor, workspace_id: WorkspaceId, permission: Permission = "workspaces.read"
) -> WorkspaceSnapshot | None:
    """The workspace, its latest build and that build's agents, from one database snapshot. None
    also if the actor may not read it. Raises Forbidden if the actor lacks the permission on it."""
    row = await conn.fetchrow(GET_SNAPSHOT, workspace_id, visible_workspaces(actor, permission))
    if row is None:
        return None
    snapshot = _snapshot(row)
    if snapshot.workspace is not None and permission != "workspaces.read":
        require_allowed(actor, permission, snapshot.workspace.owner_id)
    return snapshot


async def can_preview(conn: Conn, actor: UserActor, workspace_id: WorkspaceId) -> bool:
    """Whether the actor may see previews of all of the workspace's ports. Raises Forbidden for one
    who may only read the workspace."""
    found = await load_snapshot(conn, actor, workspace_id, "workspaces.write")
    return found is not None and found.workspace is not None and not found.workspace.deleted


async def list_on_host(
    conn: Conn, hosts: Sequence[str], backend: str, *, after: WorkspaceId | None, limit: int
) -> list[WorkspaceSnapshot]:
    """A page of the workspaces of these hosts that are not deleted, by id."""
    start = after or UUID(int=0)
    rows = await conn.fetch(LIST_ON_HOST, list(hosts), backend, start, limit)
    return [_snapshot(row) for row in rows]


async def list_page(
    conn: Conn, actor: UserActor, *, after: tuple[datetime, WorkspaceId] | None, limit: int
) -> list[WorkspaceSnapshot]:
    """The user's own workspaces that are not deleted, the newest first. `after` is the creation and
    the id of the last one on the page before."""
    require_permission(actor, "workspaces.read")
    at, last = after or (None, None)
    return [_snapshot(row) for row in await conn.fetch(LIST_PAGE, actor.user_id, at, last, limit)]


def _snapshot(row: Row) -> WorkspaceSnapshot:
    build, agents = row["build"], row["agents"]
    return WorkspaceSnapshot(
        workspace=_WORKSPACE.decode(row["workspace"]),
        build=None if build is None else _BUILD.decode(build),
        agents=() if agents is None else _AGENTS.decode(agents),
        now=row["now"],
    )


async def list_deleted(
    conn: Conn, workspace_ids: Iterable[WorkspaceId], hosts: Sequence[str]
) -> list[WorkspaceId]:
    return [row["id"] for row in await conn.fetch(LIST_DELETED, list(workspace_ids), list(hosts))]


async def record_activity(conn: Conn, workspace_ids: Iterable[WorkspaceId]) -> None:
    """Set the time of last use, and move the stop deadlines."""
    await conn.execute(RECORD_ACTIVITY, sorted(workspace_ids))


# Workspace agents, and when they were last connected, by the database's clock.

_AGENT: Final = msgspec.json.Decoder(AgentRow)

GET_WITH_TIME: Final[LiteralString] = (
    "SELECT row_to_json(a) AS agent, now() AS now FROM workspace_agents a WHERE a.id = $1"
)

# An array of the host's workspaces: with a join the planner walks all agents that ever existed in
# the order of their ids.
LIST_AGENTS_ON_HOST: Final[LiteralString] = """
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


async def list_agents_on_host(
    conn: Conn, hosts: Sequence[str], *, limit: int = 1000
) -> list[AgentRow]:
    """The agents that should be running there."""
    return [
        _AGENT.decode(row["agent"])
        for row in await conn.fetch(LIST_AGENTS_ON_HOST, list(hosts), limit)
    ]


async def record_agent_healthy(conn: Conn, health: Mapping[AgentId, AgentHealth]) -> None:
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


async def record_agent_missed(
    conn: Conn, agent_ids: Iterable[AgentId], *, missed_after_s: float
) -> list[AgentId]:
    """Mark as disconnected those of these agents that no replica has reached for `missed_after_s`,
    and return them. An agent that never connected is still starting and stays as it is."""
    return [row["id"] for row in await conn.fetch(RECORD_MISSED, list(agent_ids), missed_after_s)]


async def mark_agent_gone(conn: Conn, agent_ids: Iterable[AgentId]) -> None:
    """Mark the agents as disconnected and off: they no longer exist."""
    await conn.execute(MARK_GONE, list(agent_ids))
