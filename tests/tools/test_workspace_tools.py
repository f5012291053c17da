"""The workspace tools: create, start, stop, and templates."""

import asyncio
from typing import LiteralString
from uuid import UUID

import pytest
from msgspec.structs import replace

from chatd.clock import SystemClock
from chatd.domain.ids import UserId, WorkspaceId
from chatd.domain.workspace.entities import AgentLifecycle, BuildId, Endpoint, Parameter, VersionId
from chatd.store.chat import chats
from chatd.store.database.pool import Pool
from chatd.store.workspace import bindings, builds, templates, workspaces
from chatd.workspaces.agents.agent_resolver import AgentConnector
from chatd.workspaces.build_backend import BuildFailed
from chatd.workspaces.build_requests import BuildWaits, WaitTimeouts
from tests.support.build_rig import CountingConn
from tests.support.clock import FakeClock
from tests.support.factories import CHAT, HARNESS, OWNER, member
from tests.support.runners import insert_runner, runner
from tests.support.workspaces import (
    TEMPLATE,
    insert_template,
    new_workspace,
    no_other_host,
    template,
    version,
)
from tests.tools.workspace_tool_caller import (
    BRIEF_AGENT,
    BRIEF_BUILD,
    BRIEF_SCRIPTS,
    FakeAgents,
    open_workspace_tools,
)

OTHER = VersionId(UUID(int=0x7E2))


async def of_chat(pool: Pool) -> WorkspaceId | None:
    row = await chats.get(pool, HARNESS, CHAT)
    assert row is not None
    return row.workspace_id


