"""Workspaces and templates in a real database: created once, also when the request is repeated."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from chatd.domain.chat.row import Fence
from chatd.domain.chat.states import State
from chatd.domain.errors import ChatdError, StaleFence
from chatd.domain.ids import UserId
from chatd.domain.workspace.entities import (
    DemoSeed,
    Parameter,
    ParameterOption,
    ResourceLimits,
    TemplateId,
    TemplateSpec,
)
from chatd.domain.workspace.rules import bumped_deadline
from chatd.store.chat import workers
from chatd.store.database.pool import Pool
from chatd.store.workspace import bindings, builds, templates, workspaces
from tests.support.factories import CHAT, HARNESS, OTHER_WORKER, OWNER, member
from tests.support.outcomes import present
from tests.support.seeds import Seed
from tests.support.store import insert_seed
from tests.support.workspaces import (
    TEMPLATE,
    VERSION,
    agent_id,
    agents_of,
    build_id,
    finish,
    insert_template,
    insert_workspace,
    insert_workspace_for,
    new_build,
    new_workspace,
    run_workspace,
    template,
    version,
    workspace_id,
)

KEY = "chat:7:call-1"
STRANGER = UserId(UUID(int=404))


async def count(pool: Pool, table: str) -> int:
    match table:
        case "workspaces":
            return await pool.fetchval("SELECT count(*) FROM workspaces")
        case _:
            return await pool.fetchval("SELECT count(*) FROM workspace_builds")


# Templates


async def test_a_template_comes_back_as_stored(pool: Pool) -> None:
    spec = TemplateSpec(
        seed=DemoSeed(),
        env={"A": "1"},
        limits=ResourceLimits(processes=7),
        startup_script="echo hi",
    )
    parameters = (
        Parameter(name="repo", required=True, regex="^https:", description="where from"),
        Parameter(name="size", type="number", default="2", min=1, max=8.5),
        Parameter(
            name="os", options=(ParameterOption(name="Debian", value="debian"),), mutable=False
        ),
    )
    put = templates.TemplateUpsert(
        template=template(description="half \0 of it", default_ttl_s=60),
        version=version(spec=spec, readme="# Hi", parameters=parameters),
    )
    stored = present(await templates.upsert_template(pool, put))
    assert (stored.description, stored.default_ttl_s) == ("half \ufffd of it", 60)
    assert await templates.get(pool, TEMPLATE) == stored
    read = present(await templates.get_version(pool, VERSION))
    assert (read.spec, read.parameters, read.readme) == (spec, parameters, "# Hi")


async def test_all_replicas_may_upsert_the_same_template_at_once(pool: Pool) -> None:
    put = templates.TemplateUpsert(template=template(), version=version())
    await asyncio.gather(*(templates.upsert_template(pool, put) for _ in range(8)))
    assert [stored.id for stored in await templates.list_all(pool)] == [TEMPLATE]


async def test_a_name_of_another_template_is_refused(pool: Pool) -> None:
    await insert_template(pool)
    other = template(id=TemplateId(UUID(int=0x99)), name="SCRATCH")
    with pytest.raises(templates.TemplateNameTaken):
        await templates.upsert_template(
            pool, templates.TemplateUpsert(template=other, version=version())
        )
    assert len(await templates.list_all(pool)) == 1


async def test_a_template_that_was_deleted_stays_deleted(pool: Pool) -> None:
    await insert_template(pool)
    await pool.execute("UPDATE templates SET deleted = true")
    assert (
        await templates.upsert_template(
            pool, templates.TemplateUpsert(template=template(), version=version())
        )
        is None
    )
    assert await templates.list_all(pool) == []


async def test_templates_no_longer_in_the_file_are_deprecated_and_can_return(pool: Pool) -> None:
    await insert_template(pool, origin="settings")
    await templates.deprecate_missing(pool, "builtin", ())
    assert not (await templates.list_all(pool))[0].deprecated
    await templates.deprecate_missing(pool, "settings", ())
    assert (await templates.list_all(pool))[0].deprecated
    assert not (await insert_template(pool, origin="settings")).deprecated


async def test_template_usage_counts_own_and_other_workspaces(pool: Pool) -> None:
    await insert_workspace(pool, 1)
    await workspaces.create(pool, HARNESS, new_workspace(2, owner_id=UUID(int=77)))
    await workspaces.create(pool, HARNESS, new_workspace(3))
    await pool.execute("UPDATE workspaces SET deleted = true WHERE id = $1", workspace_id(3))
    signal = (await templates.list_usage(pool, HARNESS, OWNER))[TEMPLATE]
    assert (signal.active, signal.deleted, signal.developers) == (1, 1, 2)
    await pool.execute("UPDATE workspaces SET last_used_at = now() - interval '61 days'")
    assert await templates.list_usage(pool, HARNESS, OWNER) == {}


# Workspaces


async def test_a_workspace_comes_with_its_first_build(pool: Pool) -> None:
    await insert_template(pool)
    created = await workspaces.create(pool, HARNESS, new_workspace(params={"a": "b"}))
    assert (created.workspace.name, created.replayed) == ("work-1", False)
    assert created.build.status == "pending"
    assert (created.build.build_number, created.build.transition) == (1, "start")
    seen = present(await workspaces.load_snapshot(pool, HARNESS, workspace_id(1)))
    assert (seen.workspace, seen.build, seen.agents) == (created.workspace, created.build, ())
    [listed] = await workspaces.list_page(pool, member(), after=None, limit=9)
    assert listed.workspace == created.workspace
    assert await workspaces.load_snapshot(pool, HARNESS, workspace_id(9)) is None


async def test_a_repeated_request_finds_its_workspace(pool: Pool) -> None:
    await insert_template(pool)
    first = await workspaces.create(pool, HARNESS, new_workspace(1, made_by=KEY))
    again = await workspaces.create(pool, HARNESS, new_workspace(2, name="other", made_by=KEY))
    same_name = await workspaces.create(pool, HARNESS, new_workspace(3, name="work-1", made_by=KEY))
    assert again.replayed
    assert same_name.replayed
    assert again.workspace == same_name.workspace == first.workspace
    assert again.build == first.build
    assert (await count(pool, "workspaces"), await count(pool, "builds")) == (1, 1)


async def test_concurrent_requests_with_one_key_create_one_workspace(pool: Pool) -> None:
    await insert_template(pool)
    made = await asyncio.gather(
        *(
            workspaces.create(pool, HARNESS, new_workspace(n, name="same", made_by=KEY))
            for n in range(8)
        )
    )
    assert len({created.workspace.id for created in made}) == 1
    assert [created.replayed for created in made].count(False) == 1
    assert await count(pool, "builds") == 1


async def test_two_names_that_differ_only_in_case_clash(pool: Pool) -> None:
    await insert_workspace(pool, 1, name="Work")
    with pytest.raises(workspaces.WorkspaceNameTaken):
        await workspaces.create(pool, HARNESS, new_workspace(2, name="wORK", made_by=KEY))
    await workspaces.create(pool, HARNESS, new_workspace(3, name="work", owner_id=UUID(int=77)))
    assert await count(pool, "workspaces") == 2


async def test_the_name_of_a_deleted_workspace_is_free(pool: Pool) -> None:
    await run_workspace(pool, 1, name="work")
    await builds.insert(pool, HARNESS, new_build(2, transition="delete"))
    await finish(pool)
    assert (
        await workspaces.create(pool, HARNESS, new_workspace(3, name="work"))
    ).workspace.name == "work"


@pytest.mark.promise("P7")
async def test_a_workspace_for_a_chat_is_bound_by_the_same_statement(pool: Pool) -> None:
    await insert_template(pool)
    fence = Fence.of(await insert_seed(pool, Seed(state=State.R0, calls="local")))
    created = await insert_workspace_for(pool, CHAT, fence, made_by=KEY)
    bound = present(await bindings.get(pool, HARNESS, CHAT))
    assert (bound.workspace_id, bound.build_id) == (created.workspace.id, created.build.id)
    assert bound.agent_id is None
    again = await insert_workspace_for(pool, CHAT, fence, 2, made_by=KEY)
    assert (again.replayed, again.workspace.id) == (True, created.workspace.id)
    assert await bindings.get(pool, HARNESS, CHAT) == bound


@pytest.mark.promise("P3")
async def test_a_worker_that_lost_its_chat_creates_no_workspace(pool: Pool) -> None:
    await insert_template(pool)
    fence = Fence.of(await insert_seed(pool, Seed(state=State.R0, calls="local")))
    await workers.release(pool, fence.worker_id)
    await workers.acquire(pool, OTHER_WORKER, roots=1, children=0)
    with pytest.raises(StaleFence):
        await insert_workspace_for(pool, CHAT, fence, made_by=KEY)
    assert await count(pool, "workspaces") == 0
    assert present(await bindings.get(pool, HARNESS, CHAT)).workspace_id is None


# Bindings


async def test_a_chat_changes_its_workspace_only_from_the_expected_one(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.W))
    one, two = (await insert_workspace(pool, 1)).id, workspace_id(2)
    await workspaces.create(pool, HARNESS, new_workspace(2))
    assert await bindings.bind(
        pool, HARNESS, CHAT, expected=None, workspace_id=one, build_id=build_id(1)
    )
    assert not await bindings.bind(pool, HARNESS, CHAT, expected=None, workspace_id=two)
    assert await bindings.save_bound_agent(
        pool, HARNESS, CHAT, one, build_id=build_id(1), agent_id=agent_id(1)
    )
    assert not await bindings.save_bound_agent(
        pool, HARNESS, CHAT, two, build_id=build_id(2), agent_id=agent_id(2)
    )
    assert await bindings.bind(pool, HARNESS, CHAT, expected=one, workspace_id=two)
    bound = present(await bindings.get(pool, HARNESS, CHAT))
    assert (bound.workspace_id, bound.build_id, bound.agent_id) == (two, None, None)
    assert await bindings.bind(pool, HARNESS, CHAT, expected=two, workspace_id=None)
    bound = present(await bindings.get(pool, HARNESS, CHAT))
    assert (bound.workspace_id, bound.build_id) == (None, None)


@pytest.mark.promise("P12")
async def test_another_owners_workspace_is_no_workspace_whatever_the_row_says(pool: Pool) -> None:
    await insert_seed(pool, Seed(state=State.W))
    theirs = (await insert_workspace(pool, 1, owner_id=STRANGER)).id
    assert await bindings.bind(pool, HARNESS, CHAT, expected=None, workspace_id=theirs)
    bound = present(await bindings.get(pool, HARNESS, CHAT))
    assert (bound.workspace_id, bound.build_id, bound.agent_id) == (None, None, None)
    assert not await bindings.save_bound_agent(
        pool, HARNESS, CHAT, theirs, build_id=build_id(1), agent_id=agent_id(1)
    )


# Activity


@pytest.mark.covers("binding-7")
@pytest.mark.parametrize(
    ("bump_s", "left_s", "most_s"),
    [
        (3600, 1800, None),
        (3600, 3599, None),
        (3600, 3500, None),
        (3600, 3300, None),
        (3600, 7200, None),
        (3600, -60, None),
        (0, 10, None),
        (3600, 1800, 2000),
        (3600, 1800, 1800),
        (3600, 1800, 9000),
    ],
)
async def test_activity_moves_the_deadline_as_the_rule_says(
    pool: Pool, bump_s: int, left_s: int, most_s: int | None
) -> None:
    await insert_template(pool, activity_bump_s=bump_s)
    await workspaces.create(pool, HARNESS, new_workspace(ttl_s=100))
    await finish(pool)
    await pool.execute(
        """UPDATE workspace_builds SET deadline = now() + $1 * interval '1 s',
               max_deadline = now() + $2 * interval '1 s'""",
        float(left_s),
        None if most_s is None else float(most_s),
    )
    before = await builds.get(pool, HARNESS, build_id(1))
    await workspaces.record_activity(pool, [workspace_id(1), workspace_id(9)])
    after = await builds.get(pool, HARNESS, build_id(1))
    used = await workspaces.get(pool, HARNESS, workspace_id(1))
    assert before is not None
    assert after is not None
    assert used is not None
    expected = bumped_deadline(
        before.deadline, before.max_deadline, bump_s=bump_s, now=used.last_used_at
    )
    assert after.deadline is not None
    assert before.deadline is not None
    if expected is None:
        assert after.deadline == before.deadline
    else:
        assert abs(after.deadline - expected) < timedelta(milliseconds=1)


@pytest.mark.covers("binding-7")
async def test_a_stopped_workspace_has_no_deadline_to_move(pool: Pool) -> None:
    await run_workspace(pool, ttl_s=100)
    await builds.insert(pool, HARNESS, new_build(2))
    await finish(pool)
    await workspaces.record_activity(pool, [workspace_id(1)])
    assert await pool.fetchval("SELECT count(*) FROM workspace_builds WHERE deadline > now()") == 0


async def test_a_workspace_has_one_active_build_whatever_the_bug(pool: Pool) -> None:
    await insert_workspace(pool)
    with pytest.raises(ChatdError, match="one_active_build"):
        await pool.execute(
            """INSERT INTO workspace_builds (id, workspace_id, build_number, transition,
                   template_version_id, initiator_id, reason)
               SELECT gen_random_uuid(), workspace_id, 2, 'stop', template_version_id,
                   initiator_id, reason FROM workspace_builds"""
        )


async def test_the_agents_of_a_workspace_are_those_of_its_latest_build(pool: Pool) -> None:
    await run_workspace(pool)
    assert [a.id for a in await agents_of(pool, workspace_id(1))] == [agent_id(1)]
    await builds.insert(pool, HARNESS, new_build(2))
    assert await agents_of(pool, workspace_id(1)) == ()
