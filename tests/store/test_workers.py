"""Acquiring and releasing chats: in order, and never by two workers, within
limits per owner and in total. Also the backlog that the metrics show.
"""

import asyncio
import math
from uuid import UUID

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from chatd.app.telemetry import Gauges
from chatd.domain.chat.commands import RecordRetry, SendMessage
from chatd.domain.chat.lease import WorkerDeath
from chatd.domain.chat.row import (
    Chat,
    Fence,
    RetryState,
    Setbacks,
)
from chatd.domain.chat.states import State
from chatd.domain.chat.takeover import DeathNotice
from chatd.domain.chat.user_transitions import interrupt, send_message
from chatd.domain.chat.worker_transitions import acquire, record_retry
from chatd.domain.ids import ChatId, UserId, WorkerId
from chatd.store.chat import chats, workers
from chatd.store.chat.workers import Backlog, RunningLimits
from chatd.store.database.conn import Conn
from chatd.store.database.pool import Pool
from tests.support.clock import FakeClock
from tests.support.factories import HARNESS, OTHER_WORKER, WORKER, prompt
from tests.support.seeds import Seed
from tests.support.store import (
    age,
    chat_id,
    dump,
    insert_seed,
    open_chat,
    open_child,
    session_to,
    write,
)
from tests.support.stored import stored, timeless
from tests.support.stream_replica import Emitted, env_with


async def take(conn: Conn, *, roots: int = 0, children: int = 0) -> set[int]:
    taken = await workers.acquire(conn, WORKER, roots=roots, children=children)
    assert all(chat.worker_id == WORKER for chat in taken)
    return {chat.id.int for chat in taken}


async def stopping(conn: Conn, number: int) -> None:
    """An interrupting chat without an owner."""
    await insert_seed(conn, Seed(state=State.I0, owned=False, chat_id=chat_id(number)))


async def runs_under(conn: Conn, number: int, worker: WorkerId) -> Chat:
    return await open_chat(conn, number, free=worker)


# Acquiring


async def test_the_longest_waiting_chat_is_acquired_first(pool: Pool) -> None:
    for number, seconds in ((1, 10), (2, 30), (3, 20), (4, 0)):
        chat = await open_chat(pool, number)
        await age(pool, [chat.id], seconds=seconds)
    assert [await take(pool, roots=1) for _ in range(5)] == [{2}, {3}, {1}, {4}, set()]


async def test_an_interrupting_chat_is_acquired_before_all_others(pool: Pool) -> None:
    waiting = await open_chat(pool, 1)
    await age(pool, [waiting.id], seconds=3600)
    await stopping(pool, 2)
    assert await take(pool, roots=1) == {2}
    assert await take(pool, roots=1) == {1}


async def test_chats_that_have_waited_equally_long_are_acquired_by_id(pool: Pool) -> None:
    for number in (3, 1, 2):
        await open_chat(pool, number)
    await pool.execute("UPDATE chats SET runnable_at = 'epoch'")
    assert [await take(pool, roots=1) for _ in range(3)] == [{1}, {2}, {3}]


async def test_a_new_message_does_not_change_the_place_of_a_waiting_chat(pool: Pool) -> None:
    first = await open_chat(pool, 1)
    await open_chat(pool, 2)
    await write(pool, send_message(first, SendMessage(prompt=prompt("well?")), None))
    assert await take(pool, roots=1) == {1}


@pytest.mark.covers("F40")
async def test_children_do_not_wait_for_slots_of_roots_nor_the_other_way(pool: Pool) -> None:
    for number in (1, 2, 3):
        await open_chat(pool, number)
        await open_child(pool, 10 + number, root=number)
    assert await take(pool, roots=0, children=2) == {11, 12}
    assert await take(pool, roots=2, children=0) == {1, 2}
    assert await take(pool, roots=5, children=5) == {3, 13}


async def test_without_a_free_slot_nothing_is_acquired(pool: Pool) -> None:
    await open_chat(pool, 1)
    before = await dump(pool)
    assert await take(pool) == set()
    assert await dump(pool) == before


async def test_a_locked_chat_is_skipped_and_acquired_next_time(
    pool: Pool,
) -> None:
    oldest = await open_chat(pool, 1)
    await age(pool, [oldest.id], seconds=60)
    await open_chat(pool, 2)
    async with asyncio.timeout(20), pool.transaction() as writer:
        await chats.lock(writer, oldest.id)
        assert await take(pool, roots=1) == {2}
        assert await take(pool, roots=1) == set()
    assert await take(pool, roots=1) == {1}


