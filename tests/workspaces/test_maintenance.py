"""Deadlines and activity: a workspace past its deadline is stopped once, and activity extends
the deadline."""

import asyncio
from typing import LiteralString

import pytest

from chatd.domain.chat.states import State
from chatd.domain.errors import InvariantBroken
from chatd.domain.ids import WorkspaceId
from chatd.domain.workspace.entities import Build
from chatd.store.database.pool import Pool
from chatd.store.workspace import builds, workspaces
from chatd.workspaces.build_maintenance import ActivityTracker, Autostop
from tests.support.build_rig import CountingConn
from tests.support.clock import FakeClock
from tests.support.factories import HARNESS
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.stream_replica import Emitted, env_with
from tests.support.workspaces import (
    age_builds,
    build_id,
    finish,
    insert_template,
    insert_workspace,
    new_workspace,
    run_workspace,
    workspace_id,
)


def autostop(pool: Pool, clock: FakeClock, *in_use: WorkspaceId) -> Autostop:
    usage = ActivityTracker(pool, env_with(clock), in_use=lambda: in_use)
    return Autostop(pool, env_with(clock), flush_activity=usage.touch_and_flush)


async def latest(pool: Pool) -> Build:
    return (await builds.list_builds(pool, HARNESS, workspace_id(1)))[0]


async def insert_chat_in_workspace(
    pool: Pool, state: State, *, ttl_s: int, max_ttl_s: int = 0
) -> None:
    """A running workspace of a chat in this state."""
    await insert_workspace(pool, ttl_s=ttl_s)
    await insert_template(pool, max_ttl_s=max_ttl_s)
    await finish(pool)
    await insert_seed(pool, Seed(state=state))
    await pool.execute("UPDATE chats SET workspace_id = $1", workspace_id(1))


async def deadline(pool: Pool) -> float:
    """Seconds until the deadline."""
    return await pool.fetchval(
        "SELECT extract(epoch FROM deadline - now())::float8 FROM workspace_builds"
    )


async def test_a_workspace_past_its_deadline_is_stopped_once(pool: Pool, clock: FakeClock) -> None:
    await run_workspace(pool, ttl_s=100)
    assert await autostop(pool, clock).stop_overdue() == 0
    await age_builds(pool, 101)
    asked = await asyncio.gather(*(autostop(pool, clock).stop_overdue() for _ in range(5)))
    assert sum(asked) == 1
    stop = await latest(pool)
    assert (stop.transition, stop.reason, stop.status) == ("stop", "autostop", "pending")
    await finish(pool)
    assert await autostop(pool, clock).stop_overdue() == 0
    assert len(await builds.list_builds(pool, HARNESS, workspace_id(1))) == 2


async def test_a_workspace_in_which_a_command_runs_is_not_stopped(
    pool: Pool, clock: FakeClock
) -> None:
    """Neither is one that was used after the rows were last updated."""
    await run_workspace(pool, ttl_s=100)
    await age_builds(pool, 101)
    assert await autostop(pool, clock, workspace_id(1)).stop_overdue() == 0
    assert await deadline(pool) > 3500
    await age_builds(pool, 3601)
    assert await autostop(pool, clock).stop_overdue() == 1


@pytest.mark.parametrize("state", [State.R0, State.P0, State.I0, State.A0])
async def test_a_workspace_is_not_stopped_during_a_turn(
    pool: Pool, clock: FakeClock, state: State
) -> None:
    """Also if the turn has used no tool for longer than the workspace may be unused."""
    await insert_chat_in_workspace(pool, state, ttl_s=100)
    await age_builds(pool, 101)
    assert await autostop(pool, clock).stop_overdue() == 0
    assert await deadline(pool) > 3500
    await age_builds(pool, 3601)
    assert await autostop(pool, clock).stop_overdue() == 0


async def test_a_turn_that_began_just_now_keeps_its_workspace(pool: Pool) -> None:
    await insert_chat_in_workspace(pool, State.W, ttl_s=100)
    await age_builds(pool, 101)
    [late] = await builds.list_overdue(pool, retry_delay_s=600, limit=50)
    assert not late.in_turn
    await pool.execute("DELETE FROM chats")
    await insert_seed(pool, Seed(state=State.P0))
    await pool.execute("UPDATE chats SET workspace_id = $1", workspace_id(1))
    assert await builds.insert_stop_build(pool, HARNESS, late, build_id(7)) is None


async def test_a_workspace_stops_at_its_latest_deadline_once_its_turn_has_ended(
    pool: Pool, clock: FakeClock
) -> None:
    await insert_chat_in_workspace(pool, State.R0, ttl_s=100, max_ttl_s=500)
    assert 99 < await deadline(pool) <= 100
    for _ in range(3):
        await age_builds(pool, 200)
        assert await autostop(pool, clock, workspace_id(1)).stop_overdue() == 0
    assert await deadline(pool) < 0
    await pool.execute("DELETE FROM chats")
    assert await autostop(pool, clock, workspace_id(1)).stop_overdue() == 1


