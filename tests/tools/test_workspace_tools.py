"""How a chat gets a workspace, what it is told on the way, and that it gets one only."""

import asyncio
from typing import LiteralString
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.ids import UserId, WorkspaceId
from chatd.domain.workspace.entities import AgentLifecycle, BuildId, Endpoint, Parameter, VersionId
from chatd.store.chat import chats
from chatd.store.pool import Pool
from chatd.store.workspace import bindings, builds, templates, workspaces
from chatd.workspaces.agents.resolver import AgentConnector
from chatd.workspaces.builds.backend import BuildFailed
from tests.support.factories import CHAT, OWNER
from tests.support.workspaces import TEMPLATE, new_workspace, template, version
from tests.tools.workspace_tool_caller import BRIEF, open_workspace_tools

OTHER = VersionId(UUID(int=0x7E2))


async def of_chat(pool: Pool) -> WorkspaceId | None:
    row = await chats.get(pool, CHAT)
    assert row is not None
    return row.workspace_id


@pytest.mark.covers("workspaces-1")
async def test_a_workspace_is_made_and_waited_for(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        told = await site.create(name="my-work")
        assert told["created"] is True
        assert told["workspace_name"] == "my-work"
        assert told["directory"] == "/home/dev"
        made = WorkspaceId(UUID(told["workspace_id"]))
        assert await of_chat(pool) == made
        build = await builds.get(pool, BuildId(UUID(told["build_id"])))
        assert build is not None
        assert (build.status, build.initiator_id, build.reason) == ("succeeded", OWNER, "tool")
        # Once so that its logs can be watched, once more when it can be used.
        assert site.bound == [(CHAT, made), (CHAT, made)]


@pytest.mark.promise("P7")
async def test_a_call_that_is_run_again_makes_no_second_workspace(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        first = await site.create("the-call")
        again = await site.create("the-call")
        assert again == first
        assert len(await workspaces.list_page(pool, OWNER, after=None, most=9)) == 1
        assert sum(site.backend.made.values()) == 1


@pytest.mark.covers("workspaces-3")
async def test_a_chat_that_has_a_workspace_keeps_it(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        first = await site.create()
        await site.record_heartbeat(first["workspace_id"])
        again = await site.create()
        assert again["already_exists"] is True
        assert again["no_build"] is True
        assert again["workspace_id"] == first["workspace_id"]


@pytest.mark.covers("workspaces-3")
async def test_a_workspace_whose_agent_is_gone_is_replaced(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        first = await site.create()
        await site.record_heartbeat(first["workspace_id"])
        await pool.execute("UPDATE workspace_agents SET disconnected_at = now() + interval '1 s'")
        # Rows may be late, such as after all servers of its host were away.
        kept = await site.create()
        assert (kept["already_exists"], kept["workspace_id"]) == (True, first["workspace_id"])
        site.agents.unanswered = site.agents.pings + 1
        again = await site.create()
        assert again["created"] is True
        assert again["workspace_id"] != first["workspace_id"]


@pytest.mark.covers("workspaces-3")
async def test_a_workspace_that_is_deleted_is_replaced(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        first = await site.create()
        await pool.execute("UPDATE workspaces SET deleted = true")
        again = await site.create()
        assert again["created"] is True
        assert again["workspace_id"] != first["workspace_id"]


@pytest.mark.covers("workspaces-4")
async def test_a_stopped_workspace_is_to_be_started(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        await site.create()
        stopped = await site.result_of("stop_workspace")
        assert stopped["stopped"] is True
        assert "start_workspace" in (await site.create())["message"]
        again = await site.result_of("stop_workspace")
        assert (again["stopped"], again["no_build"]) == (True, True)
        started = await site.result_of("start_workspace")
        assert started["started"] is True
        assert started["build_id"]
        running = await site.result_of("start_workspace")
        assert (running["started"], running["no_build"]) == (True, True)


@pytest.mark.covers("workspaces-4")
@pytest.mark.parametrize("tool", ["start_workspace", "stop_workspace"])
async def test_without_a_workspace_there_is_nothing_to_start_or_stop(pool: Pool, tool: str) -> None:
    async with open_workspace_tools(pool) as site:
        told = await site.result_of(tool)
        assert told == {
            "error": "This chat has no workspace. Call list_templates, then create_workspace."
        }
        await site.create()
        await pool.execute("UPDATE workspaces SET deleted = true")
        assert str((await site.result_of(tool))["error"]).startswith(
            "The chat's workspace is deleted."
        )


async def test_a_build_under_way_is_waited_for_and_not_repeated(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        site.backend.hold = "made"
        async with asyncio.TaskGroup() as group:
            first = group.create_task(site.create())
            async with asyncio.timeout(20):
                await site.backend.reached.wait()
            second = group.create_task(site.create())
            site.backend.go.set()
        assert second.result()["workspace_id"] == first.result()["workspace_id"]
        assert second.result()["already_exists"] is True


async def test_a_build_that_fails_keeps_its_id_and_says_why(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        site.backend.hold, site.backend.fails = "asked", BuildFailed("The disk is full.")
        site.backend.go.set()
        told = await site.create()
        assert "created" not in told
        assert "The disk is full." in told["error"]
        assert told["build_id"]
        site.backend.hold = None
        started = await site.result_of("start_workspace")
        assert started["started"] is True


@pytest.mark.promise("P14")
async def test_a_build_that_does_not_end_is_left_to_itself(pool: Pool) -> None:
    async with open_workspace_tools(pool, waits=BRIEF) as site:
        site.backend.hold = "made"
        told = await site.create()
        assert "start_workspace later" in told["error"]
        assert told["build_id"]
        stopped = await site.result_of("stop_workspace")
        assert "Call stop_workspace later to wait for it." in stopped["error"]
        site.backend.go.set()


@pytest.mark.covers("workspaces-1")
@pytest.mark.promise("P14")
async def test_an_agent_that_never_comes_is_no_failure(pool: Pool) -> None:
    async with open_workspace_tools(pool, waits=BRIEF) as site:
        site.agents.silent = True
        told = await site.create()
        assert told["created"] is True
        assert told["agent_status"] == "not_ready"
        assert told["agent_error"] == "Nobody answers."
        assert "if that fails, call stop_workspace, then start_workspace" in told["message"]


async def test_an_agent_on_another_host_is_not_waited_for(pool: Pool) -> None:
    """The site would wait for half a minute."""
    async with asyncio.timeout(20), open_workspace_tools(pool) as site:
        here = AgentConnector(secret=b"secret", host_id="here", clock=SystemClock())
        there = (Endpoint(kind="unix", path="/nowhere", host_id="there"),)
        site.agents.instead = lambda agent: here.ping(replace(agent, endpoints=there))
        told = await site.create()
        assert (told["created"], told["agent_status"]) == (True, "not_ready")
        assert told["agent_error"].startswith("The workspace is on another host")
        assert "message" not in told


@pytest.mark.covers("workspaces-1")
async def test_an_agent_that_comes_late_is_waited_for(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        site.agents.unanswered = 2
        site.agents.lifecycles = ["starting", "ready"]
        told = await site.create()
        assert told["created"] is True
        assert "agent_status" not in told
        assert "startup_scripts" not in told


@pytest.mark.covers("workspaces-1")
@pytest.mark.parametrize(
    ("lifecycle", "told_of"),
    [
        ("start_error", "startup_scripts_failed"),
        ("start_timeout", "startup_scripts_timeout"),
        ("starting", "startup_scripts_timeout"),
        ("shutting_down", "startup_scripts_unknown"),
    ],
)
async def test_scripts_that_end_badly_are_told_and_no_failure(
    pool: Pool, lifecycle: AgentLifecycle, told_of: str
) -> None:
    async with open_workspace_tools(pool, waits=BRIEF) as site:
        site.agents.lifecycles = [lifecycle]
        told = await site.create()
        assert told["created"] is True
        assert told["startup_scripts"] == told_of
        assert "something that it sets up may be missing" in told["message"]
        assert told["lifecycle_state"] == lifecycle


async def test_a_name_that_is_taken_is_varied(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        await site.create(name="work")
        await pool.execute("UPDATE chats SET workspace_id = NULL")
        other = await site.create(name="work")
        assert other["created"] is True
        assert other["workspace_name"].startswith("work-")


async def test_a_name_that_can_be_none_is_made_into_one(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        told = await site.create(name="Über / Größe!")
        assert told["workspace_name"].startswith("uber-groe-")


async def test_parameters_that_do_not_fit_are_told_by_name(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        told = await site.create(parameters={"colour": "red"})
        assert "colour" in told["error"]
        assert told["validations"][0]["field"] == "colour"
        assert await workspaces.list_page(pool, OWNER, after=None, most=9) == []


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (None, "template_id is required"),
        ("scratch", 'template_id must be a UUID, not "scratch". Give the id'),
        ("00000000-0000-0000-0000-000000000001", "There is no such template."),
    ],
)
@pytest.mark.parametrize("tool", ["create_workspace", "read_template"])
async def test_a_template_that_is_none_is_refused(
    pool: Pool, tool: str, given: str | None, complaint: str
) -> None:
    async with open_workspace_tools(pool) as site:
        output = await site.call(tool, template_id=given)
        assert output.is_error
        assert output.text.startswith(complaint)


@pytest.mark.covers("workspaces-5")
@pytest.mark.parametrize("column", ["agents_allowed = false", "deprecated = true"])
async def test_a_template_that_is_not_for_chats_is_refused(
    pool: Pool, column: LiteralString
) -> None:
    async with open_workspace_tools(pool) as site:
        await pool.execute(f"UPDATE templates SET {column}")
        for tool in ("create_workspace", "read_template"):
            output = await site.call(tool, template_id=str(TEMPLATE))
            assert output.is_error
            assert "not available" in output.text
        assert (await site.result_of("list_templates"))["templates"] == []


@pytest.mark.covers("workspaces-5")
async def test_templates_are_listed_with_what_to_do_next(pool: Pool) -> None:
    async with open_workspace_tools(pool, description="An empty place.") as site:
        told = await site.result_of("list_templates")
        (only,) = told["templates"]
        assert (only["id"], only["name"]) == (str(TEMPLATE), "scratch")
        assert only["description"] == "An empty place."
        assert told["recommended_template_id"] == str(TEMPLATE)
        assert "recommended" in told["next_step"]
        none = await site.result_of("list_templates", query="kubernetes")
        assert none["templates"] == []
        assert "without" in none["next_step"]


async def test_a_template_is_read_with_what_it_asks(pool: Pool) -> None:
    async with open_workspace_tools(pool) as site:
        asked = Parameter(name="size", type="number", required=True, min=1, max=4)
        put = templates.TemplateUpsert(
            template=template(active_version_id=OTHER),
            version=version(id=OTHER, parameters=(asked,), readme="How to."),
        )
        await templates.upsert_template(pool, put)
        told = await site.result_of("read_template", template_id=str(TEMPLATE))
        assert told["template"]["name"] == "scratch"
        assert told["template"]["readme"] == "How to."
        (told_of,) = told["parameters"]
        assert (told_of["name"], told_of["required"], told_of["validation_max"]) == (
            "size",
            True,
            4,
        )


@pytest.mark.covers("workspaces-2")
async def test_the_workspace_is_given_the_templates_time_to_live(pool: Pool) -> None:
    async with open_workspace_tools(pool, default_ttl_s=900) as site:
        await site.create()
        (made,) = await workspaces.list_page(pool, OWNER, after=None, most=9)
        assert made.workspace is not None
        assert made.workspace.ttl_s == 900


@pytest.mark.promise("P12")
async def test_another_owners_workspace_is_neither_started_nor_stopped_nor_named(
    pool: Pool,
) -> None:
    async with open_workspace_tools(pool) as site:
        theirs = await workspaces.create(pool, new_workspace(7, owner_id=UserId(UUID(int=404))))
        await bindings.bind(pool, CHAT, seen=None, workspace_id=theirs.workspace.id)
        for tool in ("start_workspace", "stop_workspace"):
            told = await site.result_of(tool)
            assert "This chat has no workspace" in told["error"]
            assert theirs.workspace.name not in str(told)
        assert (await site.create())["workspace_id"] != str(theirs.workspace.id)