@pytest.mark.covers("workspaces-1")
async def test_a_workspace_is_created_and_awaited(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        result = await caller.create(name="my-work")
        assert result["created"] is True
        assert result["workspace_name"] == "my-work"
        assert result["directory"] == "/home/dev"
        made = WorkspaceId(UUID(result["workspace_id"]))
        assert await of_chat(pool) == made
        build = await builds.get(pool, HARNESS, BuildId(UUID(result["build_id"])))
        assert build is not None
        assert (build.status, build.initiator_id, build.reason) == ("succeeded", OWNER, "tool")
        # Once so that its logs can be watched, once more when it can be used.
        assert caller.bound == [(CHAT, made), (CHAT, made)]


@pytest.mark.promise("P7")
async def test_a_repeated_call_creates_no_second_workspace(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        first = await caller.create("the-call")
        again = await caller.create("the-call")
        assert again == first
        assert len(await workspaces.list_page(pool, member(), after=None, limit=9)) == 1
        assert sum(caller.backend.made.values()) == 1


@pytest.mark.covers("workspaces-3")
async def test_a_chat_that_has_a_workspace_keeps_it(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        first = await caller.create()
        await caller.record_heartbeat(first["workspace_id"])
        again = await caller.create()
        assert again["already_exists"] is True
        assert again["no_build"] is True
        assert again["workspace_id"] == first["workspace_id"]


@pytest.mark.covers("workspaces-3")
async def test_a_workspace_whose_agent_is_gone_is_replaced(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        first = await caller.create()
        await caller.record_heartbeat(first["workspace_id"])
        await pool.execute("UPDATE workspace_agents SET disconnected_at = now() + interval '1 s'")
        # Rows may be late, such as after all servers of its host were away.
        kept = await caller.create()
        assert (kept["already_exists"], kept["workspace_id"]) == (True, first["workspace_id"])
        caller.agents.unanswered = caller.agents.pings + 1
        again = await caller.create()
        assert again["created"] is True
        assert again["workspace_id"] != first["workspace_id"]


@pytest.mark.covers("workspaces-3")
async def test_a_workspace_that_is_deleted_is_replaced(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        first = await caller.create()
        await pool.execute("UPDATE workspaces SET deleted = true")
        again = await caller.create()
        assert again["created"] is True
        assert again["workspace_id"] != first["workspace_id"]


@pytest.mark.covers("workspaces-4")
async def test_a_stopped_workspace_must_be_started(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        await caller.create()
        stopped = await caller.result_of("stop_workspace")
        assert stopped["stopped"] is True
        assert "start_workspace" in (await caller.create())["message"]
        again = await caller.result_of("stop_workspace")
        assert (again["stopped"], again["no_build"]) == (True, True)
        started = await caller.result_of("start_workspace")
        assert started["started"] is True
        assert started["build_id"]
        running = await caller.result_of("start_workspace")
        assert (running["started"], running["no_build"]) == (True, True)


@pytest.mark.covers("workspaces-4")
@pytest.mark.parametrize("tool", ["start_workspace", "stop_workspace"])
async def test_without_a_workspace_there_is_nothing_to_start_or_stop(pool: Pool, tool: str) -> None:
    async with open_workspace_tools(pool) as caller:
        result = await caller.result_of(tool)
        assert result == {
            "error": "This chat has no workspace. Call list_templates, then create_workspace."
        }
        await caller.create()
        await pool.execute("UPDATE workspaces SET deleted = true")
        assert str((await caller.result_of(tool))["error"]).startswith(
            "The chat's workspace is deleted."
        )


async def test_a_running_build_is_awaited_and_not_repeated(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        caller.backend.hold = "made"
        async with asyncio.TaskGroup() as group:
            first = group.create_task(caller.create())
            async with asyncio.timeout(20):
                await caller.backend.reached.wait()
            second = group.create_task(caller.create())
            caller.backend.go.set()
        assert second.result()["workspace_id"] == first.result()["workspace_id"]
        assert second.result()["already_exists"] is True


async def test_a_failed_build_is_reported_with_id_and_reason(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        caller.backend.hold, caller.backend.fails = "asked", BuildFailed("The disk is full.")
        caller.backend.go.set()
        result = await caller.create()
        assert "created" not in result
        assert "The disk is full." in result["error"]
        assert result["build_id"]
        caller.backend.hold = None
        started = await caller.result_of("start_workspace")
        assert started["started"] is True


@pytest.mark.promise("P14")
async def test_a_build_past_the_timeout_keeps_running(pool: Pool) -> None:
    async with open_workspace_tools(pool, waits=BRIEF_BUILD) as caller:
        caller.backend.hold = "made"
        result = await caller.create()
        assert "start_workspace later" in result["error"]
        assert result["build_id"]
        stopped = await caller.result_of("stop_workspace")
        assert "Call stop_workspace later to wait for it." in stopped["error"]
        caller.backend.go.set()


async def test_a_build_that_no_connected_runner_takes_says_so(pool: Pool, clock: FakeClock) -> None:
    await insert_template(pool)
    made = await workspaces.create(pool, HARNESS, new_workspace(1, host_id="laptop"))
    await insert_runner(pool, runner("laptop"), connected=False)
    told: list[str] = []

    async def wait_for(text: str) -> None:
        told.append(text)

    line = CountingConn(pool)
    waits = BuildWaits(line, FakeAgents().ping, clock, WaitTimeouts())
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(waits.build(made.build.id, wait_for))
        while not any(told):
            await clock.advance_past("build")
            await clock.wait_for_sleeper("build")
        assert "The runner laptop is not connected since" in told[-1]
        for line.cut in (True, False):  # A database that is away for a moment changes nothing.
            await clock.advance_past("build")
            await clock.wait_for_sleeper("build")
        assert len(set(told)) == 1
        await pool.execute("UPDATE runners SET disconnected_at = NULL, seen_at = now()")
        await clock.advance_past("build")
        await clock.wait_for_sleeper("build")
        waiting.cancel()
    assert told[-1] == ""


@pytest.mark.covers("workspaces-1")
@pytest.mark.promise("P14")
async def test_an_agent_that_never_connects_is_reported_without_failure(pool: Pool) -> None:
    async with open_workspace_tools(pool, waits=BRIEF_AGENT) as caller:
        caller.agents.silent = True
        result = await caller.create()
        assert result["created"] is True
        assert result["agent_status"] == "not_ready"
        assert result["agent_error"] == "The agent does not answer."
        assert "if that fails, call stop_workspace, then start_workspace" in result["message"]


async def test_an_agent_that_no_server_reaches_is_reported(pool: Pool) -> None:
    async with asyncio.timeout(20), open_workspace_tools(pool, waits=BRIEF_AGENT) as caller:
        here = AgentConnector(
            secret=b"secret", host_id="here", clock=SystemClock(), open_stream=no_other_host
        )
        there = (Endpoint(kind="unix", path="/nowhere", host_id="there"),)
        caller.agents.instead = lambda agent: here.ping(replace(agent, endpoints=there))
        result = await caller.create()
        assert (result["created"], result["agent_status"]) == (True, "not_ready")
        assert result["agent_error"] == "The workspace is on a machine that is not connected."


@pytest.mark.covers("workspaces-1")
async def test_a_late_agent_is_awaited(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        caller.agents.unanswered = 2
        caller.agents.lifecycles = ["starting", "ready"]
        result = await caller.create()
        assert result["created"] is True
        assert "agent_status" not in result
        assert "startup_scripts" not in result


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
async def test_failed_startup_scripts_are_reported_without_failure(
    pool: Pool, lifecycle: AgentLifecycle, told_of: str
) -> None:
    async with open_workspace_tools(pool, waits=BRIEF_SCRIPTS) as caller:
        caller.agents.lifecycles = [lifecycle]
        result = await caller.create()
        assert result["created"] is True
        assert result["startup_scripts"] == told_of
        assert "something that it sets up may be missing" in result["message"]
        assert result["lifecycle_state"] == lifecycle


async def test_a_taken_name_is_varied(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        await caller.create(name="work")
        await pool.execute("UPDATE chats SET workspace_id = NULL")
        other = await caller.create(name="work")
        assert other["created"] is True
        assert other["workspace_name"].startswith("work-")


async def test_an_invalid_name_is_corrected(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        result = await caller.create(name="Über / Größe!")
        assert result["workspace_name"].startswith("uber-groe-")


async def test_invalid_parameters_are_reported_by_name(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        result = await caller.create(parameters={"colour": "red"})
        assert "colour" in result["error"]
        assert result["validations"][0]["field"] == "colour"
        assert await workspaces.list_page(pool, member(), after=None, limit=9) == []


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (None, "template_id is required"),
        ("no-such-name", "There is no such template."),
        (" ", "template_id is required"),
        ("00000000-0000-0000-0000-000000000001", "There is no such template."),
    ],
)
@pytest.mark.parametrize("tool", ["create_workspace", "read_template"])
async def test_an_unknown_template_is_refused(
    pool: Pool, tool: str, given: str | None, complaint: str
) -> None:
    async with open_workspace_tools(pool) as caller:
        output = await caller.call(tool, template_id=given)
        assert output.is_error
        assert output.text.startswith(complaint)


@pytest.mark.parametrize("tool", ["create_workspace", "read_template"])
async def test_a_template_is_found_by_its_name(pool: Pool, tool: str) -> None:
    async with open_workspace_tools(pool) as caller:
        name = await pool.fetchval("SELECT name FROM templates WHERE id = $1", TEMPLATE)
        found = await caller.result_of(tool, template_id=f" {str(name).upper()} ")
        assert found.get("created") or found["template"]["id"] == str(TEMPLATE)


@pytest.mark.covers("workspaces-5")
@pytest.mark.parametrize("column", ["agents_allowed = false", "deprecated = true"])
async def test_a_template_not_allowed_for_chats_is_refused(
    pool: Pool, column: LiteralString
) -> None:
    async with open_workspace_tools(pool) as caller:
        await pool.execute(f"UPDATE templates SET {column}")
        for tool in ("create_workspace", "read_template"):
            output = await caller.call(tool, template_id=str(TEMPLATE))
            assert output.is_error
            assert "not available" in output.text
        assert (await caller.result_of("list_templates"))["templates"] == []


@pytest.mark.covers("workspaces-5")
async def test_templates_are_listed_with_advice(pool: Pool) -> None:
    async with open_workspace_tools(pool, description="An empty place.") as caller:
        result = await caller.result_of("list_templates")
        (only,) = result["templates"]
        assert (only["id"], only["name"]) == (str(TEMPLATE), "scratch")
        assert only["description"] == "An empty place."
        assert result["recommended_template_id"] == str(TEMPLATE)
        assert "recommended" in result["next_step"]
        none = await caller.result_of("list_templates", query="kubernetes")
        assert none["templates"] == []
        assert "without" in none["next_step"]


async def test_a_template_of_a_group_does_not_exist_for_others(pool: Pool) -> None:
    async with open_workspace_tools(pool, groups=("Data",)) as caller:
        assert (await caller.result_of("list_templates"))["templates"] == []
        for tool in ("create_workspace", "read_template"):
            texts = {
                (await caller.call(tool, template_id=wanted)).text
                for wanted in (str(TEMPLATE), "scratch", "unknown")
            }
            assert len(texts) == 1, texts
        await pool.execute(
            """WITH made AS (INSERT INTO groups (id, name) VALUES ($1, 'data') RETURNING id)
            INSERT INTO group_members (group_id, user_id) SELECT id, $2 FROM made""",
            UUID(int=1),
            OWNER,
        )
        assert len((await caller.result_of("list_templates"))["templates"]) == 1
        assert (await caller.create())["created"]


async def test_a_template_is_read_with_its_parameters(pool: Pool) -> None:
    async with open_workspace_tools(pool) as caller:
        asked = Parameter(name="size", type="number", required=True, min=1, max=4)
        put = templates.TemplateUpsert(
            template=template(active_version_id=OTHER),
            version=version(id=OTHER, parameters=(asked,), readme="How to."),
        )
        await templates.upsert_template(pool, put)
        result = await caller.result_of("read_template", template_id=str(TEMPLATE))
        assert result["template"]["name"] == "scratch"
        assert result["template"]["readme"] == "How to."
        (told_of,) = result["parameters"]
        assert (told_of["name"], told_of["required"], told_of["validation_max"]) == (
            "size",
            True,
            4,
        )


@pytest.mark.covers("workspaces-2")
async def test_a_workspace_gets_the_time_to_live_of_its_template(pool: Pool) -> None:
    async with open_workspace_tools(pool, default_ttl_s=900) as caller:
        await caller.create()
        (made,) = await workspaces.list_page(pool, member(), after=None, limit=9)
        assert made.workspace is not None
        assert made.workspace.ttl_s == 900


@pytest.mark.promise("P12")
async def test_another_owners_workspace_is_neither_started_nor_stopped_nor_named(
    pool: Pool,
) -> None:
    async with open_workspace_tools(pool) as caller:
        theirs = await workspaces.create(
            pool, HARNESS, new_workspace(7, owner_id=UserId(UUID(int=404)))
        )
        await bindings.bind(pool, HARNESS, CHAT, expected=None, workspace_id=theirs.workspace.id)
        for tool in ("start_workspace", "stop_workspace"):
            result = await caller.result_of(tool)
            assert "This chat has no workspace" in result["error"]
            assert theirs.workspace.name not in str(result)
        assert (await caller.create())["workspace_id"] != str(theirs.workspace.id)
