"""Periodic and submitted background tasks, and the maintenance tasks of a replica."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from chatd.aio import BackgroundTasks, PeriodicTask
from chatd.domain.errors import Unavailable
from chatd.domain.ports import Env
from chatd.engine.maintenance import SearchIndexing, maintenance_tasks
from chatd.engine.model.call_records import UsageWriter
from chatd.store.database.pool import Pool
from tests.support.clock import FakeClock
from tests.support.engine_rig import Events, change_id
from tests.support.factories import CHAT
from tests.support.providers.server import Gate


class GatedWork:
    """Work that waits at a gate, counts its runs and can be made to fail."""

    def __init__(self, *, fails: bool = False) -> None:
        self.gate = Gate()
        self.done = 0
        self.fails = fails

    async def run(self) -> None:
        await self.gate.pass_through()
        if self.fails:
            raise Unavailable("no database")
        self.done += 1


def env_of(clock: FakeClock, events: Events) -> Env:
    return Env(clock=clock, emit=events, new_id=lambda: CHAT, new_change_id=change_id)


@asynccontextmanager
async def running(tasks: BackgroundTasks) -> AsyncGenerator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(tasks.run())
        yield
        task.cancel()


async def test_a_periodic_task_runs_at_start_and_again_after_its_interval(clock: FakeClock) -> None:
    """The interval starts when a run ends."""
    work, events = GatedWork(), Events()
    task = PeriodicTask(name="example", interval_s=60, work=work.run)
    async with running(BackgroundTasks(env_of(clock, events), [task])):
        await work.gate.reached.wait()
        clock.advance(600)
        work.gate.open()
        assert await clock.wait_for_sleeper("periodic_example") == 60
        assert work.done == 1
        await clock.advance_past("periodic_example")
        await clock.wait_for_sleeper("periodic_example")
        assert work.done == 2


async def test_a_failed_periodic_task_runs_again_and_does_not_affect_others(
    clock: FakeClock,
) -> None:
    bad, good, events = GatedWork(fails=True), GatedWork(), Events()
    tasks = [
        PeriodicTask(name="bad", interval_s=60, work=bad.run),
        PeriodicTask(name="good", interval_s=60, work=good.run),
    ]
    async with running(BackgroundTasks(env_of(clock, events), tasks)):
        bad.gate.open()
        failed = await events.wait("periodic_task_failed", task="bad")
        assert failed["error_kind"] == "unavailable"
        bad.fails = False
        good.gate.open()
        await clock.wait_for_sleeper("periodic_bad")
        await clock.advance_past("periodic_good")
        await events.wait("periodic_task_done", task="bad")
        await events.wait("periodic_task_done", task="good")


async def test_submitted_tasks_are_limited_and_cancelled_at_shutdown(clock: FakeClock) -> None:
    work, events = GatedWork(), Events()
    tasks = BackgroundTasks(env_of(clock, events), max_submitted=2)
    assert not tasks.submit("too early", work.run)
    async with running(tasks):
        await clock.sleep(0, "start")
        assert tasks.submit("one", work.run)
        assert tasks.submit("two", work.run)
        assert not tasks.submit("three", work.run)
        await work.gate.reached.wait()
    assert work.done == 0
    assert not tasks.submit("too late", work.run)


async def test_maintenance_deletes_old_idempotency_keys_and_rolls_up_usage(pool: Pool) -> None:
    await pool.execute(
        """INSERT INTO chats (id, owner_id, root_chat_id, title, status, snapshot_version,
               history_version) VALUES ($1, $1, $1, 't', 'waiting', 1, 1)""",
        CHAT,
    )
    await pool.execute(
        """INSERT INTO chat_requests (scope, request_id, chat_id, op, fingerprint, version,
               created_at)
           SELECT $1, md5(n::text)::uuid, $1, 'send', '', 1, now() - n * interval '1 h'
           FROM generate_series(1, 30) n""",
        CHAT,
    )
    await pool.execute(
        """INSERT INTO usage_events (at, owner_id, chat_id, root_chat_id, kind, provider, model,
               input_tokens, output_tokens, reasoning_tokens, cache_creation_tokens,
               cache_read_tokens, cost_micros, ok)
           SELECT now() - n * interval '1 day', $1, $1, $1, 'turn', 'p', 'm', 1, 1, 0, 0, 0, 7,
               true FROM generate_series(1, 5) n""",
        CHAT,
    )
    env = env_of(FakeClock(), Events())
    for task in maintenance_tasks(
        pool, env, UsageWriter(pool, env), SearchIndexing(pool, env.clock)
    ):
        await task.work()
    assert await pool.fetchval("SELECT count(*) FROM chat_requests") == 23
    assert await pool.fetchval("SELECT sum(cost_micros) FROM usage_daily") == 35
