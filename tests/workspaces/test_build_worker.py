"""The build worker: a requested build ends, whichever worker dies meanwhile."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

import pytest

from chatd.domain.errors import ChatdError
from chatd.domain.ids import UserId, WorkspaceId
from chatd.domain.workspace.entities import AgentSpec, Build
from chatd.store.database.conn import Conn
from chatd.store.database.pool import Pool
from chatd.store.workspace import builds, workspaces
from chatd.workspaces.build_backend import BuildContext, BuildFailed
from chatd.workspaces.build_worker import BuildLimits, BuildWorker
from tests.support.build_rig import POINTS, CountingConn, FakeBackend, When, building, ended, worker
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.factories import HARNESS
from tests.support.outcomes import present
from tests.support.stream_replica import Emitted
from tests.support.workspaces import (
    age_builds,
    agents_of,
    build_id,
    insert_workspace,
    new_build,
    new_workspace,
    workspace_id,
)


class BuildSite:
    """A workspace with a pending first build, the backend that runs it, and build workers."""

    def __init__(self, pool: Pool, clock: FakeClock) -> None:
        self.pool = pool
        self.clock = clock
        self.backend = FakeBackend()

    def building(
        self,
        *,
        conn: Conn | None = None,
        backend: FakeBackend | None = None,
        number: int = 1,
        **config: Any,
    ) -> AbstractAsyncContextManager[BuildWorker]:
        """A running build worker."""
        used = backend or self.backend
        return building(conn or self.pool, self.clock, used, number=number, **config)

    async def wait_held(self) -> None:
        """Wait until the backend is at the point where it is held."""
        async with asyncio.timeout(20):
            await self.backend.reached.wait()

    async def ended(self, number: int = 1) -> Build:
        return await ended(self.pool, build_id(number))

    async def build(self, number: int = 1) -> Build:
        return present(await builds.get(self.pool, HARNESS, build_id(number)))

    async def pass_time(self, tag: str) -> None:
        async with asyncio.timeout(20):
            await self.clock.wait_for_sleeper(tag, within_s=20)
            self.clock.advance(self.clock.sleeping(tag)[0])

    async def steady(self, rounds: int = 20) -> None:
        """Wait until the database has answered this worker for long enough to judge others."""
        for _ in range(rounds):
            await self.pass_time("build_poll")

    async def kill_worker(self) -> None:
        """Kill a worker where the backend is held."""
        async with self.building(number=1):
            await self.wait_held()

    async def replaced(self, *, age_s: float = 31) -> Build:
        """Another worker ends the build of a dead one, which has been silent for that long."""
        await age_builds(self.pool, age_s)
        async with self.building(number=2):
            await self.steady()
            return await self.ended()

    async def assert_made_once(self) -> None:
        assert self.backend.made == {(workspace_id(1), 1): 1}
        assert len(await agents_of(self.pool, workspace_id(1))) == 1


@pytest.fixture
async def site(pool: Pool, clock: FakeClock) -> BuildSite:
    await insert_workspace(pool, ttl_s=3600)
    return BuildSite(pool, clock)


async def all_that_is_said(pool: Pool) -> list[str]:
    return [line.output for line in await builds.list_log(pool, HARNESS, build_id(1))]


async def test_a_build_is_acquired_run_and_finished(site: BuildSite) -> None:
    async with site.building():
        done = await site.ended()
    assert (done.status, done.attempt, done.worker_id) == ("succeeded", 1, None)
    assert done.deadline is not None
    assert await all_that_is_said(site.pool) == ["making work-1", "started"]
    [agent] = await agents_of(site.pool, workspace_id(1))
    assert (agent.name, agent.build_id, agent.lifecycle) == ("main", build_id(1), "starting")


async def test_a_copy_that_failed_begins_again_in_an_empty_home(
    pool: Pool, clock: FakeClock
) -> None:
    await insert_workspace(pool, copied_from=workspace_id(7))
    site, copied = BuildSite(pool, clock), list[tuple[object, int]]()

    async def copy(context: BuildContext, source: WorkspaceId, agents: object) -> None:
        assert site.backend.sandboxes == {workspace_id(1): context.build.build_number}
        copied.append((source, context.build.build_number))
        if len(copied) == 1:
            raise BuildFailed("The source does not run.")

    async with site.building(copy=copy) as builder:
        failed = await site.ended()
        assert (failed.status, failed.error) == ("failed", "The source does not run.")
        assert site.backend.sandboxes == {}
        await builds.insert(pool, HARNESS, new_build(2, transition="start"))
        builder.wake()
        assert (await site.ended(2)).status == "succeeded"
        await builds.insert(pool, HARNESS, new_build(3, after=2))
        builder.wake()
        await site.ended(3)
        await builds.insert(pool, HARNESS, new_build(4, after=3, transition="start"))
        builder.wake()
        assert (await site.ended(4)).status == "succeeded"
    assert copied == [(workspace_id(7), 1), (workspace_id(7), 2)]
    assert site.backend.asked.count(("asked", 2)) == 2, "deleted, then started"


async def test_a_stop_and_a_deletion_follow(site: BuildSite) -> None:
    async with site.building() as builder:
        await site.ended()
        await builds.insert(site.pool, HARNESS, new_build(2))
        builder.wake()
        assert (await site.ended(2)).status == "succeeded"
        assert (await site.build()).deadline is None
        assert await workspaces.list_agents_on_host(site.pool, ["this-host"]) == []
        await builds.insert(site.pool, HARNESS, new_build(3, after=2, transition="delete"))
        builder.wake()
        assert (await site.ended(3)).status == "succeeded"
    assert present(await workspaces.get(site.pool, HARNESS, workspace_id(1))).deleted
    assert site.backend.sandboxes == {}


@pytest.mark.promise("P2")
@pytest.mark.parametrize("point", POINTS)
async def test_another_worker_finishes_the_build_of_a_killed_one(
    site: BuildSite, point: str
) -> None:
    """At any point. The sandbox of the first worker is found and not created twice."""
    site.backend.hold = point
    await site.kill_worker()
    site.backend.hold = None
    done = await site.replaced()
    assert (done.status, done.attempt) == ("succeeded", 2)
    await site.assert_made_once()


@pytest.mark.promise("P2")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("statement", range(1, 9))
async def test_a_worker_that_dies_at_any_statement_leaves_nothing_stuck(
    site: BuildSite, statement: int, when: When
) -> None:
    line = CountingConn(site.pool, statement, when=when, dead=True)
    async with site.building(conn=line, number=1):
        first = asyncio.get_running_loop().create_task(site.ended())
        died = asyncio.get_running_loop().create_task(line.failed.wait())
        await asyncio.wait({first, died}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        first.cancel()
        died.cancel()
    done = await site.replaced()
    assert done.status == "succeeded"
    await site.assert_made_once()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("statement", range(1, 9))
async def test_a_lost_statement_or_a_lost_answer_does_not_lose_the_build(
    site: BuildSite, statement: int, when: When
) -> None:
    line = CountingConn(site.pool, statement, when=when)
    async with site.building(conn=line) as builder:

        async def look() -> Build | None:
            site.clock.advance(1)
            builder.wake()
            found = await site.build()
            return None if found.active else found

        done = await eventually(look, within_s=20)
    assert done.status == "succeeded"
    await site.assert_made_once()


async def test_a_result_that_cannot_be_written_is_retried_without_a_second_run(
    site: BuildSite,
) -> None:
    site.backend.hold = "started"
    line = CountingConn(site.pool)
    async with site.building(conn=line):
        await site.wait_held()
        line.cut = True
        site.backend.go.set()
        await site.clock.wait_for_sleeper("build_finish", within_s=20)
        line.cut = False
        site.clock.advance(1)
        done = await site.ended()
    assert (done.status, done.attempt) == ("succeeded", 1)
    assert site.backend.asked.count(("asked", 1)) == 1


@pytest.mark.promise("P3")
async def test_a_worker_that_has_lost_its_build_writes_nothing(site: BuildSite) -> None:
    site.backend.hold = "started"
    emitted = Emitted()
    async with site.building(number=1, emitted=emitted):
        await site.wait_held()
        await site.pool.execute(
            "UPDATE workspace_builds SET worker_id = $1, attempt = 2, heartbeat_at = now()",
            worker(2),
        )
        await site.pass_time("build_beat")
        await eventually(lambda: seen(emitted, "build_lost"), within_s=20)
    held = await site.build()
    assert (held.status, held.worker_id) == ("running", worker(2))


async def seen(emitted: Emitted, event: str) -> bool:
    return emitted.counts[event] > 0


@pytest.mark.parametrize(("gone_after_s", "beats"), [(None, 6), (15, 3)])
async def test_a_worker_without_its_database_gives_up_its_build(
    site: BuildSite, gone_after_s: float | None, beats: int
) -> None:
    """Before another worker may acquire it."""
    site.backend.hold = "asked"
    emitted = Emitted()
    line = CountingConn(site.pool)
    late: dict[str, Any] = {
        "log_flush_interval_s": 1e6,
        "reap_interval_s": 1e6,
        "worker_gone_after_s": gone_after_s,
    }
    async with site.building(conn=line, emitted=emitted, **late):
        await site.wait_held()
        line.cut = True
        for _ in range(beats):
            await site.pass_time("build_beat")
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
    site: BuildSite, error: Exception, words: str, code: str
) -> None:
    site.backend.hold, site.backend.fails = "made", error
    site.backend.go.set()
    async with site.building():
        done = await site.ended()
    assert (done.status, done.error_code) == ("failed", code)
    assert words in done.error
    assert "secret" not in done.error


@pytest.mark.parametrize(
    ("is_deaf", "limits"),
    [
        (False, BuildLimits(timeout_s=60)),
        (True, BuildLimits(timeout_s=60, cancel_grace_s=0.05)),
    ],
    ids=["a backend that stops", "a backend that cannot be stopped"],
)
async def test_a_build_that_takes_too_long_is_ended(
    site: BuildSite, limits: BuildLimits, *, is_deaf: bool
) -> None:
    site.backend.hold, site.backend.deaf = "asked", is_deaf
    async with site.building(limits=limits):
        await site.pass_time("build_limit")
        done = await site.ended()
        site.backend.go.set()
    assert (done.status, done.error_code) == ("failed", "build_timeout")


async def test_a_build_that_was_taken_over_keeps_its_deadline(site: BuildSite) -> None:
    site.backend.hold = "asked"
    await site.kill_worker()
    done = await site.replaced(age_s=601)
    assert (done.status, done.error_code) == ("failed", "build_timeout")


async def test_a_build_that_kills_every_worker_is_given_up(site: BuildSite) -> None:
    await site.pool.execute("UPDATE workspace_builds SET attempt = 6")
    async with site.building():
        done = await site.ended()
    assert (done.status, done.error_code) == ("failed", "build_abandoned")
    assert site.backend.asked == []


async def test_a_waiting_build_is_cancelled_at_once(site: BuildSite) -> None:
    assert present(await builds.cancel(site.pool, HARNESS, build_id(1))).status == "canceled"
    assert await builds.cancel(site.pool, HARNESS, build_id(1)) is None


@pytest.mark.parametrize("kind", ["heedful", "heedless"])
async def test_a_running_build_is_cancelled_even_if_it_ignores_cancellation(
    site: BuildSite, kind: str
) -> None:
    heeds = kind == "heedful"
    site.backend.hold, site.backend.heeds_cancel = "asked", heeds
    async with site.building():
        await site.wait_held()
        assert present(await builds.cancel(site.pool, HARNESS, build_id(1))).status == "canceling"
        await site.pass_time("build_beat")
        if not heeds:
            await site.pass_time("build_grace")
        done = await site.ended()
    assert (done.status, done.error) == ("canceled", "")


async def test_a_cancelled_build_whose_worker_died_ends_cancelled(site: BuildSite) -> None:
    site.backend.hold = "asked"
    await site.kill_worker()
    await builds.cancel(site.pool, HARNESS, build_id(1))
    done = await site.replaced()
    assert done.status == "canceled"


async def test_another_hosts_build_is_not_acquired_and_expires(site: BuildSite) -> None:
    await site.pool.execute("UPDATE workspaces SET host_id = 'that-host'")
    async with site.building(reap_interval_s=2):
        await site.steady()
        assert (await site.build()).status == "pending"
        await age_builds(site.pool, 1801)
        await site.steady(2)
        done = await site.ended()
    assert (done.status, done.error_code) == ("failed", "no_builder")
    assert site.backend.asked == []


async def test_no_more_builds_run_at_once_than_there_are_slots(site: BuildSite) -> None:
    for number in range(2, 6):
        await workspaces.create(
            site.pool, HARNESS, new_workspace(number, owner_id=UserId(UUID(int=number)))
        )
    site.backend.hold = "asked"
    async with site.building(slots=2) as builder:
        await site.wait_held()
        await site.steady(3)
        assert builder.running == 2
        assert len(site.backend.asked) == 2
        site.backend.go.set()
        for number in range(1, 6):
            assert (await site.ended(number)).status == "succeeded"


async def test_starts_that_hang_delay_no_stop_and_no_deletion(site: BuildSite) -> None:
    pool, backend = site.pool, site.backend
    await workspaces.create(pool, HARNESS, new_workspace(2))
    async with site.building() as builder:
        for number in (1, 2):
            await site.ended(number)
        backend.hangs = "start"
        for number in range(3, 12):
            await workspaces.create(pool, HARNESS, new_workspace(number))
        builder.wake()
        await site.wait_held()
        await builds.insert(pool, HARNESS, new_build(21, transition="stop"))
        second = new_build(22, transition="delete", workspace_id=workspace_id(2))
        await builds.insert(pool, HARNESS, second)
        builder.wake()
        for number in (21, 22):
            assert (await site.ended(number)).status == "succeeded"


async def test_one_owners_builds_that_hang_leave_a_slot_for_others(site: BuildSite) -> None:
    for number in range(2, 10):
        await workspaces.create(site.pool, HARNESS, new_workspace(number))
    site.backend.hangs = "start"
    async with site.building(slots=3) as builder:
        await site.steady(3)
        assert builder.running == 2
        site.backend.hangs = None
        other = new_workspace(10, owner_id=UserId(UUID(int=77)))
        await workspaces.create(site.pool, HARNESS, other)
        builder.wake()
        assert (await site.ended(10)).status == "succeeded"

        async def has_two() -> bool:
            return builder.running == 2

        await eventually(has_two)


async def test_two_workers_share_the_builds_and_do_none_twice(site: BuildSite) -> None:
    for number in range(2, 9):
        await workspaces.create(site.pool, HARNESS, new_workspace(number))
    async with site.building(number=1), site.building(number=2):
        for number in range(1, 9):
            assert (await site.ended(number)).attempt == 1
    assert set(site.backend.made.values()) == {1}


@pytest.mark.promise("P5")
async def test_a_drained_worker_releases_its_build(site: BuildSite) -> None:
    site.backend.hold = "made"
    async with site.building(number=1) as leaving:
        await site.wait_held()
        await leaving.close()
        await site.pass_time("build_drain")

        async def handed_on() -> bool:
            return (await site.build()).status == "pending"

        await eventually(handed_on, within_s=20)
    site.backend.hold = None
    async with site.building(number=2):
        done = await site.ended()
    assert (done.status, done.attempt) == ("succeeded", 2)
    assert site.backend.made == {(workspace_id(1), 1): 1}


async def test_a_drain_waits_for_a_build_that_ends_soon(site: BuildSite) -> None:
    site.backend.hold = "made"
    async with site.building() as leaving:
        await site.wait_held()
        await leaving.close()
        await site.clock.wait_for_sleeper("build_drain", within_s=20)
        site.backend.go.set()
        done = await site.ended()
    assert (done.status, done.attempt) == ("succeeded", 1)


async def test_too_much_output_is_clipped_and_marked(site: BuildSite) -> None:
    site.backend.says = ["y" * 9000, *["\n".join(["x" * 300] * 1000)] * 6]
    async with site.building():
        await site.ended()
    said = await builds.list_log(site.pool, HARNESS, build_id(1), limit=10_000)
    assert len(said) < 4000
    assert len(said[1].output) < 4010
    assert said[-1].output == "The log is full; later lines are dropped."


async def test_a_spec_of_a_newer_server_fails_the_build_with_a_message(site: BuildSite) -> None:
    await site.pool.execute("""UPDATE template_versions SET spec = '{"seed": {"kind": "cloud"}}'""")
    async with site.building():
        done = await site.ended()
    assert (done.status, done.error_code) == ("failed", "template_unreadable")


async def test_an_invalid_backend_reply_fails_its_build_only(site: BuildSite) -> None:
    class Nonsense(FakeBackend):
        async def start(self, context: BuildContext) -> Sequence[AgentSpec]:
            return (AgentSpec(id=context.agent_id("x"), name=""),)

    async with site.building(backend=Nonsense()) as builder:
        assert (await site.ended()).error_code == "internal"
        await builds.insert(site.pool, HARNESS, new_build(2))
        builder.wake()
        assert (await site.ended(2)).status == "succeeded"


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


async def test_the_thread_of_a_cancelled_build_is_told_to_stop(site: BuildSite) -> None:
    """Otherwise it would run beside the next worker of the build."""
    backend = Threaded()
    async with site.building(backend=backend, limits=BuildLimits(timeout_s=60)):
        await asyncio.to_thread(backend.begun.wait, 20)
        await site.pass_time("build_limit")
        await site.ended()
    told = await asyncio.to_thread(backend.told.wait, 20)
    backend.end.set()
    assert told
