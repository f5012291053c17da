"""What a person does in a chat's workspace over HTTP, with a real workspace agent."""

from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from chatd.domain.ids import ChatId
from tests.agent.git.git_fixture import run_git
from tests.api.workspace_api import WorkspaceApi, end_build
from tests.support.api.server import ADMINISTRATOR, ApiReply, Json
from tests.support.store import open_chat
from tests.workspaces.agent_process import AGENT, Workbench, running_agent


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Workbench]:
    async with running_agent(tmp_path) as bench:
        yield bench


@pytest.fixture
async def chat_id(api: WorkspaceApi, bench: Workbench) -> ChatId:
    made = await api.make()
    await end_build(api, id=AGENT, endpoints=(bench.process.endpoint(),))
    return await api.server.create(workspace_id=made["id"])


async def signal(api: WorkspaceApi, chat_id: ChatId, process_id: str) -> ApiReply:
    path = f"/chats/{chat_id}/workspace/processes/signal"
    return await api.ask("POST", path, {"process_id": process_id})


async def audited(api: WorkspaceApi, workspace_id: object) -> list[tuple[object, Json]]:
    where = f"/audit?object_type=workspace&object_id={workspace_id}"
    found = (await api.ask("GET", where, token=ADMINISTRATOR)).items
    return [(entry["action"], msgspec.convert(entry["detail"], Json)) for entry in found]


async def test_the_owner_stops_a_background_command(
    api: WorkspaceApi, bench: Workbench, chat_id: ChatId
) -> None:
    conn = bench.on_behalf(chat_id)
    started = await conn.start_process("exec sleep 600", key=bench.key("s"), background=True)
    path = f"/chats/{chat_id}/workspace/processes"
    [process] = msgspec.convert((await api.ask("GET", path)).json["items"], list[Json])
    assert (process["id"], process["running"], process["background"]) == (started.id, True, True)
    stopped = await signal(api, chat_id, started.id)
    assert stopped.status == 200, stopped.content
    assert (stopped.json["running"], stopped.json["exit_code"]) == (False, -1), "by a signal"
    assert (await signal(api, chat_id, started.id)).code == (409, "not_running")
    workspace = (await api.ask("GET", f"/chats/{chat_id}")).json["workspace_id"]
    assert [action for action, _ in await audited(api, workspace)] == [
        "workspace.process.signal"
    ] * 2


@pytest.mark.promise("P12")
async def test_a_command_of_another_chat_of_the_workspace_is_not_reached(
    api: WorkspaceApi, bench: Workbench, chat_id: ChatId
) -> None:
    other = bench.on_behalf(ChatId(UUID(int=7)))
    started = await other.start_process("exec sleep 600", key=bench.key("o"), background=True)
    listed = await api.ask("GET", f"/chats/{chat_id}/workspace/processes")
    assert listed.items == []
    assert (await signal(api, chat_id, started.id)).code == (404, "not_found")
    assert (await other.output(started.id)).running


async def test_a_file_is_put_back_while_the_chat_waits(
    api: WorkspaceApi, bench: Workbench, chat_id: ChatId
) -> None:
    home = bench.process.home
    run_git(home, "init", "-q", "-b", "trunk")
    (home / "a.txt").write_text("by the user\n")
    turn = (await api.server.chat(chat_id)).turn_message_id
    conn = bench.on_behalf(chat_id, turn=turn)
    await conn.write_file(str(home / "a.txt"), b"by the agent\n", key=bench.key("w"))
    body = {"scope": "turn", "repo_root": str(home), "path": "a.txt"}
    path = f"/chats/{chat_id}/workspace/revert"
    assert (await api.ask("POST", path, body)).code == (409, "chat_busy")
    assert (home / "a.txt").read_text() == "by the agent\n"
    await api.ask("POST", f"/chats/{chat_id}/interrupt")
    diff = (await api.ask("GET", f"/chats/{chat_id}/diff?scope=turn")).content
    assert b"-by the user" in diff, diff
    assert (await api.ask("POST", path, body)).status == 204
    assert (home / "a.txt").read_text() == "by the user\n"
    workspace = (await api.ask("GET", f"/chats/{chat_id}")).json["workspace_id"]
    [(action, detail)] = await audited(api, workspace)
    assert (action, detail["path"], detail["scope"]) == ("workspace.file.revert", "a.txt", "turn")


async def test_a_file_is_not_put_back_while_a_subagent_or_another_chat_of_the_workspace_runs(
    api: WorkspaceApi, bench: Workbench, chat_id: ChatId
) -> None:
    home = bench.process.home
    run_git(home, "init", "-q", "-b", "trunk")
    (home / "a.txt").write_text("by the user\n")
    turn = (await api.server.chat(chat_id)).turn_message_id
    conn = bench.on_behalf(chat_id, turn=turn)
    await conn.write_file(str(home / "a.txt"), b"by the agent\n", key=bench.key("w"))
    parent = await api.server.chat(chat_id)
    child = await open_chat(
        api.pool,
        21,
        title="Find callers",
        owner_id=parent.owner_id,
        root_chat_id=chat_id,
        parent_chat_id=chat_id,
    )
    workspace_id = str(parent.workspace_id)
    other = await api.server.create("Another task", workspace_id=workspace_id)
    await api.ask("POST", f"/chats/{chat_id}/interrupt")
    body = {"scope": "turn", "repo_root": str(home), "path": "a.txt"}
    path = f"/chats/{chat_id}/workspace/revert"
    for busy, title in ((other, "Another task"), (child.id, "Find callers")):
        refused = await api.ask("POST", path, body)
        assert refused.code == (409, "chat_busy")
        assert title in str(refused.json["message"])
        assert (home / "a.txt").read_text() == "by the agent\n"
        await api.ask("POST", f"/chats/{busy}/interrupt")
    assert await audited(api, workspace_id) == [], "nothing was begun"
    assert (await api.ask("POST", path, body)).status == 204
    assert (home / "a.txt").read_text() == "by the user\n"


@pytest.mark.promise("P15")
async def test_what_cannot_be_put_back_is_refused(
    api: WorkspaceApi, bench: Workbench, chat_id: ChatId
) -> None:
    home = bench.process.home
    run_git(home, "init", "-q", "-b", "trunk")
    await bench.on_behalf(chat_id).write_file(str(home / "a.txt"), b"x\n", key=bench.key("w"))
    await api.ask("POST", f"/chats/{chat_id}/interrupt")
    path = f"/chats/{chat_id}/workspace/revert"

    async def refused(**fields: object) -> object:
        body = {"scope": "turn", "repo_root": str(home), "path": "a.txt", **fields}
        return (await api.ask("POST", path, body)).code

    assert await refused() == (409, "not_reverted"), "no snapshot"
    assert await refused(path="../a.txt", scope="git") == (400, "invalid_input")
    assert await refused(repo_root="/etc") == (404, "not_found")
    assert await refused(scope="all") == (400, "invalid_input")
    assert (home / "a.txt").read_text() == "x\n"
