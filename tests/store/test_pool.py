"""The pool: bounded waits, no leaks, and recovery after a database restart.

The test database: every test finds it in its initial state.
"""

import asyncio
import gc
from asyncio import Event, TaskGroup, gather, wait
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import count
from uuid import UUID

import pytest

from chatd.aio import run_other_tasks
from chatd.domain.errors import ChatdError, InvariantBroken, Unavailable
from chatd.store.database.conn import (
    CheckFailed,
    ConnectConfig,
    StatementWatch,
    connect,
    statement_name,
)
from chatd.store.database.pool import (
    MAX_SHARED_WRITES,
    SHARED_FROM_SESSIONS,
    Database,
    Pool,
    PoolConfig,
)
from chatd.store.model import model_configs
from tests.support.database import Clone, OwnServer
from tests.support.eventually import eventually
from tests.support.outcomes import present, raised
from tests.support.proxy import Proxy, proxy_to
from tests.support.store import session_to

OWN_PID = "SELECT pg_backend_pid()"
TAKE = "SELECT pg_advisory_xact_lock(42)"


@asynccontextmanager
async def pool_of(
    size: int, dsn: str, *, acquire_timeout_s: float = 5, close_timeout_s: float = 5
) -> AsyncGenerator[Pool]:
    config = PoolConfig(
        connect=ConnectConfig(dsn=dsn),
        max_size=size,
        acquire_timeout_s=acquire_timeout_s,
        close_timeout_s=close_timeout_s,
    )
    pool = Pool(config)
    try:
        yield pool
    finally:
        await pool.close()


async def blocked_pid(pool: Pool, query: str = TAKE) -> int | None:
    """The session that waits for the lock of the test."""
    return await pool.fetchval(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query = $1 "
        "AND wait_event = 'advisory'",
        query,
    )


async def is_connected(pool: Pool, pid: int) -> bool:
    found = await pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid)
    return found == 1


async def test_statements_that_follow_each_other_share_a_session(pool: Pool) -> None:
    first = await pool.fetchval(OWN_PID)
    assert await pool.fetchval(OWN_PID) == first
    assert pool.size == 1


async def test_statements_side_by_side_have_a_session_each(pool: Pool) -> None:
    async with pool.transaction() as one, pool.transaction() as other:
        assert await one.fetchval(OWN_PID) != await other.fetchval(OWN_PID)
    assert pool.size == 2


async def test_no_caller_waits_for_a_busy_pool_beyond_the_timeout(dsn: str) -> None:
    async with pool_of(1, dsn, acquire_timeout_s=0.05) as pool, pool.transaction():
        with pytest.raises(Unavailable) as refused:
            await pool.execute("SELECT 1")
    assert refused.value.code == "database_busy"
    assert not refused.value.maybe_applied


async def test_waiting_callers_are_served_in_order(dsn: str) -> None:
    served: list[str] = []

    async def visit(name: str) -> None:
        await pool.execute("SELECT 1")
        served.append(name)

    async with pool_of(1, dsn) as pool, asyncio.TaskGroup() as group, pool.transaction():
        for name in ("first", "second", "third"):
            group.create_task(visit(name))
        await eventually(lambda: are_waiting(pool, 3))
        assert served == []
    assert served == ["first", "second", "third"]


async def are_waiting(pool: Pool, count: int) -> bool:
    return pool.waiting == count


async def test_a_caller_cancelled_as_it_is_served_passes_the_session_on(dsn: str) -> None:
    async with pool_of(1, dsn) as pool, asyncio.TaskGroup() as group:
        async with pool.transaction():
            leaver = group.create_task(pool.execute("SELECT 1"))
            stayer = group.create_task(pool.fetchval("SELECT 2"))
            await eventually(lambda: are_waiting(pool, 2))
        # The session has been assigned, and the waiting task has not run yet.
        assert not leaver.done()
        leaver.cancel()
        assert await stayer == 2
    assert leaver.cancelled()
    assert pool.size == 0  # closed by now: nothing was left behind as lent


