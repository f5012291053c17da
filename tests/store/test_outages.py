"""Database outages: acknowledged changes are stored, and others can be retried until they are
applied once.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import asyncpg
import pytest
from msgspec import Struct

from chatd.domain.errors import Unavailable
from chatd.store.conn import ConnectConfig
from chatd.store.errors import translate_driver_error
from chatd.store.pool import Pool, PoolConfig
from tests.support.chaos.killable_server import killable_server
from tests.support.eventually import eventually
from tests.support.proxy import Proxy
from tests.support.random_actors import ConcurrentRun, RandomActors, Role


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
