"""A chat that stops its workspace and goes on in the same turn."""

import asyncio

import pytest

from tests.support.local_rig import NO_BUBBLEWRAP
from tests.workspace_turns.servers import Call, ServerSite, execute

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")

STOP: Call = ("stop_workspace", {})
START: Call = ("start_workspace", {})
LIST: Call = ("process_list", {})


async def test_a_call_after_a_stop_in_the_same_turn_says_how_to_start_again(
    site: ServerSite,
) -> None:
    """Takes seconds: a server is started."""
    async with site.server() as server:
        chat = await server.create("make", site.create("plain"), execute("echo one > file"))
        place = await server.workspace_of(chat)
        path = f"{place.inside}/file"
        told = await server.call(
            chat,
            "stop",
            execute("true"),
            STOP,
            execute("touch after"),
            ("write_file", {"path": path, "content": "two"}),
            LIST,
            START,
            ("read_file", {"path": path}),
        )
        stopped, command, write, processes, started, read = told[1:]
        assert stopped["stopped"], told
        for result in (command, write, processes):
            assert "start_workspace" in str(result), result
            assert "unknown" not in str(result), result
        assert started["started"], started
        assert read["content"].startswith("1\tone"), read
        assert not await asyncio.to_thread((place.home / "after").exists)