async def test_a_session_left_inside_a_transaction_is_closed(dsn: str) -> None:
    async with pool_of(1, dsn) as pool:
        dirty = await pool.fetchval(OWN_PID)
        await pool.execute("BEGIN")
        assert await pool.fetchval(OWN_PID) != dirty
        await eventually(lambda: is_gone(pool, dirty))


async def test_a_waiting_caller_does_not_get_a_session_inside_a_transaction(dsn: str) -> None:
    async with pool_of(1, dsn) as pool, pool_of(2, dsn) as others, asyncio.TaskGroup() as group:
        async with others.transaction() as holder:
            await holder.execute(TAKE)
            group.create_task(pool.execute(TAKE + "; BEGIN"))
            dirty = await eventually(lambda: blocked_pid(others, TAKE + "; BEGIN"))
            waiter = group.create_task(pool.fetchval(OWN_PID))
            await eventually(lambda: are_waiting(pool, 1))
        assert await waiter != dirty


async def test_a_waiting_caller_gets_the_place_of_a_failed_connect(dsn: str, proxy: Proxy) -> None:
    link = ConnectConfig(dsn=proxy.dsn, connect_timeout_s=0.5)
    pool = Pool(PoolConfig(connect=link, max_size=1))
    proxy.stall()
    async with asyncio.TaskGroup() as group:
        opener = group.create_task(catch(pool))
        await eventually(lambda: withheld(proxy))
        waiter = group.create_task(pool.fetchval("SELECT 1"))
        await eventually(lambda: are_waiting(pool, 1))
        assert (await opener).code == "database_timeout"
        proxy.resume()
        assert await waiter == 1
    await pool.close()


async def withheld(proxy: Proxy) -> bool:
    return proxy.withheld > 0


async def is_gone(pool: Pool, pid: int) -> bool:
    return not await is_connected(pool, pid)


async def test_a_cancelled_statement_neither_blocks_the_pool_nor_stays_on_the_server(
    dsn: str,
) -> None:
    patient = ConnectConfig(dsn=dsn, lock_timeout_s=60, statement_timeout_s=60)
    pool = Pool(PoolConfig(connect=patient, max_size=1))
    async with pool_of(2, dsn) as others, others.transaction() as holder:
        await holder.execute(TAKE)
        async with asyncio.TaskGroup() as group:
            stuck = group.create_task(pool.execute(TAKE))
            pid = present(await eventually(lambda: blocked_pid(others)))
            stuck.cancel()
        assert await pool.fetchval("SELECT 1") == 1
        # The lock is still held: the server noticed that the client is gone.
        await eventually(lambda: is_gone(others, pid))
        await pool.close()


async def test_an_error_in_a_transaction_leaves_nothing_and_keeps_the_session(dsn: str) -> None:
    async def change_my_mind() -> None:
        async with pool.transaction() as tx:
            await tx.execute("CREATE TABLE never (id int)")
            raise ValueError("changed my mind")

    async with pool_of(1, dsn) as pool:
        pid = await pool.fetchval(OWN_PID)
        with pytest.raises(ValueError, match="changed my mind"):
            await change_my_mind()
        assert await pool.fetchval("SELECT to_regclass('never')") is None
        assert await pool.fetchval(OWN_PID) == pid


async def test_an_ignored_failure_in_a_transaction_is_not_taken_for_a_commit(
    pool: Pool,
) -> None:
    async def ignore_failure() -> None:
        async with pool.transaction() as tx:
            with pytest.raises(InvariantBroken):
                await tx.execute("SELECT 1/0")

    with pytest.raises(InvariantBroken, match="was ignored"):
        await ignore_failure()


async def test_the_heartbeat_has_its_own_session_when_the_pool_is_exhausted(dsn: str) -> None:
    config = PoolConfig(connect=ConnectConfig(dsn=dsn), max_size=1, acquire_timeout_s=0.05)
    database = Database(config)
    async with database.pool.transaction():
        with pytest.raises(Unavailable):
            await database.pool.execute("SELECT 1")
        assert await database.heartbeat.fetchval("SELECT 1") == 1
    await database.close()


async def test_the_heartbeat_opens_its_session_again_when_it_is_lost(dsn: str) -> None:
    database = Database(PoolConfig(connect=ConnectConfig(dsn=dsn)))
    lost = await database.heartbeat.fetchval(OWN_PID)
    await database.pool.fetchval("SELECT pg_terminate_backend($1, 5000)", lost)
    found = await eventually(lambda: try_pid(database.heartbeat))
    assert found != lost
    await database.close()