async def test_a_workspace_without_a_ttl_stops_at_its_latest_deadline(
    pool: Pool, clock: FakeClock
) -> None:
    await insert_workspace(pool)
    await insert_template(pool, max_ttl_s=500)
    await finish(pool)
    assert 499 < await deadline(pool) <= 500
    await age_builds(pool, 501)
    assert await autostop(pool, clock, workspace_id(1)).stop_overdue() == 1


async def test_a_workspace_without_a_ttl_runs_on(pool: Pool, clock: FakeClock) -> None:
    await run_workspace(pool)
    await age_builds(pool, 1e6)
    assert await autostop(pool, clock).stop_overdue() == 0


async def test_a_stop_that_failed_is_tried_again_later(pool: Pool, clock: FakeClock) -> None:
    await run_workspace(pool, ttl_s=100)
    await age_builds(pool, 101)
    assert await autostop(pool, clock).stop_overdue() == 1
    await finish(pool, builds.BuildResult(status="failed", error="no"))
    assert await autostop(pool, clock).stop_overdue() == 0
    await age_builds(pool, 601)
    assert await autostop(pool, clock).stop_overdue() == 1
    assert (await latest(pool)).build_number == 3


async def test_a_stop_that_keeps_failing_is_retried_with_growing_delay(
    pool: Pool, clock: FakeClock
) -> None:
    """A lost host acquires no build: its workspaces would be stopped in vain for ever."""
    await run_workspace(pool, ttl_s=100)
    day, asked = 24 * 3600, 0
    for _ in range(200):
        await age_builds(pool, day / 10)
        if await autostop(pool, clock).stop_overdue():
            asked += 1
            await finish(pool, builds.BuildResult(status="failed", error="no worker came"))
    assert 5 < asked < 30


async def test_a_build_in_progress_is_not_disturbed(pool: Pool, clock: FakeClock) -> None:
    await run_workspace(pool, ttl_s=100)
    await age_builds(pool, 101)
    assert await autostop(pool, clock).stop_overdue() == 1
    await age_builds(pool, 1e6)
    assert await autostop(pool, clock).stop_overdue() == 0


@pytest.mark.covers("binding-7")
async def test_activity_is_written_once_a_minute_and_moves_the_deadline(
    pool: Pool, clock: FakeClock
) -> None:
    await run_workspace(pool, ttl_s=100)
    await pool.execute("UPDATE workspaces SET last_used_at = now() - interval '1 hour'")
    usage = ActivityTracker(pool, env_with(clock))
    for _ in range(1000):
        usage.touch(workspace_id(1))
    usage.touch(workspace_id(7))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(usage.run())
        assert await clock.advance_past("usage_flush") == 60
        await clock.wait_for_sleeper("usage_flush", within_s=20)
        task.cancel()
    assert 3500 < await deadline(pool) <= 3600
    fresh = "SELECT last_used_at > now() - interval '1 minute' FROM workspaces"
    assert await pool.fetchval(fresh)


async def test_a_waiting_call_counts_as_activity(pool: Pool, clock: FakeClock) -> None:
    """A command may take longer than a workspace may be unused."""
    await run_workspace(pool, ttl_s=100)
    usage = ActivityTracker(pool, env_with(clock), in_use=lambda: [workspace_id(1)])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(usage.run())
        await clock.advance_past("usage_flush")
        await clock.wait_for_sleeper("usage_flush", within_s=20)
        task.cancel()
    assert 3500 < await deadline(pool) <= 3600


async def test_activity_that_could_not_be_written_is_written_next_time(
    pool: Pool, clock: FakeClock
) -> None:
    await run_workspace(pool, ttl_s=100)
    emitted = Emitted()
    usage = ActivityTracker(CountingConn(pool, 1), env_with(clock, emitted))
    usage.touch(workspace_id(1))
    await usage.flush()
    assert emitted.counts["workspace_activity_write_failed"] == 1
    assert await deadline(pool) <= 100
    await usage.flush()
    assert await deadline(pool) > 3500


async def test_activity_that_the_database_refuses_is_dropped(pool: Pool, clock: FakeClock) -> None:
    class Refusing(CountingConn):
        async def execute(self, query: LiteralString, *args: object) -> str:
            self.sent += 1
            raise InvariantBroken("no")

    line = Refusing(pool)
    usage = ActivityTracker(line, env_with(clock))
    usage.touch(workspace_id(1))
    await usage.flush()
    await usage.flush()
    assert line.sent == 1


async def test_many_replicas_can_write_the_same_activity(pool: Pool, clock: FakeClock) -> None:
    await insert_template(pool)
    for number in range(1, 20):
        await workspaces.create(pool, HARNESS, new_workspace(number))
    used = [workspace_id(number) for number in range(1, 20)]

    async def one(order: int) -> None:
        usage = ActivityTracker(pool, env_with(clock))
        for workspace in used[::order]:
            usage.touch(workspace)
        await usage.flush()

    async with asyncio.timeout(20):
        await asyncio.gather(*(one(order) for order in (1, -1, 1, -1, 1, -1)))
    assert await builds.get(pool, HARNESS, build_id(1)) is not None
