"""MCP servers of a workspace through `chatd serve`: their tools are offered, and a call runs once
although its server was killed."""

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from chatd.store.database.pool import Pool
from tests.support.eventually import eventually
from tests.support.local_rig import NO_BUBBLEWRAP
from tests.support.mcp import plain_server
from tests.workspace_turns.servers import (
    WAIT_TIMEOUT_S,
    Call,
    ScriptedModel,
    ServerSite,
    WorkspacePaths,
    WorkspaceServer,
)

pytestmark = pytest.mark.skipif(NO_BUBBLEWRAP, reason="bubblewrap is not installed")

CONFIG = {
    "mcpServers": {
        "plain": {"command": "python3", "args": ["plain_server.py"]},
        "broken": {"command": "/no/such/program"},
    }
}
LISTED = """SELECT EXISTS (
    SELECT FROM agent_context_resources WHERE kind = 'mcp_server' AND name = 'plain')"""
BUMP: Call = ("workspace__plain__bump", {})


def declare(workspace: WorkspacePaths) -> None:
    (workspace.home / "plain_server.py").write_text(Path(plain_server.__file__).read_text())
    (workspace.home / ".mcp.json").write_text(json.dumps(CONFIG))


async def chat_with_tools(server: WorkspaceServer, pool: Pool) -> tuple[str, WorkspacePaths]:
    """A chat whose workspace has an MCP server, which chatd knows already."""
    maker = await server.create("first", server.site.create("plain"))
    workspace = await server.workspace_of(maker)
    declare(workspace)

    async def is_listed() -> bool:
        return bool(await pool.fetchval(LISTED))

    await eventually(is_listed, within_s=WAIT_TIMEOUT_S)
    chat = await server.create("second", BUMP, workspace_id=workspace.root.name)
    assert await server.wait_idle(chat) == [{"output": "1 bumps, None"}]
    (workspace.home / "bumps").unlink()
    return chat, workspace


def bumps(workspace: WorkspacePaths) -> list[str]:
    path = workspace.home / "bumps"
    return path.read_text().split() if path.exists() else []


@pytest.mark.covers("mcp-11")
@pytest.mark.promise("P7")
async def test_a_call_of_a_killed_server_runs_once_and_another_reports_it(
    site: ServerSite, model: ScriptedModel, pool: Pool
) -> None:
    """Takes seconds: servers are started, and the workspace's tools are read at intervals."""
    async with AsyncExitStack() as stack:
        victim = await stack.enter_async_context(site.server())
        chat, workspace = await chat_with_tools(victim, pool)
        heir = await stack.enter_async_context(site.server())
        before = len(await victim.results(chat))
        await victim.send(chat, "wait", ("workspace__plain__wait", {}))

        async def is_running() -> bool:
            return bumps(workspace) == ["wait"]

        await eventually(is_running, within_s=WAIT_TIMEOUT_S)
        await victim.kill()
        (workspace.home / "go").touch()
        [result] = (await heir.wait_idle(chat))[before:]
        assert result == {"output": "1 bumps, None"}
        assert bumps(workspace) == ["wait"]
        assert "cannot be used now: broken (" in model.requests[-1].body.decode()
        sent = json.loads(model.requests[-1].body)
        assert {"workspace__plain__bump", "workspace__plain__wait"} <= {
            tool["function"]["name"] for tool in sent["tools"]
        }
