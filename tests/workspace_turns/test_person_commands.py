"""A person runs commands in the workspace of a chat, on servers that are killed."""

import asyncio
from pathlib import Path

import pytest
from msgspec.json import decode

from chatd.store.database.pool import Pool
from tests.support.eventually import eventually
from tests.support.local_rig import NO_BUBBLEWRAP
from tests.workspace_turns.servers import (
    WAIT_TIMEOUT_S,
    Json,
    ScriptedModel,
    ServerSite,
    WorkspaceServer,
    execute,
)

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")

LINES = 12
COUNT = f"for i in $(seq {LINES}); do echo line $i | tee -a lines; sleep 0.25; done"
COUNTED = "".join(f"line {number}\n" for number in range(1, LINES + 1))


async def run(server: WorkspaceServer, chat: str, command: str, **fields: object) -> None:
    body = {"content": [{"type": "command", "command": command}], **fields}
    await server.ask("POST", f"/chats/{chat}/messages", body)


def has(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


async def until_file(path: Path, text: str) -> None:
    async def look() -> bool:
        return has(path, text)

    await eventually(look, within_s=WAIT_TIMEOUT_S)


def prompts(model: ScriptedModel) -> list[list[Json]]:
    return [decode(one.body)["messages"] for one in model.requests if b"A title" not in one.body]


@pytest.mark.promise("P7")
async def test_a_command_of_a_killed_server_runs_once_and_the_model_reads_it_later(
    site: ServerSite, pool: Pool, model: ScriptedModel
) -> None:
    """Takes seconds: two servers are started, and a command runs for a while."""
    async with site.server() as victim:
        chat = await victim.create("make", site.create("plain"))
        place = await victim.workspace_of(chat)
        calls = len(model.requests)
        await run(victim, chat, COUNT)
        await until_file(place.home / "lines", "line 2\n")
        await victim.kill()
    async with site.server() as heir:
        made, report = await heir.wait_idle(chat)
        assert (report["exit_code"], report["output"]) == (0, COUNTED), made
        assert (place.home / "lines").read_text() == COUNTED
        assert len(model.requests) == calls, "no model was asked"
        kinds = [part["type"] for part in (await heir.parts(chat))[-3:]]
        assert kinds == ["command", "tool-call", "tool-result"]
        await heir.send(chat, "then")
        await heir.wait_idle(chat)
        [*_, told] = [one for one in prompts(model)[-1] if one["role"] == "user"]
        assert COUNT in str(told)
        assert '\\"exit_code\\":0' in str(told) or '"exit_code":0' in str(told)
        audit = await heir.ask("GET", "/audit?object_type=workspace")
        assert [one["action"] for one in audit["items"]].count("workspace.command") == 1


async def test_an_interrupt_ends_a_command_and_a_busy_chat_runs_it_after_its_turn(
    site: ServerSite,
) -> None:
    """Takes seconds: a server is started."""
    async with site.server() as server:
        chat = await server.create("make", site.create("plain"))
        place = await server.workspace_of(chat)
        await run(server, chat, "echo begun; touch begun; sleep 600; touch after")
        await until_file(place.home / "begun", "")
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await server.ask("POST", f"/chats/{chat}/interrupt", {})
        report = (await server.wait_idle(chat))[-1]
        assert report["signal"], report
        assert "begun" in report["output"]
        processes = await server.ask("GET", f"/chats/{chat}/workspace/processes")
        assert not any(one["running"] for one in processes["items"])
        await server.send(chat, "work", execute("while [ ! -e go ]; do sleep 0.05; done; echo a"))
        await run(server, chat, "echo b; touch never; exit 3")
        page = await server.ask("GET", f"/chats/{chat}/messages")
        assert [part["type"] for part in page["queued_messages"][0]["content"]] == ["command"]
        assert not has(place.home / "never", "")
        (place.home / "go").touch()
        model_call, own = (await server.wait_idle(chat))[-2:]
        assert model_call["output"] == "a\n"
        assert (own["exit_code"], own["output"]) == (3, "b\n")


async def test_an_interrupt_ends_a_command_whose_worker_has_died(site: ServerSite) -> None:
    """Takes seconds: two servers are started, and one of them takes the chat over."""
    async with site.server() as victim:
        chat = await victim.create("make", site.create("plain"))
        place = await victim.workspace_of(chat)
        await run(victim, chat, "echo begun; touch begun; sleep 600; touch after")
        await until_file(place.home / "begun", "")
        async with site.server() as heir:
            await victim.kill()
            # Nobody has the chat: the next worker finds that its turn is to end.
            asked = await heir.ask("POST", f"/chats/{chat}/interrupt", {})
            assert asked["status"] == "interrupting"
            report = (await heir.wait_idle(chat))[-1]
            assert report["signal"], report
            assert "begun" in report["output"]
            processes = await heir.ask("GET", f"/chats/{chat}/workspace/processes")
            assert not any(one["running"] for one in processes["items"])
            assert not has(place.home / "after", "")


@pytest.mark.promise("P7", "P14")
async def test_a_command_starts_the_workspace_that_was_stopped(site: ServerSite) -> None:
    """Takes seconds: a server is started, and a workspace twice."""
    async with site.server() as server:
        chat = await server.create("make", site.create("plain"))
        place = await server.workspace_of(chat)
        await stop_workspace(server, chat)
        await run(server, chat, "echo begun >> lines; cat lines")
        report = (await server.wait_idle(chat))[-1]
        assert (report["exit_code"], report["output"]) == (0, "begun\n"), report
        assert (place.home / "lines").read_text() == "begun\n"
        # A model is told to start it itself.
        await stop_workspace(server, chat)
        await server.send(chat, "work", execute("echo never"))
        assert "start_workspace" in str((await server.wait_idle(chat))[-1])


async def stop_workspace(server: WorkspaceServer, chat: str) -> None:
    workspace = (await server.ask("GET", f"/chats/{chat}"))["workspace_id"]
    await server.ask("POST", f"/workspaces/{workspace}/builds", {"transition": "stop"})

    async def is_stopped() -> bool:
        found = await server.ask("GET", f"/workspaces/{workspace}")
        build = found["latest_build"]
        return (build["transition"], build["status"]) == ("stop", "succeeded")

    await eventually(is_stopped, within_s=WAIT_TIMEOUT_S)


async def test_a_command_without_a_workspace_or_beside_text_is_refused(site: ServerSite) -> None:
    """Takes seconds: a server is started."""
    async with site.server() as server:
        chat = await server.create("make")
        await server.wait_idle(chat)
        command: Json = {"type": "command", "command": "ls"}
        text: Json = {"type": "text", "text": "and"}
        for content, path, status, code in (
            ([command], f"/chats/{chat}/messages", 409, "no_workspace"),
            ([command, text], f"/chats/{chat}/messages", 400, "invalid_input"),
            ([{**command, "command": " "}], f"/chats/{chat}/messages", 400, "invalid_input"),
            ([command], "/chats", 409, "no_workspace"),
        ):
            found = await server.refusal("POST", path, {"content": content})
            assert (found["status"], found["code"]) == (status, code), found
        assert (await server.ask("GET", f"/chats/{chat}"))["status"] == "waiting"
