"""The listener receives hints, notices a lost session and reports each new one."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from chatd.domain.chat.row import Hint, encode_hint
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.notifications import HintListener, ListenConfig
from chatd.store.database.pool import Pool
from tests.support.clock import FakeClock
from tests.support.database import OwnServer
from tests.support.eventually import eventually
from tests.support.factories import chat
from tests.support.proxy import Proxy

KEY = 0x0123_4567_89AB_CDEF
HOLDERS = """
    SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted
      AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = $1"""
EARS = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'chatd listen'"""


class Ear:
    """A listener under test and what it has reported."""

    def __init__(self, dsn: str, clock: FakeClock, *, lock_key: int | None) -> None:
        self.hints: asyncio.Queue[Hint] = asyncio.Queue()
        self.dirty: asyncio.Queue[None] = asyncio.Queue()
        self.listener = HintListener(
            ListenConfig(connect=ConnectConfig(dsn=dsn), pong_timeout_s=0.5),
            clock,
            on_hint=self.hints.put_nowait,
            on_connected=lambda: self.dirty.put_nowait(None),
            lock_key=lock_key,
            draw=lambda: 1.0,
        )

    async def hears(self) -> int:
        """The version of the next hint."""
        async with asyncio.timeout(30):
            return (await self.hints.get()).snapshot_version

    async def told_dirty(self) -> None:
        async with asyncio.timeout(30):
            await self.dirty.get()


@asynccontextmanager
async def ear(
    dsn: str, clock: FakeClock, *, lock_key: int | None = None, is_reachable: bool = True
) -> AsyncGenerator[Ear]:
    """A running listener. If the database is reachable, it has connected."""
    ear = Ear(dsn, clock, lock_key=lock_key)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(ear.listener.run())
        try:
            if is_reachable:
                await ear.told_dirty()
            yield ear
        finally:
            running.cancel()


async def say(pool: Pool, version: int) -> None:
    await shout(pool, encode_hint(Hint.of(chat(snapshot_version=version))))


async def shout(pool: Pool, payload: str) -> None:
    await pool.execute("SELECT pg_notify('chatd', $1)", payload)


async def end_all_ears(pool: Pool) -> None:
    await pool.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM ({EARS}) ear")


async def test_after_connecting_every_hint_is_received_in_order(
    dsn: str, pool: Pool, clock: FakeClock
) -> None:
    async with ear(dsn, clock) as it:
        assert it.listener.listening.is_set()
        for version in (1, 2, 3):
            await say(pool, version)
        assert [await it.hears() for _ in range(3)] == [1, 2, 3]
        assert it.dirty.empty()


async def test_a_payload_that_is_no_hint_is_ignored(dsn: str, pool: Pool, clock: FakeClock) -> None:
    async with ear(dsn, clock) as it:
        for nonsense in ("", "{", "[]", '{"c":1}', "ping 1", "\x7f"):
            await shout(pool, nonsense)
        await say(pool, 2)
        assert await it.hears() == 2


async def test_a_session_ended_by_the_server_is_opened_again_and_reported(
    dsn: str, pool: Pool, clock: FakeClock
) -> None:
    async with ear(dsn, clock) as it:
        await end_all_ears(pool)
        # At once, without waiting for a ping.
        await clock.wait_for_sleeper("listen_reconnect")
        assert not it.listener.listening.is_set()
        await say(pool, 1)
        await clock.advance_past("listen_reconnect")
        await it.told_dirty()
        await say(pool, 2)
        assert await it.hears() == 2  # 1 was lost, and that is why all is dirty


async def test_a_session_that_receives_its_ping_is_kept(
    proxy: Proxy, pool: Pool, clock: FakeClock
) -> None:
    async with ear(proxy.dsn, clock) as it:
        for _ in range(3):
            assert await clock.advance_past("listen_ping") == 15
        await clock.wait_for_sleeper("listen_ping")
        await say(pool, 1)
        assert await it.hears() == 1
        assert proxy.accepted == 1


