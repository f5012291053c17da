"""Runners and their tokens as administrators and owners read and change them, and the builds that
wait for a runner. Connections are in `tunnels`.

A user reads and changes the runners that belong to them, an administrator all. A revoked token
stays while a runner names it; it lets nothing in.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString

import msgspec
from msgspec import Struct

from chatd.domain.access.permissions import (
    ADMIN_USER_ID,
    Actor,
    UserActor,
    require_permission,
    row_filter,
)
from chatd.domain.errors import Conflict
from chatd.domain.ids import UserId, WorkspaceId
from chatd.domain.workspace.entities import BuildId, BuildStatus, BuildTransition
from chatd.domain.workspace.runners import (
    Requirements,
    Runner,
    RunnerId,
    RunnerToken,
    RunnerTokenId,
)
from chatd.store.database.conn import Conn, DatabaseSession, Row, strip_unstorable
from chatd.store.database.row_access import workspace_condition, workspace_reach

MAX_RUNNER_TOKENS: Final = 500
"""Limit for tokens of runners that are not revoked."""
MAX_RUNNERS_TO_EXPLAIN: Final = 1000
"""If a build could wait for more runners than this, only the last seen ones are considered."""
REVOKED_TOKEN_KEPT: Final = timedelta(days=1)
"""A revoked token that no runner names is deleted after this time, when another one is made."""

_RUNNER: Final = msgspec.json.Decoder(Runner)
_RUNNERS: Final = msgspec.json.Decoder(list[Runner])

_SHOWN: Final[LiteralString] = """
    SELECT row_to_json(r) AS runner, u.username AS owner, t.name AS token, now() AS now, (
        SELECT count(*) FROM workspaces w WHERE w.host_id = r.id AND NOT w.deleted) AS workspaces
    FROM runners r
    LEFT JOIN users u ON u.id = r.owner_id LEFT JOIN runner_tokens t ON t.id = r.token_id"""
LIST: Final[LiteralString] = f"""{_SHOWN}
    WHERE ($1::uuid IS NULL OR r.owner_id = $1)
      AND ($2::text IS NULL OR (r.pool, r.name, r.id) > ($2, $3, $4))
    ORDER BY r.pool, r.name, r.id LIMIT $5"""
GET: Final[LiteralString] = f"""{_SHOWN}
    WHERE r.id = $1 AND ($2::uuid IS NULL OR r.owner_id = $2)"""
LOCK: Final[LiteralString] = f"{GET} FOR UPDATE OF r"
UPDATE: Final[LiteralString] = """
    UPDATE runners SET draining = coalesce($3, draining), name = coalesce($4, name)
    WHERE id = $1 AND ($2::uuid IS NULL OR owner_id = $2) RETURNING id"""
# A build may have put a workspace there since the caller looked.
DELETE: Final[LiteralString] = """
    DELETE FROM runners r WHERE r.id = $1 AND ($2::uuid IS NULL OR r.owner_id = $2)
      AND NOT EXISTS (SELECT FROM workspaces w WHERE w.host_id = r.id AND NOT w.deleted)
    RETURNING r.id"""
# The files are on a machine that is gone: nothing is left to delete there.
FORGET_WORKSPACES: Final[LiteralString] = """
    WITH gone AS (
        UPDATE workspaces SET deleted = true WHERE host_id = $1 AND NOT deleted
          AND EXISTS (SELECT FROM runners r WHERE r.id = $1
                      AND ($2::uuid IS NULL OR r.owner_id = $2)) RETURNING id),
    ended AS (
        UPDATE workspace_builds b SET status = 'failed', completed_at = now(), worker_id = NULL,
            heartbeat_at = NULL, error = 'The runner of the workspace was removed.',
            error_code = 'runner_removed'
        FROM gone WHERE b.workspace_id = gone.id AND b.completed_at IS NULL),
    past AS (
        UPDATE workspace_builds b SET deadline = NULL, max_deadline = NULL
        FROM gone WHERE b.workspace_id = gone.id AND b.deadline IS NOT NULL),
    off AS (
        UPDATE workspace_agents a SET lifecycle = 'off', disconnected_at = now()
        FROM gone WHERE a.workspace_id = gone.id AND a.lifecycle <> 'off')
    SELECT count(*) FROM gone"""
DELETE_TUNNELS: Final[LiteralString] = "DELETE FROM tunnels WHERE holder = $1"
# A user's own runner has that user's workspaces only, but an administrator's look is by the role.
LIST_WORKSPACES: Final[LiteralString] = f"""
    SELECT w.id, w.name, w.owner_id, u.username AS owner, b.transition, b.status, w.last_used_at
    FROM workspaces w JOIN workspace_builds b
      ON b.workspace_id = w.id AND b.build_number = w.latest_build
    LEFT JOIN users u ON u.id = w.owner_id
    WHERE w.host_id = $1 AND NOT w.deleted AND {workspace_condition("$2")}
    ORDER BY w.last_used_at DESC, w.id LIMIT $3"""
# Pending, with what its template needs. $2 are the only builds to look at, $3 the only runner.
LIST_WAITING: Final[LiteralString] = f"""
    SELECT b.id, b.workspace_id, w.name AS workspace, w.owner_id, u.username AS owner,
        b.transition, b.created_at, w.host_id AS runner_id, t.name AS template, t.backend,
        coalesce(v.spec ->> 'pool', '') AS pool,
        ARRAY(SELECT json_array_elements_text(v.spec -> 'labels')) AS labels
    FROM workspace_builds b JOIN workspaces w ON w.id = b.workspace_id
    JOIN templates t ON t.id = w.template_id
    JOIN template_versions v ON v.id = b.template_version_id
    LEFT JOIN users u ON u.id = w.owner_id
    WHERE b.completed_at IS NULL AND (b.status = 'pending' OR $7::boolean)
      AND {workspace_condition("$1")}
      AND ($2::uuid[] IS NULL OR b.id = ANY ($2)) AND ($3::text IS NULL OR w.host_id = $3)
      AND ($4::timestamptz IS NULL OR (b.created_at, b.id) > ($4, $5::uuid))
    ORDER BY b.created_at, b.id LIMIT $6"""
# $1 are pools, $2 runners. Runners of users are only waited for by name.
LIST_WAITED_FOR: Final[LiteralString] = """
    SELECT now() AS now, coalesce((SELECT json_agg(f) FROM (
        SELECT r.* FROM runners r
        WHERE r.id = ANY ($2::text[]) OR (r.owner_id IS NULL AND r.pool = ANY ($1::text[]))
        ORDER BY r.id = ANY ($2::text[]) DESC, r.seen_at DESC LIMIT $3) f), '[]') AS runners"""

_TOKEN: Final[LiteralString] = """
    t.id, t.name, t.pool, t.created_by, t.created_at, t.expires_at, t.last_used_at"""
# Marks the use at most once a minute, and waits for no lock.
FIND_TOKEN: Final[LiteralString] = f"""
    WITH found AS MATERIALIZED (
        SELECT {_TOKEN} FROM runner_tokens t
        WHERE t.hash = $1 AND t.revoked_at IS NULL
          AND (t.expires_at IS NULL OR t.expires_at > now())),
    used AS (
        UPDATE runner_tokens SET last_used_at = now() WHERE id IN (
            SELECT t.id FROM runner_tokens t JOIN found ON found.id = t.id
            WHERE t.last_used_at IS NULL OR t.last_used_at < now() - interval '1 minute'
            FOR NO KEY UPDATE OF t SKIP LOCKED))
    SELECT * FROM found"""
LIST_TOKENS: Final[LiteralString] = f"""
    SELECT {_TOKEN}, u.username AS creator, now() AS now,
        (SELECT count(*) FROM runners r WHERE r.token_id = t.id) AS runners
    FROM runner_tokens t LEFT JOIN users u ON u.id = t.created_by
    WHERE t.revoked_at IS NULL
      AND ($1::timestamptz IS NULL OR (t.created_at, t.id) < ($1, $2::uuid))
    ORDER BY t.created_at DESC, t.id DESC LIMIT $3"""
DELETE_OLD_TOKENS: Final[LiteralString] = """
    DELETE FROM runner_tokens t WHERE t.revoked_at < now() - $1::interval
      AND NOT EXISTS (SELECT FROM runners r WHERE r.token_id = t.id)"""
INSERT_TOKEN: Final[LiteralString] = f"""
    INSERT INTO runner_tokens AS t (id, name, pool, hash, created_by, expires_at)
    SELECT $1, $2, $3, $4, $5, $6::timestamptz
    WHERE (SELECT count(*) FROM runner_tokens WHERE revoked_at IS NULL) < $7
    RETURNING {_TOKEN}"""
REVOKE_TOKEN: Final[LiteralString] = f"""
    UPDATE runner_tokens t SET revoked_at = now() WHERE t.id = $1 AND t.revoked_at IS NULL
    RETURNING {_TOKEN}"""


class StoredRunner(Struct, frozen=True, kw_only=True):
    """`owner` and `token` are names. `now` is the database's time of the read."""

    runner: Runner
    owner: str | None
    token: str | None
    workspaces: int
    now: datetime


