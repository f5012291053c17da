"""Workers: taking chats, the tick that keeps a worker alive, and finding the dead.

All times are the database's. A worker is dead when its session lock is gone
and it has not renewed for a while, or when its lease has run out; which of
the two may be acted on is the caller's to say (`domain.lease`).

How much is under way on all replicas, and for how long the oldest chat has waited for one.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, LiteralString

from msgspec import Struct

from chatd.domain.chat.row import Chat
from chatd.domain.ids import ChatId, WorkerId
from chatd.store.conn import Conn
from chatd.store.rows import chat_from_row

ReapScope = Literal["none", "locks", "leases"]

# Both pools at once: chats with a parent must not wait for slots that their parents hold.
# runnable_at orders and is not compared with now(): nothing sets it ahead, so a time to come
# is that of a clock which went back, and to wait for it would be to be stuck.
# An array and not a join: for a limit that it does not know the planner guesses a tenth of all,
# and with a long backlog that would be worth a scan of every chat.
# The zero keeps recent_changes in step with the version: one entry for each.
ACQUIRE: Final[LiteralString] = """
    WITH roots AS MATERIALIZED (
        SELECT id FROM chats WHERE runnable_at IS NOT NULL AND parent_chat_id IS NULL
        ORDER BY (status <> 'interrupting'), runnable_at, id
        LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED),
    children AS MATERIALIZED (
        SELECT id FROM chats WHERE runnable_at IS NOT NULL AND parent_chat_id IS NOT NULL
        ORDER BY (status <> 'interrupting'), runnable_at, id
        LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE chats c SET
        worker_id = $1, epoch = c.epoch + 1, runnable_at = NULL,
        attempt = c.attempt + (c.status = 'running')::int,
        retry_state = NULL,
        retry_version = CASE WHEN c.retry_state IS NULL THEN c.retry_version
                             ELSE c.snapshot_version + 1 END,
        snapshot_version = c.snapshot_version + 1,
        recent_changes = (ARRAY[0::bigint] || c.recent_changes)[1:8]
    WHERE c.id = ANY (ARRAY(SELECT id FROM roots UNION ALL SELECT id FROM children))
    RETURNING c.*"""

# The same, but no more than so many of each owner, and so many in all. Who looks at the same
# moment elsewhere does not see what is being taken here: a cap may be passed by one for each
# replica, never by more.
ACQUIRE_WITHIN_LIMITS: Final[LiteralString] = """
    WITH busy AS MATERIALIZED (
        SELECT owner_id, parent_chat_id IS NULL AS is_root, count(*) AS running
        FROM chats WHERE worker_id IS NOT NULL GROUP BY 1, 2),
    roots AS MATERIALIZED (
        SELECT id FROM chats WHERE runnable_at IS NOT NULL AND parent_chat_id IS NULL
          AND (status = 'interrupting' OR owner_id <> ALL (
              ARRAY(SELECT owner_id FROM busy WHERE is_root AND running >= $4)))
        ORDER BY (status <> 'interrupting'), runnable_at, id
        LIMIT least($2, 1, greatest($5 - (SELECT coalesce(sum(running), 0)
                                       FROM busy WHERE is_root), 0))
        FOR NO KEY UPDATE SKIP LOCKED),
    children AS MATERIALIZED (
        SELECT id FROM chats WHERE runnable_at IS NOT NULL AND parent_chat_id IS NOT NULL
          AND (status = 'interrupting' OR owner_id <> ALL (
              ARRAY(SELECT owner_id FROM busy WHERE NOT is_root AND running >= $6)))
        ORDER BY (status <> 'interrupting'), runnable_at, id
        LIMIT least($3, 1, greatest($7 - (SELECT coalesce(sum(running), 0)
                                       FROM busy WHERE NOT is_root), 0))
        FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE chats c SET
        worker_id = $1, epoch = c.epoch + 1, runnable_at = NULL,
        attempt = c.attempt + (c.status = 'running')::int,
        retry_state = NULL,
        retry_version = CASE WHEN c.retry_state IS NULL THEN c.retry_version
                             ELSE c.snapshot_version + 1 END,
        snapshot_version = c.snapshot_version + 1,
        recent_changes = (ARRAY[0::bigint] || c.recent_changes)[1:8]
    WHERE c.id = ANY (ARRAY(SELECT id FROM roots UNION ALL SELECT id FROM children))
    RETURNING c.*"""

# Locked in the order in which a family is, or the two could wait for each other.
RELEASE: Final[LiteralString] = """
    WITH mine AS MATERIALIZED (
        SELECT id FROM chats WHERE worker_id = $1 AND ($2::uuid[] IS NULL OR id = ANY ($2))
        ORDER BY root_chat_id, (id <> root_chat_id), id FOR NO KEY UPDATE)
    UPDATE chats c SET
        worker_id = NULL, epoch = c.epoch + 1, runnable_at = now(),
        snapshot_version = c.snapshot_version + 1,
        recent_changes = (ARRAY[0::bigint] || c.recent_changes)[1:8]
    WHERE c.id = ANY (ARRAY(SELECT id FROM mine))
    RETURNING c.*"""

# Renew, and report what the worker must know. An advisory lock with a one-part key shows up
# in pg_locks with its upper half as classid and its lower half as objid. An owner without a
# row (struck off, while a slow statement of its own took one more chat) is as dead as one
# whose lease ran out. A renewal far ahead is as old as one far behind: the clock has gone back,
# and whoever lives renews by the new time. "Is there one" asks for the first by the index's
# order: for EXISTS alone the planner may think that a scan will soon meet one.
HEARTBEAT: Final[LiteralString] = """
    WITH renewed AS (
        INSERT INTO chat_workers AS w (worker_id, lock_key, lease_until, draining)
        VALUES ($1, $2, now() + $3::float8 * interval '1 s', $4)
        ON CONFLICT (worker_id) DO UPDATE
        SET renewed_at = now(), lease_until = excluded.lease_until,
            draining = excluded.draining),
    held AS MATERIALIZED (
        SELECT (l.classid::bigint << 32) | l.objid::bigint AS lock_key
        FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())),
    dead AS MATERIALIZED (
        SELECT w.worker_id FROM chat_workers w
        WHERE w.worker_id <> $1
          AND (($5 <> 'none' AND abs(extract(epoch FROM now() - w.renewed_at)) > $6::float8
                AND w.lock_key NOT IN (SELECT lock_key FROM held))
               OR ($5 = 'leases' AND w.lease_until < now() - $7::float8 * interval '1 s'))
        UNION ALL
        SELECT DISTINCT c.worker_id FROM chats c
        WHERE $5 = 'leases' AND c.worker_id IS NOT NULL AND c.worker_id <> $1
          AND NOT EXISTS (SELECT FROM chat_workers w WHERE w.worker_id = c.worker_id))
    SELECT
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
             ORDER BY (status <> 'interrupting'), runnable_at LIMIT 1),
            (SELECT true FROM chats WHERE runnable_at IS NOT NULL AND parent_chat_id IS NOT NULL
             ORDER BY (status <> 'interrupting'), runnable_at LIMIT 1),
            false) AS runnable,
        now() AS at"""

# Everybody strikes the same dead at the same time.
DELETE_WORKERS: Final[LiteralString] = """
    DELETE FROM chat_workers WHERE worker_id IN (
        SELECT w.worker_id FROM chat_workers w
        WHERE w.worker_id = ANY ($1::uuid[])
          AND NOT EXISTS (SELECT FROM chats c WHERE c.worker_id = w.worker_id)
        FOR UPDATE SKIP LOCKED)"""


_NO_LIMIT: Final = 2**31 - 1


class RunningLimits(Struct, frozen=True, kw_only=True):
    """How many chats may run at once on all replicas together; 0 is as many as they like."""

    roots: int = 0
    roots_per_owner: int = 0
    children: int = 0
    children_per_owner: int = 0


class Heartbeat(Struct, frozen=True, kw_only=True):
    """What a worker says with each tick: that it lives, and which chats at which epoch it runs."""

    worker_id: WorkerId
    running: Mapping[ChatId, int]
    scope: ReapScope = "none"
    draining: bool = False
    lease_s: float = 30
    lock_gone_after_s: float = 1.5
    """Without its lock, a worker this long without a renewal is dead."""
    lease_stale_after_s: float = 5
    """With or without it, a worker this long past its lease is."""
    limit: int = 500


class HeartbeatResult(Struct, frozen=True, kw_only=True):
    """What a worker learns from its tick."""

    dead: frozenset[WorkerId]
    orphaned: tuple[ChatId, ...]
    expired: tuple[ChatId, ...]
    unknown: tuple[ChatId, ...]
    """Chats the database says are mine at an epoch that I do not run: to be released."""
    lost: tuple[ChatId, ...]
    """Chats I run that are no longer mine."""
    runnable: bool
    at: datetime
    """The database's time, to compare deadlines with when a late chat is looked at again."""


