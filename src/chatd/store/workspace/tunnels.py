"""Which replica reaches which runner: connections of runners, their state, and the rows by which
other replicas find them. Times are the database's."""

from collections.abc import Sequence
from typing import Final, LiteralString
from uuid import UUID

import msgspec
from msgspec import Struct

from chatd.domain.ids import UserId, WorkerId, WorkspaceId
from chatd.domain.workspace.entities import BuildId
from chatd.domain.workspace.runners import (
    POD_PREFIX,
    RUNNER_SILENT_AFTER_S,
    BackendOffer,
    Runner,
    RunnerId,
    RunnerTokenId,
)
from chatd.store.database.conn import Conn, DatabaseSession, json_text, named_statement

_RUNNER: Final = msgspec.json.Decoder(Runner)

# A runner keeps its pool or its owner: an id that another one has is refused. So is the id of a
# host or runner without a row that has workspaces: they are not the newcomer's. The name that an
# administrator gave stays. Tunnels of earlier connections go with the new one.
CONNECT: Final = named_statement("""
    WITH runner AS (
        INSERT INTO runners AS r (id, name, pool, owner_id, token_id, builtin, version, labels,
            backends, capacity, os, arch, epoch, connected_at, seen_at)
        SELECT :id::text, :name::text, :pool::text, :owner_id::uuid, :token_id::uuid,
            :builtin::boolean, :version::text, :labels::text[], :backends::json,
            :capacity::integer, :os::text, :arch::text, 1, now(), now()
        WHERE :builtin OR EXISTS (SELECT FROM runners k WHERE k.id = :id)
           OR NOT EXISTS (SELECT FROM workspaces w WHERE w.host_id = :id AND NOT w.deleted)
        ON CONFLICT (id) DO UPDATE SET
            token_id = excluded.token_id, version = excluded.version, labels = excluded.labels,
            backends = excluded.backends, capacity = excluded.capacity, os = excluded.os,
            arch = excluded.arch, epoch = r.epoch + (NOT r.builtin)::integer, connected_at = now(),
            disconnected_at = NULL, seen_at = now()
        WHERE r.builtin = excluded.builtin AND r.owner_id IS NOT DISTINCT FROM excluded.owner_id
          AND r.pool = excluded.pool
        RETURNING r.*),
    past AS (
        DELETE FROM tunnels t USING runner
        WHERE t.holder = runner.id AND NOT runner.builtin AND t.replica <> :replica::uuid),
    reached AS (
        INSERT INTO tunnels AS t (holder, replica, address, epoch)
        SELECT runner.id, :replica::uuid, :address::text, runner.epoch FROM runner
        ON CONFLICT (holder, replica) DO UPDATE SET
            address = excluded.address, epoch = excluded.epoch, seen_at = now())
    SELECT row_to_json(runner) FROM runner""")

# The connected runners of the same owner, without this one.
LOCK_OWNER: Final[LiteralString] = "SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE"
COUNT_OTHERS: Final[LiteralString] = """
    SELECT count(*) FROM runners
    WHERE owner_id = $1 AND id <> $2 AND disconnected_at IS NULL
      AND seen_at > now() - $3::float8 * interval '1 s'"""

# Of the runners that are still this replica's: not connected elsewhere since, not removed, and with
# a token that is still valid, or an owner who may still sign in. Draining is what an administrator
# has set. A tunnel's row that is missing is written again: other replicas delete the rows of one
# that has not renewed them for long, and it may have been cut off from the database only.
RENEW: Final[LiteralString] = """
    WITH mine AS MATERIALIZED (
        SELECT r.id, r.epoch, k.running FROM runners r
        JOIN unnest($3::text[], $4::bigint[], $5::integer[]) AS k (id, epoch, running)
          ON k.id = r.id AND (k.epoch = r.epoch OR r.builtin)
        LEFT JOIN runner_tokens t ON t.id = r.token_id
        LEFT JOIN users u ON u.id = r.owner_id
        WHERE (r.token_id IS NULL
               OR (t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now())))
          AND (r.owner_id IS NULL OR u.status = 'active')
        ORDER BY r.id FOR NO KEY UPDATE OF r),
    seen AS (
        UPDATE runners r SET seen_at = now(), running = mine.running, disconnected_at = NULL
        FROM mine WHERE r.id = mine.id RETURNING r.id, r.draining),
    tunnel AS (
        INSERT INTO tunnels AS t (holder, replica, address, epoch)
        SELECT mine.id, $1::uuid, $2::text, mine.epoch FROM mine
        ON CONFLICT (holder, replica) DO UPDATE SET
            address = excluded.address, epoch = excluded.epoch, seen_at = now()),
    stale AS (
        DELETE FROM tunnels WHERE replica <> $1 AND seen_at < now() - interval '10 minutes')
    SELECT id, draining FROM seen"""