@pytest.mark.promise("P3")
async def test_concurrent_workers_never_acquire_the_same_chat(pool: Pool) -> None:
    for number in range(1, 31):
        await open_chat(pool, number)
    names = [WorkerId(UUID(int=100 + n)) for n in range(8)]
    taken = await asyncio.gather(
        *(workers.acquire(pool, name, roots=5, children=5) for name in names)
    )
    ids = [chat.id for batch in taken for chat in batch]
    assert len(ids) == len(set(ids)) == 30
    owners = {chat.id: chat.worker_id for batch in taken for chat in batch}
    assert {it.chat.id: it.chat.worker_id for it in (await stored(pool)).values()} == owners


@pytest.mark.covers("F19")
@pytest.mark.parametrize("delay_s", [None, 30.0, 3600.0])
async def test_a_runnable_time_beyond_the_chats_own_delay_means_that_the_clock_went_back(
    pool: Pool, delay_s: float | None
) -> None:
    """Otherwise the chat would be stuck for as long as the clock jumped."""
    if delay_s is None:
        chat = await open_chat(pool, 1)
    else:
        chat = await wait_for_retry(pool, 1, delay_s)
    await pool.execute("UPDATE chats SET runnable_at = now()")
    await age(pool, [chat.id], seconds=-(delay_s or 75.0))
    assert await take(pool, roots=1) == set()
    await age(pool, [chat.id], seconds=-60)
    assert await take(pool, roots=1) == {1}


# Chats that wait


async def wait_for_retry(conn: Conn, number: int, delay_s: float) -> Chat:
    chat = await open_chat(conn, number, free=WORKER)
    state = RetryState(attempt=1, delay_ms=round(delay_s * 1000), error="busy")
    change = record_retry(chat, RecordRetry(fence=Fence.of(chat), state=state))
    return (await write(conn, change)).chat


@pytest.mark.promise("P2")
async def test_a_chat_that_waits_for_its_retry_is_acquired_when_it_is_due(pool: Pool) -> None:
    waiting = await wait_for_retry(pool, 1, 60)
    await open_chat(pool, 2)
    assert await take(pool, roots=9) == {2}
    assert await acquire_some(pool, RunningLimits()) == set()
    await age(pool, [waiting.id], seconds=60)
    [taken] = await workers.acquire(pool, OTHER_WORKER, roots=9, children=0)
    assert taken.setbacks == Setbacks(failed_calls=1, waited_ms=60_000, discarded_attempt=1)
    assert (taken.retry_state, taken.attempt) == (None, waiting.attempt)


async def test_a_message_in_the_queue_does_not_end_the_wait_and_an_edit_does(pool: Pool) -> None:
    waiting = await wait_for_retry(pool, 1, 60)
    change = send_message(waiting, SendMessage(prompt=prompt("and?")), None)
    queued = (await write(pool, change)).chat
    assert await take(pool, roots=9) == set()
    command = SendMessage(prompt=prompt("rather this"), when_busy="rollback")
    await write(pool, send_message(queued, command, None))
    assert await take(pool, roots=9) == {1}


async def test_a_waiting_chat_is_counted_as_delayed(pool: Pool) -> None:
    await wait_for_retry(pool, 1, 60)
    found = await workers.read_backlog(pool)
    assert (found.pending, found.delayed, found.oldest_pending_s) == (0, 1, 0)


# Isolated chats


async def isolated(conn: Conn, number: int, *, due_for_s: float = 0) -> None:
    chat = await open_chat(conn, number)
    await conn.execute("UPDATE chats SET orphan_count = 2 WHERE id = $1", chat.id)
    await age(conn, [chat.id], seconds=due_for_s)


NO_ISOLATED = workers.IsolatedVacancy(chats=0)


@pytest.mark.promise("P2")
@pytest.mark.parametrize("limits", [None, RunningLimits(roots=1000)], ids=["free", "limited"])
async def test_a_worker_takes_one_isolated_chat_at_a_time(
    pool: Pool, limits: RunningLimits | None
) -> None:
    async def taken(vacancy: workers.IsolatedVacancy) -> list[int]:
        if limits is None:
            rows = await workers.acquire(pool, WORKER, roots=9, children=9, isolated=vacancy)
        else:
            rows = await workers.acquire_within_limits(
                pool, WORKER, limits, roots=9, children=9, isolated=vacancy
            )
        return sorted(row.id.int for row in rows)

    for number in (1, 2):
        await isolated(pool, number, due_for_s=5)
    assert await taken(NO_ISOLATED) == []
    assert await taken(workers.IsolatedVacancy(overdue_s=10)) == []
    assert len(await taken(workers.IsolatedVacancy())) == 1
    await open_chat(pool, 3)
    assert await taken(NO_ISOLATED) == [3]
    assert len(await taken(workers.IsolatedVacancy(overdue_s=4))) == 1