async def try_pid(pool: Pool) -> int | None:
    try:
        return await pool.fetchval(OWN_PID)
    except Unavailable:
        return None


async def test_the_pool_comes_back_by_itself_after_the_database_was_restarted(
    own_server: OwnServer,
) -> None:
    async with pool_of(3, own_server.dsn) as pool:
        async with pool.transaction(), pool.transaction():
            pass
        await own_server.stop()
        assert (await raised(Unavailable, pool.execute("SELECT 1"))).code == "database_down"
        await own_server.start()
        assert await pool.fetchval("SELECT 1") == 1
        assert pool.size == 1


async def test_closing_lets_a_statement_in_flight_end(dsn: str) -> None:
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn)))
    async with pool_of(2, dsn) as others, asyncio.TaskGroup() as group:
        async with others.transaction() as holder:
            await holder.execute(TAKE)
            waiter = group.create_task(pool.execute(TAKE))
            await eventually(lambda: blocked_pid(others))
            closing = group.create_task(pool.close())
            refusal = await eventually(lambda: refusal_of(pool))
            assert refusal.code == "database_closed"
        assert await waiter == "SELECT 1"
        await closing
    assert pool.size == 0


async def refusal_of(pool: Pool) -> Unavailable | None:
    try:
        await pool.execute("SELECT 1")
    except Unavailable as error:
        return error


async def test_closing_does_not_wait_for_a_stuck_statement_beyond_the_timeout(dsn: str) -> None:
    async with pool_of(2, dsn) as others, others.transaction() as holder:
        await holder.execute(TAKE)
        async with pool_of(1, dsn, close_timeout_s=0.05) as pool, asyncio.TaskGroup() as group:
            stuck = group.create_task(catch(pool))
            await eventually(lambda: blocked_pid(others))
            await pool.close()
            error = await stuck
    assert error.code == "database_down"


async def catch(pool: Pool) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        await pool.execute(TAKE)
    return caught.value


async def test_closing_refuses_waiting_callers(dsn: str) -> None:
    async with (
        pool_of(1, dsn, close_timeout_s=0.05) as pool,
        asyncio.TaskGroup() as group,
        pool.transaction(),
    ):
        waiter = group.create_task(catch(pool))
        await eventually(lambda: are_waiting(pool, 1))
        group.create_task(pool.close())
        assert (await waiter).code == "database_closed"


async def test_a_session_sets_the_servers_timeouts(dsn: str) -> None:
    link = ConnectConfig(dsn=dsn, application_name="chatd of the test", statement_timeout_s=7)
    pool = Pool(PoolConfig(connect=link))
    names = ["application_name", "statement_timeout", "lock_timeout"]
    names.append("idle_in_transaction_session_timeout")
    shown = [await pool.fetchval("SELECT current_setting($1)", name) for name in names]
    assert shown == ["chatd of the test", "7s", "5s", "15s"]
    await pool.close()


@pytest.mark.stock_server
async def test_no_session_has_the_defaults_of_the_server_that_chatd_does_not_expect(
    dsn: str,
) -> None:
    other = {
        "jit": "on",
        "timezone": "'Asia/Kathmandu'",
        "default_transaction_isolation": "serializable",
        "idle_session_timeout": "'7s'",
    }
    expected = {
        "jit": "off",
        "timezone": "UTC",
        "default_transaction_isolation": "read committed",
        "idle_session_timeout": "0",
    }
    async with session_to(dsn) as session:
        name = await session.fetchval("SELECT current_database()")
        for setting, value in other.items():
            await session.script(f"ALTER DATABASE {name} SET {setting} = {value}", timeout_s=9)
        try:
            async with session_to(dsn) as ours:
                found = {
                    setting: await ours.fetchval("SELECT current_setting($1)", setting)
                    for setting in expected
                }
        finally:
            await session.script(f"ALTER DATABASE {name} RESET ALL", timeout_s=9)
    assert found == expected


