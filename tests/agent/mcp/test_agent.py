"""A workspace agent as a process with MCP servers: its context lists their tools, and a call key
runs a call once."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from shutil import copy

import pytest
from msgspec import Raw

from chatd.domain.workspace.agent_api import AgentRefused, ContextResource
from tests.support.eventually import eventually
from tests.support.mcp import plain_server
from tests.support.outcomes import raised
from tests.workspaces.agent_process import Workbench, running_agent

NO_ARGS = Raw(b"{}")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Workbench]:
    async with running_agent(tmp_path) as bench:
        yield bench


def declare(bench: Workbench, **servers: object) -> None:
    path = Path(bench.path(".mcp.json"))
    path.write_text(json.dumps({"mcpServers": servers}))


def exists(bench: Workbench, name: str) -> bool:
    return Path(bench.path(name)).exists()


def touch(bench: Workbench, name: str) -> None:
    Path(bench.path(name)).touch()


def remove(bench: Workbench, name: str) -> None:
    Path(bench.path(name)).unlink()


def plain(**fields: object) -> dict[str, object]:
    return {"command": sys.executable, "args": ["plain_server.py"], **fields}


async def listed(bench: Workbench, name: str, status: str = "ok") -> ContextResource:
    """Wait until the context has the server in this state."""

    async def look() -> ContextResource | None:
        try:
            found = (await bench.conn.context()).resources
        except AgentRefused:  # the context is not read yet
            return None
        for resource in found:
            if (resource.kind, resource.name, resource.status) == ("mcp_server", name, status):
                return resource
        return None

    return await eventually(look)


async def text(bench: Workbench, tool: str, key: str) -> str:
    raw = await bench.conn.call_mcp_tool("plain", tool, NO_ARGS, key=bench.key(key))
    return json.loads(bytes(raw))["content"][0]["text"]


@pytest.fixture
async def plain_bench(bench: Workbench) -> Workbench:
    copy(plain_server.__file__, bench.path("plain_server.py"))
    declare(bench, plain=plain(env={"LABEL": "${GREETING} you"}))
    await listed(bench, "plain")
    return bench


async def test_the_context_lists_tools_but_never_the_configuration(plain_bench: Workbench) -> None:
    tools = json.loads((await listed(plain_bench, "plain")).content)
    assert [tool["name"] for tool in tools] == ["bump", "wait", "large"]
    context = await plain_bench.conn.context()
    assert "GREETING" not in str(context)
    assert {resource.kind for resource in context.resources} == {"mcp_config", "mcp_server"}


@pytest.mark.covers("mcp-11")
async def test_a_call_key_runs_a_call_once(plain_bench: Workbench) -> None:
    assert await text(plain_bench, "bump", "a") == "1 bumps, hello you"
    assert await text(plain_bench, "bump", "a") == "1 bumps, hello you"
    assert await text(plain_bench, "bump", "b") == "2 bumps, hello you"


async def test_a_repeated_key_joins_the_call_that_runs(plain_bench: Workbench) -> None:
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(text(plain_bench, "wait", "a")) for _ in range(3)]

        async def is_running() -> bool:
            return exists(plain_bench, "bumps")

        await eventually(is_running)
        touch(plain_bench, "go")
    assert {call.result() for call in calls} == {"1 bumps, hello you"}


async def test_a_result_that_the_journal_does_not_keep_is_still_there(
    plain_bench: Workbench,
) -> None:
    for _ in range(2):
        assert len(await text(plain_bench, "large", "a")) == 100_000


async def test_a_server_that_comes_later_is_found_and_a_removed_one_goes(bench: Workbench) -> None:
    copy(plain_server.__file__, bench.path("plain_server.py"))
    declare(bench, broken={"command": "/no/such/program"})
    assert (await listed(bench, "broken", "unreadable")).error
    declare(bench, plain=plain())
    await listed(bench, "plain")
    remove(bench, ".mcp.json")

    async def is_gone() -> bool:
        found = (await bench.conn.context()).resources
        return not any(resource.kind == "mcp_server" for resource in found)

    await eventually(is_gone)


async def test_an_unknown_server_is_refused(plain_bench: Workbench) -> None:
    call = plain_bench.conn.call_mcp_tool("none", "t", NO_ARGS, key=plain_bench.key("a"))
    refused = await raised(AgentRefused, call)
    assert "Servers: plain" in refused.message