def worker_lock_key(worker_id: WorkerId) -> int:
    """The worker's session lock: held by its listener for as long as the process lives."""
    return int.from_bytes(worker_id.bytes[:8], signed=True)


async def acquire(conn: Conn, worker_id: WorkerId, *, roots: int, children: int) -> list[Chat]:
    """P -> R, I without an owner -> I: interrupts first, then whoever has waited longest."""
    rows = await conn.fetch(ACQUIRE, worker_id, roots, children)
    return [chat_from_row(row) for row in rows]


async def acquire_within_limits(
    conn: Conn, worker_id: WorkerId, limits: RunningLimits, *, roots: int, children: int
) -> list[Chat]:
    """At most one of each kind: of several the second might be one too many."""
    rows = await conn.fetch(
        ACQUIRE_WITHIN_LIMITS,
        worker_id,
        roots,
        children,
        limits.roots_per_owner or _NO_LIMIT,
        limits.roots or _NO_LIMIT,
        limits.children_per_owner or _NO_LIMIT,
        limits.children or _NO_LIMIT,
    )
    return [chat_from_row(row) for row in rows]


async def release(conn: Conn, worker_id: WorkerId, only: list[ChatId] | None = None) -> list[Chat]:
    """R -> P, I -> I, all of a worker's chats at once."""
    return [chat_from_row(row) for row in await conn.fetch(RELEASE, worker_id, only)]


