"""The build worker: a requested build ends, whichever worker dies meanwhile."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from chatd.domain.errors import ChatdError
from chatd.domain.workspace.entities import AgentSpec, Build
from chatd.store.pool import Pool
from chatd.store.workspace import agents, build_leases, builds, workspaces
from chatd.workspaces.builds.backend import BuildContext, BuildFailed
from chatd.workspaces.builds.run import BuildLimits
from tests.support.build_rig import POINTS, CountingConn, FakeBackend, When, building, ended, worker
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.stream_replica import Emitted
from tests.support.workspaces import (
    age_builds,
    agents_of,
    build_id,
    insert_template,
    insert_workspace,
    new_build,
    new_workspace,
    workspace_id,
)


async def pass_time(clock: FakeClock, tag: str) -> None:
    async with asyncio.timeout(20):
        await clock.wait_for_sleeper(tag, within_s=20)
        clock.advance(clock.sleeping(tag)[0])


async def all_that_is_said(pool: Pool) -> list[str]:
    return [line.output for line in await build_leases.list_log(pool, build_id(1))]


async def test_a_build_is_acquired_run_and_finished(pool: Pool, clock: FakeClock) -> None:
    await insert_workspace(pool, ttl_s=3600)
    backend = FakeBackend()
    async with building(pool, clock, backend):
        done = await ended(pool, build_id(1))
    assert (done.status, done.attempt, done.worker_id) == ("succeeded", 1, None)
    assert done.deadline is not None
    assert await all_that_is_said(pool) == ["making work-1", "started"]
    [agent] = await agents_of(pool, workspace_id(1))
    assert (agent.name, agent.build_id, agent.lifecycle) == ("main", build_id(1), "starting")


async def test_a_stop_and_a_deletion_follow(pool: Pool, clock: FakeClock) -> None:
    await insert_workspace(pool, ttl_s=3600)
    backend = FakeBackend()
    async with building(pool, clock, backend) as builder:
        await ended(pool, build_id(1))
        await builds.insert(pool, new_build(2))
        builder.wake()
        assert (await ended(pool, build_id(2))).status == "succeeded"
        first = await builds.get(pool, build_id(1))
        assert first is not None
        assert first.deadline is None
        assert await agents.list_on_host(pool, ["this-host"]) == []
        await builds.insert(pool, new_build(3, after=2, transition="delete"))
        builder.wake()
        assert (await ended(pool, build_id(3))).status == "succeeded"
    gone = await workspaces.get(pool, workspace_id(1))
    assert gone is not None
    assert gone.deleted
    assert backend.sandboxes == {}


@pytest.mark.promise("P2")
@pytest.mark.parametrize("point", POINTS)
async def test_another_worker_finishes_the_build_of_a_killed_one(
    pool: Pool, clock: FakeClock, point: str
) -> None:
    """At any point. The sandbox of the first worker is found and not created twice."""
    await insert_workspace(pool)
    backend = FakeBackend()
    backend.hold = point
    async with building(pool, clock, backend, number=1):
        async with asyncio.timeout(20):
            await backend.reached.wait()
    backend.hold = None
    await age_builds(pool, 31)
    async with building(pool, clock, backend, number=2):
        await steady(clock)
        done = await ended(pool, build_id(1))
    assert (done.status, done.attempt) == ("succeeded", 2)
    assert backend.made == {(workspace_id(1), 1): 1}
    assert len(await agents_of(pool, workspace_id(1))) == 1


async def steady(clock: FakeClock, rounds: int = 20) -> None:
    """Wait until the database has answered this worker for long enough to judge others."""
    for _ in range(rounds):
        await pass_time(clock, "build_poll")


@pytest.mark.promise("P2")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("statement", range(1, 9))
async def test_a_worker_that_dies_at_any_statement_leaves_nothing_stuck(
    pool: Pool, clock: FakeClock, statement: int, when: When
) -> None:
    await insert_workspace(pool)
    backend = FakeBackend()
    line = CountingConn(pool, statement, when=when, dead=True)
    async with building(line, clock, backend, number=1):
        first = asyncio.get_running_loop().create_task(ended(pool, build_id(1)))
        died = asyncio.get_running_loop().create_task(line.failed.wait())
        await asyncio.wait({first, died}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        first.cancel()
        died.cancel()
    await age_builds(pool, 31)
    async with building(pool, clock, backend, number=2):
        await steady(clock)
        done = await ended(pool, build_id(1))
    assert done.status == "succeeded"
    assert backend.made == {(workspace_id(1), 1): 1}
    assert len(await agents_of(pool, workspace_id(1))) == 1


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("statement", range(1, 9))
async def test_a_lost_statement_or_a_lost_answer_does_not_lose_the_build(
    pool: Pool, clock: FakeClock, statement: int, when: When
) -> None:
    await insert_workspace(pool)
    backend = FakeBackend()
    line = CountingConn(pool, statement, when=when)
    async with building(line, clock, backend) as builder:

        async def look() -> Build | None:
            clock.advance(1)
            builder.wake()
            found = await builds.get(pool, build_id(1))
            return found if found is not None and not found.active else None

        done = await eventually(look, within_s=20)
    assert done.status == "succeeded"
    assert backend.made == {(workspace_id(1), 1): 1}
    assert len(await agents_of(pool, workspace_id(1))) == 1


async def test_a_result_that_cannot_be_written_is_retried_without_a_second_run(
    pool: Pool, clock: FakeClock
) -> None:
    await insert_workspace(pool)
    backend = FakeBackend()
    backend.hold = "started"
    line = CountingConn(pool)
    async with building(line, clock, backend):
        async with asyncio.timeout(20):
            await backend.reached.wait()
        line.cut = True
        backend.go.set()
        await clock.wait_for_sleeper("build_finish", within_s=20)
        line.cut = False
        clock.advance(1)
        done = await ended(pool, build_id(1))
    assert (done.status, done.attempt) == ("succeeded", 1)
    assert backend.asked.count(("asked", 1)) == 1


@pytest.mark.promise("P3")
async def test_a_worker_that_has_lost_its_build_writes_nothing(
    pool: Pool, clock: FakeClock
) -> None:
    await insert_workspace(pool)
    slow, quick = FakeBackend(), FakeBackend()
    slow.hold = "started"
    emitted = Emitted()
    async with building(pool, clock, slow, number=1, emitted=emitted):
        async with asyncio.timeout(20):
            await slow.reached.wait()
        await pool.execute(
            "UPDATE workspace_builds SET worker_id = $1, attempt = 2, heartbeat_at = now()",
            worker(2),
        )
        await pass_time(clock, "build_beat")
        await eventually(lambda: seen(emitted, "build_lost"), within_s=20)
    held = await builds.get(pool, build_id(1))
    assert held is not None
    assert (held.status, held.worker_id) == ("running", worker(2))
    assert quick.asked == []


async def seen(emitted: Emitted, event: str) -> bool:
    return emitted.counts[event] > 0


@pytest.mark.parametrize(("gone_after_s", "beats"), [(None, 6), (15, 3)])
async def test_a_worker_without_its_database_gives_up_its_build(
    pool: Pool, clock: FakeClock, gone_after_s: float | None, beats: int
) -> None:
    """Before another worker may acquire it."""
    await insert_workspace(pool)
    backend = FakeBackend()
    backend.hold = "asked"
    emitted = Emitted()
    line = CountingConn(pool)
    late: dict[str, Any] = {
        "log_flush_interval_s": 1e6,
        "reap_interval_s": 1e6,
        "worker_gone_after_s": gone_after_s,
    }
    async with building(line, clock, backend, emitted=emitted, **late):
        async with asyncio.timeout(20):
            await backend.reached.wait()
        line.cut = True
        for _ in range(beats):
            await pass_time(clock, "build_beat")
        await eventually(lambda: seen(emitted, "build_lost"), within_s=20)


@pytest.mark.parametrize(
    ("error", "words", "code"),
    [
        (BuildFailed("The repository cannot be cloned."), "cannot be cloned", "build_failed"),
        (BuildFailed("Too big.", code="quota"), "Too big", "quota"),
        (ChatdError("   "), "without a reason", "internal"),
        (RuntimeError("secret"), "RuntimeError", "internal"),
    ],
)
async def test_a_failure_is_stored_with_its_message(
    pool: Pool, clock: FakeClock, error: Exception, words: str, code: str
) -> None:
    await insert_workspace(pool)
    backend = FakeBackend()
    backend.hold, backend.fails = "made", error
    backend.go.set()
    async with building(pool, clock, backend):
        done = await ended(pool, build_id(1))
    assert (done.status, done.error_code) == ("failed", code)
    assert words in done.error
    assert "secret" not in done.error


async def test_a_build_that_takes_too_long_is_ended(pool: Pool, clock: FakeClock) -> None:
    await insert_workspace(pool)
    backend = FakeBackend()
    backend.hold = "asked"
    async with building(pool, clock, backend, limits=BuildLimits(timeout_s=60)):
        await pass_time(clock, "build_limit")
        done = await ended(pool, build_id(1))
    assert (done.status, done.error_code) == ("failed", "build_timeout")


async def test_a_build_that_was_taken_over_keeps_its_deadline(pool: Pool, clock: FakeClock) -> None:
    await insert_workspace(pool)
    backend = FakeBackend()
    backend.hold = "asked"
    async with building(pool, clock, backend, number=1):
        async with asyncio.timeout(20):
            await backend.reached.wait()
    await age_builds(pool, 601)
    async with building(pool, clock, backend, number=2):
        await steady(clock)
        done = await ended(pool, build_id(1))
    assert (done.status, done.error_code) == ("failed", "build_timeout")


async def test_a_build_that_kills_every_worker_is_given_up(pool: Pool, clock: FakeClock) -> None:
    await insert_workspace(pool)
    await pool.execute("UPDATE workspace_builds SET attempt = 6")
    backend = FakeBackend()
    async with building(pool, clock, backend):
        done = await ended(pool, build_id(1))
    assert (done.status, done.error_code) == ("failed", "build_abandoned")
    assert backend.asked == []


async def test_a_waiting_build_is_cancelled_at_once(pool: Pool) -> None:
    await insert_workspace(pool)
    done = await builds.cancel(pool, build_id(1))
    assert done is not None
    assert done.status == "canceled"
    assert await builds.cancel(pool, build_id(1)) is None


@pytest.mark.parametrize("kind", ["heedful", "heedless"])
async def test_a_running_build_is_cancelled_even_if_it_ignores_cancellation(
    pool: Pool, clock: FakeClock, kind: str
) -> None:
    heeds = kind == "heedful"
    await insert_workspace(pool)
    backend = FakeBackend()
    backend.hold, backend.heeds_cancel = "asked", heeds
    async with building(pool, clock, backend):
        async with asyncio.timeout(20):
            await backend.reached.wait()
        asked = await builds.cancel(pool, build_id(1))
        assert asked is not None
        assert asked.status == "canceling"
        await pass_time(clock, "build_beat")
        if not heeds:
            await pass_time(clock, "build_grace")
        done = await ended(pool, build_id(1))
    assert (done.status, done.error) == ("canceled", "")


async def test_a_cancelled_build_whose_worker_died_ends_cancelled(
    pool: Pool, clock: FakeClock
) -> None:
    await insert_workspace(pool)
    backend = FakeBackend()
    backend.hold = "asked"
    async with building(pool, clock, backend, number=1):
        async with asyncio.timeout(20):
            await backend.reached.wait()
    await builds.cancel(pool, build_id(1))
    await age_builds(pool, 31)
    async with building(pool, clock, backend, number=2):
        await steady(clock)
        done = await ended(pool, build_id(1))
    assert done.status == "canceled"


async def test_another_hosts_build_is_not_acquired_and_expires(
    pool: Pool, clock: FakeClock
) -> None:
    await insert_workspace(pool, host_id="that-host")
    backend = FakeBackend()
    async with building(pool, clock, backend, reap_interval_s=2):
        await steady(clock)
        untouched = await builds.get(pool, build_id(1))
        assert untouched is not None
        assert untouched.status == "pending"
        await age_builds(pool, 1801)
        await steady(clock, 2)
        done = await ended(pool, build_id(1))
    assert (done.status, done.error_code) == ("failed", "no_builder")
    assert backend.asked == []


async def test_no_more_builds_run_at_once_than_there_are_slots(
    pool: Pool, clock: FakeClock
) -> None:
    await insert_template(pool)
    for number in range(1, 6):
        await workspaces.create(pool, new_workspace(number))
    backend = FakeBackend()
    backend.hold = "asked"
    async with building(pool, clock, backend, slots=2) as builder:
        async with asyncio.timeout(20):
            await backend.reached.wait()
        await steady(clock, 3)
        assert builder.running == 2
        assert len(backend.asked) == 2
        backend.go.set()
        for number in range(1, 6):
            assert (await ended(pool, build_id(number))).status == "succeeded"


async def test_two_workers_share_the_builds_and_do_none_twice(pool: Pool, clock: FakeClock) -> None:
    await insert_template(pool)
    for number in range(1, 9):
        await workspaces.create(pool, new_workspace(number))
    backend = FakeBackend()
    async with (
        building(pool, clock, backend, number=1),
        building(pool, clock, backend, number=2),
    ):
        for number in range(1, 9):
            assert (await ended(pool, build_id(number))).attempt == 1
    assert set(backend.made.values()) == {1}


@pytest.mark.promise("P5")
async def test_a_drained_worker_releases_its_build(pool: Pool, clock: FakeClock) -> None:
    await insert_workspace(pool)
    backend = FakeBackend()
    backend.hold = "made"
    async with building(pool, clock, backend, number=1) as leaving:
        async with asyncio.timeout(20):
            await backend.reached.wait()
        await leaving.close()
        await pass_time(clock, "build_drain")

        async def handed_on() -> bool:
            row = await builds.get(pool, build_id(1))
            return row is not None and row.status == "pending"

        await eventually(handed_on, within_s=20)
    backend.hold = None
    async with building(pool, clock, backend, number=2):
        done = await ended(pool, build_id(1))
    assert (done.status, done.attempt) == ("succeeded", 2)
    assert backend.made == {(workspace_id(1), 1): 1}


async def test_a_drain_waits_for_a_build_that_ends_soon(pool: Pool, clock: FakeClock) -> None:
    await insert_workspace(pool)
    backend = FakeBackend()
    backend.hold = "made"
    async with building(pool, clock, backend) as leaving:
        async with asyncio.timeout(20):
            await backend.reached.wait()
        await leaving.close()
        await clock.wait_for_sleeper("build_drain", within_s=20)
        backend.go.set()
        done = await ended(pool, build_id(1))
    assert (done.status, done.attempt) == ("succeeded", 1)


async def test_too_much_output_is_clipped_and_marked(pool: Pool, clock: FakeClock) -> None:
    await insert_workspace(pool)
    backend = FakeBackend()
    backend.says = ["y" * 9000, *["\n".join(["x" * 300] * 1000)] * 6]
    async with building(pool, clock, backend):
        await ended(pool, build_id(1))
    said = await build_leases.list_log(pool, build_id(1), limit=10_000)
    assert len(said) < 4000
    assert len(said[1].output) < 4010
    assert said[-1].output == "The log is full; later lines are dropped."


async def test_a_spec_of_a_newer_server_fails_the_build_with_a_message(
    pool: Pool, clock: FakeClock
) -> None:
    await insert_workspace(pool)
    await pool.execute("""UPDATE template_versions SET spec = '{"seed": {"kind": "cloud"}}'""")
    async with building(pool, clock, FakeBackend()):
        done = await ended(pool, build_id(1))
    assert (done.status, done.error_code) == ("failed", "template_unreadable")


async def test_an_invalid_backend_reply_fails_its_build_only(pool: Pool, clock: FakeClock) -> None:
    class Nonsense(FakeBackend):
        async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
            return (AgentSpec(id=context.agent_id("x"), name=""),)

    await insert_workspace(pool)
    async with building(pool, clock, Nonsense()) as builder:
        assert (await ended(pool, build_id(1))).error_code == "internal"
        await builds.insert(pool, new_build(2))
        builder.wake()
        assert (await ended(pool, build_id(2))).status == "succeeded"


async def test_a_backend_that_cannot_be_stopped_does_not_hold_up_the_row(
    pool: Pool, clock: FakeClock
) -> None:
    await insert_workspace(pool)
    backend = FakeBackend()
    backend.hold, backend.deaf = "asked", True
    async with building(
        pool, clock, backend, limits=BuildLimits(timeout_s=60, cancel_grace_s=0.05)
    ):
        await pass_time(clock, "build_limit")
        done = await ended(pool, build_id(1))
        backend.go.set()
    assert (done.status, done.error_code) == ("failed", "build_timeout")


class Threaded(FakeBackend):
    """Works in a thread, which survives the cancellation of its task."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.told = threading.Event()
        self.end = threading.Event()

    async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
        await asyncio.to_thread(self._work, context)
        return ()

    def _work(self, context: BuildContext) -> None:
        self.begun.set()
        while not self.told.wait(0.01) and not self.end.is_set():
            if context.cancelled.is_set():
                self.told.set()


async def test_the_thread_of_a_cancelled_build_is_told_to_stop(
    pool: Pool, clock: FakeClock
) -> None:
    """Otherwise it would run beside the next worker of the build."""
    await insert_workspace(pool)
    backend = Threaded()
    async with building(pool, clock, backend, limits=BuildLimits(timeout_s=60)):
        await asyncio.to_thread(backend.begun.wait, 20)
        await pass_time(clock, "build_limit")
        await ended(pool, build_id(1))
    told = await asyncio.to_thread(backend.told.wait, 20)
    backend.end.set()
    assert told
