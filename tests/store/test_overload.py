"""Overload: requests are refused without a change, and heartbeats continue, so that a busy replica
does not count as dead.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChangeId
from chatd.store.chat import chats, workers
from chatd.store.chat.operation import AppliedChange
from chatd.store.chat.transactor import Transactor
from chatd.store.chat.workers import Heartbeat
from chatd.store.conn import ConnectConfig
from chatd.store.pool import Database, Pool, PoolConfig
from tests.support.eventually import eventually
from tests.support.factories import CHAT, WORKER
from tests.support.operations import create_chat, ignore_applied, new_chat, sending
from tests.support.stored import stored


@asynccontextmanager
async def replica(
    dsn: str, *, size: int = 2, limits: Mapping[str, float] | None = None
) -> AsyncGenerator[Database]:
    link = replace(ConnectConfig(dsn=dsn, application_name="replica"), **(limits or {}))
    database = Database(PoolConfig(connect=link, max_size=size, acquire_timeout_s=0.05))
    try:
        yield database
    finally:
        await database.close()


async def begin(pool: Pool) -> None:
    await create_chat(Transactor(pool, ignore_applied), new_chat(1), ChangeId(1))


async def refused(transactor: Transactor) -> Unavailable:
    with pytest.raises(Unavailable) as refusal:
        await transactor.run(sending("second", ChangeId(7)))
    return refusal.value


@pytest.mark.covers("F45")
async def test_a_replica_whose_pool_is_exhausted_refuses_and_keeps_its_lease(
    dsn: str, pool: Pool
) -> None:
    await begin(pool)
    async with replica(dsn) as database:
        transactor = Transactor(database.pool, ignore_applied)
        async with database.pool.transaction(), database.pool.transaction():
            refusal = await refused(transactor)
            heard = await workers.send_heartbeat(
                database.heartbeat, Heartbeat(worker_id=WORKER, running={CHAT: 1})
            )
        assert (refusal.code, refusal.maybe_applied) == ("database_busy", False)
        assert heard.lost == ()
        assert await lease_s(pool) > 0
        outcome = await transactor.run(sending("second", ChangeId(7)))
    assert isinstance(outcome, AppliedChange)
    assert outcome.chat.snapshot_version == 2


async def lease_s(pool: Pool) -> float:
    return await pool.fetchval(
        "SELECT extract(epoch FROM lease_until - now()) FROM chat_workers WHERE worker_id = $1",
        WORKER,
    )


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"statement_timeout_s": 0.1}, "database_timeout"),
        ({"lock_timeout_s": 0.1}, "database_busy"),
    ],
)
async def test_a_change_blocked_for_too_long_is_given_up_and_not_written(
    dsn: str, pool: Pool, limits: dict[str, float], code: str
) -> None:
    await begin(pool)
    async with replica(dsn, limits=limits) as database:
        transactor = Transactor(database.pool, ignore_applied)
        async with pool.transaction() as holder:
            await chats.lock(holder, CHAT)
            refusal = await refused(transactor)
            assert (refusal.code, refusal.maybe_applied) == (code, False)
        assert (await stored(pool))[CHAT].chat.snapshot_version == 1
        outcome = await transactor.run(sending("second", ChangeId(7)))
    assert isinstance(outcome, AppliedChange)
    assert not outcome.replayed


async def test_a_caller_cancelled_while_blocked_leaves_nothing_behind(dsn: str, pool: Pool) -> None:
    """Neither a statement that would be applied later, nor a session."""
    await begin(pool)
    async with replica(dsn, size=1) as database:
        async with pool.transaction() as holder:
            await chats.lock(holder, CHAT)
            async with asyncio.TaskGroup() as group:
                transactor = Transactor(database.pool, ignore_applied)
                caller = group.create_task(transactor.run(sending("second", ChangeId(7))))
                await eventually(lambda: are_held_up(pool, 1))
                caller.cancel()
            await eventually(lambda: are_held_up(pool, 0))
        assert (await stored(pool))[CHAT].chat.snapshot_version == 1
        outcome = await transactor.run(sending("third", ChangeId(8)))
    assert isinstance(outcome, AppliedChange)


async def are_held_up(pool: Pool, count: int) -> bool:
    waiting = await pool.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'replica' AND wait_event_type = 'Lock'"
    )
    return waiting == count
