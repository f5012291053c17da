"""The git stream of a chat, from a real workspace agent."""

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from chatd.domain.workspace.entities import Endpoint
from tests.agent.git.git_fixture import run_git as git
from tests.api.workspace_api import WorkspaceApi, end_build
from tests.support.api.server import OTHER_USER, ApiServer, Json
from tests.support.api.sse_viewer import event_source
from tests.support.outcomes import present
from tests.workspaces.agent_process import AGENT, Workbench, running_agent


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Workbench]:
    async with running_agent(tmp_path) as bench:
        yield bench


async def test_the_git_stream_sends_the_state_and_each_change(
    api: WorkspaceApi, bench: Workbench
) -> None:
    made = await api.make()
    await end_build(api, id=AGENT, endpoints=(bench.process.endpoint(),))
    chat_id = await api.server.create(workspace_id=made["id"])
    git(bench.process.home, "init", "-q", "-b", "trunk")
    conn = bench.on_behalf(chat_id)
    await conn.write_file(bench.path("a.txt"), b"hello\n", key="k1")
    async with event_source(api.server, f"/chats/{chat_id}/git") as source:
        event = await source.json()
        assert event["type"] == "changes"
        (repository,) = msgspec.convert(event["repositories"], list[Json])
        assert (repository["repo_root"], repository["branch"]) == (str(bench.process.home), "trunk")
        assert "+hello" in str(repository["unified_diff"])
        await conn.write_file(bench.path("a.txt"), b"goodbye\n", key="k2")
        assert b"+goodbye" in msgspec.json.encode(await source.json())
        bench.process.end(9)
        end = present(await source.event())
        assert (end.event, b"agent_lost" in end.data) == ("end", True)


@pytest.mark.promise("P12")
async def test_a_chat_without_a_running_agent_is_refused_before_the_stream(
    api: WorkspaceApi,
) -> None:
    chat_id = await api.server.create()
    path = f"/chats/{chat_id}/git"
    assert (await api.ask("GET", path, token=OTHER_USER)).code == (404, "not_found")
    assert (await api.ask("GET", path)).code == (409, "no_workspace")
    assert (await api.ask("POST", path)).code == (405, "method_not_allowed")
    made = await api.make()
    await api.ask("PATCH", f"/chats/{chat_id}", {"workspace_id": made["id"]})
    assert (await api.ask("GET", path)).code == (409, "no_agent")
    nowhere = Endpoint(kind="unix", path="/nonexistent/agent.sock", host_id="here")
    await end_build(api, endpoints=(nowhere,))
    assert (await api.ask("GET", path)).code == (409, "agent_lost")


async def test_an_agent_of_another_host_is_reported_as_disconnected(api: WorkspaceApi) -> None:
    made = await api.make()
    chat_id = await api.server.create(workspace_id=made["id"])
    there = Endpoint(kind="unix", path="/run/agent.sock", host_id="there")
    await end_build(api, endpoints=(there,))
    assert (await api.ask("GET", f"/chats/{chat_id}/git")).code == (409, "runner_disconnected")


async def test_the_git_stream_is_refused_while_workspaces_are_disabled(server: ApiServer) -> None:
    chat_id = await server.create()
    assert (await server.ask("GET", f"/chats/{chat_id}/git")).code == (409, "workspaces_off")


async def test_a_diff_is_of_the_turn_of_the_chat_or_of_the_working_tree(
    api: WorkspaceApi, bench: Workbench
) -> None:
    made = await api.make()
    await end_build(api, id=AGENT, endpoints=(bench.process.endpoint(),))
    chat_id = await api.server.create(workspace_id=made["id"])
    git(bench.process.home, "init", "-q", "-b", "trunk")
    await bench.on_behalf(chat_id).write_file(bench.path("mine.txt"), b"of the user\n", key="k0")

    async def diff(scope: str) -> Json:
        reply = await api.ask("GET", f"/chats/{chat_id}/diff?scope={scope}")
        assert reply.status == 200
        (one,) = msgspec.convert(reply.json["repositories"], list[Json])
        return one

    await bench.on_behalf(chat_id, turn=99).write_file(bench.path("a.txt"), b"old\n", key="k1")
    before = await diff("turn")
    assert "nothing was changed" in str(before["omitted"])
    started = await bench.on_behalf(chat_id, turn=1).start_process(
        f"echo new >> {bench.path('b.txt')}", key="k2", workdir=str(bench.process.home)
    )
    await bench.on_behalf(chat_id).output(started.id, wait_s=30)
    turn, chat, tree = await diff("turn"), await diff("chat"), await diff("git")
    assert (turn["additions"], turn["changed_files"], turn["branch"]) == (1, 1, "trunk")
    assert "+new" in str(turn["unified_diff"])
    assert (chat["additions"], chat["changed_files"]) == (2, 2)
    assert "mine.txt" not in str(chat["unified_diff"])
    assert "mine.txt" in str(tree["unified_diff"])
    reply = await api.ask("GET", f"/chats/{chat_id}/diff?scope=turn", token=OTHER_USER)
    assert reply.code == (404, "not_found")
    assert (await api.ask("GET", f"/chats/{chat_id}/diff?scope=all")).status == 400
