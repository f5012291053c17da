"""Workers: acquire and release chats, send heartbeats, delete dead workers, count the backlog.

All times are the database's. Deadlines of interrupts and client tools are compared with its clock,
so a jump of that clock expires them early or late. Whether a worker is dead is not: each heartbeat
returns the other workers, `domain.chat.lease` decides from several, and the next one names the
dead.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString

import msgspec
from msgspec import Struct

from chatd.domain.chat.lease import LEASE_TTL_S, IsolatedRun, SeenWorker, WorkerDeath, find_suspects
from chatd.domain.chat.row import Chat
from chatd.domain.chat.takeover import DeathNotice
from chatd.domain.ids import ChatId, WorkerId
from chatd.store.chat.chats import chat_from_row
from chatd.store.chat.runs import BEGIN_RUNS, RELEASE_RUNS, take_over
from chatd.store.database.conn import Conn

# A chat that waits has a runnable_at in the future: at most the delay of its retry or of its wait
# for subagents away, or the longest delay of a suspect. A later one means that the clock went back,
# and comparing with now() only would block the chat for as long as the clock jumped.
_CLOCK_WENT_BACK: Final[LiteralString] = """runnable_at > now() + interval '2 s' + coalesce(
    (coalesce(retry_state, agent_wait)->>'delay_ms')::float8 * interval '1 ms',
    interval '75 s')"""
_IS_DUE: Final[LiteralString] = f"(runnable_at <= now() OR {_CLOCK_WENT_BACK})"

# Root chats and subagents have separate slots: a subagent must not wait for a slot of its parent.
# `suspect` is an isolated chat: see domain.chat.lease. $4 of them at most, $5 seconds overdue. An
# array instead of a join: for an unknown limit the planner guesses a tenth of all rows, and with a
# long backlog it would scan every chat. Each row gets a change id of its own, like every other
# version.
ACQUIRE: Final[LiteralString] = f"""
    WITH suspect AS MATERIALIZED (
        SELECT id, parent_chat_id FROM chats
        WHERE runnable_at IS NOT NULL AND orphan_count > 1 AND status = 'running'
          AND (runnable_at <= now() - $5::float8 * interval '1 s' OR {_CLOCK_WENT_BACK})
          AND CASE WHEN parent_chat_id IS NULL THEN $2::bigint ELSE $3::bigint END > 0
        ORDER BY runnable_at LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED),
    roots AS MATERIALIZED (
        SELECT id FROM chats WHERE runnable_at IS NOT NULL AND parent_chat_id IS NULL
          AND {_IS_DUE}
          AND (orphan_count <= 1 OR status = 'interrupting')
        ORDER BY (status <> 'interrupting'), runnable_at, id
        LIMIT $2 - (SELECT count(*) FROM suspect WHERE parent_chat_id IS NULL)
        FOR NO KEY UPDATE SKIP LOCKED),
    children AS MATERIALIZED (
        SELECT id FROM chats WHERE runnable_at IS NOT NULL AND parent_chat_id IS NOT NULL
          AND {_IS_DUE}
          AND (orphan_count <= 1 OR status = 'interrupting')
        ORDER BY (status <> 'interrupting'), runnable_at, id
        LIMIT $3 - (SELECT count(*) FROM suspect WHERE parent_chat_id IS NOT NULL)
        FOR NO KEY UPDATE SKIP LOCKED),
    changed AS (UPDATE chats c SET
        worker_id = $1, epoch = c.epoch + 1, runnable_at = NULL, run_no = c.run_no + 1,
        takeover = CASE WHEN c.lost IS NULL THEN c.takeover ELSE {take_over("$1::uuid")} END,
        lost = NULL,
        attempt = c.attempt + (c.status = 'running' AND c.retry_state IS NULL)::int,
        retry_state = NULL, agent_wait = NULL,
        retry_version = CASE WHEN c.retry_state IS NULL THEN c.retry_version
                             ELSE c.snapshot_version + 1 END,
        snapshot_version = c.snapshot_version + 1,
        recent_changes = (ARRAY[1 + (random() * 2^53)::bigint] || c.recent_changes)[1:8]
    WHERE c.id = ANY (ARRAY(
        SELECT id FROM suspect UNION ALL SELECT id FROM roots UNION ALL SELECT id FROM children))
    RETURNING c.*),
    {BEGIN_RUNS}
    SELECT c.* FROM changed c"""

# The same, limited per owner and in total. A concurrent statement of another replica does not see
# what this one acquires, so a limit may be exceeded by one chat per replica.
ACQUIRE_WITHIN_LIMITS: Final[LiteralString] = f"""
    WITH busy AS MATERIALIZED (
        SELECT owner_id, parent_chat_id IS NULL AS is_root, count(*) AS running
        FROM chats WHERE worker_id IS NOT NULL GROUP BY 1, 2),
    roots AS MATERIALIZED (
        SELECT id FROM chats WHERE runnable_at IS NOT NULL AND parent_chat_id IS NULL
          AND {_IS_DUE}
          AND (orphan_count <= 1 OR status = 'interrupting' OR (
              runnable_at <= now() - $5::float8 * interval '1 s' AND $4 > 0))
          AND (status = 'interrupting' OR owner_id <> ALL (
              ARRAY(SELECT owner_id FROM busy WHERE is_root AND running >= $6)))
        ORDER BY (status <> 'interrupting'), runnable_at, id
        LIMIT least($2, 1, greatest($7 - (SELECT coalesce(sum(running), 0)
                                       FROM busy WHERE is_root), 0))
        FOR NO KEY UPDATE SKIP LOCKED),
    children AS MATERIALIZED (
        SELECT id FROM chats WHERE runnable_at IS NOT NULL AND parent_chat_id IS NOT NULL
          AND {_IS_DUE}
          AND (orphan_count <= 1 OR status = 'interrupting' OR (
              runnable_at <= now() - $5::float8 * interval '1 s' AND $4 > (
                  SELECT count(*) FROM roots JOIN chats s USING (id) WHERE s.orphan_count > 1)))
          AND (status = 'interrupting' OR owner_id <> ALL (
              ARRAY(SELECT owner_id FROM busy WHERE NOT is_root AND running >= $8)))
        ORDER BY (status <> 'interrupting'), runnable_at, id
        LIMIT least($3, 1, greatest($9 - (SELECT coalesce(sum(running), 0)
                                       FROM busy WHERE NOT is_root), 0))
        FOR NO KEY UPDATE SKIP LOCKED),
    changed AS (UPDATE chats c SET
        worker_id = $1, epoch = c.epoch + 1, runnable_at = NULL, run_no = c.run_no + 1,
        takeover = CASE WHEN c.lost IS NULL THEN c.takeover ELSE {take_over("$1::uuid")} END,
        lost = NULL,
        attempt = c.attempt + (c.status = 'running' AND c.retry_state IS NULL)::int,
        retry_state = NULL, agent_wait = NULL,
        retry_version = CASE WHEN c.retry_state IS NULL THEN c.retry_version
                             ELSE c.snapshot_version + 1 END,
        snapshot_version = c.snapshot_version + 1,
        recent_changes = (ARRAY[1 + (random() * 2^53)::bigint] || c.recent_changes)[1:8]
    WHERE c.id = ANY (ARRAY(SELECT id FROM roots UNION ALL SELECT id FROM children))
    RETURNING c.*),
    {BEGIN_RUNS}
    SELECT c.* FROM changed c"""

# Locked in the order of `lock_tree`, so that the two cannot deadlock.
RELEASE: Final[LiteralString] = f"""
    WITH mine AS MATERIALIZED (
        SELECT id FROM chats WHERE worker_id = $1 AND ($2::uuid[] IS NULL OR id = ANY ($2))
        ORDER BY root_chat_id, (id <> root_chat_id), id FOR NO KEY UPDATE),
    changed AS (UPDATE chats c SET
        worker_id = NULL, epoch = c.epoch + 1, runnable_at = now(),
        retry_state = NULL,
        retry_version = CASE WHEN c.retry_state IS NULL THEN c.retry_version
                             ELSE c.snapshot_version + 1 END,
        snapshot_version = c.snapshot_version + 1,
        recent_changes = (ARRAY[1 + (random() * 2^53)::bigint] || c.recent_changes)[1:8]
    WHERE c.id = ANY (ARRAY(SELECT id FROM mine))
    RETURNING c.*),
    {RELEASE_RUNS}
    SELECT c.* FROM changed c"""

# pg_locks shows an advisory lock with a one-part key as classid (upper half) and objid (lower).
# A chat's owner may have no row: the worker was deleted while a slow statement of it acquired one
# more chat. A worker that the caller judged dead counts only if it has not renewed since and its
# lock is not back. `runnable` orders by the index: for EXISTS the planner may choose a scan.
HEARTBEAT: Final[LiteralString] = f"""
    WITH renewed AS (
        INSERT INTO chat_workers AS w (worker_id, lock_key, lease_until, draining, host, version,
            slots, child_slots)
        VALUES ($1, $2, now() + $3::float8 * interval '1 s', $4, $11, $12, $13, $14)
        ON CONFLICT (worker_id) DO UPDATE
        SET renewed_at = now(), lease_until = excluded.lease_until,
            draining = excluded.draining),
    held AS MATERIALIZED (
        SELECT (l.classid::bigint << 32) | l.objid::bigint AS lock_key
        FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())),
    others AS MATERIALIZED (
        SELECT w.worker_id, (extract(epoch FROM w.renewed_at) * 1000000)::bigint AS renewal,
            w.lock_key IN (SELECT lock_key FROM held) AS has_lock
        FROM chat_workers w WHERE w.worker_id <> $1
        UNION ALL
        SELECT s.worker_id, NULL,
            ('x' || left(replace(s.worker_id::text, '-', ''), 16))::bit(64)::bigint
                IN (SELECT lock_key FROM held)
        FROM (SELECT DISTINCT c.worker_id FROM chats c
              WHERE c.worker_id IS NOT NULL AND c.worker_id <> $1
                AND NOT EXISTS (SELECT FROM chat_workers w WHERE w.worker_id = c.worker_id)) s),
    dead AS MATERIALIZED (
        SELECT o.worker_id
        FROM others o JOIN unnest($5::uuid[], $6::bigint[], $7::boolean[])
            AS judged (worker_id, renewal, has_lock) USING (worker_id)
        WHERE o.renewal IS NOT DISTINCT FROM judged.renewal AND (judged.has_lock OR NOT o.has_lock))
    SELECT
        ARRAY(SELECT (worker_id, renewal, has_lock) FROM others) AS others,
        ARRAY(SELECT worker_id FROM dead) AS dead,
        ARRAY(SELECT c.id FROM chats c WHERE c.worker_id IN (SELECT worker_id FROM dead)
              LIMIT $10) AS orphaned,
        ARRAY(SELECT c.id FROM chats c
              WHERE (c.action_deadline IS NOT NULL OR c.interrupt_deadline IS NOT NULL)
                AND least(c.action_deadline, c.interrupt_deadline) < now()
              ORDER BY least(c.action_deadline, c.interrupt_deadline) LIMIT $10) AS expired,
        ARRAY(SELECT c.id FROM chats c WHERE c.worker_id = $1 AND (c.id, c.epoch) NOT IN (
              SELECT k.id, k.epoch FROM unnest($8::uuid[], $9::bigint[]) AS k (id, epoch)))
            AS unknown,
        ARRAY(SELECT k.id FROM unnest($8::uuid[], $9::bigint[]) AS k (id, epoch)
              WHERE NOT EXISTS (SELECT FROM chats c WHERE c.id = k.id AND c.worker_id = $1
                                AND c.epoch = k.epoch)) AS lost,
        coalesce(
            (SELECT true FROM chats WHERE runnable_at IS NOT NULL AND parent_chat_id IS NULL
               AND {_IS_DUE}
             ORDER BY (status <> 'interrupting'), runnable_at LIMIT 1),
            (SELECT true FROM chats WHERE runnable_at IS NOT NULL AND parent_chat_id IS NOT NULL
               AND {_IS_DUE}
             ORDER BY (status <> 'interrupting'), runnable_at LIMIT 1),
            false) AS runnable,
        EXISTS (SELECT FROM chats WHERE worker_id IS NOT NULL AND worker_id <> $1) AS others_run,
        now() AS at"""

READ_DEATHS: Final[LiteralString] = """
    SELECT w.worker_id, extract(epoch FROM w.renewed_at - w.started_at)::float8 AS uptime_s,
        w.draining,
        ARRAY(SELECT json_build_object('chat_id', c.id, 'ran_s', coalesce(
                extract(epoch FROM w.renewed_at - r.started_at), 0)::float8)::text
              FROM chats c LEFT JOIN chat_runs r ON r.chat_id = c.id AND r.run_no = c.run_no
              WHERE c.worker_id = w.worker_id AND c.orphan_count > 1 AND c.status = 'running'
             ) AS isolated,
        EXISTS (SELECT FROM pg_locks l
                WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
                  AND (l.classid::bigint << 32) | l.objid::bigint = w.lock_key
                  AND l.database = (SELECT oid FROM pg_database
                                    WHERE datname = current_database())) AS lock_held,
        coalesce((SELECT r.started_at > w.renewed_at FROM chat_workers r WHERE r.worker_id = $2),
            false) AS before_reaper
    FROM chat_workers w WHERE w.worker_id = ANY ($1::uuid[])"""

_ISOLATED_RUN: Final = msgspec.json.Decoder(IsolatedRun)

FORMER_WORKERS_KEPT_DAYS: Final = 90.0
"""How long the record of attempts can name the hosts of workers that have ended."""

# All replicas delete the same dead workers at once, hence SKIP LOCKED. A worker that was cut off
# may register and end again.
DELETE_WORKERS: Final[LiteralString] = """
    WITH gone AS (
        DELETE FROM chat_workers WHERE worker_id IN (
            SELECT w.worker_id FROM chat_workers w
            WHERE w.worker_id = ANY ($1::uuid[])
              AND NOT EXISTS (SELECT FROM chats c WHERE c.worker_id = w.worker_id)
            FOR UPDATE SKIP LOCKED)
        RETURNING worker_id, host, version, started_at, renewed_at),
    trimmed AS (
        DELETE FROM former_workers
        WHERE deleted_at < now() - $2::float8 * interval '1 day')
    INSERT INTO former_workers (worker_id, host, version, started_at, renewed_at)
    SELECT * FROM gone ON CONFLICT (worker_id) DO NOTHING"""


_NO_LIMIT: Final = 2**31 - 1


class RunningLimits(Struct, frozen=True, kw_only=True):
    """How many chats may run at once on all replicas together; 0 is unlimited."""

    roots: int = 0
    roots_per_owner: int = 0
    children: int = 0
    children_per_owner: int = 0


class IsolatedVacancy(Struct, frozen=True, kw_only=True):
    """How many isolated chats a worker can take, each only when it has been runnable for
    `overdue_s`."""

    chats: int = 1
    overdue_s: float = 0.0


_ONE_ISOLATED: Final = IsolatedVacancy()


class WorkerDescription(Struct, frozen=True, kw_only=True):
    """What a worker tells about itself when it registers."""

    worker_id: WorkerId
    host: str = ""
    version: str = ""
    slots: int = 0
    child_slots: int = 0


class Heartbeat(Struct, frozen=True, kw_only=True):
    """`running` maps the chats that the worker runs to their epochs."""

    worker_id: WorkerId
    description: WorkerDescription | None = None
    running: Mapping[ChatId, int]
    dead: Sequence[SeenWorker] = ()
    """Workers that earlier heartbeats have shown to be dead."""
    draining: bool = False
    lease_s: float = LEASE_TTL_S
    limit: int = 500


class HeartbeatResult(Struct, frozen=True, kw_only=True):
    others: tuple[SeenWorker, ...] = ()
    dead: frozenset[WorkerId]
    orphaned: tuple[ChatId, ...]
    expired: tuple[ChatId, ...]
    unknown: tuple[ChatId, ...]
    """Chats that this worker owns by their row and does not run at that epoch: to be released."""
    lost: tuple[ChatId, ...]
    """Chats that this worker runs and no longer owns."""
    runnable: bool
    others_run: bool = False
    """Whether other workers run chats, which this one would have to take over."""
    at: datetime
    """The database's time, which the deadlines of expired chats are compared with."""
    notices: Mapping[WorkerId, DeathNotice] = {}
    """How this worker noticed the deaths of `dead`; its own heartbeats know, not the database."""