async def test_an_isolated_chat_takes_one_of_the_slots(pool: Pool) -> None:
    await isolated(pool, 1)
    for number in (2, 3):
        await open_chat(pool, number)
    assert len(await take(pool, roots=2)) == 2
    assert len(await take(pool, roots=2)) == 1


async def test_an_interrupting_chat_is_never_held_back(pool: Pool) -> None:
    await stopping(pool, 1)
    await pool.execute("UPDATE chats SET orphan_count = 5")
    rows = await workers.acquire(pool, WORKER, roots=1, children=0, isolated=NO_ISOLATED)
    assert len(rows) == 1


async def test_the_death_of_a_worker_tells_what_it_ran_and_for_how_long(
    pool: Pool, dsn: str
) -> None:
    dead, frozen = WorkerId(UUID(int=1 << 100)), WorkerId(UUID(int=2 << 100))
    for number, worker in ((1, dead), (2, dead), (3, dead), (4, frozen)):
        await open_chat(pool, number, free=worker)
    isolated = [chat_id(2), chat_id(3)]
    await pool.execute("UPDATE chats SET orphan_count = 2 WHERE id = ANY ($1)", isolated)
    await pool.execute(
        "UPDATE chat_runs SET started_at = now() - interval '2 h' WHERE chat_id = $1", chat_id(3)
    )
    for worker in (dead, frozen):
        await pool.execute(
            """INSERT INTO chat_workers (worker_id, lock_key, started_at, renewed_at, lease_until)
               VALUES ($1, $2, now() - interval '1 h', now() - interval '59 min', now())""",
            worker,
            workers.worker_lock_key(worker),
        )
    async with session_to(dsn) as session:
        await session.execute("SELECT pg_advisory_lock($1)", workers.worker_lock_key(frozen))
        await workers.send_heartbeat(pool, workers.Heartbeat(worker_id=WORKER, running={}))
        notices = {
            dead: DeathNotice(sign="lock_gone"),
            frozen: DeathNotice(sign="lease_stale", watched=True),
        }
        deaths = await workers.read_deaths(pool, notices, WORKER)
    assert deaths == {
        dead: WorkerDeath(
            uptime_s=60,
            suspects=frozenset({chat_id(2)}),
            lock_held=False,
            before_reaper=True,
        ),
        frozen: WorkerDeath(
            uptime_s=60, suspects=frozenset(), lock_held=True, watched=True, before_reaper=True
        ),
    }
    others = await workers.read_deaths(pool, notices, frozen)
    assert not any(death.before_reaper for death in others.values()), "it started before"


# Releasing


async def test_a_worker_releases_only_its_own_chats(pool: Pool) -> None:
    mine = await runs_under(pool, 1, WORKER)
    also_mine = await runs_under(pool, 2, WORKER)
    theirs = await runs_under(pool, 3, OTHER_WORKER)
    assert {it.id for it in await workers.release(pool, WORKER)} == {mine.id, also_mine.id}
    left = await chats.get(pool, HARNESS, theirs.id)
    assert left == theirs
    assert await workers.release(pool, WORKER) == []


async def test_a_worker_may_release_some_chats(pool: Pool) -> None:
    for number in (1, 2, 3):
        await runs_under(pool, number, WORKER)
    theirs = await runs_under(pool, 4, OTHER_WORKER)
    some: list[ChatId] = [chat_id(2), theirs.id, chat_id(99)]
    assert [it.id.int for it in await workers.release(pool, WORKER, some)] == [2]
    assert await workers.release(pool, WORKER, []) == []


async def test_an_interrupting_chat_keeps_its_deadline_through_release_and_acquire(
    pool: Pool,
) -> None:
    chat = await runs_under(pool, 1, WORKER)
    stopped = await write(pool, interrupt(chat, None))
    [released] = await workers.release(pool, WORKER)
    [taken] = await workers.acquire(pool, OTHER_WORKER, roots=1, children=0)
    assert stopped.chat.interrupt_deadline is not None
    assert released.interrupt_deadline == stopped.chat.interrupt_deadline
    assert taken.interrupt_deadline == stopped.chat.interrupt_deadline