class RunnerWorkspace(Struct, frozen=True, kw_only=True):
    """`transition` and `status` are of its latest build."""

    id: WorkspaceId
    name: str
    owner_id: UserId
    owner: str | None
    transition: BuildTransition
    status: BuildStatus
    last_used_at: datetime


class WaitingBuild(Struct, frozen=True, kw_only=True):
    """A pending build. `runner_id`: the runner that has its workspace, if one has."""

    id: BuildId
    workspace_id: WorkspaceId
    workspace: str
    owner_id: UserId
    owner: str | None
    template: str
    transition: BuildTransition
    created_at: datetime
    runner_id: str | None
    needs: Requirements


class StoredRunnerToken(Struct, frozen=True, kw_only=True):
    """`creator` is a name, `runners` counts those that have connected with it."""

    token: RunnerToken
    creator: str | None
    runners: int
    now: datetime


class NewRunnerToken(Struct, frozen=True, kw_only=True):
    id: RunnerTokenId
    name: str
    pool: str
    hash: bytes
    expires_at: datetime | None = None
    """None: it does not expire."""


async def list_page(
    conn: Conn, actor: Actor, *, after: tuple[str, str, str] | None, limit: int
) -> list[StoredRunner]:
    """Sorted by pool, name and id; `after` are those of the last one on the page before."""
    pool, name, runner_id = after or (None, None, None)
    reach = row_filter(actor, "workspaces.read").owner_id
    rows = await conn.fetch(LIST, reach, pool, name, runner_id, limit)
    return [_stored(row) for row in rows]


