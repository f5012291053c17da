"""Builds: insert, read, cancel, and list workspaces past their deadline. Times are the database's.

`build_leases` runs and ends builds.
"""

from collections.abc import Mapping
from typing import Final, LiteralString

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import Actor, Permission
from chatd.domain.ids import UserId, WorkspaceId
from chatd.domain.workspace.entities import Build, BuildId, BuildReason, BuildTransition, VersionId
from chatd.domain.workspace.rules import build_permission
from chatd.store.conn import Conn, json_text, named_statement
from chatd.store.row_access import visible_workspaces, workspace_condition, workspace_reach

_BUILD: Final = msgspec.json.Decoder(Build)

# Compare and set on the number of the latest build. Of two concurrent inserts, the row's lock makes
# the second one see the new number.
INSERT: Final = named_statement("""
    WITH next AS (
        UPDATE workspaces w SET latest_build = latest_build + 1
        WHERE id = :workspace_id AND NOT deleted AND latest_build = :after
          AND (:reach::uuid IS NULL OR w.owner_id = :reach)
          AND NOT EXISTS (SELECT FROM workspace_builds WHERE made_by = :made_by)
          AND NOT EXISTS (SELECT FROM workspace_builds
                          WHERE workspace_id = :workspace_id AND completed_at IS NULL)
          AND NOT (:only_idle AND EXISTS (
              SELECT FROM chats c WHERE c.workspace_id = :workspace_id AND NOT c.archived
                AND c.status IN ('running', 'interrupting', 'requires_action')))
        RETURNING id, latest_build),
    built AS (
        INSERT INTO workspace_builds (id, workspace_id, build_number, transition,
            template_version_id, params, initiator_id, reason, made_by)
        SELECT :id::uuid, next.id, next.latest_build, :transition::text, :version_id::uuid,
            :params::json, :initiator_id::uuid, :reason::text, :made_by::text
        FROM next RETURNING *)
    SELECT row_to_json(built) FROM built""")

_REACHED_BUILDS: Final[LiteralString] = """
    SELECT row_to_json(b) AS build
    FROM workspace_builds b JOIN workspaces w ON w.id = b.workspace_id"""

FIND_BY_REQUEST_KEY: Final[LiteralString] = f"""{_REACHED_BUILDS}
    WHERE b.made_by = $1 AND {workspace_condition("$2")}"""

GET: Final[LiteralString] = f"{_REACHED_BUILDS} WHERE b.id = $1 AND {workspace_condition('$2')}"

LIST_BUILDS: Final[LiteralString] = f"""{_REACHED_BUILDS}
    WHERE b.workspace_id = $1 AND b.build_number < $3 AND {workspace_condition("$4")}
    ORDER BY b.build_number DESC LIMIT $2"""

CANCEL: Final[LiteralString] = f"""
    UPDATE workspace_builds b SET
        status = CASE b.status WHEN 'pending' THEN 'canceled' ELSE 'canceling' END,
        completed_at = CASE b.status WHEN 'pending' THEN now() END
    WHERE b.id = $1 AND b.status IN ('pending', 'running')
      AND EXISTS (SELECT FROM workspaces w
                  WHERE w.id = b.workspace_id AND {workspace_condition("$2")})
    RETURNING row_to_json(b)"""

_PAST_THE_END: Final = 2**31 - 1


class NewBuild(Struct, frozen=True, kw_only=True):
    """`after` is the number of the latest build when the caller decided."""

    id: BuildId
    workspace_id: WorkspaceId
    after: int
    transition: BuildTransition
    version_id: VersionId
    initiator_id: UserId
    params: Mapping[str, str] = {}
    reason: BuildReason = "initiator"
    made_by: str | None = None
    only_idle: bool = False
    """Not while a chat of the workspace is in a turn."""


async def insert(conn: Conn, actor: Actor, new: NewBuild) -> Build | None:
    """The new build, or the one that an earlier try of the same request inserted. None if the
    workspace has another latest build, or is in a turn: read again, decide again."""
    values: dict[str, object] = {name: getattr(new, name) for name in new.__struct_fields__}
    reach = workspace_reach(actor, build_permission(new.transition))
    values.update(params=json_text(new.params), reach=reach)
    found = await conn.fetchval(INSERT.text, *INSERT.args(values))
    if found is None and new.made_by is not None:
        found = await conn.fetchval(FIND_BY_REQUEST_KEY, new.made_by, reach)
    return None if found is None else _BUILD.decode(found)