async def test_every_statement_sent_can_be_counted(dsn: str) -> None:
    sent: list[str] = []
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=dsn)), on_statement=sent.append)
    await pool.execute("SELECT 1")
    async with pool.transaction() as tx:
        await tx.fetchrow("SELECT 2")
    await pool.close()
    assert sent == ["SELECT 1", "BEGIN", "SELECT 2", "COMMIT"]


async def rows(pool: Pool) -> tuple[int, int]:
    return (
        await pool.fetchval("SELECT count(*) FROM chat_workers"),
        await pool.fetchval("SELECT count(*) FROM usage_rolled_up"),
    )


async def test_rows_are_removed_and_rows_of_the_schema_are_restored(database: Clone) -> None:
    pool = Pool(PoolConfig(connect=ConnectConfig(dsn=database.dsn)))
    await pool.execute(
        "INSERT INTO chat_workers (worker_id, lock_key, lease_until) "
        "VALUES (gen_random_uuid(), 1, now())"
    )
    await pool.execute("DELETE FROM usage_rolled_up")
    assert await rows(pool) == (1, 0)
    await pool.close()
    assert database.clean() == []
    again = Pool(PoolConfig(connect=ConnectConfig(dsn=database.dsn)))
    assert await rows(again) == (0, 1)
    await again.close()


async def test_a_session_left_open_is_named_and_ended(database: Clone) -> None:
    link = ConnectConfig(dsn=database.dsn, application_name="forgetful")
    session = await connect(link)
    await session.execute("SELECT 'what I did last'")
    assert database.clean(patience_s=0) == ["forgetful (idle): SELECT 'what I did last'"]
    assert database.clean() == []
    session.terminate()


async def test_a_slow_statement_is_reported_by_the_name_of_its_constant(dsn: str) -> None:
    """Also one that fails. A fast one is not."""
    times = iter([0.0, 2.0, 10.0, 10.5, 20.0, 23.0])
    slow: list[tuple[str, float]] = []
    watch = StatementWatch(
        now=lambda: next(times), slow_s=1.0, report=lambda text, s: slow.append((text, s))
    )
    session = await connect(ConnectConfig(dsn=dsn, watch=watch))
    try:
        await session.fetch(model_configs.LIST_OVERRIDES)
        await session.fetchval(OWN_PID)
        with pytest.raises(ChatdError):
            await session.fetchval("SELECT 1 / 0")
    finally:
        await session.close(timeout_s=5)
    assert [(statement_name(text), s) for text, s in slow] == [
        ("model.model_configs.LIST_OVERRIDES", 2.0),
        ("SELECT 1 / 0", 3.0),
    ]


_numbers = count(1)


def new_key() -> UUID:
    return UUID(int=next(_numbers))


SHARED = "CREATE TABLE shared (id uuid PRIMARY KEY, amount int CHECK (amount > 0))"
WRITE = "INSERT INTO shared (id, amount) VALUES ($1, $2) RETURNING id, amount"


@asynccontextmanager
async def busy_pool(dsn: str, sent: list[str], size: int = 6) -> AsyncGenerator[tuple[Pool, Event]]:
    """A pool of which so many sessions are in use that writes are shared, until the event is
    set. `sent` are its statements."""
    connect = ConnectConfig(dsn=dsn)
    pool, is_over = (
        Pool(PoolConfig(connect=connect, max_size=size), on_statement=sent.append),
        Event(),
    )

    async def hold(held: Event) -> None:
        with suppress(Unavailable):  # its connection was cut
            async with pool.transaction():
                held.set()
                await is_over.wait()

    try:
        await pool.execute(SHARED)
        async with TaskGroup() as group:
            for _ in range(SHARED_FROM_SESSIONS):
                held = Event()
                group.create_task(hold(held))
                await held.wait()
            sent.clear()
            yield pool, is_over
            is_over.set()
    finally:
        await pool.close()


