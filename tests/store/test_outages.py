"""Outages, overload and many writers: no change is lost or doubled.

After an outage acknowledged changes are stored, and others can be retried until they are applied
once. Under overload requests are refused without a change, and heartbeats continue, so that a busy
replica does not count as dead. Concurrent writers never deadlock.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from uuid import UUID

import asyncpg
import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from chatd.domain.errors import Unavailable
from chatd.domain.ids import ChangeId
from chatd.store.chat import chats, workers
from chatd.store.chat.chats import LOCK
from chatd.store.chat.operation import AppliedChange
from chatd.store.chat.transactor import Transactor
from chatd.store.chat.workers import Heartbeat
from chatd.store.database.conn import ConnectConfig, translate_driver_error
from chatd.store.database.pool import Database, Pool, PoolConfig
from tests.support import run_length
from tests.support.chaos.killable_server import killable_server
from tests.support.eventually import eventually
from tests.support.factories import CHAT, HARNESS, WORKER
from tests.support.operations import create_chat, ignore_applied, new_chat, sending
from tests.support.outcomes import present
from tests.support.processes import running
from tests.support.proxy import Proxy
from tests.support.random_actors import ConcurrentRun, RandomActors, Role
from tests.support.stored import stored


class Work(Struct, frozen=True):
    actors: RandomActors
    run: ConcurrentRun

    async def until(self, blow: Callable[[], Awaitable[None]]) -> None:
        """Eight tasks are writing during the outage."""
        roles: dict[Role, int] = {self.actors.act_as_user: 6, self.actors.run_step: 2}
        async with asyncio.TaskGroup() as group:
            group.create_task(self.run.run(roles, max_actions=10_000, timeout_s=30))
            await self.run.wait_done(150)
            await blow()
            self.run.stop()

    async def is_all_there(self) -> None:
        await self.run.finish_unknown()
        await eventually(self._checked)

    async def _checked(self) -> bool:
        """A server that ends its sessions may reach ours only now."""
        try:
            await self.actors.check()
        except Unavailable:
            return False
        return True


@asynccontextmanager
async def work_on(dsn: str) -> AsyncGenerator[Work]:
    link = ConnectConfig(dsn=dsn, application_name="crowd")
    pool = Pool(PoolConfig(connect=link, max_size=8))
    try:
        actors = RandomActors(pool, Random(1))
        await actors.create_chats(single=4)
        yield Work(actors, ConcurrentRun(actors, outage=True))
    finally:
        await pool.close()


@pytest.mark.promise("P1")
async def test_a_killed_database_keeps_what_it_acknowledged_and_retries_apply_once() -> None:
    """Takes seconds: a server is created, killed and recovers several times."""
    async with killable_server() as server, work_on(server.dsn) as work:
        for _ in range(3):
            await work.until(server.kill)
            await server.restart()
            await work.is_all_there()
        assert work.run.retried > 0


@pytest.mark.promise("P1")
async def test_a_crashed_backend_ends_all_sessions_and_loses_no_change() -> None:
    """The postmaster ends all other sessions too, and recovers by itself."""
    async with killable_server() as server, work_on(server.dsn) as work:

        async def crash_one() -> None:
            pid: int = await work.actors.pool.fetchval(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'crowd' "
                "AND pid <> pg_backend_pid() LIMIT 1"
            )
            os.kill(pid, signal.SIGKILL)

        for _ in range(2):
            await work.until(crash_one)
            await work.is_all_there()
        assert work.run.retried > 0


@pytest.mark.promise("P1")
async def test_a_cut_connection_loses_replies_but_no_change_and_doubles_none(
    pool: Pool, proxy: Proxy
) -> None:
    async with work_on(proxy.dsn) as work:

        async def lose_replies() -> None:
            proxy.hold_replies()
            work.run.stop()  # a new session would get replies
            await eventually(lambda: is_no_session_active(pool), within_s=20)
            proxy.cut()

        for _ in range(5):
            await work.until(lose_replies)
            await work.is_all_there()
        happened = work.actors.outcomes
    assert any("replayed" in what for what in happened), "every change was acknowledged"


async def is_no_session_active(pool: Pool) -> bool:
    """A session that waits for a lock or for its client does not count as active."""
    at_work = await pool.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'crowd' AND state = 'active' "
        "AND (wait_event_type IS NULL OR wait_event_type NOT IN ('Lock', 'Client'))"
    )
    return at_work == 0


def test_an_internal_driver_error_is_a_lost_connection() -> None:
    """A server that stops notifies idle sessions and closes them a moment later."""
    confused = asyncpg.InternalClientError("cannot switch to state 12")
    fault = translate_driver_error(confused, sent=True)
    assert isinstance(fault, Unavailable)
    assert fault.code == "database_down"


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


ACQUIRER = "tests.support.chaos.acquirer_process"
THOUSAND_RUNNABLE = """
    INSERT INTO chats (id, owner_id, root_chat_id, title, status, snapshot_version,
        history_version, runnable_at)
    SELECT id, '00000000-0000-0000-0000-000000000001', id, 'A chat', 'running', 1, 1, now()
    FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 1000)) made"""


@pytest.mark.promise("P1", "P3", "P9")
async def test_twenty_four_writers_on_twenty_chats_leave_what_was_reported(dsn: str) -> None:
    """Long, because races are rare. Any error but a refusal fails the test, also a deadlock."""
    statements: Counter[str] = Counter()
    config = PoolConfig(connect=ConnectConfig(dsn=dsn), max_size=16)
    pool = Pool(config, on_statement=lambda query: statements.update((query,)))
    try:
        actors = RandomActors(pool, Random(run_length.seed(1)))
        await actors.create_chats(single=8, trees=4, children=2)
        roles: dict[Role, int] = {
            actors.act_as_user: 13,
            actors.act_as_worker: 8,
            actors.change_tree: 2,
            actors.reap_or_expire: 1,
        }
        await ConcurrentRun(actors).run(
            roles, max_actions=50_000, timeout_s=run_length.concurrent_run_s(8)
        )
        await actors.check()
    finally:
        await pool.close()
    assert statements[LOCK] > 0, "no two writers met"


async def test_releasing_all_chats_while_a_tree_is_archived_is_no_deadlock(pool: Pool) -> None:
    """Both lock several rows and wait for each, so both must lock in the same
    order, independent of the order in which the rows were written."""
    actors = RandomActors(pool, Random(1))
    root = present(await actors.create(None))
    await actors.create(root)
    me = actors.workers[0]
    await workers.acquire(pool, me, roots=0, children=1)
    await workers.acquire(pool, me, roots=1, children=0)
    async with asyncio.TaskGroup() as group, pool.transaction() as archiver:
        await chats.lock(archiver, root)
        releasing = group.create_task(workers.release(pool, me))
        await eventually(lambda: is_waiting_for_a_row(pool))
        await chats.lock_tree(archiver, HARNESS, root, "chats.control")
    assert len(releasing.result()) == 2


async def is_waiting_for_a_row(pool: Pool) -> bool:
    return await pool.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock' AND wait_event IN ('transactionid', 'tuple')"
    )


@pytest.mark.promise("P3")
async def test_two_processes_that_acquire_at_once_never_get_the_same_chat(
    dsn: str, pool: Pool
) -> None:
    await pool.execute(THOUSAND_RUNNABLE)
    names = [UUID(int=1), UUID(int=2)]
    owners: dict[UUID, UUID] = {}
    async with (
        running(ACQUIRER, dsn, str(names[0])) as one,
        running(ACQUIRER, dsn, str(names[1])) as other,
    ):
        while True:
            answers = await asyncio.gather(one.ask("7"), other.ask("7"))
            got = [msgspec.json.decode(answer, type=list[UUID]) for answer in answers]
            if not any(got):
                break
            for worker, ids in zip(names, got, strict=True):
                assert not owners.keys() & ids, "acquired twice"
                owners.update(dict.fromkeys(ids, worker))
    rows = await pool.fetch("SELECT id, worker_id, epoch FROM chats")
    assert {row["id"]: row["worker_id"] for row in rows} == owners
    assert {row["epoch"] for row in rows} == {1}
    assert len(owners) == 1000
    assert set(owners.values()) == set(names)
