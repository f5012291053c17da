"""Subagents in the workspace of their parent, on real servers: several at once, and one that goes
on after its server was killed."""

import asyncio

import pytest

from tests.support.eventually import eventually
from tests.support.local_rig import NO_BUBBLEWRAP
from tests.workspace_turns.servers import (
    WAIT_TIMEOUT_S,
    Call,
    Json,
    ServerSite,
    WorkspaceServer,
    execute,
    script_text,
)

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")


def spawn(name: str, *calls: Call) -> Call:
    return ("spawn_agent", {"type": "general", "prompt": script_text(name, *calls)})


async def outputs(server: WorkspaceServer, chat: str) -> list[Json]:
    return [one for one in await server.wait_idle(chat) if "output" in one]


async def test_subagents_work_at_once_in_the_workspace_that_their_parent_created_in_the_same_turn(
    site: ServerSite,
) -> None:
    """Each waits in the workspace until the other is there too. Takes seconds: a server starts."""
    meet = "touch here-{0}; until [ -e here-{1} ]; do sleep 0.05; done; pwd; echo {0} >> both"
    async with site.server() as server:
        chat = await server.create(
            "lead",
            site.create("plain"),
            spawn("one", execute(meet.format("one", "two"))),
            spawn("two", execute(meet.format("two", "one"))),
        )
        made, *started = await server.wait_idle(chat)
        children = [each["chat_id"] for each in started]
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            found = [await outputs(server, child) for child in children]
        assert [[one["output"].strip() for one in each] for each in found] == [
            [made["directory"]]
        ] * 2
        [read] = await server.call(chat, "look", execute("sort both"))
        assert read["output"] == "one\ntwo\n"
        [waited] = await server.call(chat, "wait", ("wait_agent", {"chat_id": children[0]}))
        assert (waited["status"], waited["report"]) == ("waiting", "done")


@pytest.mark.promise("P7")
async def test_a_subagents_command_runs_once_although_its_server_is_killed_while_the_parent_waits(
    site: ServerSite,
) -> None:
    """Takes seconds: servers are started."""
    command = "echo ran >> runs; until [ -e go-on ]; do sleep 0.05; done; echo finished"
    async with site.server() as victim:
        chat = await victim.create("lead", site.create("plain"))
        place = await victim.workspace_of(chat)
        await victim.call(chat, "start", spawn("kid", execute(command)))
        child = (await victim.results(chat))[-1]["chat_id"]
        await victim.send(chat, "wait", ("wait_agent", {"chat_id": child}))

        async def has_begun() -> bool:
            return (place.home / "runs").exists()

        await eventually(has_begun, within_s=WAIT_TIMEOUT_S)
        await victim.kill()
    (place.home / "go-on").touch()
    async with site.server() as heir:
        [*_, waited] = await heir.wait_idle(chat)
        assert (waited["status"], waited["report"]) == ("waiting", "done")
        [ran] = await outputs(heir, child)
        assert ran["output"].endswith("finished\n")
    assert (place.home / "runs").read_text() == "ran\n"
