"""Builds in a real database: one at a time, under one lease, and each ends."""

import asyncio
import random
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.ids import UserId, WorkerId
from chatd.domain.workspace.entities import Build, BuildId, TemplateSpec
from chatd.domain.workspace.runners import BuildPlace, RunnerId
from chatd.store.database.pool import Pool
from chatd.store.workspace import builds, templates, workspaces
from chatd.store.workspace.builds import BuildLease, BuildLogLine, BuildResult, NewBuild
from tests.support.factories import HARNESS, OTHER_WORKER, OWNER, WORKER
from tests.support.outcomes import present
from tests.support.workspaces import (
    BACKEND,
    age_builds,
    agent_spec,
    build_id,
    finish,
    hold,
    insert_template,
    insert_workspace,
    new_build,
    new_workspace,
    run_workspace,
    template,
    version,
    wanted,
    workspace_id,
)

OK = BuildResult(status="succeeded")


async def take(pool: Pool, worker: WorkerId = WORKER, **columns: Any) -> Build | None:
    taken = await builds.acquire_builds(pool, wanted(worker_id=worker, **columns))
    assert len(taken) <= 1
    return taken[0].build if taken else None


async def test_of_many_concurrent_builds_one_is_inserted(pool: Pool) -> None:
    await run_workspace(pool)
    asked = await asyncio.gather(
        *(builds.insert(pool, HARNESS, new_build(number)) for number in range(10, 18))
    )
    [made] = [build for build in asked if build is not None]
    assert (made.build_number, made.status) == (2, "pending")
    assert await builds.insert(pool, HARNESS, new_build(30, after=2)) is None


async def test_a_repeated_request_finds_its_build(pool: Pool) -> None:
    await run_workspace(pool)
    first = await builds.insert(pool, HARNESS, new_build(2, made_by="k"))
    assert await builds.insert(pool, HARNESS, new_build(3, made_by="k")) == first
    await finish(pool)
    assert present(
        await builds.insert(pool, HARNESS, new_build(4, after=2, made_by="k"))
    ).id == build_id(2)
    assert len(await builds.list_builds(pool, HARNESS, workspace_id(1))) == 2


async def test_a_deleted_workspace_gets_no_build(pool: Pool) -> None:
    await run_workspace(pool)
    await builds.insert(pool, HARNESS, new_build(2, transition="delete"))
    await finish(pool)
    assert await builds.insert(pool, HARNESS, new_build(3, after=2, transition="start")) is None


async def test_each_build_is_acquired_by_one_worker(pool: Pool) -> None:
    await insert_template(pool)
    for number in range(1, 13):
        await workspaces.create(pool, HARNESS, new_workspace(number))
    crowd = [WorkerId(UUID(int=0xF0 + n)) for n in range(6)]
    batches = await asyncio.gather(
        *(builds.acquire_builds(pool, wanted(worker_id=worker, limit=3)) for worker in crowd)
    )
    taken = [t.build.id for batch in batches for t in batch]
    assert len(taken) == len(set(taken))
    while more := await builds.acquire_builds(
        pool, wanted(worker_id=crowd[0], limit=5, running=taken)
    ):
        taken += [t.build.id for t in more]
    assert len(set(taken)) == 12


async def test_owners_take_turns_and_none_takes_all_slots(pool: Pool) -> None:
    await insert_template(pool)
    owners = [1, 1, 1, 1, 2, 2, 3]
    for number, owner in enumerate(owners, start=1):
        await workspaces.create(
            pool, HARNESS, new_workspace(number, owner_id=UserId(UUID(int=owner)))
        )

    async def acquire(limit: int, running: list[BuildId]) -> list[BuildId]:
        request = wanted(limit=limit, owner_slots=2, running=running)
        return [t.build.id for t in await builds.acquire_builds(pool, request)]

    first = await acquire(4, [])
    assert first == [build_id(number) for number in (1, 2, 5, 7)]
    assert await acquire(4, first) == [build_id(6)]
    await builds.finish_build(pool, BuildLease(id=build_id(1), worker_id=WORKER, attempt=1), OK)
    rest = [build_id(number) for number in (2, 5, 6, 7)]
    assert await acquire(4, rest) == [build_id(3)]