def worker_lock_key(worker_id: WorkerId) -> int:
    """Key of the advisory lock that the worker's listener session holds while the process lives."""
    return int.from_bytes(worker_id.bytes[:8], signed=True)


async def acquire(
    conn: Conn,
    worker_id: WorkerId,
    *,
    roots: int,
    children: int,
    isolated: IsolatedVacancy = _ONE_ISOLATED,
) -> list[Chat]:
    """P -> R, I without an owner -> I: interrupting chats first, then by waiting time."""
    rows = await conn.fetch(ACQUIRE, worker_id, roots, children, isolated.chats, isolated.overdue_s)
    return [chat_from_row(row) for row in rows]


async def acquire_within_limits(
    conn: Conn,
    worker_id: WorkerId,
    limits: RunningLimits,
    *,
    roots: int,
    children: int,
    isolated: IsolatedVacancy = _ONE_ISOLATED,
) -> list[Chat]:
    """At most one chat of each kind per call: a second one could exceed the limit."""
    rows = await conn.fetch(
        ACQUIRE_WITHIN_LIMITS,
        worker_id,
        roots,
        children,
        isolated.chats,
        isolated.overdue_s,
        limits.roots_per_owner or _NO_LIMIT,
        limits.roots or _NO_LIMIT,
        limits.children_per_owner or _NO_LIMIT,
        limits.children or _NO_LIMIT,
    )
    return [chat_from_row(row) for row in rows]


