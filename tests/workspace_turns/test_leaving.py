"""A turn is interrupted, or its server drained, while a command runs: the command continues."""

import asyncio
import signal

import pytest

from tests.support.local_rig import NO_BUBBLEWRAP
from tests.workspace_turns.servers import WAIT_TIMEOUT_S, Json, ServerSite, WorkspaceServer, execute
from tests.workspace_turns.test_killed import COUNT, COUNTED, holds

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")

SECRET = "a secret that two servers share"
ENDLESS = "echo begun | tee begun; exec sleep 1000"


@pytest.mark.promise("P7")
async def test_a_command_survives_an_interrupt_and_a_drain(site: ServerSite) -> None:
    """Takes seconds: the drained server waits one second for its step, less than the command
    takes, and another server continues it. They share a secret that is in no file."""
    async with site.server(CHATD_WORKER_DRAIN_S="1", CHATD_SECRET=SECRET) as leaving:
        counting = await leaving.create("a", site.create("plain"))
        stopped = await leaving.create("b", site.create("plain"))
        home = (await leaving.workspace_of(counting)).home
        await assert_stop_says_what_runs(leaving, stopped)
        await leaving.send(counting, "count", execute(COUNT), execute("cat lines"))
        await holds(home / "lines", "line 2\n")
        leaving.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            assert await leaving.process.wait() == 0
    async with site.server(CHATD_SECRET=SECRET) as next_one:
        told, file = (await next_one.wait_idle(counting))[1:]
        assert (told["success"], told["output"], file["output"]) == (True, COUNTED, COUNTED)
        await assert_can_be_looked_after(next_one, stopped)
    assert not (site.data_dir / "secret").exists()


async def assert_stop_says_what_runs(server: WorkspaceServer, chat: str) -> None:
    home = (await server.workspace_of(chat)).home
    await server.send(chat, "endless", execute(ENDLESS, timeout="1h"))
    await holds(home / "begun", "begun")
    await server.ask("POST", f"/chats/{chat}/interrupt")
    told = (await server.wait_idle(chat))[1]
    assert_still_runs(told)


def assert_still_runs(told: Json) -> None:
    assert (told["running"], told["success"]) == (True, False)
    assert "still running" in told["note"]
    assert told["background_process_id"]


async def assert_can_be_looked_after(server: WorkspaceServer, chat: str) -> None:
    """From the next turn, on another server."""
    process = (await server.results(chat))[1]["background_process_id"]
    about = {"process_id": process}
    output, killed, ended, listed = await server.call(
        chat,
        "after",
        ("process_output", {**about, "wait_timeout": "0s"}),
        ("process_signal", {**about, "signal": "kill"}),
        ("process_output", {**about, "wait_timeout": "1m"}),
        ("process_list", {}),
    )
    assert (output["running"], output["output"]) == (True, "begun\n")
    assert killed["success"], killed
    assert not ended.get("running"), ended
    assert [each["running"] for each in listed["processes"] if each["id"] == process] == [False]