@pytest.mark.parametrize(
    ("silent_s", "lease_s", "worker_gone_after_s", "registered", "taken"),
    [
        (0, 30, 12, True, False),
        (29, 30, 12, True, False),
        (31, 30, 12, True, True),
        (31, None, None, False, False),
        (13, 30, 12, False, True),
        (13, 30, 12, True, False),
        (11, 30, 12, False, False),
        (1e6, None, 12, True, False),
    ],
)
async def test_a_build_is_taken_over_only_without_heartbeats(
    pool: Pool,
    silent_s: float,
    lease_s: float | None,
    worker_gone_after_s: float | None,
    registered: object,
    taken: object,
) -> None:
    await insert_workspace(pool)
    await take(pool)
    if registered:
        await pool.execute(
            """INSERT INTO chat_workers (worker_id, lock_key, lease_until)
               VALUES ($1, 1, now() + interval '1 hour')""",
            WORKER,
        )
    await age_builds(pool, silent_s)
    found = await take(pool, OTHER_WORKER, lease_s=lease_s, worker_gone_after_s=worker_gone_after_s)
    assert (found is not None) is taken
    if found is not None:
        assert (found.attempt, found.worker_id) == (2, OTHER_WORKER)


async def test_a_worker_acquires_again_a_build_it_owns_and_does_not_run(pool: Pool) -> None:
    await insert_workspace(pool)
    held = present(await take(pool))
    assert await take(pool, running=[held.id]) is None
    again = present(await take(pool, lease_s=None, worker_gone_after_s=None))
    assert again.attempt == 2
    assert await builds.finish_build(pool, hold(held), OK) is None
    assert await builds.finish_build(pool, hold(again), OK) is not None


@pytest.mark.promise("P3")
async def test_a_worker_that_lost_a_build_writes_nothing(pool: Pool) -> None:
    await insert_workspace(pool)
    held = present(await take(pool))
    await age_builds(pool, 31)
    taken = present(await take(pool, OTHER_WORKER))
    mine = hold(held)
    assert await builds.renew_builds(pool, WORKER, [mine]) == {}
    assert (
        await builds.finish_build(
            pool, mine, BuildResult(status="succeeded", agents=(agent_spec(),))
        )
        is None
    )
    await builds.append_log(pool, mine, [BuildLogLine(stage="s", level="info", output="late")])
    await builds.release_build(pool, mine)
    assert await builds.get(pool, HARNESS, held.id) == taken
    assert await builds.list_log(pool, HARNESS, held.id) == []
    assert await pool.fetchval("SELECT count(*) FROM workspace_agents") == 0


async def test_a_result_written_twice_is_stored_once(pool: Pool) -> None:
    await insert_workspace(pool)
    held = present(await take(pool))
    ended = BuildResult(status="succeeded", agents=(agent_spec(1), agent_spec(2, parent_id=None)))
    done = await builds.finish_build(pool, hold(held), ended)
    assert await builds.finish_build(pool, hold(held), ended) is None
    assert await builds.get(pool, HARNESS, held.id) == done
    assert await pool.fetchval("SELECT count(*) FROM workspace_agents") == 2


async def test_a_failed_build_leaves_agents_and_deadline_of_the_one_before(pool: Pool) -> None:
    await run_workspace(pool, ttl_s=60)
    await builds.insert(pool, HARNESS, new_build(2))
    await finish(pool, BuildResult(status="failed", error="no"))
    assert present(await builds.get(pool, HARNESS, build_id(1))).deadline is not None
    assert await pool.fetchval("SELECT lifecycle FROM workspace_agents") == "starting"


async def test_log_lines_come_back_in_order_and_after_a_position(pool: Pool) -> None:
    await insert_workspace(pool)
    held = present(await take(pool))
    lines = [BuildLogLine(stage="seed", level="info", output=f"{n}\0") for n in range(50)]
    await builds.append_log(pool, hold(held), lines[:30])
    await builds.append_log(pool, hold(held), lines[30:])
    page = await builds.list_log(pool, HARNESS, held.id, limit=40)
    rest = await builds.list_log(pool, HARNESS, held.id, after=page[-1].id)
    assert [line.output for line in (*page, *rest)] == [f"{n}\ufffd" for n in range(50)]


