"""Builds: insert, read and cancel them, list workspaces past their deadline, hold a build by a
lease while it runs, and its log. Times are the database's."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, LiteralString

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.access.permissions import Actor, Permission
from chatd.domain.ids import UserId, WorkerId, WorkspaceId
from chatd.domain.workspace.entities import (
    AgentSpec,
    Build,
    BuildId,
    BuildLog,
    BuildReason,
    BuildStatus,
    BuildTransition,
    LogLevel,
    TemplateSpec,
    VersionId,
    Workspace,
)
from chatd.domain.workspace.rules import build_permission
from chatd.domain.workspace.runners import BuildPlace, RunnerId
from chatd.store.database.conn import Conn, json_text, named_statement, strip_unstorable
from chatd.store.database.row_access import visible_workspaces, workspace_condition, workspace_reach

_BUILD: Final = msgspec.json.Decoder(Build)

# Compare and set on the number of the latest build. Of two concurrent inserts, the row's lock makes
# the second one see the new number. A workspace that was never filled with the files that it copies
# copies them at the next start.
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
            template_version_id, params, initiator_id, reason, made_by, copied_from)
        SELECT :id::uuid, next.id, next.latest_build, :transition::text, :version_id::uuid,
            :params::json, :initiator_id::uuid, :reason::text, :made_by::text,
            (SELECT f.copied_from FROM workspace_builds f
             WHERE :transition::text = 'start' AND f.workspace_id = next.id AND f.build_number = 1
               AND NOT EXISTS (
                   SELECT FROM workspace_builds s WHERE s.workspace_id = next.id
                     AND s.transition = 'start' AND s.status = 'succeeded'))
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
    """Insert nothing while a chat of the workspace is in a turn."""


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
    """The start build whose deadline has passed."""
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


# Builds under a lease: acquire, renew, finish, release, reap, and their logs. Times are the
# database's.
#
# A build worker writes under (worker, attempt) and writes nothing after it lost the lease. Every
# build ends: by its worker, by a worker that takes it over, or by `reap_builds`.

_WORKSPACE: Final = msgspec.json.Decoder(Workspace)
_SPEC: Final = msgspec.json.Decoder(TemplateSpec)

# A pending build, or one without a heartbeat for $3 seconds, or for $6 seconds if the row of its
# worker was deleted; NULL disables either. Also a build that this worker owns and does not run: the
# reply of an earlier acquire was lost.
_ACQUIRABLE: Final[LiteralString] = """
    b.completed_at IS NULL AND NOT b.id = ANY ($5::uuid[])
      AND (b.worker_id IS NULL OR b.worker_id = $1
           OR b.heartbeat_at < now() - $3::float8 * interval '1 s'
           OR (b.heartbeat_at < now() - $6::float8 * interval '1 s' AND NOT EXISTS (
               SELECT FROM chat_workers k WHERE k.worker_id = b.worker_id)))"""

# $2 are the places where this worker builds. A workspace that no runner has yet goes to the first
# place that fits, and stays there; a place takes no more of them than it has room for. A user's own
# runner has workspaces of that user only. Each transition has its own slots. Within one, an owner's
# second build comes after the first builds of all others, and an owner holds at most $7 slots. Rows
# are chosen before they are locked, so the condition is checked again.
ACQUIRE: Final[LiteralString] = f"""
    WITH places AS MATERIALIZED (
        SELECT row_number() OVER () AS nr, * FROM json_to_recordset($2) AS p (
            runner_id text, backend text, pool text, labels text[], owner_id uuid,
            takes_new boolean, room integer)),
    held AS (
        SELECT w.owner_id, b.transition, count(*) AS builds
        FROM workspace_builds b JOIN workspaces w ON w.id = b.workspace_id
        WHERE b.id = ANY ($5::uuid[]) GROUP BY w.owner_id, b.transition),
    ready AS (
        SELECT b.id, b.transition, b.created_at, p.runner_id, coalesce(h.builds, 0)
            + row_number() OVER (PARTITION BY b.transition, w.owner_id
                                 ORDER BY b.created_at, b.id) AS turn,
            CASE WHEN w.host_id IS NULL THEN p.room END AS room
        FROM workspace_builds b
        JOIN workspaces w ON w.id = b.workspace_id
        JOIN templates t ON t.id = w.template_id
        JOIN template_versions v ON v.id = b.template_version_id
        CROSS JOIN LATERAL (
            SELECT p.runner_id, p.room FROM places p
            WHERE p.backend = t.backend AND (p.owner_id IS NULL OR p.owner_id = w.owner_id)
              AND (w.host_id = p.runner_id OR (
                w.host_id IS NULL AND p.takes_new AND p.pool = coalesce(v.spec ->> 'pool', '')
                AND ARRAY(SELECT json_array_elements_text(v.spec -> 'labels')) <@ p.labels))
            ORDER BY p.nr LIMIT 1) p
        LEFT JOIN held h ON h.owner_id = w.owner_id AND h.transition = b.transition
        WHERE {_ACQUIRABLE}),
    fair AS (
        SELECT r.*, row_number() OVER (PARTITION BY r.runner_id, r.room IS NULL
                                       ORDER BY r.turn, r.created_at, r.id) AS nth
        FROM ready r WHERE $7::integer IS NULL OR r.turn <= $7),
    chosen AS (
        SELECT r.id, r.transition, r.runner_id, row_number() OVER (
            PARTITION BY r.transition ORDER BY r.turn, r.created_at, r.id) AS place
        FROM fair r WHERE r.room IS NULL OR r.nth <= r.room),
    free AS MATERIALIZED (
        SELECT b.id, c.runner_id FROM workspace_builds b
        JOIN chosen c ON c.id = b.id
        JOIN unnest($4::text[], $8::integer[]) AS s (transition, slots)
          ON s.transition = c.transition AND c.place <= s.slots
        WHERE {_ACQUIRABLE}
        ORDER BY b.created_at, b.id FOR UPDATE OF b SKIP LOCKED),
    taken AS (
        UPDATE workspace_builds b SET
            status = CASE b.status WHEN 'pending' THEN 'running' ELSE b.status END,
            worker_id = $1, heartbeat_at = now(), attempt = b.attempt + 1,
            started_at = coalesce(b.started_at, now())
        WHERE b.id = ANY (ARRAY(SELECT id FROM free)) RETURNING b.*),
    placed AS (
        UPDATE workspaces w SET host_id = f.runner_id
        FROM taken b JOIN free f ON f.id = b.id
        WHERE w.id = b.workspace_id AND w.host_id IS NULL)
    SELECT row_to_json(b) AS build, row_to_json(w) AS workspace, v.spec, t.backend, f.runner_id,
        extract(epoch FROM now() - b.started_at)::float8 AS age_s
    FROM taken b JOIN free f ON f.id = b.id JOIN workspaces w ON w.id = b.workspace_id
    JOIN templates t ON t.id = w.template_id
    JOIN template_versions v ON v.id = b.template_version_id
    ORDER BY b.created_at, b.id"""

RENEW: Final[LiteralString] = """
    WITH mine AS MATERIALIZED (
        SELECT b.id FROM workspace_builds b
        JOIN unnest($2::uuid[], $3::integer[]) AS k (id, attempt)
          ON k.id = b.id AND k.attempt = b.attempt
        WHERE b.worker_id = $1 ORDER BY b.id FOR NO KEY UPDATE OF b)
    UPDATE workspace_builds b SET heartbeat_at = now()
    WHERE b.id = ANY (ARRAY(SELECT id FROM mine)) RETURNING b.id, b.status"""

# Only the latest successful build has a deadline and live agents; earlier builds lose theirs. A
# repeated finish inserts no agent twice. Logs are deleted 20 builds later, or with the workspace.
FINISH: Final = named_statement("""
    WITH ended AS (
        UPDATE workspace_builds b SET
            status = :status, error = :error, error_code = :error_code, completed_at = now(),
            worker_id = NULL, heartbeat_at = NULL,
            deadline = CASE WHEN b.transition = 'start' AND :status = 'succeeded'
                            THEN now() + least(nullif(w.ttl_s, 0), nullif(t.max_ttl_s, 0))
                                 * interval '1 s' END,
            max_deadline = CASE WHEN b.transition = 'start' AND :status = 'succeeded'
                                THEN now() + nullif(t.max_ttl_s, 0) * interval '1 s' END
        FROM workspaces w JOIN templates t ON t.id = w.template_id
        WHERE b.id = :id AND b.worker_id = :worker_id AND b.attempt = :attempt
          AND w.id = b.workspace_id
        RETURNING b.*),
    done AS MATERIALIZED (SELECT * FROM ended WHERE status = 'succeeded'),
    agents AS (
        INSERT INTO workspace_agents (id, build_id, workspace_id, parent_id, name,
            display_order, os, arch, directory, endpoints, isolation, network, limits,
            connection_timeout_s, lifecycle)
        SELECT a.id, done.id, done.workspace_id, a.parent_id, a.name, a.display_order, a.os,
            a.arch, a.directory, a.endpoints, a.isolation, a.network, a.limits,
            a.connection_timeout_s, a.lifecycle
        FROM done, json_to_recordset(:agents) AS a (
            id uuid, parent_id uuid, name text, display_order integer, os text, arch text,
            directory text, endpoints json, isolation text, network text, limits json,
            connection_timeout_s integer, lifecycle text)
        ON CONFLICT (id) DO NOTHING),
    past AS (
        UPDATE workspace_builds b SET deadline = NULL, max_deadline = NULL FROM done
        WHERE b.workspace_id = done.workspace_id AND b.build_number < done.build_number
          AND b.deadline IS NOT NULL),
    off AS (
        UPDATE workspace_agents a SET lifecycle = 'off', disconnected_at = now() FROM done
        WHERE a.workspace_id = done.workspace_id AND a.build_id <> done.id
          AND a.lifecycle <> 'off'),
    forgotten AS (
        DELETE FROM workspace_build_logs l USING done, workspace_builds b
        WHERE b.workspace_id = done.workspace_id AND l.build_id = b.id AND b.build_number
            <= done.build_number - CASE done.transition WHEN 'delete' THEN 1 ELSE 20 END),
    place AS (
        UPDATE workspaces w SET
            deleted = w.deleted OR done.transition = 'delete',
            last_used_at = CASE done.transition WHEN 'start' THEN now() ELSE w.last_used_at END
        FROM done WHERE w.id = done.workspace_id AND done.transition <> 'stop')
    SELECT row_to_json(ended) FROM ended""")

# Another worker continues the build: this worker stops.
RELEASE: Final[LiteralString] = """
    UPDATE workspace_builds SET
        status = 'pending', worker_id = NULL, heartbeat_at = NULL
    WHERE id = $1 AND worker_id = $2 AND attempt = $3 AND status = 'running'"""

REAP: Final[LiteralString] = """
    WITH stuck AS MATERIALIZED (
        SELECT id FROM workspace_builds
        WHERE completed_at IS NULL
          AND coalesce(heartbeat_at, greatest(created_at, started_at))
              < now() - $1::float8 * interval '1 s'
        ORDER BY created_at, id LIMIT $3 FOR UPDATE SKIP LOCKED)
    UPDATE workspace_builds b SET
        status = CASE b.status WHEN 'canceling' THEN 'canceled' ELSE 'failed' END,
        error = CASE b.status WHEN 'canceling' THEN '' ELSE $2 END,
        error_code = CASE b.status WHEN 'canceling' THEN '' ELSE 'no_builder' END,
        completed_at = now(), worker_id = NULL, heartbeat_at = NULL
    WHERE b.id = ANY (ARRAY(SELECT id FROM stuck)) RETURNING row_to_json(b) AS build"""


class BuildLease(Struct, frozen=True, kw_only=True):
    """The right to write to a build."""

    id: BuildId
    worker_id: WorkerId
    attempt: int


class AcquiredBuild(Struct, frozen=True, kw_only=True):
    build: Build
    workspace: Workspace
    spec: TemplateSpec | None
    """None if a newer version wrote it in a form that this one cannot decode."""
    backend: str
    runner_id: RunnerId
    """Also in `workspace`, which has it from now on."""
    age_s: float
    """Time since the first worker acquired it: a takeover does not extend the build's timeout."""


