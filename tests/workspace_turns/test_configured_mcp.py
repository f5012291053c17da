"""Configured MCP servers through `chatd serve`: a call whose replica is killed ends as an unknown
outcome and does not run twice."""

from collections.abc import Generator
from contextlib import AsyncExitStack

import pytest

from chatd.engine.tool_runner import UNKNOWN_OUTCOME_OUTPUT
from tests.support.mcp.rig import ServerProcess, tool_server
from tests.workspace_turns.servers import ServerSite


@pytest.fixture(scope="module")
def tools() -> Generator[ServerProcess]:
    with tool_server("http") as server:
        yield server


@pytest.fixture
def site_with_tools(site: ServerSite, tools: ServerProcess) -> ServerSite:
    site.add_settings(
        "[[mcp_servers]]",
        'slug = "tools"',
        f'url = "{tools.url}"',
        'availability = "force_on"',
        "[mcp]",
        'private_hosts = ["127.0.0.1"]',
    )
    return site


@pytest.mark.covers("mcp-9")
@pytest.mark.promise("P7")
async def test_a_call_of_a_killed_replica_has_an_unknown_outcome_and_does_not_run_twice(
    site_with_tools: ServerSite, tools: ServerProcess
) -> None:
    """Takes seconds: servers are started, and one is found to be dead."""
    async with AsyncExitStack() as stack:
        victim = await stack.enter_async_context(site_with_tools.server())
        chat = await victim.create("first", ("tools__echo", {"text": "hi"}), ("tools__bump", {}))
        assert await victim.wait_idle(chat) == [
            {"output": "you said hi"},
            {"output": "bumped by 1"},
        ]
        heir = await stack.enter_async_context(site_with_tools.server())
        await victim.send(chat, "hang", ("tools__hang", {}))
        await tools.wait_called("hang")
        await victim.kill()
        *_, result = await heir.wait_idle(chat)
        assert result == {"error": UNKNOWN_OUTCOME_OUTPUT.text}
        assert (await tools.calls())["hang"] == 1
        [called, *_] = [part for part in await heir.parts(chat) if part["type"] == "tool-call"]
        assert called["mcp_server_config_id"]