async def test_releasing_and_archiving_a_tree_at_once_do_not_deadlock(
    pool: Pool,
) -> None:
    """Both lock the root first, then by id: the second one waits, and neither deadlocks."""
    await runs_under(pool, 5, WORKER)
    for number in (1, 9):
        await open_child(pool, number, root=5)
    await workers.acquire(pool, WORKER, roots=9, children=9)

    async def lock_family() -> None:
        async with pool.transaction() as session:
            await chats.lock_tree(session, HARNESS, chat_id(5), "chats.control")

    async with asyncio.timeout(30):
        for _ in range(20):
            await asyncio.gather(lock_family(), workers.release(pool, WORKER), lock_family())
            await workers.acquire(pool, WORKER, roots=9, children=9)


NOTHING = Backlog(pending=0, delayed=0, running=0, interrupting=0, oldest_pending_s=0)


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
    await pool.execute("UPDATE chats SET runnable_at = now() + interval '2 h'")
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


OTHER = UserId(UUID(int=71))


async def acquire_some(
    conn: Conn, limits: RunningLimits, *, roots: int = 10, children: int = 0
) -> set[int]:
    chats = await workers.acquire_within_limits(
        conn, WORKER, limits, roots=roots, children=children
    )
    return {chat.id.int for chat in chats}


async def acquire_all(conn: Conn, limits: RunningLimits, **slots: int) -> set[int]:
    """Acquire until no chat may be acquired."""
    found: set[int] = set()
    while acquired := await acquire_some(conn, limits, **slots):
        assert len(acquired) == 1
        found |= acquired
    return found


async def test_the_limit_per_owner_does_not_hold_up_others(
    pool: Pool,
) -> None:
    for number in (1, 2, 3):
        await open_chat(pool, number)
    await open_chat(pool, 4, owner_id=OTHER)
    await open_chat(pool, 5, free=OTHER_WORKER)
    assert await acquire_all(pool, RunningLimits(roots_per_owner=2)) == {1, 4}
    await workers.release(pool, OTHER_WORKER)
    assert len(await acquire_all(pool, RunningLimits(roots_per_owner=2))) == 1


async def test_the_total_limit_holds(pool: Pool) -> None:
    for number in (1, 2, 3):
        await open_chat(pool, number, owner_id=UserId(UUID(int=number)))
    await open_chat(pool, 4, free=OTHER_WORKER)
    assert len(await acquire_all(pool, RunningLimits(roots=3))) == 2
    assert await acquire_some(pool, RunningLimits(roots=3)) == set()
    assert len(await acquire_some(pool, RunningLimits(roots=4))) == 1


async def test_subagents_have_limits_of_their_own(pool: Pool) -> None:
    await open_chat(pool, 1, free=OTHER_WORKER)
    for number in (2, 3, 4):
        await open_child(pool, number, root=1)
    assert len(await acquire_all(pool, RunningLimits(roots=1, children=2), children=10)) == 2
    assert len(await acquire_all(pool, RunningLimits(children_per_owner=3), children=10)) == 1


async def test_without_a_slot_no_chat_is_acquired_under_any_limit(pool: Pool) -> None:
    await open_chat(pool, 1)
    assert await acquire_some(pool, RunningLimits(roots=5), roots=0) == set()


async def test_an_interrupting_chat_is_acquired_above_the_limit_of_its_owner(
    pool: Pool,
) -> None:
    await open_chat(pool, 1, free=OTHER_WORKER)
    await insert_seed(pool, Seed(state=State.I0, owned=False, chat_id=chat_id(2)))
    assert await acquire_all(pool, RunningLimits(roots_per_owner=1)) == {2}


async def test_a_chat_is_acquired_the_same_way_with_a_limit_and_without(pool: Pool) -> None:
    """An interrupt is no new attempt; otherwise the live parts of the last one would be lost."""
    states = (State.P0, State.P1, State.I0, State.I1)
    for number, state in enumerate(states):
        await insert_seed(pool, Seed(state=state, owned=False, retry=True, chat_id=chat_id(number)))
    before = await stored(pool)
    assert len(await acquire_all(pool, RunningLimits())) == len(states)
    for taken_id, now in (await stored(pool)).items():
        was = before[taken_id].chat
        meant = msgspec.structs.replace(acquire(was, WORKER).after, runnable_at=None)
        assert now.timeless().chat == timeless(meant, (), ()).chat