class AcquireBuilds(Struct, frozen=True, kw_only=True):
    """A build worker's request, limited to what it can build."""

    worker_id: WorkerId
    places: Sequence[BuildPlace]
    """Where it can build. A new workspace goes to the first place that fits."""
    free_slots: Mapping[BuildTransition, int]
    owner_slots: int | None = None
    """How many builds of one transition a worker runs for one owner; None: no limit."""
    lease_s: float | None = None
    """A build without a heartbeat for this long may be taken over; None disables that."""
    worker_gone_after_s: float | None = None
    """The same limit, if the row of its worker was deleted."""
    running: Sequence[BuildId] = ()
    """Builds that the worker runs already; they are not acquired again."""


class BuildResult(Struct, frozen=True, kw_only=True):
    status: Literal["succeeded", "failed", "canceled"]
    error: str = ""
    error_code: str = ""
    agents: tuple[AgentSpec, ...] = ()


async def acquire_builds(conn: Conn, request: AcquireBuilds) -> list[AcquiredBuild]:
    rows = await conn.fetch(
        ACQUIRE,
        request.worker_id,
        json_text(request.places),
        request.lease_s,
        list(request.free_slots),
        list(request.running),
        request.worker_gone_after_s,
        request.owner_slots,
        list(request.free_slots.values()),
    )
    return [
        AcquiredBuild(
            build=_BUILD.decode(row["build"]),
            workspace=replace(_WORKSPACE.decode(row["workspace"]), host_id=row["runner_id"]),
            spec=_spec(row["spec"]),
            backend=row["backend"],
            runner_id=row["runner_id"],
            age_s=row["age_s"],
        )
        for row in rows
    ]