async def send_heartbeat(conn: Conn, heartbeat: Heartbeat) -> HeartbeatResult:
    row = await conn.fetchrow(
        HEARTBEAT,
        heartbeat.worker_id,
        worker_lock_key(heartbeat.worker_id),
        heartbeat.lease_s,
        heartbeat.draining,
        heartbeat.scope,
        heartbeat.lock_gone_after_s,
        heartbeat.lease_stale_after_s,
        list(heartbeat.running.keys()),
        list(heartbeat.running.values()),
        heartbeat.limit,
    )
    assert row is not None  # a SELECT without FROM has one row
    return HeartbeatResult(
        dead=frozenset(row["dead"]),
        orphaned=tuple(row["orphaned"]),
        expired=tuple(row["expired"]),
        unknown=tuple(row["unknown"]),
        lost=tuple(row["lost"]),
        runnable=row["runnable"],
        at=row["at"],
    )


async def delete_workers(conn: Conn, worker_ids: frozenset[WorkerId]) -> None:
    """Forget dead workers, those whose chats have all been handed on."""
    await conn.execute(DELETE_WORKERS, list(worker_ids))


# One arm for each index: of all chats, only those that are under way are read. A clock that went
# back must not make a wait of less than nothing.
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
        count(*) FILTER (WHERE runnable_at IS NOT NULL) AS pending,
        count(*) FILTER (WHERE runnable_at IS NULL AND status <> 'interrupting') AS running,
        count(*) FILTER (WHERE runnable_at IS NULL AND status = 'interrupting') AS interrupting,
        greatest(coalesce(extract(epoch FROM now() - min(runnable_at)), 0), 0)::float8
            AS oldest_pending_s
    FROM under_way"""


class Backlog(Struct, frozen=True, kw_only=True):
    """`pending` chats wait for a worker; the others have one."""

    pending: int
    running: int
    interrupting: int
    oldest_pending_s: float


async def read_backlog(conn: Conn) -> Backlog:
    row = await conn.fetchrow(READ_BACKLOG)
    assert row is not None
    return Backlog(**dict(row))
