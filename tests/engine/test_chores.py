"""Work on the side: done at start and a fixed time after it was done, and nobody's undoing."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from chatd.domain.errors import Unavailable
from chatd.domain.ports import Env
from chatd.engine.maintenance import maintenance_tasks
from chatd.engine.periodic import BackgroundTasks, PeriodicTask
from chatd.store.pool import Pool
from tests.support.clock import FakeClock
from tests.support.factories import CHAT
from tests.support.house import Events, change_id
from tests.support.providers.server import Gate


class Broom:
    """A chore that the test can watch and hold up."""

    def __init__(self, *, fails: bool = False) -> None:
        self.gate = Gate()
        self.done = 0
        self.fails = fails

    async def work(self) -> None:
        await self.gate.pass_through()
        if self.fails:
            raise Unavailable("no broom")
        self.done += 1


def env_of(clock: FakeClock, events: Events) -> Env:
    return Env(clock=clock, emit=events, new_id=lambda: CHAT, new_change_id=change_id)


@asynccontextmanager
async def running(chores: BackgroundTasks) -> AsyncGenerator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(chores.run())
        yield
        task.cancel()


async def test_a_chore_is_done_at_once_and_again_after_a_while(clock: FakeClock) -> None:
    """The while begins when it is done, however long that took."""
    broom, events = Broom(), Events()
    chore = PeriodicTask(name="sweep", interval_s=60, work=broom.work)
    async with running(BackgroundTasks(env_of(clock, events), [chore])):
        await broom.gate.reached.wait()
        clock.advance(600)
        broom.gate.open()
        assert await clock.asleep_on("periodic_sweep") == 60
        assert broom.done == 1
        await clock.pass_over("periodic_sweep")
        await clock.asleep_on("periodic_sweep")
        assert broom.done == 2


async def test_a_chore_that_fails_is_tried_again_and_disturbs_nobody(clock: FakeClock) -> None:
    bad, good, events = Broom(fails=True), Broom(), Events()
    chores = [
        PeriodicTask(name="bad", interval_s=60, work=bad.work),
        PeriodicTask(name="good", interval_s=60, work=good.work),
    ]
    async with running(BackgroundTasks(env_of(clock, events), chores)):
        bad.gate.open()
        failed = await events.wait("periodic_task_failed", task="bad")
        assert failed["error_kind"] == "unavailable"
        bad.fails = False
        good.gate.open()
        await clock.asleep_on("periodic_bad")
        await clock.pass_over("periodic_good")
        await events.wait("periodic_task_done", task="bad")
        await events.wait("periodic_task_done", task="good")


async def test_errands_are_bounded_and_end_with_the_server(clock: FakeClock) -> None:
    broom, events = Broom(), Events()
    chores = BackgroundTasks(env_of(clock, events), max_submitted=2)
    assert not chores.submit("too early", broom.work)
    async with running(chores):
        await clock.sleep(0, "let it begin")
        assert chores.submit("one", broom.work)
        assert chores.submit("two", broom.work)
        assert not chores.submit("three", broom.work)
        await broom.gate.reached.wait()
    assert broom.done == 0
    assert not chores.submit("too late", broom.work)


async def test_old_keys_go_and_what_was_spent_is_added_up(pool: Pool) -> None:
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
    for chore in maintenance_tasks(pool):
        await chore.work()
    assert await pool.fetchval("SELECT count(*) FROM chat_requests") == 23
    assert await pool.fetchval("SELECT sum(cost_micros) FROM usage_daily") == 35