# Only the tunnel of the connection that has ended ($3; NULL: any): the runner may be back already.
# The runner's row is locked first, as a new connection does.
DISCONNECT: Final[LiteralString] = """
    WITH known AS MATERIALIZED (
        SELECT id FROM runners WHERE id = $2 FOR NO KEY UPDATE),
    gone AS (
        DELETE FROM tunnels t USING known
        WHERE t.holder = known.id AND t.replica = $1 AND ($3::bigint IS NULL OR t.epoch = $3)
        RETURNING t.holder)
    UPDATE runners r SET disconnected_at = now() FROM gone
    WHERE r.id = gone.holder
      AND NOT EXISTS (SELECT FROM tunnels t WHERE t.holder = gone.holder AND t.replica <> $1)"""

# The runner, and the replicas that reach it, the last seen first. A replica that was killed leaves
# rows that no process renews: no request waits for its address.
FIND: Final[LiteralString] = """
    SELECT row_to_json(r) AS runner, t.replica, t.address
    FROM runners r LEFT JOIN tunnels t
      ON t.holder = r.id AND t.seen_at > now() - $2::float8 * interval '1 s'
    WHERE r.id = $1 ORDER BY t.seen_at DESC NULLS LAST LIMIT 8"""

# Workspaces that a runner has although no row gives them to it, or to any runner.
SET_ORPHANS: Final[LiteralString] = """
    UPDATE runners r SET orphans = coalesce((
        SELECT array_agg(k.id::text ORDER BY k.id) FROM (
            SELECT k.id FROM unnest($2::uuid[]) AS k (id)
            WHERE NOT EXISTS (SELECT FROM workspaces w WHERE w.id = k.id AND w.host_id = $1)
            ORDER BY k.id LIMIT 1000) k), '{}')
    WHERE r.id = $1"""

# The pod of a build holds its own connections, while the build is the latest of its workspace: a
# newer build, a deletion or a failure ends what its token allows. There is no row of it besides its
# tunnel, whose epoch is the time of the connection, so that a later one has a higher epoch on every
# replica.
_LIVE_BUILD: Final[LiteralString] = """
    workspace_builds b JOIN workspaces w ON w.id = b.workspace_id AND NOT w.deleted
      AND b.build_number = w.latest_build AND b.transition = 'start'
      AND b.status NOT IN ('failed', 'canceled')"""
_POD: Final[LiteralString] = """
    json_build_object('id', 'pod-' || b.id, 'name', w.name, 'epoch', coalesce(t.epoch, 0),
        'created_at', b.created_at, 'seen_at', coalesce(a.last_connected_at, b.created_at),
        'disconnected_at', a.disconnected_at)"""
CONNECT_POD: Final[LiteralString] = f"""
    WITH t AS (
        INSERT INTO tunnels AS t (holder, replica, address, epoch)
        SELECT 'pod-' || b.id, $2, $3,
            floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        FROM {_LIVE_BUILD} WHERE b.id = $1
        ON CONFLICT (holder, replica) DO UPDATE SET
            address = excluded.address, epoch = excluded.epoch, seen_at = now()
        RETURNING t.*),
    past AS (
        DELETE FROM tunnels o USING t WHERE o.holder = t.holder AND o.replica <> t.replica)
    SELECT {_POD} FROM t, workspace_builds b JOIN workspaces w ON w.id = b.workspace_id
    LEFT JOIN workspace_agents a ON a.build_id = b.id WHERE b.id = $1"""
RENEW_PODS: Final[LiteralString] = f"""
    WITH mine AS (
        SELECT k.build_id, k.epoch FROM unnest($3::uuid[], $4::bigint[]) AS k (build_id, epoch)
        WHERE EXISTS (SELECT FROM {_LIVE_BUILD} WHERE b.id = k.build_id)
          AND NOT EXISTS (SELECT FROM tunnels t
                          WHERE t.holder = 'pod-' || k.build_id AND t.epoch > k.epoch)),
    tunnel AS (
        INSERT INTO tunnels AS t (holder, replica, address, epoch)
        SELECT 'pod-' || build_id, $1::uuid, $2::text, epoch FROM mine
        ON CONFLICT (holder, replica) DO UPDATE SET address = excluded.address, seen_at = now())
    SELECT build_id FROM mine"""
DISCONNECT_POD: Final[LiteralString] = """
    DELETE FROM tunnels WHERE holder = $1 AND replica = $2 AND epoch = $3"""
FIND_POD: Final[LiteralString] = f"""
    SELECT {_POD} AS runner, t.replica, t.address
    FROM workspace_builds b JOIN workspaces w ON w.id = b.workspace_id
    LEFT JOIN workspace_agents a ON a.build_id = b.id
    LEFT JOIN tunnels t
      ON t.holder = 'pod-' || b.id AND t.seen_at > now() - $2::float8 * interval '1 s'
    WHERE b.id = $1 ORDER BY t.epoch DESC NULLS LAST LIMIT 8"""


class RunnerIdentity(Struct, frozen=True, kw_only=True):
    """How a runner was authorized: by a token of a pool, its user, or the token of a pod's build. A
    server's own runner has none."""

    pool: str = ""
    token_id: RunnerTokenId | None = None
    owner_id: UserId | None = None
    pod_of: BuildId | None = None


