"""A server is killed while its chats act: each effect happens once, and another server reports
it."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from chatd.store.database.pool import Pool
from tests.support.eventually import eventually
from tests.support.local_rig import NO_BUBBLEWRAP
from tests.support.workspaces import age_builds
from tests.workspace_turns.servers import (
    WAIT_TIMEOUT_S,
    Json,
    ReplyHoldingProxy,
    ServerSite,
    execute,
)

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")

LINES = 12
COUNT = f"for i in $(seq {LINES}); do echo line $i | tee -a lines; sleep 0.25; done"
COUNTED = "".join(f"line {number}\n" for number in range(1, LINES + 1))
WRITTEN, CHANGED = "written\n", "changed since\n"


def has(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


async def holds(path: Path, text: str) -> None:
    """Wait until a file of the host contains this text."""

    async def look() -> bool:
        return has(path, text)

    await eventually(look, within_s=WAIT_TIMEOUT_S)


async def in_mid_build(site: ServerSite) -> Path:
    """The home of the only workspace with a start-up script that waits."""

    async def look() -> Path | None:
        found = list(site.data_dir.glob("ws/*/home/builds"))
        return found[0].parent if found else None

    return await eventually(look, within_s=WAIT_TIMEOUT_S)


@pytest.mark.promise("P7")
async def test_effects_of_a_killed_server_happen_once_and_another_reports_them(
    site: ServerSite, pool: Pool
) -> None:
    """Takes seconds: servers are started, and a command runs for a while."""
    async with AsyncExitStack() as stack:
        victim = await stack.enter_async_context(site.server())
        plain = [await victim.create(name, site.create("plain")) for name in "abc"]
        counting, writing, editing = plain
        places = [await victim.workspace_of(chat) for chat in plain]
        building = await victim.create("build", site.create("slow"), execute("cat builds"))
        fresh = await in_mid_build(site)
        # Not earlier: it would have run some of the builds itself.
        heir = await stack.enter_async_context(site.server())
        async with (
            ReplyHoldingProxy(places[1].socket, b"/write-file").listening() as write,
            ReplyHoldingProxy(places[2].socket, b"/edit-files").listening() as edit,
        ):
            path = f"{places[1].inside}/file"
            await victim.send(counting, "count", execute(COUNT), execute("cat lines"))
            await victim.send(writing, "write", ("write_file", {"path": path, "content": WRITTEN}))
            await victim.send(editing, "edit", *edited(f"{places[2].inside}/file"))
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await write.wait_replied()
                await edit.wait_replied()
            await holds(places[0].home / "lines", "line 2\n")
            await victim.kill()
        (places[1].home / "file").write_text(CHANGED)
        (fresh / "go").touch()
        await age_builds(pool, 20)  # its worker is dead and cannot renew them
        assert_counted((await heir.wait_idle(counting))[1:])
        assert (await heir.wait_idle(writing))[1:] == [{"ok": True}]
        assert (places[1].home / "file").read_text() == CHANGED
        assert_edited((await heir.wait_idle(editing))[1:], places[2].home / "file")
        await assert_built(await heir.wait_idle(building), pool)


def edited(path: str) -> tuple[tuple[str, Json], ...]:
    """A repeated insertion would be visible as two."""
    edits = [{"old_text": "x", "new_text": "xx"}]
    return (
        ("write_file", {"path": path, "content": "x\n"}),
        ("edit_files", {"files": [{"path": path, "edits": edits}]}),
    )


def assert_counted(results: list[Json]) -> None:
    told, file = results
    assert (told["success"], told["output"]) == (True, COUNTED)
    assert file["output"] == COUNTED


def assert_edited(results: list[Json], file: Path) -> None:
    assert results[1]["ok"]
    assert "-x\n+xx\n" in results[1]["files"][0]["diff"]
    assert file.read_text() == "xx\n"


async def assert_built(results: list[Json], pool: Pool) -> None:
    """Started twice in the same place; one workspace exists."""
    made, builds = results
    assert (made["created"], builds["output"]) == (True, "begun\nbegun\n")
    rows = await pool.fetch(
        """SELECT attempt FROM workspace_builds
           JOIN workspaces w ON w.id = workspace_id JOIN templates t ON t.id = template_id
           WHERE t.name = 'slow'"""
    )
    assert [row["attempt"] for row in rows] == [2]
