"""Many concurrent writers: no deadlock, one writer per version, nothing lost or doubled."""

import asyncio
from collections import Counter
from random import Random
from uuid import UUID

import msgspec
import pytest

from chatd.store.chat import chats, workers
from chatd.store.chat.chats import LOCK
from chatd.store.conn import ConnectConfig
from chatd.store.pool import Pool, PoolConfig
from tests.support import run_length
from tests.support.eventually import eventually
from tests.support.outcomes import present
from tests.support.processes import running
from tests.support.random_actors import ConcurrentRun, RandomActors, Role

ACQUIRER = "tests.support.acquirer_process"
THOUSAND_RUNNABLE = """
    INSERT INTO chats (id, owner_id, root_chat_id, title, status, snapshot_version,
        history_version, runnable_at)
    SELECT id, id, id, 'A chat', 'running', 1, 1, now()
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
            roles, max_actions=50_000, timeout_s=run_length.concurrent_run_s(20)
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
        await chats.lock_tree(archiver, root)
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