async def release(conn: Conn, worker_id: WorkerId, only: list[ChatId] | None = None) -> list[Chat]:
    """R -> P, I -> I: all chats of the worker, or those of them in `only`."""
    return [chat_from_row(row) for row in await conn.fetch(RELEASE, worker_id, only)]


async def send_heartbeat(conn: Conn, heartbeat: Heartbeat) -> HeartbeatResult:
    me = heartbeat.description or WorkerDescription(worker_id=heartbeat.worker_id)
    row = await conn.fetchrow(
        HEARTBEAT,
        heartbeat.worker_id,
        worker_lock_key(heartbeat.worker_id),
        heartbeat.lease_s,
        heartbeat.draining,
        [worker.worker_id for worker in heartbeat.dead],
        [worker.renewal for worker in heartbeat.dead],
        [worker.has_lock for worker in heartbeat.dead],
        list(heartbeat.running.keys()),
        list(heartbeat.running.values()),
        heartbeat.limit,
        me.host,
        me.version,
        me.slots,
        me.child_slots,
    )
    assert row is not None  # a SELECT without FROM has one row
    return HeartbeatResult(
        others=tuple(
            SeenWorker(worker_id=other[0], renewal=other[1], has_lock=other[2])
            for other in row["others"]
        ),
        dead=frozenset(row["dead"]),
        orphaned=tuple(row["orphaned"]),
        expired=tuple(row["expired"]),
        unknown=tuple(row["unknown"]),
        lost=tuple(row["lost"]),
        runnable=row["runnable"],
        others_run=row["others_run"],
        at=row["at"],
    )