async def get(conn: Conn, actor: Actor, runner_id: RunnerId) -> StoredRunner | None:
    """None also for a runner that the actor may not read."""
    reach = row_filter(actor, "workspaces.read").owner_id
    row = await conn.fetchrow(GET, strip_unstorable(runner_id), reach)
    return None if row is None else _stored(row)


async def lock(session: DatabaseSession, actor: Actor, runner_id: RunnerId) -> StoredRunner | None:
    """For changing it. None also for a runner that the actor may not change."""
    reach = row_filter(actor, "runners.write").owner_id
    row = await session.fetchrow(LOCK, strip_unstorable(runner_id), reach)
    return None if row is None else _stored(row)


async def update(
    session: DatabaseSession,
    actor: Actor,
    runner_id: RunnerId,
    *,
    draining: bool | None = None,
    name: str | None = None,
) -> bool:
    """None leaves a field as it is. Returns whether there is such a runner."""
    reach = row_filter(actor, "runners.write").owner_id
    chosen = None if name is None else strip_unstorable(name)
    found = await session.fetchval(UPDATE, strip_unstorable(runner_id), reach, draining, chosen)
    return found is not None


async def delete(
    session: DatabaseSession, actor: Actor, runner_id: RunnerId, *, with_workspaces: bool = False
) -> bool:
    """Delete the runner with the rows of its tunnels. False if there is no such runner, or if it
    has workspaces. `with_workspaces`: they count as deleted, and their builds end."""
    reach = row_filter(actor, "runners.write").owner_id
    if with_workspaces:
        await session.execute(FORGET_WORKSPACES, strip_unstorable(runner_id), reach)
    if await session.fetchval(DELETE, strip_unstorable(runner_id), reach) is None:
        return False
    await session.execute(DELETE_TUNNELS, runner_id)
    return True


async def list_workspaces(
    conn: Conn, actor: Actor, runner_id: RunnerId, *, limit: int
) -> list[RunnerWorkspace]:
    """The runners that the actor may read, the last used first."""
    reach = workspace_reach(actor, "workspaces.read")
    rows = await conn.fetch(LIST_WORKSPACES, strip_unstorable(runner_id), reach, limit)
    return [msgspec.convert(dict(row), RunnerWorkspace) for row in rows]