class ConnectedRunner(Struct, frozen=True, kw_only=True):
    """A runner that this replica reaches from now on, at `address` for other replicas."""

    id: RunnerId
    name: str
    identity: RunnerIdentity
    version: str
    labels: Sequence[str] = ()
    backends: Sequence[BackendOffer] = ()
    capacity: int = 0
    os: str = ""
    arch: str = ""
    replica: WorkerId
    address: str


async def connect(conn: Conn, runner: ConnectedRunner) -> Runner | None:
    """The row with its new epoch. None if the id belongs to another pool or owner."""
    identity = runner.identity
    values: dict[str, object] = {
        "id": runner.id,
        "name": runner.name,
        "pool": identity.pool,
        "owner_id": identity.owner_id,
        "token_id": identity.token_id,
        "builtin": identity.owner_id is None and identity.token_id is None,
        "version": runner.version,
        "labels": list(runner.labels),
        "backends": json_text(runner.backends),
        "capacity": runner.capacity,
        "os": runner.os,
        "arch": runner.arch,
        "replica": runner.replica,
        "address": runner.address,
    }
    found = await conn.fetchval(CONNECT.text, *CONNECT.args(values))
    return None if found is None else _RUNNER.decode(found)


async def count_others(session: DatabaseSession, runner: ConnectedRunner) -> int:
    """How many other runners of its owner are connected; 0 for one of a pool or a server. Until the
    transaction ends, no other runner of this owner connects."""
    owner = runner.identity.owner_id
    if owner is None:
        return 0
    await session.execute(LOCK_OWNER, owner)
    found: int = await session.fetchval(COUNT_OTHERS, owner, runner.id, RUNNER_SILENT_AFTER_S)
    return found


async def renew(
    conn: Conn, replica: WorkerId, address: str, runners: Sequence[tuple[RunnerId, int, int]]
) -> dict[RunnerId, bool]:
    """The runners (id, epoch, workspaces that run) that are still this replica's, and whether each
    is being drained. The others must be disconnected. `address` is that of this replica."""
    ids, epochs, running = zip(*runners, strict=True) if runners else ((), (), ())
    rows = await conn.fetch(RENEW, replica, address, list(ids), list(epochs), list(running))
    return {RunnerId(row["id"]): row["draining"] for row in rows}


async def disconnect(
    conn: Conn, replica: WorkerId, runner_id: str, epoch: int | None = None
) -> None:
    """This replica no longer reaches the runner, or only under a later epoch than this."""
    await conn.execute(DISCONNECT, replica, runner_id, epoch)


class Holder(Struct, frozen=True, kw_only=True):
    """A runner, and the addresses of the replicas that reach it."""

    runner: Runner
    addresses: Sequence[tuple[WorkerId, str]]


async def find_holder(conn: Conn, runner_id: str) -> Holder | None:
    """The holder of a runner, or of the pod of a build."""
    if runner_id.startswith(POD_PREFIX):
        build_id = UUID(runner_id.removeprefix(POD_PREFIX))  # made by `pod_holder`
        rows = await conn.fetch(FIND_POD, build_id, RUNNER_SILENT_AFTER_S)
    else:
        rows = await conn.fetch(FIND, runner_id, RUNNER_SILENT_AFTER_S)
    if not rows:
        return None
    addresses = [(WorkerId(row["replica"]), row["address"]) for row in rows if row["replica"]]
    return Holder(runner=_RUNNER.decode(rows[0]["runner"]), addresses=addresses)


async def set_orphans(conn: Conn, runner_id: str, found: Sequence[WorkspaceId]) -> None:
    """Keep the ids of those workspaces on the runner that the database does not know to be
    there."""
    await conn.execute(SET_ORPHANS, runner_id, list(found))


# Pods


async def connect_pod(
    conn: Conn, build_id: BuildId, replica: WorkerId, address: str
) -> Runner | None:
    """The pod as the holder of its tunnel, with its new epoch. None if the build is no longer the
    latest of its workspace."""
    found = await conn.fetchval(CONNECT_POD, build_id, replica, address)
    return None if found is None else _RUNNER.decode(found)


async def renew_pods(
    conn: Conn, replica: WorkerId, address: str, pods: Sequence[tuple[BuildId, int]]
) -> set[BuildId]:
    """The builds (id, epoch) whose pods are still this replica's. The others must be disconnected:
    the pod has connected elsewhere since, or its token allows nothing any more."""
    ids, epochs = zip(*pods, strict=True) if pods else ((), ())
    rows = await conn.fetch(RENEW_PODS, replica, address, list(ids), list(epochs))
    return {BuildId(row["build_id"]) for row in rows}


async def disconnect_pod(conn: Conn, pod: Runner, replica: WorkerId) -> None:
    await conn.execute(DISCONNECT_POD, pod.id, replica, pod.epoch)