async def read_deaths(
    conn: Conn, notices: Mapping[WorkerId, DeathNotice], reaper: WorkerId
) -> dict[WorkerId, WorkerDeath]:
    """Record how each worker died, before its chats are reaped. Workers without a row are left
    out."""
    rows = await conn.fetch(READ_DEATHS, list(notices), reaper)
    return {
        row["worker_id"]: WorkerDeath(
            uptime_s=row["uptime_s"],
            suspects=find_suspects([_ISOLATED_RUN.decode(text) for text in row["isolated"]]),
            lock_held=row["lock_held"],
            watched=notices[row["worker_id"]].watched,
            before_reaper=row["before_reaper"],
            draining=row["draining"],
        )
        for row in rows
    }


async def delete_workers(conn: Conn, worker_ids: frozenset[WorkerId]) -> None:
    """Delete dead workers that own no chat any more."""
    await conn.execute(DELETE_WORKERS, list(worker_ids), FORMER_WORKERS_KEPT_DAYS)


# One branch for each partial index, so that idle chats are not read. `greatest` avoids a negative
# wait after the clock went back.
READ_BACKLOG: Final[LiteralString] = """
    WITH under_way AS (
        SELECT status, runnable_at FROM chats WHERE worker_id IS NOT NULL
        UNION ALL
        SELECT status, runnable_at FROM chats
        WHERE runnable_at IS NOT NULL AND parent_chat_id IS NULL
        UNION ALL
        SELECT status, runnable_at FROM chats
        WHERE runnable_at IS NOT NULL AND parent_chat_id IS NOT NULL)
    SELECT
        count(*) FILTER (WHERE runnable_at <= now()) AS pending,
        count(*) FILTER (WHERE runnable_at > now()) AS delayed,
        count(*) FILTER (WHERE runnable_at IS NULL AND status <> 'interrupting') AS running,
        count(*) FILTER (WHERE runnable_at IS NULL AND status = 'interrupting') AS interrupting,
        greatest(coalesce(extract(epoch FROM now() - min(runnable_at)), 0), 0)::float8
            AS oldest_pending_s
    FROM under_way"""


class Backlog(Struct, frozen=True, kw_only=True):
    """`pending` chats wait for a worker, `delayed` ones for the time of their next try; the others
    have a worker."""

    pending: int
    delayed: int
    running: int
    interrupting: int
    oldest_pending_s: float


async def read_backlog(conn: Conn) -> Backlog:
    row = await conn.fetchrow(READ_BACKLOG)
    assert row is not None
    return Backlog(**dict(row))


COUNT_LIVING: Final[LiteralString] = """
    SELECT count(*) FROM chat_workers WHERE lease_until > now() AND NOT draining"""


async def count_living(conn: Conn) -> int:
    """Workers that take chats."""
    return await conn.fetchval(COUNT_LIVING)
