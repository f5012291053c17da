"""The demo on a fresh data directory: it repairs a real bug, in an isolated workspace."""

import asyncio
import json
import os
import shlex
import shutil
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from pwd import getpwuid
from urllib.parse import urlsplit

import pytest

from tests.support.local_rig import NO_BUBBLEWRAP
from tests.workspace_turns import probe
from tests.workspace_turns.servers import (
    Json,
    ServerSite,
    WorkspacePaths,
    WorkspaceServer,
    execute,
    message_body,
)

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")

CANARY = "a-secret-that-only-the-server-knows"
RIGHT = "    return amount * (100 - discount_percent) / 100"
DIFF = f"-    return amount - discount_percent\n+{RIGHT}\n"


@pytest.mark.usefixtures("real_start")
@pytest.mark.covers("workspaces-7", "hostile-8")
@pytest.mark.promise("P13")
@pytest.mark.promise("P16")
async def test_the_demo_repairs_its_bug_and_stays_isolated(site: ServerSite) -> None:
    """Takes seconds: a server is started, and pytest runs twice in the workspace."""
    async with site.server(CHATD_ADMIN_TOKEN=CANARY) as server:
        said = {**message_body("please fix the failing test"), "model": "quick-demo"}
        chat = (await server.ask("POST", "/chats", said))["id"]
        other = await server.create("other", site.create("plain"), execute("echo mine > secret"))
        results = await server.wait_idle(chat)
        assert_mended(results, (await server.parts(chat))[-1]["text"])
        made = next(result for result in results if result.get("created"))
        mine = WorkspacePaths.of(site, made)
        assert RIGHT in (mine.home / "demo" / "basket.py").read_text().splitlines()
        await server.wait_idle(other)
        wanted = attempts(site, server, WorkspacePaths.of(site, (await server.results(other))[0]))
        assert set((await on_the_host(wanted)).values()) == {True}
        shutil.copy(Path(probe.__file__), mine.home / "demo" / "probe.py")
        await server.send(chat, "probe", execute(f"python3 probe.py {shlex.quote(wanted)}"))
        got = (await server.wait_idle(chat))[-1]
        assert got["success"], got
        assert set(json.loads(got["output"]).values()) == {False}, got["output"]


async def test_the_demo_plans_and_implements_its_plan(site: ServerSite) -> None:
    """Takes seconds: a server is started, and pytest runs twice in the workspace."""
    async with site.server() as server:
        said = {**message_body("fix the failing test"), "model": "quick-demo", "mode": "plan"}
        chat = (await server.ask("POST", "/chats", said))["id"]
        *_, listing, written, proposed = await server.wait_idle(chat)
        assert "basket.py" in listing["output"]
        assert written == {"ok": True}
        assert proposed["path"].endswith(f"/.chatd/plans/PLAN-{chat}.md")
        (file,) = (await server.ask("GET", f"/chats/{chat}/files"))["items"]
        assert (file["id"], file["media_type"]) == (proposed["file_id"], "text/markdown")
        place = WorkspacePaths.of(
            site, next(each for each in await server.results(chat) if each.get("created"))
        )
        code = place.home / "demo" / "basket.py"
        assert RIGHT not in code.read_text()
        said = {**message_body("Implement the plan."), "model": "quick-demo", "mode": "off"}
        await server.ask("POST", f"/chats/{chat}/messages", said)
        assert_mended(await server.wait_idle(chat), (await server.parts(chat))[-1]["text"])
        assert RIGHT in code.read_text().splitlines()


def assert_mended(results: list[Json], last_words: str) -> None:
    tests = [each["output"] for each in results if " passed" in str(each.get("output"))]
    assert len(tests) == 2
    assert "1 failed, 2 passed" in tests[0]
    assert "3 passed" in tests[1]
    assert "diff --git a/basket.py b/basket.py" in last_words
    assert DIFF in last_words


def attempts(site: ServerSite, server: WorkspaceServer, other: WorkspacePaths) -> str:
    """Files and sockets of the host, the server and another workspace."""
    data, home = site.data_dir, Path(getpwuid(os.geteuid()).pw_dir)
    wanted: Json = {
        "files": [str(other.home / "secret"), str(data / "secret"), __file__],
        "directories": [str(data), str(other.home), *([str(home)] if has_files(home) else [])],
        "ports": [urlsplit(server.url).port],
        "sockets": [str(other.socket)],
        "canary": CANARY,
    }
    return json.dumps(wanted)


def has_files(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


async def on_the_host(wanted: str) -> dict[str, bool]:
    """The same program succeeds without isolation."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, probe.__file__, wanted, stdout=PIPE
    )
    out, _ = await process.communicate()
    return json.loads(out)
