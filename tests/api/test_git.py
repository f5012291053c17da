"""What changes in a chat's repositories, over HTTP, from a real agent."""

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from chatd.domain.workspace.entities import Endpoint
from tests.agent.git.git_fixture import run_git as git
from tests.api.rooms import House, end_build
from tests.support.front import STRANGER, Front, Json
from tests.support.listening import event_source
from tests.workspaces.agents import AGENT, Workbench, running_agent


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Workbench]:
    async with running_agent(tmp_path) as bench:
        yield bench


async def test_changes_are_told_as_they_stand_and_as_they_come(
    house: House, bench: Workbench
) -> None:
    made = await house.make()
    await end_build(house, id=AGENT, endpoints=(bench.process.endpoint(),))
    chat_id = await house.front.create(workspace_id=made["id"])
    git(bench.process.home, "init", "-q", "-b", "trunk")
    conn = bench.on_behalf(chat_id)
    await conn.write_file(bench.path("a.txt"), b"hello\n", key="k1")
    async with event_source(house.front, f"/chats/{chat_id}/git") as source:
        told = await source.json()
        assert told["type"] == "changes"
        (repository,) = msgspec.convert(told["repositories"], list[Json])
        assert (repository["repo_root"], repository["branch"]) == (str(bench.process.home), "trunk")
        assert "+hello" in str(repository["unified_diff"])
        await conn.write_file(bench.path("a.txt"), b"goodbye\n", key="k2")
        assert b"+goodbye" in msgspec.json.encode(await source.json())
        bench.process.end(9)
        end = await source.event()
        assert end is not None
        assert (end.event, b"agent_lost" in end.data) == ("end", True)


@pytest.mark.promise("P12")
async def test_who_cannot_be_followed_says_why_before_the_stream_begins(house: House) -> None:
    chat_id = await house.front.create()
    path = f"/chats/{chat_id}/git"
    assert (await house.ask("GET", path, token=STRANGER)).code == (404, "not_found")
    assert (await house.ask("GET", path)).code == (400, "no_workspace")
    assert (await house.ask("POST", path)).code == (405, "method_not_allowed")
    made = await house.make()
    await house.ask("PATCH", f"/chats/{chat_id}", {"workspace_id": made["id"]})
    assert (await house.ask("GET", path)).code == (400, "no_agent")
    nowhere = Endpoint(kind="unix", path="/nonexistent/agent.sock", host_id="here")
    await end_build(house, endpoints=(nowhere,))
    assert (await house.ask("GET", path)).code == (400, "agent_lost")


async def test_an_agent_of_another_host_is_said_to_be_elsewhere(house: House) -> None:
    made = await house.make()
    chat_id = await house.front.create(workspace_id=made["id"])
    there = Endpoint(kind="unix", path="/run/agent.sock", host_id="there")
    await end_build(house, endpoints=(there,))
    assert (await house.ask("GET", f"/chats/{chat_id}/git")).code == (400, "agent_elsewhere")


async def test_where_workspaces_are_off_nothing_is_followed(front: Front) -> None:
    chat_id = await front.create()
    assert (await front.ask("GET", f"/chats/{chat_id}/git")).code == (409, "workspaces_off")