async def test_the_logs_of_old_builds_are_deleted(pool: Pool) -> None:
    await insert_workspace(pool)
    said = [BuildLogLine(stage="s", level="info", output="hello")]
    for number in range(1, 23):
        held = present(await take(pool))
        await builds.append_log(pool, hold(held), said)
        await builds.finish_build(pool, hold(held), OK)
        await builds.insert(
            pool, HARNESS, new_build(100 + number, after=number, transition="start")
        )
    count = "SELECT count(*) FROM workspace_build_logs"
    assert await pool.fetchval(count) == 20
    await finish(pool)
    await builds.insert(pool, HARNESS, new_build(200, after=23, transition="delete"))
    await finish(pool)
    assert await pool.fetchval(count) == 0


async def test_a_build_without_a_worker_fails_with_a_reason(pool: Pool) -> None:
    await insert_template(pool)
    for number in (1, 2, 3):
        await workspaces.create(pool, HARNESS, new_workspace(number))
    taken = await builds.acquire_builds(pool, wanted(limit=2))
    await builds.cancel(pool, HARNESS, taken[1].build.id)
    assert await builds.reap_builds(pool, after_s=100, error="no worker") == []
    await age_builds(pool, 101)
    ended = await builds.reap_builds(pool, after_s=100, error="no worker")
    assert sorted((b.status, b.error) for b in ended) == [
        ("canceled", ""),
        ("failed", "no worker"),
        ("failed", "no worker"),
    ]