def _spec(text: str) -> TemplateSpec | None:
    try:
        return _SPEC.decode(text)
    except msgspec.DecodeError:
        return None


async def renew_builds(
    conn: Conn, worker_id: WorkerId, leases: Sequence[BuildLease]
) -> dict[BuildId, BuildStatus]:
    """The status of each build that this worker still owns. It has lost the others."""
    ids, attempts = [lease.id for lease in leases], [lease.attempt for lease in leases]
    rows = await conn.fetch(RENEW, worker_id, ids, attempts)
    return {row["id"]: row["status"] for row in rows}


async def finish_build(conn: Conn, lease: BuildLease, result: BuildResult) -> Build | None:
    """None if the worker has lost the build, or an earlier try has finished it."""
    values: dict[str, object] = {
        "id": lease.id,
        "worker_id": lease.worker_id,
        "attempt": lease.attempt,
        "status": result.status,
        "error": strip_unstorable(result.error),
        "error_code": result.error_code,
        "agents": json_text(result.agents),
    }
    found = await conn.fetchval(FINISH.text, *FINISH.args(values))
    return None if found is None else _BUILD.decode(found)


async def release_build(conn: Conn, lease: BuildLease) -> None:
    await conn.execute(RELEASE, lease.id, lease.worker_id, lease.attempt)