async def test_writes_that_arrive_together_in_a_rush_share_transactions(empty_dsn: str) -> None:
    sent: list[str] = []
    async with busy_pool(empty_dsn, sent) as (pool, _):
        keys = [new_key() for _ in range(MAX_SHARED_WRITES * 2 + 1)]
        rows = await gather(
            *(pool.write(WRITE, key, key.bytes, key, n) for n, key in enumerate(keys, 1))
        )
        assert [(row["id"], row["amount"]) for row in rows if row] == [
            (key, n) for n, key in enumerate(keys, 1)
        ]
        assert sent.count(WRITE) == 3
        # Each in its order: the second write of a key finds that of the first.
        again = "UPDATE shared SET amount = $2 WHERE id = $1 AND amount < $2 RETURNING id, amount"
        found = await gather(*(pool.write(again, key, key.bytes, key, 5) for key in keys[:10]))
        assert [row is not None for row in found] == [True] * 4 + [False] * 6


async def test_the_error_of_one_shared_write_is_its_own(empty_dsn: str) -> None:
    async with busy_pool(empty_dsn, []) as (pool, _):
        keys = [new_key() for _ in range(4)]
        amounts = (1, 2, 0, 4)
        found = await gather(
            *(
                pool.write(WRITE, key, key.bytes, key, n)
                for key, n in zip(keys, amounts, strict=True)
            ),
            return_exceptions=True,
        )
        assert [isinstance(one, CheckFailed) for one in found] == [False, False, True, False]
        assert await pool.fetchval("SELECT sum(amount) FROM shared") == 7


async def test_a_shared_write_that_waits_for_a_lock_does_not_hold_up_the_others_twice(
    empty_dsn: str,
) -> None:
    """The server refuses the transaction in which one waits for too long. Of those that are then
    tried alone only that one waits."""
    async with busy_pool(empty_dsn, []) as (pool, _), session_to(empty_dsn) as other:
        keys = [new_key() for _ in range(3)]
        for key in keys:
            await pool.write(WRITE, key, key.bytes, key, 1)
        again = "UPDATE shared SET amount = $2 WHERE id = $1 RETURNING id, amount"
        async with other.transaction(), TaskGroup() as group:
            await other.execute("SELECT FROM shared WHERE id = $1 FOR UPDATE", keys[0])
            writes = [group.create_task(pool.write(again, key, key.bytes, key, 2)) for key in keys]

            async def is_waiting() -> bool:
                return await pool.fetchval(WAITING, again) == 1

            await eventually(is_waiting)
            await other.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query = $1",
                again,
            )
            await wait(writes[1:])
            assert not writes[0].done()
            await eventually(is_waiting)
            await other.execute("DELETE FROM shared WHERE id = $1", keys[0])
            await other.execute("COMMIT")
            await other.execute("BEGIN")
        assert [write.result() is not None for write in writes] == [False, True, True]


async def test_a_shared_write_that_is_cancelled_in_time_writes_nothing(empty_dsn: str) -> None:
    """The others of its group are written."""
    async with (
        busy_pool(empty_dsn, [], SHARED_FROM_SESSIONS) as (pool, is_over),
        TaskGroup() as group,
    ):
        keys = [new_key() for _ in range(3)]
        writes = [group.create_task(pool.write(WRITE, key, key.bytes, key, 1)) for key in keys]
        while not pool.waiting:
            await run_other_tasks()
        writes[1].cancel()
        is_over.set()
        await wait(writes)
        assert await pool.fetchval("SELECT count(*) FROM shared") == 2


async def test_shared_writes_without_a_reply_are_reported_to_each_caller(empty_dsn: str) -> None:
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, told: unheard.append(told))
    async with (
        proxy_to(empty_dsn) as proxy,
        busy_pool(proxy.dsn, []) as (pool, _),
        session_to(empty_dsn) as other,
        session_to(empty_dsn) as watching,
        other.transaction(),
    ):
        await other.execute("LOCK TABLE shared")
        async with TaskGroup() as group:
            writes = [
                group.create_task(raised(Unavailable, pool.write(WRITE, key, key.bytes, key, 1)))
                for key in (new_key(), new_key(), new_key())
            ]

            async def is_sent() -> bool:
                return await watching.fetchval(WAITING, WRITE) == 1

            await eventually(is_sent)
            proxy.cut()
        assert [write.result().maybe_applied for write in writes] == [True] * 3
    gc.collect()
    assert not unheard, "an error that no caller got"


WAITING = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND query = $1 AND wait_event_type = 'Lock'"""