class Walk:
    """Two workers, users and time in random order. The checks read only the rows."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self._pool = pool
        self._random = random.Random(seed)
        self._holds: list[BuildLease] = []
        self._next = 100
        self._stale: set[tuple[BuildId, int]] = set()

    async def step(self) -> None:
        kinds = (self.ask, self.take, self.beat, self.end, self.cancel, self.leave, self.wait)
        await self._random.choice(kinds)()
        await self.check()

    async def ask(self) -> None:
        self._next += 1
        seen = present(await workspaces.load_snapshot(self._pool, HARNESS, workspace_id(1)))
        assert seen.build is not None
        new = NewBuild(
            id=build_id(self._next),
            workspace_id=workspace_id(1),
            after=seen.build.build_number - self._random.choice((0, 0, 1)),
            transition=self._random.choice(("start", "stop")),
            version_id=seen.build.template_version_id,
            initiator_id=seen.build.initiator_id,
        )
        made = await builds.insert(self._pool, HARNESS, new)
        may = new.after == seen.build.build_number and not seen.build.active
        assert (made is not None) == may

    async def take(self) -> None:
        worker = self._random.choice((WORKER, OTHER_WORKER))
        mine = [h.id for h in self._holds if h.worker_id == worker]
        for taken in await builds.acquire_builds(
            self._pool, wanted(worker_id=worker, running=mine)
        ):
            self._stale |= {(h.id, h.attempt) for h in self._holds if h.id == taken.build.id}
            self._holds.append(hold(taken.build))

    async def beat(self) -> None:
        for one in self._holds:
            await builds.renew_builds(self._pool, one.worker_id, [one])

    async def end(self) -> None:
        if not self._holds:
            return
        one = self._holds.pop(self._random.randrange(len(self._holds)))
        outcomes = (OK, BuildResult(status="failed", error="x"), BuildResult(status="canceled"))
        done = await builds.finish_build(self._pool, one, self._random.choice(outcomes))
        assert done is None or (one.id, one.attempt) not in self._stale, "a stale worker wrote"

    async def cancel(self) -> None:
        latest = (await builds.list_builds(self._pool, HARNESS, workspace_id(1)))[0]
        await builds.cancel(self._pool, HARNESS, latest.id)

    async def leave(self) -> None:
        if self._holds:
            await builds.release_build(self._pool, self._holds.pop())

    async def wait(self) -> None:
        await age_builds(self._pool, self._random.choice((5, 31)))

    async def check(self) -> None:
        rows = await builds.list_builds(self._pool, HARNESS, workspace_id(1), limit=1000)
        assert [row.build_number for row in rows] == list(range(len(rows), 0, -1))
        assert all(not row.active for row in rows[1:])

    async def come_to_rest(self) -> None:
        """One worker and some time end every build."""
        await age_builds(self._pool, 31)
        for taken in await builds.acquire_builds(
            self._pool, wanted(worker_id=WorkerId(UUID(int=0xEE)))
        ):
            assert await builds.finish_build(self._pool, hold(taken.build), OK) is not None
        assert not (await builds.list_builds(self._pool, HARNESS, workspace_id(1)))[0].active


@pytest.mark.promise("P2")
@pytest.mark.parametrize("seed", range(6))
async def test_no_build_is_left_running_whatever_happens_to_it(pool: Pool, seed: int) -> None:
    await insert_workspace(pool)
    walk = Walk(pool, seed)
    for _ in range(60):
        await walk.step()
    await walk.come_to_rest()


def _place(runner: str, **columns: Any) -> BuildPlace:
    return BuildPlace(runner_id=RunnerId(runner), backend=BACKEND, **columns)


@pytest.mark.parametrize(
    ("needs", "places", "taken_by"),
    [
        (TemplateSpec(), [_place("a", pool="p"), _place("b")], "b"),
        (TemplateSpec(pool="p"), [_place("a"), _place("b", pool="p"), _place("c", pool="p")], "b"),
        (TemplateSpec(pool="p"), [_place("a", pool="p", takes_new=False)], None),
        (TemplateSpec(labels=("x", "y")), [_place("a", labels=("x",))], None),
        (TemplateSpec(labels=("x",)), [_place("a"), _place("b", labels=("y", "x"))], "b"),
    ],
)
async def test_a_new_workspace_goes_to_the_first_place_that_fits_and_stays_there(
    pool: Pool, needs: TemplateSpec, places: list[BuildPlace], taken_by: str | None
) -> None:
    put = templates.TemplateUpsert(template=template(), version=replace(version(), spec=needs))
    await templates.upsert_template(pool, put)
    await workspaces.create(pool, HARNESS, new_workspace(host_id=None))
    taken = await builds.acquire_builds(pool, replace(wanted(), places=places))
    assert [build.runner_id for build in taken] == ([] if taken_by is None else [taken_by])
    snapshot = present(await workspaces.load_snapshot(pool, HARNESS, workspace_id(1)))
    assert present(snapshot.workspace).host_id == taken_by
    if taken_by is not None:
        assert taken[0].workspace == snapshot.workspace
        await builds.release_build(pool, hold(taken[0].build))
        others = [replace(place, pool="p", labels=("x", "y")) for place in places]
        elsewhere = [place for place in others if place.runner_id != taken_by]
        assert not await builds.acquire_builds(pool, replace(wanted(), places=elsewhere))
        full = [replace(place, takes_new=False) for place in others]
        assert await builds.acquire_builds(pool, replace(wanted(), places=full))


async def test_a_place_takes_no_more_new_workspaces_than_it_has_room_for(pool: Pool) -> None:
    for number in range(1, 4):
        await insert_workspace(pool, number, host_id=None)
    await insert_workspace(pool, 4, host_id="a")
    places = [_place("a", room=2), _place("b", room=2)]
    taken = await builds.acquire_builds(pool, replace(wanted(), places=places))
    assert sorted(build.workspace.name for build in taken) == ["work-1", "work-2", "work-4"]
    assert {build.runner_id for build in taken} == {"a"}


async def test_a_users_own_runner_gets_no_workspace_of_another_user(pool: Pool) -> None:
    await insert_workspace(pool, host_id="a")
    foreign = [_place("a", owner_id=UserId(UUID(int=5)))]
    assert not await builds.acquire_builds(pool, replace(wanted(), places=foreign))
    own = [_place("a", owner_id=OWNER)]
    assert await builds.acquire_builds(pool, replace(wanted(), places=own))
