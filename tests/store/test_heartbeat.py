"""Heartbeats: renew the lease, and report dead workers, expired deadlines and lost chats."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import LiteralString
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.chat.lease import SeenWorker
from chatd.domain.chat.row import Chat
from chatd.domain.chat.states import State
from chatd.domain.ids import WorkerId
from chatd.store.chat import workers
from chatd.store.chat.workers import Heartbeat, HeartbeatResult
from chatd.store.database import notifications
from chatd.store.database.conn import Conn
from chatd.store.database.pool import Pool
from tests.support.factories import AT, OTHER_WORKER, QUIET_HEARTBEAT, WORKER
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import age, chat_id, insert_seed, open_chat, open_child, session_to

ME = Heartbeat(worker_id=WORKER, running={})
OTHER = Heartbeat(worker_id=OTHER_WORKER, running={}, lease_s=1000)


async def send_heartbeat(conn: Conn, **beat: object) -> HeartbeatResult:
    return replace(await workers.send_heartbeat(conn, replace(ME, **beat)), at=AT)


async def age_heartbeat(conn: Conn, worker: WorkerId, seconds: float) -> None:
    """Move its last heartbeat back."""
    await conn.execute(
        """UPDATE chat_workers SET renewed_at = renewed_at - $2 * interval '1 s',
               lease_until = lease_until - $2 * interval '1 s' WHERE worker_id = $1""",
        worker,
        float(seconds),
    )


@asynccontextmanager
async def hold_worker_lock(dsn: str, worker: WorkerId) -> AsyncGenerator[None]:
    """Another session holds the lock of the worker."""
    async with session_to(dsn) as session:
        await session.execute(notifications.HOLD_WORKER_LOCK, workers.worker_lock_key(worker))
        yield


async def plant_orphaned(pool: Pool, worker: WorkerId, seconds: float, *numbers: int) -> list[Chat]:
    """Chats of a worker without a recent heartbeat."""
    await workers.send_heartbeat(pool, replace(OTHER, worker_id=worker))
    await age_heartbeat(pool, worker, seconds)
    return [await open_chat(pool, number, free=worker) for number in numbers]


# Renewing


async def test_the_first_heartbeat_registers_and_each_renews_by_the_databases_clock(
    pool: Pool,
) -> None:
    lease: LiteralString = """
        SELECT started_at, renewed_at, extract(epoch FROM lease_until - renewed_at) AS lease_s,
            renewed_at > now() - interval '10 s' AS fresh, lock_key, draining
        FROM chat_workers WHERE worker_id = $1"""
    await send_heartbeat(pool)
    first = present(await pool.fetchrow(lease, WORKER))
    assert (first["started_at"], first["lease_s"]) == (first["renewed_at"], 30)
    assert (first["lock_key"], first["draining"]) == (workers.worker_lock_key(WORKER), False)

    await age_heartbeat(pool, WORKER, 3600)
    await send_heartbeat(pool, lease_s=7, draining=True)
    again = present(await pool.fetchrow(lease, WORKER))
    assert again["fresh"]
    assert (again["lease_s"], again["draining"]) == (7, True)
    assert again["started_at"] == first["started_at"]


@pytest.mark.covers("F18")
async def test_no_time_of_a_workers_own_clock_reaches_the_database(dsn: str) -> None:
    """So that clock skew between hosts cannot make a worker look dead."""
    async with session_to(dsn) as session:
        for name in ("ACQUIRE", "RELEASE", "HEARTBEAT", "DELETE_WORKERS"):
            await session.script(f"PREPARE {name} AS {vars(workers)[name]}", timeout_s=30)
        types = await session.fetchval(
            "SELECT array_agg(t::text) FROM pg_prepared_statements, unnest(parameter_types) t"
            " WHERE from_sql"
        )
    assert set(types) == {
        "uuid",
        "uuid[]",
        "bigint",
        "bigint[]",
        "double precision",
        "boolean",
        "boolean[]",
        "text",
        "integer",
    }


async def test_a_heartbeat_returns_the_time_of_the_database(pool: Pool) -> None:
    result = await workers.send_heartbeat(pool, ME)
    assert result.at == await pool.fetchval("SELECT renewed_at FROM chat_workers")


async def test_a_single_worker_gets_an_empty_result(pool: Pool) -> None:
    assert await send_heartbeat(pool) == QUIET_HEARTBEAT
    await open_chat(pool, 1, free=WORKER)
    result = await send_heartbeat(pool, running={chat_id(1): 1})
    assert result == QUIET_HEARTBEAT, "a worker never reports itself"


# Other workers


async def look(conn: Conn) -> SeenWorker:
    """The other worker as a heartbeat finds it."""
    [other] = (await send_heartbeat(conn)).others
    return other


async def judge(conn: Conn, *judged: SeenWorker, **beat: object) -> HeartbeatResult:
    return await send_heartbeat(conn, dead=judged, **beat)


async def test_a_heartbeat_returns_the_other_workers_with_lock_and_renewal(
    dsn: str, pool: Pool
) -> None:
    await workers.send_heartbeat(pool, OTHER)
    async with hold_worker_lock(dsn, OTHER_WORKER):
        held = await look(pool)
    gone = await look(pool)
    assert (held.worker_id, held.has_lock, gone.has_lock) == (OTHER_WORKER, True, False)
    assert held.renewal == gone.renewal
    await workers.send_heartbeat(pool, OTHER)
    assert (await look(pool)).renewal not in (None, held.renewal)


async def test_a_worker_that_was_judged_dead_is_dead_with_its_chats(pool: Pool) -> None:
    [chat] = await plant_orphaned(pool, OTHER_WORKER, 0, 1)
    seen = await look(pool)
    assert (await send_heartbeat(pool)).dead == frozenset()
    result = await judge(pool, seen)
    assert (result.dead, result.orphaned) == (frozenset({OTHER_WORKER}), (chat.id,))


async def test_a_worker_that_renewed_since_it_was_judged_is_alive(pool: Pool) -> None:
    await plant_orphaned(pool, OTHER_WORKER, 0, 1)
    seen = await look(pool)
    await workers.send_heartbeat(pool, OTHER)
    result = await judge(pool, seen)
    assert (result.dead, result.orphaned) == (frozenset(), ())


async def test_a_worker_judged_by_its_lock_is_alive_if_it_has_the_lock_again(
    dsn: str, pool: Pool
) -> None:
    await plant_orphaned(pool, OTHER_WORKER, 0)
    gone = await look(pool)
    async with hold_worker_lock(dsn, OTHER_WORKER):
        held = await look(pool)
        assert (await judge(pool, gone)).dead == frozenset()
        assert (await judge(pool, held)).dead == {OTHER_WORKER}, "judged by its lease"


async def test_a_worker_that_does_not_exist_is_not_dead(pool: Pool) -> None:
    await plant_orphaned(pool, OTHER_WORKER, 0)
    seen = await look(pool)
    await workers.delete_workers(pool, frozenset({OTHER_WORKER}))
    assert (await judge(pool, seen)).dead == frozenset()


@pytest.mark.parametrize("bits", [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("registered", [True, False])
async def test_any_lock_key_is_found_in_the_lock_table(
    dsn: str, pool: Pool, bits: int, *, registered: bool
) -> None:
    worker = WorkerId(UUID(int=bits << 64 | 5))
    if registered:
        await plant_orphaned(pool, worker, 10)
    else:
        await open_chat(pool, 1, free=worker)
    async with hold_worker_lock(dsn, worker):
        assert (await look(pool)).has_lock
    assert not (await look(pool)).has_lock


async def test_a_lock_of_the_same_key_in_another_database_means_nothing(
    dsn: str, empty_dsn: str, pool: Pool
) -> None:
    await plant_orphaned(pool, OTHER_WORKER, 10)
    async with hold_worker_lock(empty_dsn, OTHER_WORKER):
        assert not (await look(pool)).has_lock


async def test_an_owner_without_a_row_is_seen_and_dead_only_while_it_has_none(
    dsn: str, pool: Pool
) -> None:
    chat = await open_chat(pool, 1, free=OTHER_WORKER)
    seen = await look(pool)
    assert seen == SeenWorker(worker_id=OTHER_WORKER, renewal=None, has_lock=False)
    async with hold_worker_lock(dsn, OTHER_WORKER):
        assert (await judge(pool, seen)).dead == frozenset()
    result = await judge(pool, seen)
    assert (result.dead, result.orphaned) == (frozenset({OTHER_WORKER}), (chat.id,))
    await workers.send_heartbeat(pool, OTHER)
    assert (await judge(pool, seen)).dead == frozenset(), "it has registered again"


@pytest.mark.covers("F19")
@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_the_age_of_a_renewal_by_the_databases_clock_means_nothing(
    pool: Pool, seconds: float
) -> None:
    """As after a jump of its clock, forward or back."""
    await plant_orphaned(pool, OTHER_WORKER, seconds, 1)
    result = await judge(pool)
    assert (result.dead, result.orphaned) == (frozenset(), ())


async def test_orphaned_chats_come_in_limited_batches(pool: Pool) -> None:
    orphans = await plant_orphaned(pool, OTHER_WORKER, 2000, 1, 2, 3)
    result = await judge(pool, await look(pool), limit=2)
    assert len(result.orphaned) == 2
    assert set(result.orphaned) < {chat.id for chat in orphans}


# Deleting workers


async def known(conn: Conn) -> set[WorkerId]:
    return {row["worker_id"] for row in await conn.fetch("SELECT worker_id FROM chat_workers")}


async def test_a_dead_worker_is_deleted_once_its_chats_are_released(pool: Pool) -> None:
    await plant_orphaned(pool, OTHER_WORKER, 2000, 1)
    dead = (await judge(pool, await look(pool))).dead
    await workers.delete_workers(pool, dead)
    assert await known(pool) == {WORKER, OTHER_WORKER}, "its chat would have no worker"
    await workers.release(pool, OTHER_WORKER)
    await workers.delete_workers(pool, frozenset())
    assert await known(pool) == {WORKER, OTHER_WORKER}
    await workers.delete_workers(pool, dead)
    assert await known(pool) == {WORKER}


async def test_a_worker_deleted_too_early_returns_with_its_next_heartbeat(pool: Pool) -> None:
    await send_heartbeat(pool)
    await workers.delete_workers(pool, frozenset({WORKER}))
    await send_heartbeat(pool)
    assert await known(pool) == {WORKER}


async def test_two_deletions_of_the_same_worker_do_not_block(pool: Pool) -> None:
    await send_heartbeat(pool)
    await plant_orphaned(pool, OTHER_WORKER, 2000)
    dead = frozenset({OTHER_WORKER})
    async with pool.transaction() as one, pool.transaction() as other:
        await workers.delete_workers(one, dead)
        await workers.delete_workers(other, dead)
    assert await known(pool) == {WORKER}


# Expired, lost, unknown and runnable chats


async def test_expired_deadlines_are_reported_the_latest_first(pool: Pool) -> None:
    for number, state in ((1, State.A0), (2, State.I0), (3, State.A1), (4, State.I1)):
        seed = Seed(state=state, chat_id=chat_id(number), owned=number == 2, worker=OTHER_WORKER)
        await insert_seed(pool, seed)
    assert (await send_heartbeat(pool)).expired == ()
    await age(pool, [chat_id(1), chat_id(3)], seconds=200)
    assert (await send_heartbeat(pool)).expired == ()
    await age(pool, [chat_id(1)], seconds=110)
    await age(pool, [chat_id(4)], seconds=40)
    await age(pool, [chat_id(2)], seconds=100)
    assert (await send_heartbeat(pool)).expired == (chat_id(2), chat_id(4), chat_id(1))
    assert (await send_heartbeat(pool, limit=1)).expired == (chat_id(2),)


async def test_a_heartbeat_reports_lost_and_unknown_chats(pool: Pool) -> None:
    mine, other, theirs, idle = (
        await open_chat(pool, 1, free=WORKER),
        await open_chat(pool, 2, free=WORKER),
        await open_chat(pool, 3, free=OTHER_WORKER),
        await insert_seed(pool, Seed(state=State.W, chat_id=chat_id(4))),
    )
    all_is_well = {mine.id: mine.epoch, other.id: other.epoch}
    quiet = replace(await send_heartbeat(pool, running=all_is_well), others=())
    assert quiet == replace(QUIET_HEARTBEAT, others_run=True)

    result = await send_heartbeat(
        pool,
        running={mine.id: mine.epoch, theirs.id: theirs.epoch, idle.id: idle.epoch, chat_id(99): 1},
    )
    assert set(result.lost) == {theirs.id, idle.id, chat_id(99)}
    assert result.unknown == (other.id,)


async def test_a_chat_that_came_back_at_another_epoch_is_both_lost_and_unknown(pool: Pool) -> None:
    """The task of the old epoch must stop, and no worker runs the new one."""
    before = await open_chat(pool, 1, free=WORKER)
    await workers.release(pool, WORKER)
    await workers.acquire(pool, WORKER, roots=1, children=0)
    result = await send_heartbeat(pool, running={before.id: before.epoch})
    assert (result.lost, result.unknown) == ((before.id,), (before.id,))


async def test_a_heartbeat_reports_whether_a_chat_is_runnable(pool: Pool) -> None:
    await open_chat(pool, 1, free=WORKER)
    child = await open_child(pool, 2, root=1)
    running = {chat_id(1): 1}
    assert (await send_heartbeat(pool, running=running)).runnable
    await workers.acquire(pool, WORKER, roots=0, children=1)
    running[child.id] = 1
    assert await send_heartbeat(pool, running=running) == QUIET_HEARTBEAT
    await open_chat(pool, 3)
    assert (await send_heartbeat(pool, running=running)).runnable