async def get(
    conn: Conn, actor: Actor, build_id: BuildId, permission: Permission = "workspaces.read"
) -> Build | None:
    """None also for a build that the actor may not read. `permission` is that of the request."""
    found = await conn.fetchval(GET, build_id, visible_workspaces(actor, permission))
    return None if found is None else _BUILD.decode(found)


async def find_by_request_key(
    conn: Conn, actor: Actor, key: str, transition: BuildTransition
) -> Build | None:
    """None also for a build of a workspace on which the actor may not run `transition`."""
    reach = workspace_reach(actor, build_permission(transition))
    found = await conn.fetchval(FIND_BY_REQUEST_KEY, key, reach)
    return None if found is None else _BUILD.decode(found)


async def list_builds(
    conn: Conn,
    actor: Actor,
    workspace_id: WorkspaceId,
    *,
    limit: int = 20,
    before: int | None = None,
) -> list[Build]:
    """The newest first, with numbers below `before`."""
    top = min(before or _PAST_THE_END, _PAST_THE_END)
    reach = workspace_reach(actor, "workspaces.read")
    rows = await conn.fetch(LIST_BUILDS, workspace_id, limit, top, reach)
    return [_BUILD.decode(row["build"]) for row in rows]


async def cancel(conn: Conn, actor: Actor, build_id: BuildId) -> Build | None:
    """A pending build is canceled at once, a running one when its backend has stopped. None if it
    has ended or is being canceled."""
    found = await conn.fetchval(CANCEL, build_id, workspace_reach(actor, "workspaces.control"))
    return None if found is None else _BUILD.decode(found)


# Only the latest successful build has a deadline. A failed stop leaves the deadline as it is and is
# tried again, at intervals that grow with the time since the deadline: on a lost host it never
# succeeds.
LIST_OVERDUE: Final[LiteralString] = """
    SELECT w.id AS workspace_id, w.owner_id, w.latest_build, b.id AS build_id,
        b.template_version_id AS version_id, turns.in_turn
    FROM workspace_builds b JOIN workspaces w ON w.id = b.workspace_id
    JOIN workspace_builds l ON l.workspace_id = w.id AND l.build_number = w.latest_build
    CROSS JOIN LATERAL (SELECT EXISTS (
        SELECT FROM chats c WHERE c.workspace_id = w.id AND NOT c.archived
          AND c.status IN ('running', 'interrupting', 'requires_action')) AS in_turn) turns
    WHERE b.deadline < now() AND NOT w.deleted AND l.completed_at IS NOT NULL
      AND (l.id = b.id OR l.completed_at
           < now() - greatest($1::float8 * interval '1 s', (now() - b.deadline) / 4))
    ORDER BY turns.in_turn, b.deadline, b.id LIMIT $2"""


class OverdueWorkspace(Struct, frozen=True, kw_only=True):
    workspace_id: WorkspaceId
    owner_id: UserId
    latest_build: int
    build_id: BuildId
    """The start build with the expired deadline."""
    version_id: VersionId
    in_turn: bool
    """A chat of the workspace is in a turn, which may use no tool for long."""


async def list_overdue(conn: Conn, *, retry_delay_s: float, limit: int) -> list[OverdueWorkspace]:
    return [
        OverdueWorkspace(**dict(row))
        for row in await conn.fetch(LIST_OVERDUE, retry_delay_s, limit)
    ]


async def insert_stop_build(
    conn: Conn, actor: Actor, overdue: OverdueWorkspace, build_id: BuildId
) -> Build | None:
    """None if the workspace has got another build or a turn since."""
    new = NewBuild(
        id=build_id,
        workspace_id=overdue.workspace_id,
        after=overdue.latest_build,
        transition="stop",
        version_id=overdue.version_id,
        initiator_id=overdue.owner_id,
        reason="autostop",
        only_idle=True,
    )
    return await insert(conn, actor, new)