@pytest.mark.covers("F14")
@pytest.mark.parametrize(
    ("fail", "is_pinged"),
    [(Proxy.cut, False), (Proxy.strand, True), (Proxy.deafen, True)],
    ids=["cut, noticed at once", "silent, after a ping", "without notifications, after a ping"],
)
async def test_a_lost_session_is_replaced(
    proxy: Proxy,
    pool: Pool,
    clock: FakeClock,
    fail: Callable[[Proxy], None],
    *,
    is_pinged: bool,
) -> None:
    async with ear(proxy.dsn, clock) as it:
        await clock.wait_for_sleeper("listen_ping")
        fail(proxy)
        if is_pinged:
            clock.advance(15)
        await clock.advance_past("listen_reconnect")
        await it.told_dirty()
        await say(pool, 1)
        assert await it.hears() == 1


async def test_a_server_that_refuses_a_ping_costs_a_session_and_not_the_process(
    dsn: str, pool: Pool, clock: FakeClock
) -> None:
    """As PostgreSQL does while its notification queue is full."""
    await pool.execute("CREATE SCHEMA refusing")
    await pool.execute(
        """CREATE FUNCTION refusing.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS
           $$ BEGIN RAISE program_limit_exceeded; END $$"""
    )
    try:
        joined = "&" if "?" in dsn else "?"
        async with ear(f"{dsn}{joined}search_path=refusing,pg_catalog,public", clock) as it:
            await clock.advance_past("listen_ping")
            await clock.advance_past("listen_reconnect")
            await it.told_dirty()
            await say(pool, 1)
            assert await it.hears() == 1
    finally:
        await pool.execute("DROP SCHEMA refusing CASCADE")


async def test_reconnects_back_off_to_one_a_second(
    proxy: Proxy, pool: Pool, clock: FakeClock
) -> None:
    proxy.refuse(new=True)
    async with ear(proxy.dsn, clock, is_reachable=False) as it:
        delays = [await clock.advance_past("listen_reconnect") for _ in range(7)]
        assert delays == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
        await clock.wait_for_sleeper("listen_reconnect")
        assert it.dirty.empty()
        proxy.refuse(new=False)
        await clock.advance_past("listen_reconnect")
        await it.told_dirty()


async def test_listening_goes_on_after_the_database_was_restarted(
    own_server: OwnServer, clock: FakeClock
) -> None:
    async with ear(own_server.dsn, clock) as it:
        await own_server.stop()
        await clock.advance_past("listen_reconnect")
        await clock.wait_for_sleeper("listen_reconnect")
        await own_server.start()
        await clock.advance_past("listen_reconnect")
        await it.told_dirty()


async def holders(pool: Pool) -> int:
    return await pool.fetchval(HOLDERS, KEY)


async def test_the_lock_is_held_while_listening_and_released_with_the_session(
    dsn: str, pool: Pool, clock: FakeClock
) -> None:
    async with ear(dsn, clock, lock_key=KEY) as it:
        assert await holders(pool) == 1
        await end_all_ears(pool)
        assert await holders(pool) == 0
        await clock.advance_past("listen_reconnect")
        await it.told_dirty()
        assert await holders(pool) == 1
    await eventually(lambda: is_free(pool))


async def is_free(pool: Pool) -> bool:
    return await holders(pool) == 0


async def test_the_lock_has_no_gap_while_the_server_still_keeps_a_lost_session(
    proxy: Proxy, pool: Pool, clock: FakeClock
) -> None:
    async with ear(proxy.dsn, clock, lock_key=KEY) as it:
        await clock.wait_for_sleeper("listen_ping")
        proxy.strand()
        clock.advance(15)
        await clock.advance_past("listen_reconnect")
        await it.told_dirty()
        assert await holders(pool) == 2


PROCESS = """
import asyncio, sys
from chatd.clock import (SystemClock)
from chatd.store.database.conn import ConnectConfig
from chatd.store.database.notifications import HintListener, ListenConfig
config = ListenConfig(connect=ConnectConfig(dsn=sys.argv[1]))
dirty = lambda: print("listening", flush=True)
lock = int(sys.argv[2])
listener = HintListener(config, SystemClock(), on_hint=print, on_connected=dirty, lock_key=lock)
asyncio.run(listener.run())
"""


async def test_a_killed_process_releases_its_lock(dsn: str, pool: Pool) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, dsn, str(KEY), stdout=PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            assert await process.stdout.readline() == b"listening\n"
        assert await holders(pool) == 1
    finally:
        process.kill()
        await process.wait()
    await eventually(lambda: is_free(pool))
