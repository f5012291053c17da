"""Tests too long for every run: `.venv/bin/python -m pytest tests/workspace_turns/long_runs.py`."""

import pytest

from tests.support.local_rig import NO_BUBBLEWRAP
from tests.workspace_turns.servers import ServerSite, execute
from tests.workspace_turns.test_killed import holds

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")

COUNT = "for i in $(seq 20); do echo line $i | tee -a lines; sleep 1; done"
COUNTED = "".join(f"line {number}\n" for number in range(1, 21))


async def test_a_command_of_twenty_seconds_outlives_two_servers(site: ServerSite) -> None:
    """Each is killed, and no server runs until the next one is started."""
    async with site.server() as first:
        chat = await first.create("count", site.create("plain"))
        home = (await first.workspace_of(chat)).home
        await first.send(chat, "count", execute(COUNT), execute("cat lines"))
        await holds(home / "lines", "line 3\n")
        await first.kill()
    async with site.server() as second:
        await holds(home / "lines", "line 12\n")
        await second.kill()
    async with site.server() as third:
        told, file = (await third.wait_idle(chat))[1:]
        assert (told["success"], told["output"], file["output"]) == (True, COUNTED, COUNTED)