async def list_waiting(
    conn: Conn,
    actor: Actor,
    *,
    builds: Iterable[BuildId] | None = None,
    runner_id: RunnerId | None = None,
    after: tuple[datetime, BuildId] | None = None,
    also_taken: bool = False,
    limit: int,
) -> list[WaitingBuild]:
    """Builds that no worker has taken yet (`also_taken`: or that have not ended), the oldest first:
    of the workspaces that the actor may read; of `builds`; of the workspaces that `runner_id`
    has."""
    at, last = after or (None, None)
    reach = workspace_reach(actor, "workspaces.read")
    chosen = None if builds is None else list(builds)
    runner = None if runner_id is None else strip_unstorable(runner_id)
    rows = await conn.fetch(LIST_WAITING, reach, chosen, runner, at, last, limit, also_taken)
    return [_waiting(row) for row in rows]


async def list_waited_for(
    conn: Conn, waiting: Sequence[WaitingBuild]
) -> tuple[list[Runner], datetime]:
    """The runners that could take these builds or that have their workspaces, and the time."""
    pools = {build.needs.pool for build in waiting if build.runner_id is None}
    runners = {build.runner_id for build in waiting if build.runner_id is not None}
    args = (sorted(pools), sorted(runners), MAX_RUNNERS_TO_EXPLAIN)
    row = await conn.fetchrow(LIST_WAITED_FOR, *args)
    assert row is not None
    return _RUNNERS.decode(row["runners"]), row["now"]


async def find_token(conn: Conn, sha256: bytes) -> RunnerToken | None:
    """Find a token by the digest of its text. None if it is unknown, expired or revoked. Marks the
    use."""
    row = await conn.fetchrow(FIND_TOKEN, sha256)
    return None if row is None else _token(row)


async def list_tokens(
    conn: Conn, actor: Actor, *, after: tuple[datetime, RunnerTokenId] | None, limit: int
) -> list[StoredRunnerToken]:
    """The tokens that are not revoked, the newest first."""
    require_permission(actor, "config.read")
    at, last = after or (None, None)
    return [
        StoredRunnerToken(
            token=_token(row), creator=row["creator"], runners=row["runners"], now=row["now"]
        )
        for row in await conn.fetch(LIST_TOKENS, at, last, limit)
    ]


async def insert_token(session: DatabaseSession, actor: Actor, new: NewRunnerToken) -> RunnerToken:
    """Raises Conflict if there are too many."""
    require_permission(actor, "config.write")
    creator = actor.user_id if isinstance(actor, UserActor) else ADMIN_USER_ID
    await session.execute(DELETE_OLD_TOKENS, REVOKED_TOKEN_KEPT)
    row = await session.fetchrow(
        INSERT_TOKEN,
        *(new.id, strip_unstorable(new.name), new.pool, new.hash, creator, new.expires_at),
        MAX_RUNNER_TOKENS,
    )
    if row is None:
        text = f"There are {MAX_RUNNER_TOKENS} tokens of runners. Revoke one first."
        raise Conflict(text, code="too_many_runner_tokens")
    return _token(row)


async def revoke_token(
    session: DatabaseSession, actor: Actor, token_id: RunnerTokenId
) -> RunnerToken | None:
    """None if there is no such token, or if it was revoked before."""
    require_permission(actor, "config.write")
    row = await session.fetchrow(REVOKE_TOKEN, token_id)
    return None if row is None else _token(row)


def _stored(row: Row) -> StoredRunner:
    return StoredRunner(
        runner=_RUNNER.decode(row["runner"]),
        owner=row["owner"],
        token=row["token"],
        workspaces=row["workspaces"],
        now=row["now"],
    )


def _waiting(row: Row) -> WaitingBuild:
    values = dict(row)
    needs = Requirements(
        backend=values.pop("backend"), pool=values.pop("pool"), labels=tuple(values.pop("labels"))
    )
    return msgspec.convert(values | {"needs": needs}, WaitingBuild)


def _token(row: Row) -> RunnerToken:
    return msgspec.convert(dict(row), RunnerToken)
