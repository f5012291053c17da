"""Due schedules start their chats, once each, whichever replicas run."""

import asyncio
from datetime import timedelta
from typing import Final
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.domain.access.permissions import WORKER, UserActor
from chatd.domain.deployment.schedules import Schedule
from chatd.domain.ids import ModelConfigId, ProjectId, UserId
from chatd.domain.projects import MemberRole
from chatd.services.schedules import ScheduleRunner
from chatd.store import projects
from chatd.store.chat import chats
from chatd.store.deployment import schedules
from chatd.store.projects import ProjectPatch
from tests.support.engine_rig import EngineRig, engine_rig

OTHER: Final = UserId(UUID(int=8))


async def add_schedule(rig: EngineRig, **fields: object) -> Schedule:
    """Due a minute ago."""
    now = await schedules.read_time(rig.pool)
    schedule = Schedule(
        id=rig.replica.env.new_id(),
        owner_id=rig.owner,
        name="Nightly",
        cron="@daily",
        timezone="UTC",
        prompt="Check the build.",
        model_config_id=None,
        reasoning_effort=None,
        labels={},
        workspace_id=None,
        enabled=True,
        next_at=now - timedelta(minutes=1),
        last_at=None,
        last_chat_id=None,
        last_error=None,
        created_at=now,
        updated_at=now,
    )
    actor = UserActor(user_id=rig.owner, role="member")
    return await schedules.insert(rig.pool, actor, replace(schedule, **fields))


async def create_project(
    rig: EngineRig, owner_id: UserId, model: ModelConfigId | None = None
) -> ProjectId:
    project_id = ProjectId(rig.replica.env.new_id())
    patch = ProjectPatch(name="Billing", model_config_id=model)
    async with rig.pool.transaction() as session:
        await projects.create(session, member(owner_id), project_id, patch)
    return project_id


def member(user_id: UserId) -> UserActor:
    return UserActor(user_id=user_id, role="member")


async def read(rig: EngineRig, schedule: Schedule) -> Schedule:
    actor = UserActor(user_id=rig.owner, role="member")
    found = await schedules.get(rig.pool, actor, schedule.id)
    assert found is not None
    return found


def runner(rig: EngineRig) -> ScheduleRunner:
    return ScheduleRunner(rig.pool, rig.replica.transactor, rig.replica.env)


async def test_a_due_schedule_starts_a_chat_and_is_due_again_later(dsn: str) -> None:
    async with engine_rig(dsn) as rig:
        rig.answer("All is well.")
        schedule = await add_schedule(rig)
        assert await runner(rig).run_due() == 1
        after = await read(rig, schedule)
        assert after.last_chat_id is not None
        assert after.last_error is None
        assert after.next_at is not None
        assert after.next_at > await schedules.read_time(rig.pool)
        await rig.wait_chat_task_left(after.last_chat_id)
        assert await rig.transcript(after.last_chat_id) == [
            "user: Check the build.",
            "assistant: All is well.",
        ]
        assert await runner(rig).run_due() == 0


@pytest.mark.promise("P10")
async def test_two_replicas_and_a_crash_after_the_start_make_one_chat(dsn: str) -> None:
    async with engine_rig(dsn) as rig:
        rig.answer("All is well.")
        schedule = await add_schedule(rig)
        await asyncio.gather(runner(rig).run_due(), runner(rig).run_due())
        # As if the replica had died before it recorded the run.
        await rig.pool.execute("UPDATE schedules SET next_at = $1", schedule.next_at)
        await runner(rig).run_due()
        assert await rig.pool.fetchval("SELECT count(*) FROM chats") == 1


async def test_a_run_that_cannot_start_says_why_and_does_not_hold_up_others(dsn: str) -> None:
    async with engine_rig(dsn) as rig:
        rig.answer("All is well.")
        broken = await add_schedule(rig, timezone="Mars/Olympus")
        good = await add_schedule(rig)
        assert await runner(rig).run_due() == 2
        assert "Mars/Olympus" in str((await read(rig, broken)).last_error)
        assert (await read(rig, broken)).next_at is None
        assert (await read(rig, good)).last_chat_id is not None


async def test_a_schedule_starts_its_chats_in_its_project_with_the_model_of_it(dsn: str) -> None:
    async with engine_rig(dsn) as rig:
        rig.answer("All is well.")
        model, other = ModelConfigId(UUID(int=51)), ModelConfigId(UUID(int=52))
        project = await create_project(rig, rig.owner, model)
        for named, expected in ((None, model), (other, other)):
            schedule = await add_schedule(rig, project_id=project, model_config_id=named)
            assert await runner(rig).run_due() == 1
            chat_id = (await read(rig, schedule)).last_chat_id
            assert chat_id is not None
            chat = await chats.get(rig.pool, WORKER, chat_id)
            assert chat is not None
            assert (chat.project_id, chat.model_config_id) == (project, expected)


@pytest.mark.promise("P12")
@pytest.mark.parametrize("role", ["reader", None])
async def test_a_schedule_whose_owner_may_not_write_to_its_project_starts_no_chat(
    dsn: str, role: MemberRole | None
) -> None:
    async with engine_rig(dsn) as rig:
        project = await create_project(rig, OTHER)
        schedule = await add_schedule(rig, project_id=project)
        if role is not None:
            async with rig.pool.transaction() as session:
                await projects.set_member(session, member(OTHER), project, rig.owner, role)
        assert await runner(rig).run_due() == 1
        found = await read(rig, schedule)
        reason = "There is no such project." if role is None else "only its owner and its writers"
        assert reason in str(found.last_error)
        assert (found.last_chat_id, found.next_at is None) == (None, False)
        assert await rig.pool.fetchval("SELECT count(*) FROM chats") == 0
        async with rig.pool.transaction() as session:
            await projects.set_member(session, member(OTHER), project, rig.owner, "writer")
        await schedules.set_due(rig.pool, member(rig.owner), schedule.id)
        rig.answer("All is well.")
        assert await runner(rig).run_due() == 1
        found = await read(rig, schedule)
        assert (found.last_error, found.last_chat_id is None) == (None, False)


@pytest.mark.promise("P12")
async def test_a_schedule_of_a_suspended_user_waits(dsn: str) -> None:
    async with engine_rig(dsn) as rig:
        await add_schedule(rig)
        await rig.pool.execute("UPDATE users SET status = 'suspended' WHERE id = $1", rig.owner)
        assert await runner(rig).run_due() == 0


@pytest.mark.promise("P12")
async def test_a_schedule_of_a_user_that_became_a_viewer_starts_no_chat(dsn: str) -> None:
    async with engine_rig(dsn) as rig:
        schedule = await add_schedule(rig)
        await rig.pool.execute("UPDATE users SET role = 'viewer' WHERE id = $1", rig.owner)
        assert await runner(rig).run_due() == 1
        found = await read(rig, schedule)
        assert found.last_chat_id is None
        assert found.last_error == "Not allowed for the role viewer (chats.create)."
        assert await rig.pool.fetchval("SELECT count(*) FROM chats") == 0