async def reap_builds(conn: Conn, *, after_s: float, error: str, limit: int = 100) -> list[Build]:
    """Fail the builds that no worker has acquired or renewed for `after_s`."""
    rows = await conn.fetch(REAP, after_s, error, limit)
    return [_BUILD.decode(row["build"]) for row in rows]


APPEND_LOG: Final[LiteralString] = """
    WITH mine AS MATERIALIZED (
        SELECT id FROM workspace_builds
        WHERE id = $1 AND worker_id = $2 AND attempt = $3)
    INSERT INTO workspace_build_logs (build_id, stage, level, output)
    SELECT mine.id, l.stage, l.level, l.output
    FROM mine, unnest($4::text[], $5::text[], $6::text[])
        WITH ORDINALITY AS l (stage, level, output, place)
    ORDER BY l.place"""

LIST_LOG: Final[LiteralString] = f"""
    SELECT id, build_id, at, stage, level, output FROM workspace_build_logs
    WHERE build_id = $1 AND id > $2
      AND EXISTS (SELECT FROM workspace_builds b JOIN workspaces w ON w.id = b.workspace_id
                  WHERE b.id = $1 AND {workspace_condition("$4")})
    ORDER BY id LIMIT $3"""


class BuildLogLine(Struct, frozen=True, kw_only=True):
    stage: str
    level: LogLevel
    output: str


async def append_log(conn: Conn, lease: BuildLease, lines: Sequence[BuildLogLine]) -> None:
    await conn.execute(
        APPEND_LOG,
        lease.id,
        lease.worker_id,
        lease.attempt,
        [strip_unstorable(line.stage) for line in lines],
        [line.level for line in lines],
        [strip_unstorable(line.output) for line in lines],
    )


async def list_log(
    conn: Conn, actor: Actor, build_id: BuildId, *, after: int = 0, limit: int = 1000
) -> list[BuildLog]:
    reach = workspace_reach(actor, "workspaces.read")
    rows = await conn.fetch(LIST_LOG, build_id, after, limit, reach)
    return [BuildLog(**dict(row)) for row in rows]
