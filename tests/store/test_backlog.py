"""The backlog of all replicas, as the metrics show it."""

import asyncio
import math

from prometheus_client import CollectorRegistry

from chatd.domain.chat.states import State
from chatd.store.chat import workers
from chatd.store.chat.workers import Backlog
from chatd.store.pool import Pool
from chatd.telemetry import Gauges
from tests.support.clock import FakeClock
from tests.support.factories import WORKER
from tests.support.seeds import Seed
from tests.support.store import chat_id, insert_seed, open_chat, open_child
from tests.support.stream_replica import Emitted, env_with

NOTHING = Backlog(pending=0, running=0, interrupting=0, oldest_pending_s=0)


async def test_active_chats_are_counted_and_the_longest_wait_is_known(pool: Pool) -> None:
    assert await workers.read_backlog(pool) == NOTHING
    await open_chat(pool, 1)
    await pool.execute("UPDATE chats SET runnable_at = now() - interval '1 min'")
    await open_child(pool, 2, root=1)
    await open_chat(pool, 3, free=WORKER)
    await insert_seed(pool, Seed(state=State.I0, chat_id=chat_id(4)))
    await insert_seed(pool, Seed(state=State.W, chat_id=chat_id(5)))
    found = await workers.read_backlog(pool)
    assert (found.pending, found.running, found.interrupting) == (2, 1, 1)
    assert found.oldest_pending_s >= 60


async def test_a_clock_that_went_back_gives_a_wait_of_zero(pool: Pool) -> None:
    await open_chat(pool, 1)
    await pool.execute("UPDATE chats SET runnable_at = now() + interval '1 h'")
    assert (await workers.read_backlog(pool)).oldest_pending_s == 0


async def test_an_unreadable_backlog_is_not_shown_as_a_number(pool: Pool) -> None:
    registry, clock, told = CollectorRegistry(), FakeClock(), Emitted()

    def shown() -> tuple[float | None, float | None]:
        pending = registry.get_sample_value("chatd_chats", {"state": "pending"})
        return pending, registry.get_sample_value("chatd_oldest_pending_seconds")

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        watching = group.create_task(Gauges(registry).run(pool, env_with(clock, told)))
        await clock.wait_for_sleeper("backlog")
        assert shown() == (0, 0)
        await pool.close()
        await clock.advance_past("backlog")
        await clock.wait_for_sleeper("backlog")
        assert [math.isnan(value or 0) for value in shown()] == [True, True]
        watching.cancel()
    assert told.counts == {"backlog_read_failed": 1}
